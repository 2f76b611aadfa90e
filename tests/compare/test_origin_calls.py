# SPDX-License-Identifier: Apache-2.0
"""Which call introduces a difference, where the sides make other calls or feed them otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging import compare
from numpy.typing import NDArray

from builders.dumps import DumpBuilder, value
from msprobe.capture.projections import project

Array = NDArray[Any]
RNG = np.random.default_rng(9)
X = RNG.standard_normal((16, 32)).astype(np.float32)
W = (RNG.standard_normal((32, 32)) / 6).astype(np.float32)
MODEL = "Module.Net.forward.0"
BOTH = pytest.mark.parametrize("task", ["statistics", "tensor"])


def residual(folder: Path, task: str, *, drop: bool = False, copy: bool = False) -> Path:
    """Write y = sin(x), z = x + y, exp(z); without the addition, or with a copy too many."""
    dump = DumpBuilder(folder, task)
    x, y = np.cos(X), np.sin(np.cos(X))
    z = y if drop else x + y
    last = 3 if drop else 4
    dump.call("Torch.cos.0.forward", [value(X)], [value(x, 1)], parent=MODEL)
    if copy:
        dump.call("Tensor.clone.0.forward", [value(x, 1)], [value(x, 2)], parent=MODEL)
    dump.call("Torch.sin.0.forward", [value(x, 2 if copy else 1)], [value(y, 3)], parent=MODEL)
    if not drop:
        dump.call(
            "Tensor.__add__.0.forward", [value(x, 1), value(y, 3)], [value(z, 4)], parent=MODEL
        )
    e = np.exp(z)
    dump.call("Torch.exp.0.forward", [value(z, last)], [value(e, 5)], parent=MODEL)
    dump.call(MODEL, [value(X)], [value(e, 5)])
    return dump.write()


@BOTH
def test_a_call_that_is_missing_is_the_culprit(tmp_path: Path, task: str) -> None:
    dropped, whole = residual(tmp_path / "t", task, drop=True), residual(tmp_path / "r", task)

    missing, added = compare(dropped, whole), compare(whole, dropped)

    assert missing.culprits == added.culprits == ["Tensor.__add__.0.forward"]
    assert missing.status("Tensor.__add__.0.forward.output.0") == "missing"
    assert added.status("Tensor.__add__.0.forward.output.0") == "added"
    assert missing.origin("Torch.exp.0.forward.input.0") == "inherited"
    assert missing.summary["unmatched"]["operations"]["missing"] == ["Tensor.__add__.0.forward"]


@BOTH
def test_a_call_too_many_that_changes_nothing_is_harmless(tmp_path: Path, task: str) -> None:
    found = compare(residual(tmp_path / "t", task, copy=True), residual(tmp_path / "r", task))

    assert found.culprits == []
    assert found.status("Tensor.clone.0.forward.output.0") == "added"
    assert found.origin("Tensor.clone.0.forward.output.0") is None
    assert found.summary["verdict"]["class"] == "equal"
    assert "without consequence" in found.summary["verdict"]["sentence"]


def fed(folder: Path, *, wrong: bool) -> Path:
    """Write two results of which the last call takes the right one, or the other."""
    dump = DumpBuilder(folder, "tensor")
    y, z = np.sin(X), np.cos(X)
    used, number = (z, 2) if wrong else (y, 1)
    dump.call("Torch.sin.0.forward", [value(X)], [value(y, 1)], parent=MODEL)
    dump.call("Torch.cos.0.forward", [value(X)], [value(z, 2)], parent=MODEL)
    dump.call("Torch.exp.0.forward", [value(used, number)], [value(np.exp(used), 3)], parent=MODEL)
    dump.call(MODEL, [value(X)], [value(np.exp(used), 3)])
    return dump.write()


def test_a_call_that_is_fed_with_another_result_is_the_culprit(tmp_path: Path) -> None:
    found = compare(fed(tmp_path / "t", wrong=True), fed(tmp_path / "r", wrong=False))

    assert found.culprits == ["Torch.exp.0.forward"]
    assert (
        "the result of Torch.cos.0.forward instead of the result of Torch.sin.0.forward"
        in found.reason("Torch.exp.0.forward.input.0")
    )


def test_another_result_of_one_call_is_named_by_its_place(tmp_path: Path) -> None:
    def write(side: str, used: int) -> Path:
        dump = DumpBuilder(tmp_path / side, "tensor")
        halves = [np.sin(X), np.cos(X)]
        parts = [value(half, 1 + at) for at, half in enumerate(halves)]
        dump.call("Tensor.unbind.0.forward", [value(X)], parts, parent=MODEL)
        exp = value(np.exp(halves[used]), 3)
        dump.call("Torch.exp.0.forward", [parts[used]], [exp], parent=MODEL)
        dump.call(MODEL, [value(X)], [exp])
        return dump.write()

    found = compare(write("t", used=1), write("r", used=0))

    assert (
        "the result of Tensor.unbind.0.forward.output.1 instead of "
        "the result of Tensor.unbind.0.forward.output.0"
    ) in found.reason("Torch.exp.0.forward.input.0")


def test_data_flow_is_followed_without_value_ids_too(tmp_path: Path) -> None:
    def write(side: str, wrong: bool) -> Path:
        dump = DumpBuilder(tmp_path / side, "tensor")
        y, z = np.sin(X), np.cos(X)
        used = z if wrong else y
        dump.call("Torch.sin.0.forward", [value(X)], [value(y)], parent=MODEL)
        dump.call("Torch.cos.0.forward", [value(X)], [value(z)], parent=MODEL)
        dump.call("Torch.exp.0.forward", [value(used)], [value(np.exp(used))], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(np.exp(used))])
        return dump.write()

    found = compare(write("t", True), write("r", False))

    assert found.culprits == ["Torch.exp.0.forward"]
    assert "Torch.cos.0.forward" in found.reason("Torch.exp.0.forward.input.0")


def test_a_change_of_order_that_statistics_do_not_see_is_found_where_it_was_made(
    tmp_path: Path,
) -> None:
    def write(side: str, roll: bool) -> Path:
        dump = DumpBuilder(tmp_path / side)
        x = np.arange(512, dtype=np.float32).reshape(16, 32)
        y = np.roll(x, 1, axis=0) if roll else x
        dump.call("Torch.arange.0.forward", [512], [value(x, 1)], parent=MODEL)
        if roll:
            dump.call("Tensor.roll.0.forward", [value(x, 1), 1], [value(y, 2)], parent=MODEL)
        z = y * X
        dump.call(
            "Tensor.mul.0.forward",
            [value(y, 2 if roll else 1), value(X)],
            [value(z, 3)],
            parent=MODEL,
        )
        dump.call(MODEL, [value(X)], [value(z, 3)])
        return dump.write()

    assert compare(write("t", True), write("r", False)).culprits == ["Tensor.roll.0.forward"]


def test_zeros_and_ones_with_the_same_statistics_hide_other_indices(tmp_path: Path) -> None:
    def write(side: str, shift: float) -> Path:
        dump = DumpBuilder(tmp_path / side)
        scores = np.sin(X[:, :4]) + shift * X[:, 4:8]
        indices = scores.argmax(1)
        hot = np.eye(4, dtype=np.float32)[indices]
        ones = [value(hot, n, projections=[0.0, 2.0]) for n in (3, 4)]
        load = hot.mean(0)
        dump.call("Torch.sin.0.forward", [value(X)], [value(scores, 1)], parent=MODEL)
        dump.call("Tensor.argmax.0.forward", [value(scores, 1)], [value(indices, 2)], parent=MODEL)
        dump.call("Functional.one_hot.0.forward", [value(indices, 2)], ones[:1], parent=MODEL)
        dump.call("Tensor.float.0.forward", ones[:1], ones[1:], parent=MODEL)
        dump.call("Tensor.mean.0.forward", [*ones[1:], 0], [value(load, 5)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(load, 5)])
        return dump.write()

    found = compare(write("t", 0.5), write("r", 0.0))

    assert found.status("Tensor.float.0.forward.output.0") == "equal"
    assert found.origin("Tensor.mean.0.forward.output.0") == "inherited"
    assert found.culprits == ["Torch.sin.0.forward"]


def layered(folder: Path, *, apis: bool, noise: float = 0.0) -> Path:
    """Write a module with or without the calls inside it, as where it was compiled."""
    dump = DumpBuilder(folder, "tensor")
    y = np.sin(X)
    z = np.exp(y) * np.float32(1 + noise)
    inner = "Module.act.Act.forward.0"
    if apis:
        dump.call("Torch.sin.0.forward", [value(X)], [value(y, 1)], parent=inner)
        dump.call("Torch.exp.0.forward", [value(y, 1)], [value(z, 2)], parent=inner)
    dump.call(inner, [value(X)], [value(z, 2)], parent=MODEL)
    dump.call(
        "Tensor.mean.0.forward", [value(z, 2)], [value(z.mean(keepdims=True), 3)], parent=MODEL
    )
    dump.call(MODEL, [value(X)], [value(z.mean(keepdims=True), 3)])
    return dump.write()


def test_calls_inside_a_module_that_only_one_side_recorded_are_harmless(tmp_path: Path) -> None:
    target = layered(tmp_path / "t", apis=False, noise=3e-7)

    found = compare(target, layered(tmp_path / "r", apis=True))

    assert found.culprits == []
    assert found.summary["unmatched"]["reference"] == 2


def test_a_module_without_its_calls_is_named_itself(tmp_path: Path) -> None:
    target = layered(tmp_path / "t", apis=False, noise=1e-2)

    found = compare(target, layered(tmp_path / "r", apis=False))

    assert found.culprits == ["Module.act.Act.forward.0"]


def test_a_module_that_computes_the_same_in_another_way_is_no_culprit(tmp_path: Path) -> None:
    def write(side: str, scale: float) -> Path:
        dump = DumpBuilder(tmp_path / side, "tensor")
        inner = "Module.lin.Linear.forward.0"
        s = np.float32(scale)
        y = (X * s) @ W
        z = y / s
        dump.call("Tensor.mul.0.forward", [value(X), value(s)], [value(X * s, 1)], parent=inner)
        dump.call(
            "Torch.matmul.0.forward", [value(X * s, 1), value(W)], [value(y, 2)], parent=inner
        )
        dump.call("Tensor.div.0.forward", [value(y, 2), value(s)], [value(z, 3)], parent=inner)
        dump.call(inner, [value(X)], [value(z, 3)], parent=MODEL)
        dump.call(MODEL, [value(X)], [value(z, 3)])
        return dump.write()

    found = compare(write("t", 4.0), write("r", 2.0))

    assert found.culprits == []
    assert found.status(f"{MODEL}.output.0") == "equal"


def precise(folder: Path, half: int) -> Path:
    """Write five products in a row, the first `half` of them in float16."""
    dump = DumpBuilder(folder, "tensor")
    x, number = X, 1
    for layer in range(5):
        kind = np.float16 if layer < half else np.float32
        y = (x.astype(np.float32) @ W).astype(kind)
        name = f"Functional.linear.{layer}.forward"
        dump.call(name, [value(x, number), value(W)], [value(y, number + 1)], parent=MODEL)
        x, number = y, number + 1
    dump.call(MODEL, [value(X)], [value(x, number)])
    return dump.write()


def test_one_call_in_lower_precision_is_a_culprit_a_whole_run_is_not(tmp_path: Path) -> None:
    reference = precise(tmp_path / "r", 0)

    alone, all_of_them = (
        compare(precise(tmp_path / str(half), half), reference) for half in (1, 5)
    )

    assert alone.culprits == ["Functional.linear.0.forward"]
    assert "alone" in alone.reason("Functional.linear.0.forward.output.0")
    assert all_of_them.culprits == []


def test_a_view_tells_what_the_statistics_of_its_call_hide(tmp_path: Path) -> None:
    """A strided result has no projections, its transpose has them."""
    x = RNG.standard_normal((8, 8)).astype(np.float32)

    def write(name: str, order: list[int], scale: float) -> Path:
        y = x[order]
        dump = DumpBuilder(tmp_path / name, "statistics")
        given, made, view = (
            value(x, projections=list(project(x))),
            value(y, 1),
            value(y.T, 2, projections=list(project(y.T))),
        )
        dump.call("Functional.normalize.0.forward", [given, scale], [made])
        dump.call("Tensor.transpose.0.forward", [value(y, 1), 0, 1], [view])
        return dump.write()

    found = compare(write("t", [1, 0, *range(2, 8)], 0.5), write("r", [*range(8)], 0.25))

    assert found.culprits == ["Functional.normalize.0.forward"]
    assert found.summary["verdict"]["class"] == "argument"


@BOTH
@pytest.mark.parametrize(("rows", "columns"), [(-1, 64), (16, 32)])
def test_a_size_that_is_left_open_is_no_other_argument(
    tmp_path: Path, task: str, rows: int, columns: int
) -> None:
    name = "Tensor.reshape.0"
    dumps = []
    for side, sizes, gradient in (("t", (rows, columns), 2.0), ("r", (8, 64), 1.0)):
        made = X.reshape(sizes)
        dump = DumpBuilder(tmp_path / side, task)
        dump.call(f"{name}.forward", [value(X), *sizes], [value(made, 1)])
        dump.call(
            f"{name}.backward",
            [value(np.ones_like(made), 2)],
            [value(np.full_like(X, gradient), 3)],
        )
        dumps.append(dump.write())

    found = compare(*dumps)

    assert ("another argument" in found.summary["verdict"]["sentence"]) is (rows != -1)
