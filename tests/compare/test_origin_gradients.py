# SPDX-License-Identifier: Apache-2.0
"""Faults that show in gradients only, and what later steps and other ranks inherit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import compare
from numpy.typing import NDArray

from builders.dumps import DumpBuilder, value
from builders.facts import adamw, arrays, optimizer_step, start_state

Array = NDArray[Any]
RNG = np.random.default_rng(10)
X = RNG.standard_normal((16, 8)).astype(np.float32)
W = RNG.standard_normal((8, 8)).astype(np.float32)
G = RNG.standard_normal((16, 8)).astype(np.float32)
FC = "Module.fc.Linear.forward.0"
TRAINED = {"requires_grad": True}


def step(
    folder: Path,
    *,
    hook: float = 1.0,
    weight_hook: float = 1.0,
    backward: float = 1.0,
    lost: bool = False,
    detached: bool = False,
    w: Array = W,
    number: int = 0,
    noise: float = 0.0,
) -> Path:
    """Write y = x W and s = y + sin(y), with gradients; several places can be made faulty."""
    dump = DumpBuilder(folder, "tensor", step=number)
    y = X @ w
    t = np.sin(y)
    kept = {"requires_grad": not detached}
    dump.call(
        "Functional.linear.0.forward",
        [value(X), value(w, **TRAINED)],
        [value(y, 1, **TRAINED)],
        parent=FC,
    )
    dump.call(FC, [value(X)], [value(y, 1, **TRAINED)], parameters={"weight": value(w, **TRAINED)})
    dump.call("Torch.sin.0.forward", [value(y, 1, **kept)], [value(t, 2, **kept)])
    dump.call(
        "Tensor.add.0.forward", [value(y, 1, **TRAINED), value(t, 2, **kept)], [value(y + t, 3)]
    )
    share = G * np.cos(y) * np.float32(backward)
    dump.call(
        "Tensor.add.0.backward", [value(G, 4)], [value(G, 4), None if detached else value(G, 4)]
    )
    if not detached:
        dump.call("Torch.sin.0.backward", [value(G, 4)], [value(share, 5)])
    total = (G + (0 if detached else share)) * np.float32(hook)
    grad = (X.T @ total) * np.float32(1 + noise)
    dump.call("Functional.linear.0.backward", [value(total, 6)], [None, value(grad, 7)], parent=FC)
    if not lost:
        factor = np.float32(weight_hook)
        own = value(grad * factor, 7 if weight_hook == 1 else 8)
        dump.gradients("Module.fc.Linear.parameters_grad", weight=own)
    return dump.write()


def with_root(folder: Path, *, has_root: bool) -> Path:
    """Write y = x W and, in one of two programs, y + 0 sqrt(0), whose gradient is NaN."""
    dump = DumpBuilder(folder, "statistics")
    y, zero = X @ W, np.zeros((), np.float32)
    nan = np.full_like(y, np.nan)
    given = [value(X), value(W, **TRAINED)]
    dump.call("Functional.linear.0.forward", given, [value(y, 1, **TRAINED)], line=3)
    last = 1
    if has_root:
        dump.call("Tensor.norm.0.forward", [value(y, 1, **TRAINED)], [value(zero, 2)], line=4)
        dump.call("Tensor.sqrt.0.forward", [value(zero, 2)], [value(zero, 3)], line=5)
        dump.call("Tensor.add.0.forward", [value(y, 1), value(zero, 3)], [value(y, 4)], line=6)
        last = 4
    dump.call("Torch.tanh.0.forward", [value(y, last)], [value(np.tanh(y), 5)], line=7)
    dump.call("Torch.tanh.0.backward", [value(G, 6)], [value(G, 7)])
    if has_root:
        root = value(np.full((), np.nan, np.float32), 8)
        dump.call("Tensor.add.0.backward", [value(G, 7)], [value(G, 7), value(zero, 9)])
        dump.call("Tensor.sqrt.0.backward", [value(zero, 9)], [root])
        dump.call("Tensor.norm.0.backward", [root], [value(nan, 10)])
    coming = value(nan, 11) if has_root else value(G, 7)
    grad = np.full_like(W, np.nan) if has_root else X.T @ G
    dump.call("Functional.linear.0.backward", [coming], [None, value(grad, 12)])
    return dump.write()


def test_a_call_of_the_target_alone_that_makes_nan_of_a_gradient_is_blamed(tmp_path: Path) -> None:
    found = compare(
        with_root(tmp_path / "t", has_root=True), with_root(tmp_path / "r", has_root=False)
    )

    assert found.culprits[0] == "Tensor.sqrt.0.backward"
    assert "its result holds NaN" in found.reason("Tensor.sqrt.0.backward.output.0")
    assert "which makes NaN" in found.summary["verdict"]["sentence"]


def test_a_gradient_that_was_changed_between_calls_is_blamed_where_it_arrives(
    tmp_path: Path,
) -> None:
    found = compare(step(tmp_path / "t", hook=1.5), step(tmp_path / "r"))

    assert found.culprits == ["Functional.linear.0.backward"]
    assert "changed after the calls" in found.reason("Functional.linear.0.backward.input.0")
    assert found.summary["introduced"][0]["kind"] == "backward"
    assert found.summary["introduced"][0]["cause"] == "changed_gradient"
    assert found.origin("Module.fc.Linear.parameters_grad.weight") == "inherited"


def test_a_wrong_backward_is_blamed_and_the_sum_of_gradients_inherits(tmp_path: Path) -> None:
    found = compare(step(tmp_path / "t", backward=-1.0), step(tmp_path / "r"))

    assert found.culprits == ["Torch.sin.0.backward"]
    assert found.origin("Functional.linear.0.backward.input.0") == "inherited"


def test_a_doubled_gradient_of_a_parameter_is_blamed_on_the_parameter(tmp_path: Path) -> None:
    found = compare(step(tmp_path / "t", weight_hook=2.0), step(tmp_path / "r"))

    assert found.culprits == ["Module.fc.Linear.parameters_grad"]
    entry = found.summary["introduced"][0]
    assert (entry["kind"], entry["module"]) == ("parameter_grad", "fc")


def test_a_gradient_that_is_missing_is_found(tmp_path: Path) -> None:
    found = compare(step(tmp_path / "t", lost=True), step(tmp_path / "r"))

    assert found.culprits == ["Module.fc.Linear.parameters_grad"]
    assert found.summary["introduced"][0]["status"] == "missing"
    assert "no gradient in the target" in found.summary["introduced"][0]["reason"]


def test_a_detached_value_is_blamed_on_the_call_whose_gradient_ends(tmp_path: Path) -> None:
    found = compare(step(tmp_path / "t", detached=True), step(tmp_path / "r"))

    assert found.culprits[0] == "Torch.sin.0.backward"
    assert found.origin("Functional.linear.0.backward.input.0") == "inherited"


def cut_module(folder: Path, path: str, *, cut: bool) -> Path:
    """Write a module and a call that uses its result; the module may let no gradient through."""
    base = f"Module.{path}.Linear"
    y = value(X @ W, 1, requires_grad=not cut)
    dump = DumpBuilder(folder)
    dump.call(f"{base}.forward.0", [value(X, **TRAINED)], [y])
    dump.call("Torch.sin.0.forward", [y], [value(np.sin(X), 2, **TRAINED)])
    dump.call("Torch.sin.0.backward", [value(G, 3)], [None if cut else value(G, 4)])
    if not cut:
        dump.call(f"{base}.backward.0", [value(G, 4)], [value(G, 5)])
    return dump.write()


@pytest.mark.parametrize("path", ["fc", "forward_proj", "net.forward"])
def test_a_gradient_that_ends_in_a_module_is_blamed_there_whatever_its_name(
    tmp_path: Path, path: str
) -> None:
    found = compare(
        cut_module(tmp_path / "t", path, cut=True), cut_module(tmp_path / "r", path, cut=False)
    )

    assert found.culprits == [f"Module.{path}.Linear.backward.0"]
    assert found.origin("Torch.sin.0.backward.output.0") == "inherited"


def test_later_steps_inherit_from_gradients_that_differed(tmp_path: Path) -> None:
    for side, backward, noise in (("t", 1.0, 1e-2), ("r", 1.0, 0.0)):
        step(tmp_path / side, backward=backward, noise=noise)
        step(tmp_path / side, number=1, w=W * np.float32(1 + noise))

    found = compare(tmp_path / "t", tmp_path / "r")

    assert found.culprits == ["Functional.linear.0.backward"]
    assert [entry["step"] for entry in found.summary["introduced"]] == [0]


def test_a_parameter_that_was_updated_differently_is_a_culprit(tmp_path: Path) -> None:
    for side, factor in (("t", 1.0), ("r", 1.01)):
        step(tmp_path / side)
        step(tmp_path / side, number=1, w=W * np.float32(factor))

    found = compare(tmp_path / "t", tmp_path / "r")

    entry = found.summary["introduced"][0]
    assert (entry["name"], entry["step"], entry["kind"]) == (FC, 1, "parameter")
    assert "updated differently" in entry["reason"]


def modules_only(folder: Path, *, noise: float = 0.0, hook: float = 1.0) -> Path:
    """Write a layer at level L0, with a bias whose gradient cancels to nearly nothing."""
    dump = DumpBuilder(folder, "tensor", level="L0")
    y = X @ W
    centred = ((G - G.mean(axis=0)) * np.float32(1 + noise)).astype(np.float32)
    bias = centred.sum(axis=0) + np.float32(1e-8 * (1 + 1e6 * noise))
    weight = X.T @ centred * np.float32(hook)
    dump.call(FC, [value(X)], [value(y)], parameters={"weight": value(W), "bias": value(W[0])})
    dump.gradients("Module.fc.Linear.parameters_grad", weight=value(weight), bias=value(bias))
    dump.call("Module.fc.Linear.backward.0", [value(centred)], [None])
    return dump.write()


def test_a_bias_gradient_that_cancels_is_rounding_at_level_l0(tmp_path: Path) -> None:
    reference = modules_only(tmp_path / "r")

    rounding = compare(modules_only(tmp_path / "t", noise=3e-7), reference)
    fault = compare(modules_only(tmp_path / "f", hook=1.1), reference)

    assert rounding.status("Module.fc.Linear.parameters_grad.bias") == "close"
    assert rounding.culprits == []
    assert fault.culprits == ["Module.fc.Linear.parameters_grad"]


def ranks(folder: Path, scales: tuple[float, float]) -> Path:
    """Write a collective that sums what two ranks computed."""
    shares = [np.sin(X) * np.float32(scale) for scale in scales]
    for rank, share in enumerate(shares):
        dump = DumpBuilder(folder, rank=f"rank{rank}")
        dump.call("Torch.sin.0.forward", [value(X)], [value(share, 1)])
        total = value(shares[0] + shares[1], 2)
        dump.call("Distributed.all_reduce.0.forward", [value(share, 1)], [total])
        dump.write()
    return folder


def test_a_collective_inherits_what_another_rank_put_in(tmp_path: Path) -> None:
    found = compare(ranks(tmp_path / "t", (1.0, 1.1)), ranks(tmp_path / "r", (1.0, 1.0)))

    entries = found.summary["introduced"]
    assert [(entry["name"], entry["rank"]) for entry in entries] == [("Torch.sin.0.forward", 1)]
    frame = found.result.frame
    row = frame.filter(
        (frame["rank"] == "0") & (frame["name"] == "Distributed.all_reduce.0.forward.output.0")
    ).row(0, named=True)
    assert row["origin"] == "inherited"
    assert "rank 1" in row["reason"]


@pytest.mark.parametrize("whole", [1.0, 1.5])
def test_a_gradient_that_is_summed_in_fewer_parts_is_no_lost_one(
    tmp_path: Path, whole: float
) -> None:
    def written(folder: Path, *, parts: int, factor: float = 1.0) -> Path:
        dump = DumpBuilder(folder, "statistics")
        given, weight = [value(X)], {"weight": value(W, **TRAINED)}
        dump.call(FC, given, [value(X @ W, 1, **TRAINED)], parameters=weight)
        for name in ("", ".1")[:parts]:
            dump.gradients(f"Module.fc.Linear.parameters_grad{name}", weight=value(X.T @ G))
        total = value(X.T @ G * np.float32(2 * factor))
        dump.gradients("Module.fc.Linear.parameters_grad_reduced", weight=total)
        return dump.write()

    found = compare(
        written(tmp_path / "t", parts=1, factor=whole), written(tmp_path / "r", parts=2)
    )

    assert bool(found.culprits) is (whole != 1)


def test_a_reduction_that_one_side_leaves_out_is_named_for_what_it_is_given(
    tmp_path: Path,
) -> None:
    """Where a tensor is distributed, each rank adds its part of the bias."""

    def written(folder: Path, share: Array, *, is_reduced: bool) -> Path:
        dump = DumpBuilder(folder, "statistics")
        dump.call("Functional.linear.0.forward", [value(X), value(W)], [value(share, 1)])
        if is_reduced:
            given = [value(share, 1)]
            dump.call("Distributed.all_reduce.0.forward", given, [value(2 * share, 2)])
        total = value(2 * share, 2) if is_reduced else value(share, 1)
        dump.call("Torch.tanh.0.forward", [total], [value(np.tanh(2 * share), 3)])
        return dump.write()

    found = compare(
        written(tmp_path / "t", X @ W + 1, is_reduced=False),
        written(tmp_path / "r", X @ W, is_reduced=True),
    )

    verdict = found.summary["verdict"]
    assert verdict["class"] == "communication"
    assert "only the reference calls Distributed.all_reduce.0.forward" in verdict["sentence"]


def clipped(folder: Path, limit: float) -> Path:
    """Write gradients as they are made, and as a rank of several has them when it steps."""
    made, before = arrays(1), arrays()
    total = math.hypot(*(float(np.linalg.norm(each)) for each in made.values()))
    given = {name: np.float32(each * limit / total).astype(float) for name, each in made.items()}
    dump = DumpBuilder(folder)
    dump.call("Module.a.Linear.forward.0", [value(X, 1)], [value(X @ W, 2)])
    for kind, each in (("parameters_grad", made), ("parameters_grad_reduced", given)):
        dump.gradients(f"Module.a.Linear.{kind}", weight=value(np.float32(each["a.weight"])))
    dump.write()
    clip = {
        "kind": "clip",
        "function": "clip_grad_norm_",
        "max": limit,
        "norm_type": 2.0,
        "total_norm": total,
        "parameters": len(made),
    }
    events = [clip, optimizer_step(before, given, adamw(before, given))]
    facts = {"version": 1, "parameters": start_state(before), "events": events}
    (folder / "step0" / "rank" / "facts.json").write_text(json.dumps(facts))
    return folder


def test_a_factor_of_reduced_gradients_that_clipping_made_is_clipping(tmp_path: Path) -> None:
    found = compare(clipped(tmp_path / "new", 0.1), clipped(tmp_path / "old", 0.3))

    assert found.summary["verdict"]["class"] == "clipping"
    assert "max_norm 0.1 in the target, 0.3" in found.summary["verdict"]["sentence"]


@pytest.mark.parametrize("hook", [1.0, 1.001])
def test_a_gradient_that_adds_up_of_close_shares_is_not_blamed(tmp_path: Path, hook: float) -> None:
    """Its smallest element is another one than that of a share, which hides the same error."""
    signs = np.sign(RNG.standard_normal((2, 48 * 48)))
    x, g = RNG.standard_normal((2, 16, 48)).astype(np.float32)

    def tensor(array: Array, number: int) -> Any:
        return value(array, number, projections=(signs @ array.ravel().astype(float)).tolist())

    def written(folder: Path, *, error: float = 0.0, factor: float = 1.0) -> Path:
        dump = DumpBuilder(folder, "statistics")
        w, total = np.eye(48, dtype=np.float32), np.float32(0)
        for i in range(2):
            module, made = f"Module.fc.Linear.forward.{i}", value(x, 10 + i, **TRAINED)
            given = [value(x), value(w, **TRAINED)]
            dump.call(f"Functional.linear.{i}.forward", given, [made], parent=module)
            dump.call(module, [value(x)], [made], parameters={"weight": value(w, **TRAINED)})
        for i, share in enumerate((x.T @ g, np.abs(x.T) @ np.abs(g))):
            share[0, 0] = 10 + error if i else -40
            total = total + share
            made = [None, tensor(share, 30 + i)]
            parent = f"Module.fc.Linear.forward.{i}"
            dump.call(f"Functional.linear.{i}.backward", [value(g, 20 + i)], made, parent=parent)
            own = tensor(total * np.float32(factor if i else 1), 40 + i)
            dump.gradients(f"Module.fc.Linear.parameters_grad{'.1' * i}", weight=own)
        return dump.write()

    found = compare(written(tmp_path / "t", error=0.01, factor=hook), written(tmp_path / "r"))
    assert found.status("Functional.linear.1.backward.output.1") == "close"
    assert found.status("Module.fc.Linear.parameters_grad.1.weight") == "differs"
    assert found.culprits == ["Module.fc.Linear.parameters_grad.1"] * (hook != 1)


@pytest.mark.parametrize("hook", [1.0, 1.001])
def test_a_gradient_that_is_kept_in_another_order_of_memory_is_not_blamed(
    tmp_path: Path, hook: float
) -> None:
    """One side keeps what was handed back, the other a copy with other projections."""
    signs = np.sign(RNG.standard_normal((2, 48 * 48)))
    x, g = RNG.standard_normal((2, 16, 48)).astype(np.float32)
    moved = RNG.standard_normal((48, 48)).astype(np.float32)

    def tensor(array: Array, number: int, *, is_turned: bool = False) -> Any:
        elements = (array.T if is_turned else array).ravel().astype(float)
        about = {"stride": [1, 48]} if is_turned else {}
        return value(array, number, projections=(signs @ elements).tolist(), **about)

    def written(folder: Path, *, is_target: bool) -> Path:
        dump = DumpBuilder(folder, "statistics")
        module, w = "Module.fc.Linear.forward.0", np.eye(48, dtype=np.float32)
        given, made = [value(x), value(w, **TRAINED)], value(x, 10, **TRAINED)
        dump.call("Functional.linear.0.forward", given, [made], parent=module)
        dump.call(module, [value(x)], [made], parameters={"weight": value(w, **TRAINED)})
        # Products cancel: their rounding is large beside their sum.
        share = (x.T @ g) * np.float32(1e-2) + moved * np.float32(5e-7 * is_target)
        coming = value(g, 20)
        dump.call(
            "Functional.linear.0.backward", [coming], [None, tensor(share, 30)], parent=module
        )
        own = tensor(share, 30)
        if not is_target:
            own = tensor(share * np.float32(hook), 31, is_turned=True)
        dump.gradients("Module.fc.Linear.parameters_grad", weight=own)
        return dump.write()

    found = compare(
        written(tmp_path / "t", is_target=True), written(tmp_path / "r", is_target=False)
    )
    assert found.status("Functional.linear.0.backward.output.1") == "close"
    assert found.culprits == ["Module.fc.Linear.parameters_grad"] * (hook != 1)
