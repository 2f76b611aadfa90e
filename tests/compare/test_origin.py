# SPDX-License-Identifier: Apache-2.0
"""Which call introduces a difference, and which merely inherits it: forward passes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import compare
from numpy.typing import NDArray

from builders.dumps import DumpBuilder, value
from builders.networks import write_debug_dump

Array = NDArray[Any]
RNG = np.random.default_rng(8)
X = RNG.standard_normal((16, 32)).astype(np.float32)
W = (RNG.standard_normal((32, 32)) / 6).astype(np.float32)
MODEL = "Module.Net.forward.0"

BOTH = pytest.mark.parametrize("task", ["statistics", "tensor"])


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def chain(
    folder: Path,
    task: str = "statistics",
    *,
    x: Array = X,
    w: Array = W,
    noise: float = 0.0,
    scale: float = 1.0,
    slope: Any = 0.0,
) -> Path:
    """Write linear → leaky_relu → mul inside a model; `noise` is added by the linear."""
    y = x @ w.T
    y = y * np.float32(1 + noise)
    a = np.where(y > 0, y, y * np.float32(slope if slope else 0.01))
    z = a * np.float32(scale)
    dump = DumpBuilder(folder, task)
    inner = "Module.fc.Linear.forward.0"
    dump.call(
        "Functional.linear.0.forward", [value(x), value(w)], [value(y, 1)], parent=inner, line=3
    )
    dump.call(inner, [value(x)], [value(y, 1)], parameters={"weight": value(w)}, parent=MODEL)
    dump.call("Functional.leaky_relu.0.forward", [value(y, 1), slope], [value(a, 2)], parent=MODEL)
    dump.call("Tensor.mul.0.forward", [value(a, 2), scale], [value(z, 3)], parent=MODEL, line=5)
    dump.call(MODEL, [value(x)], [value(z, 3)], parameters={})
    return dump.write()


@BOTH
def test_the_call_whose_inputs_agree_introduces_and_all_others_inherit(
    tmp_path: Path, task: str
) -> None:
    found = compare(chain(tmp_path / "t", task, noise=0.01), chain(tmp_path / "r", task))

    assert found.culprits == ["Functional.linear.0.forward"]
    assert found.summary["origins"] == {
        "introduced": 1,
        "inherited": 6,
        "amplified": 0,
        "input": 0,
    }
    first = found.summary["first_difference"]
    assert first["name"] == "Functional.linear.0.forward.output.0"
    assert first["origin"] == "introduced"
    assert first["source"] == "train.py:3"
    assert first["module"] == "fc"


@BOTH
def test_a_parameter_is_the_culprit_of_its_module(tmp_path: Path, task: str) -> None:
    target = chain(tmp_path / "t", task, w=W * np.float32(1.01))

    found = compare(target, chain(tmp_path / "r", task))

    assert found.culprits == ["Module.fc.Linear.forward.0"]
    entry = found.summary["introduced"][0]
    assert (entry["kind"], entry["module"]) == ("parameter", "fc")
    assert entry["row"] == "Module.fc.Linear.forward.0.parameters.weight"
    assert found.origin("Functional.linear.0.forward.input.1") == "inherited"


@BOTH
def test_an_argument_that_is_no_tensor_is_the_culprit_of_its_call(
    tmp_path: Path, task: str
) -> None:
    found = compare(chain(tmp_path / "t", task, slope=0.3), chain(tmp_path / "r", task, slope=0.2))

    assert found.culprits == ["Functional.leaky_relu.0.forward"]
    assert found.summary["introduced"][0]["row"] == "Functional.leaky_relu.0.forward.input.1"
    assert found.origin("Functional.leaky_relu.0.forward.output.0") == "introduced"
    assert "0.3 instead of 0.2" in found.reason("Functional.leaky_relu.0.forward.input.1")


@BOTH
def test_differing_data_come_in_and_nobody_is_to_blame(tmp_path: Path, task: str) -> None:
    found = compare(chain(tmp_path / "t", task, x=X + 1), chain(tmp_path / "r", task))

    assert found.culprits == []
    assert found.origin("Functional.linear.0.forward.input.0") == "input"
    assert found.origin(f"{MODEL}.input.0") == "input"
    assert found.origin("Functional.linear.0.forward.output.0") == "inherited"
    assert "same batch" in found.summary["next_steps"][0]


def test_two_faults_are_both_named_in_their_order(tmp_path: Path) -> None:
    target = chain(tmp_path / "t", noise=0.01, scale=0.5)

    found = compare(target, chain(tmp_path / "r"))

    assert found.culprits == ["Functional.linear.0.forward", "Tensor.mul.0.forward"]


@BOTH
def test_nan_is_introduced_by_the_first_call_with_finite_inputs(tmp_path: Path, task: str) -> None:
    def write(side: str, number: float) -> Path:
        y = relu(X)
        y[3, 4] = number
        dump = DumpBuilder(tmp_path / side, task)
        dump.call("Torch.relu.0.forward", [value(X)], [value(y, 1)])
        dump.call("Torch.neg.0.forward", [value(y, 1)], [value(-y, 2)])
        return dump.write()

    with np.errstate(invalid="ignore"):
        found = compare(write("t", np.nan), write("r", 1.0))

    assert found.culprits == ["Torch.relu.0.forward"]
    assert found.status("Torch.neg.0.forward.output.0") == "nonfinite"
    assert found.origin("Torch.neg.0.forward.output.0") == "inherited"


def product(folder: Path, task: str, x: Array, noise: Array) -> Path:
    """Write a product whose terms nearly cancel: the result is small against its inputs."""
    w = np.concatenate([np.ones((1, 16)), -np.ones((1, 16))], axis=1).astype(np.float32)
    y = (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32) + noise
    dump = DumpBuilder(folder, task)
    dump.call("Functional.linear.0.forward", [value(x), value(w)], [value(y, 1)])
    dump.call("Torch.clone.0.forward", [value(y, 1)], [value(y, 2)])
    return dump.write()


@BOTH
def test_rounding_of_terms_that_cancel_is_close(tmp_path: Path, task: str) -> None:
    half = RNG.standard_normal((8, 16)).astype(np.float32) * 1000
    x = np.concatenate([half, half], axis=1)
    noise = (RNG.standard_normal((8, 1)) * 1e-3).astype(np.float32)

    small = product(tmp_path / "t", task, x, noise), product(tmp_path / "r", task, x, 0 * noise)
    large = product(tmp_path / "l", task, x, noise * 1000), small[1]
    rounding, fault = compare(*small), compare(*large)

    assert rounding.status("Functional.linear.0.forward.output.0") == "close"
    assert "terms cancel" in rounding.reason("Functional.linear.0.forward.output.0")
    assert rounding.summary["equal"]
    assert fault.culprits == ["Functional.linear.0.forward"]


def test_names_of_folders_decide_nothing(tmp_path: Path) -> None:
    half = RNG.standard_normal((8, 16)).astype(np.float32) * 1000
    x = np.concatenate([half, half], axis=1)
    noise = (RNG.standard_normal((8, 1)) * 1e-3).astype(np.float32)
    target = product(tmp_path / "trained alone", "tensor", x, noise)
    # The message on a file that is gone names its folder.
    (target / "step0/rank/dump_tensor_data/Functional.linear.0.forward.output.0.npy").unlink()

    found = compare(target, product(tmp_path / "r", "tensor", x, 0 * noise))

    assert found.culprits == []


@pytest.mark.parametrize(("task", "words"), [("tensor", "grew "), ("statistics", "grew about ")])
def test_errors_that_grow_more_than_the_call_explains_are_amplified(
    tmp_path: Path, task: str, words: str
) -> None:
    def write(side: str, error: float, growth: float) -> Path:
        x = X * np.float32(1 + error)
        y = x * np.float32(1 + error * growth)
        dump = DumpBuilder(tmp_path / side, task)
        dump.call("Torch.sin.0.forward", [value(X)], [value(x, 1)])
        dump.call("Tensor.contiguous.0.forward", [value(x, 1)], [value(y, 2)])
        return dump.write()

    reference = write("r", 0, 0)
    inherited = compare(write("same", 1e-3, 1.0), reference)
    amplified = compare(write("more", 1e-3, 100.0), reference)

    assert inherited.origin("Tensor.contiguous.0.forward.output.0") == "inherited"
    assert amplified.origin("Tensor.contiguous.0.forward.output.0") == "amplified"
    assert re.search(rf"{words}\d", amplified.reason("Tensor.contiguous.0.forward.output.0"))
    assert amplified.culprits == ["Torch.sin.0.forward"]


def test_a_choice_that_tips_over_is_not_introduced(tmp_path: Path) -> None:
    def write(side: str, error: float, chosen: int) -> Path:
        logits = X.copy()
        logits[0, :2] = [9.0, np.float32(9.0 + error)]
        dump = DumpBuilder(tmp_path / side, "tensor")
        dump.call("Torch.sin.0.forward", [value(X)], [value(logits, 1)])
        picks = np.full(16, 5)
        picks[0] = chosen
        dump.call("Torch.argmax.0.forward", [value(logits, 1), -1], [value(picks, 2)])
        return dump.write()

    tipped = compare(write("t", -1e-6, 0), write("r", 1e-6, 1))
    wrong = compare(write("w", 1e-6, 0), write("r", 1e-6, 1))

    assert tipped.status("Torch.argmax.0.forward.output.0") == "differs"
    assert tipped.culprits == []
    assert wrong.culprits == ["Torch.argmax.0.forward"]


def blocks(folder: Path, *, level: str, fault: str = "", size: float = 0.01) -> Path:
    """Write a block of two layers at level L0: only modules, no flow of data."""
    dump = DumpBuilder(folder, level=level)
    faulty = {name: np.float32(1 + size) if fault == name else np.float32(1) for name in "abc"}
    a = np.tanh(X) * faulty["a"]
    between = (a + X) * faulty["b"]
    c = np.tanh(between) * faulty["c"]
    out = c + between
    dump.call("Module.block.one.Tanh.forward.0", [value(X)], [value(a)], parent=BLOCK)
    dump.call("Module.block.two.Tanh.forward.0", [value(between)], [value(c)], parent=BLOCK)
    dump.call(BLOCK, [value(X)], [value(out)], parent=MODEL)
    dump.call(MODEL, [value(X)], [value(out)])
    return dump.write()


BLOCK = "Module.block.Block.forward.0"


@pytest.mark.parametrize(
    ("fault", "culprit"),
    [
        ("a", "Module.block.one.Tanh.forward.0"),
        ("b", BLOCK),
        ("c", "Module.block.two.Tanh.forward.0"),
    ],
)
def test_at_level_l0_the_innermost_module_is_named(
    tmp_path: Path, fault: str, culprit: str
) -> None:
    reference = blocks(tmp_path / "r", level="L0")

    found = compare(blocks(tmp_path / "t", level="L0", fault=fault), reference)

    assert found.culprits == [culprit]
    assert found.origin(f"{MODEL}.output.0") == "inherited"


def test_at_level_l0_nan_made_between_modules_is_blamed_on_the_module_around(
    tmp_path: Path,
) -> None:
    def write(side: str, number: float) -> Path:
        dump = DumpBuilder(tmp_path / side, level="L0")
        a = np.tanh(X)
        b = relu(a)
        b[1, 2] = number
        c = np.tanh(b)
        dump.call("Module.one.Tanh.forward.0", [value(X)], [value(a)], parent=MODEL)
        dump.call("Module.two.Tanh.forward.0", [value(b)], [value(c)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(c)])
        return dump.write()

    found = compare(write("t", np.nan), write("r", 1.0))

    assert found.culprits == [MODEL]


def test_a_buffer_that_differs_is_blamed_on_the_call_that_takes_it_in(tmp_path: Path) -> None:
    def write(side: str, shift: float) -> Path:
        mask = np.tri(32, dtype=np.float32)[:16] + np.float32(shift)
        dump = DumpBuilder(tmp_path / side, "tensor")
        y = np.sin(X)
        z = y * mask
        dump.call("Torch.sin.0.forward", [value(X)], [value(y, 1)], parent=MODEL)
        dump.call("Tensor.mul.0.forward", [value(y, 1), value(mask)], [value(z, 2)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(z, 2)])
        return dump.write()

    found = compare(write("t", 0.5), write("r", 0.0))

    assert found.culprits == ["Tensor.mul.0.forward"]
    assert "no recorded call made" in found.reason("Tensor.mul.0.forward.input.1")


def test_weights_at_level_l1_are_parameters_though_no_module_tells(tmp_path: Path) -> None:
    def write(side: str, w: Array) -> Path:
        dump = DumpBuilder(tmp_path / side, level="L1")
        return dump.call(
            "Functional.linear.0.forward", [value(X), value(w)], [value(X @ w)]
        ).write()

    found = compare(write("t", W * 2), write("r", W))

    assert found.culprits == ["Functional.linear.0.forward"]
    assert found.origin("Functional.linear.0.forward.input.1") == "introduced"


def test_values_saved_by_hand_differ_first_at_one_place(tmp_path: Path) -> None:
    def write(side: str, scale: float) -> Path:
        arrays = {"x": X, "y": X * np.float32(scale), "z": X * np.float32(2 * scale)}
        return write_debug_dump(tmp_path / side, arrays)

    found = compare(write("t", 1.1), write("r", 1.0))

    assert found.culprits == ["y.0.debug"]
    assert found.origin("z.0.debug") == "inherited"


def test_a_parameter_before_and_after_its_update_is_no_other_parameter(tmp_path: Path) -> None:
    """One side makes a call with it before the update, the other its first one after it."""
    after = W + np.float32(0.01)

    def write(side: str, *, is_early: bool) -> Path:
        dump = DumpBuilder(tmp_path / side)

        def flatten(w: Array, inner: str) -> None:
            given = "Tensor.flatten.0.forward"
            dump.call(given, [value(w)], [value(w.reshape(-1))], parent=inner)

        for number, w in enumerate((W, after)):
            inner = f"Module.fc.Linear.forward.{number}"
            if is_early is not bool(number):
                flatten(w, inner)
            dump.call(inner, [value(X)], [value(X @ w.T)], parameters={"weight": value(w)})
        return dump.write()

    found = compare(write("t", is_early=True), write("r", is_early=False))

    row = "Tensor.flatten.0.forward.input.0"
    assert "called with" not in found.reason(row)
    assert found.origin(row) == "inherited"
