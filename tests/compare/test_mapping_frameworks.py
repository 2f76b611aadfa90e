# SPDX-License-Identifier: Apache-2.0
"""MindSpore against PyTorch: the same model pairs without any mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judging import judged
from pairing import names_of, rows_of, write_side

from builders.records import backward, forward, scalar, tensor
from msprobe.compare.causes import Cause
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Match, Origin, Status
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.dump.values import Role


@pytest.mark.parametrize(
    ("mindspore", "pytorch"),
    [
        ("Functional.softmax", "Functional.softmax"),
        ("Functional.add", "Torch.add"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.expand_dims", "Torch.unsqueeze"),
        ("Functional.transpose", "Torch.permute"),
        ("Functional.gather", "Torch.index_select"),
        ("Functional.gather_elements", "Torch.gather"),
        ("Functional.select", "Torch.where"),
        ("Functional.equal", "Torch.eq"),
        ("Functional.inv", "Torch.reciprocal"),
        ("Functional.concat", "Torch.cat"),
        ("Functional.flash_attention_score", "NPU.npu_fusion_attention"),
        ("Mint.matmul", "Torch.matmul"),
        ("MintFunctional.gelu", "Functional.gelu"),
        ("MintDistributed.all_reduce", "Distributed.all_reduce"),
        ("Tensor.astype", "Tensor.to"),
        ("Tensor.expand_dims", "Tensor.unsqueeze"),
        ("Tensor.__add__", "Tensor.__add__"),
        ("Primitive.MatMul", "Torch.matmul"),
        ("Primitive.ReduceSum", "Torch.sum"),
        ("Primitive.ReLU", "Functional.relu"),
        ("Primitive.LayerNorm", "Functional.layer_norm"),
        ("Primitive.LogSoftmax", "Functional.log_softmax"),
        ("Primitive.AllGather", "Distributed.all_gather_into_tensor"),
    ],
)
def test_functions_that_do_the_same(tmp_path: Path, mindspore: str, pytorch: str) -> None:
    ms, pt = f"{mindspore}.0.forward", f"{pytorch}.0.forward"
    target = write_side(tmp_path, {ms: forward([tensor()])}, framework="mindspore")
    reference = write_side(tmp_path, {pt: forward([tensor()])}, source="reference")
    for sides in ((target, reference), (reference, target)):
        [pair] = pair_operations(*sides, CompareOptions())
        assert {pair.target, pair.reference} == {ms, pt}
        assert pair.confidence > 0.5


def model(directory: Path, framework: str) -> Side:
    """Return a small network as either framework records it."""
    ms = framework == "mindspore"
    kind, dense = ("Cell", "Dense") if ms else ("Module", "Linear")
    linear = "Primitive.MatMul" if ms else "Functional.linear"
    norm = {"gamma": "weight", "beta": "bias"}
    dtype = {"dtype": "Float32", "type": "mindspore.Tensor"} if ms else {}
    value = tensor(**dtype)
    records: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    for n in range(3):
        cell = f"{kind}.blocks.{n}.fc.{dense}.forward.0"
        records[f"{linear if not ms else 'Functional.dense'}.{n}.forward"] = forward(
            [value], [value]
        )
        parents[f"{linear if not ms else 'Functional.dense'}.{n}.forward"] = cell
        records[cell] = forward([value], [value]) | {"parameters": {"weight": value}}
        layer_norm = f"{kind}.blocks.{n}.norm.LayerNorm.forward.0"
        names = norm if ms else norm.values()
        records[layer_norm] = forward([value], [value]) | {
            "parameters": dict.fromkeys(names, value)
        }
        records[f"{'Mint' if ms else 'Torch'}.add.{n}.forward"] = forward([value, value], [value])
    for n in reversed(range(3)):
        records[f"{kind}.blocks.{n}.fc.{dense}.backward.0"] = backward([value], [value])
        gradients = f"{kind}.blocks.{n}.norm.LayerNorm.parameters_grad"
        records[gradients] = {name: [value] for name in (norm if ms else norm.values())}
    return write_side(
        directory,
        records,
        source="target" if ms else "reference",
        parents=parents,
        framework=framework,
    )


@pytest.mark.parametrize("swap", [False, True])
def test_a_model_in_two_frameworks(tmp_path: Path, swap: bool) -> None:
    sides = model(tmp_path, "mindspore"), model(tmp_path, "pytorch")
    target, reference = reversed(sides) if swap else sides
    pairs = pair_operations(target, reference, CompareOptions())
    assert len(pairs) == len(target.names) == len(reference.names)
    assert {pair.match for pair in pairs} <= {Match.ALIAS, Match.ALIGNED}
    for pair in pairs:
        assert pair.target is not None
        assert pair.reference is not None
        assert target.names.index(pair.target) == reference.names.index(pair.reference)
    rows = rows_of(target, reference)
    assert all(row.target is not None and row.reference is not None for row in rows)
    assert {row.target.dtype for row in rows if row.target} == {"float32"}


def test_asking_for_the_table_says_that_it_was_used(tmp_path: Path) -> None:
    target, reference = model(tmp_path, "mindspore"), model(tmp_path, "pytorch")
    options = CompareOptions(api_mapping=True, cell_mapping=True)
    matches = {pair.target: pair.match for pair in pair_operations(target, reference, options)}
    assert matches["Functional.dense.0.forward"] is Match.MAPPED
    assert matches["Mint.add.0.forward"] is Match.MAPPED


def test_two_dumps_of_mindspore_by_their_functions(tmp_path: Path) -> None:
    names = ["Functional.dense.0.forward", "Mint.linear.0.forward"]
    sides = [
        write_side(tmp_path, {n: forward([tensor()])}, source=s, framework="mindspore")
        for n, s in zip(names, ("target", "reference"), strict=True)
    ]
    assert names_of(pair_operations(*sides, CompareOptions())) == [tuple(names)]


def test_the_table_says_nothing_of_two_dumps_of_pytorch(tmp_path: Path) -> None:
    names = ["Tensor.gather.0.forward", "Torch.index_select.0.forward"]
    sides = [
        write_side(tmp_path, {n: forward([tensor()])}, source=s)
        for n, s in zip(names, ("target", "reference"), strict=True)
    ]
    [pair] = pair_operations(*sides, CompareOptions(api_mapping=True))
    assert pair.match is Match.ALIGNED or pair.match is Match.ALIAS
    assert pair.confidence < 0.7  # relatives, no more


@pytest.mark.parametrize("pytorch", ["Torch.index_select", "Tensor.index_select"])
def test_arguments_that_stand_elsewhere(tmp_path: Path, pytorch: str) -> None:
    values = [tensor((9, 4)), tensor((5,)), {"type": "int", "value": 0}]
    target = write_side(
        tmp_path, {"Functional.gather.0.forward": forward(values)}, framework="mindspore"
    )
    other = [values[0], values[2], values[1]]
    reference = write_side(tmp_path, {f"{pytorch}.0.forward": forward(other)}, source="reference")
    for sides in ((target, reference), (reference, target)):
        rows = rows_of(*sides)
        found = {(r.target and r.target.slot, r.reference and r.reference.slot) for r in rows}
        assert found == {("input.0", "input.0"), ("input.1", "input.2"), ("input.2", "input.1")}


def test_a_further_call_in_one_framework_shifts_nothing(tmp_path: Path) -> None:
    ms = [f"Functional.dense.{n}.forward" for n in range(4)]
    pt = [f"Functional.linear.{n}.forward" for n in range(3)]
    shapes = [(1, 2), (2, 3), (7, 7), (3, 4)]
    target = write_side(
        tmp_path,
        {name: forward([tensor(shape)]) for name, shape in zip(ms, shapes, strict=True)},
        framework="mindspore",
    )
    reference = write_side(
        tmp_path,
        {n: forward([tensor(s)]) for n, s in zip(pt, [*shapes[:2], shapes[3]], strict=True)},
        source="reference",
    )
    pairs = pair_operations(target, reference, CompareOptions())
    assert names_of(pairs) == [(ms[0], pt[0]), (ms[1], pt[1]), (ms[2], None), (ms[3], pt[2])]


@pytest.mark.parametrize("swap", [False, True])
def test_another_api_takes_other_tensors_in_another_layout(tmp_path: Path, swap: bool) -> None:
    """MindSpore's LSTM has the sequence first, and one tensor of weights that it makes itself."""
    dtype = {"dtype": "Float32", "type": "mindspore.Tensor"}
    state = [tensor([1, 4, 12], 0.5), tensor([1, 4, 12], 0.25)]
    ms_state = [entry | dtype for entry in state]
    weights = [tensor([48, 16], 0.3), tensor([48, 12], 0.35), tensor([48], 0.4), tensor([48], 0.45)]
    flat = tensor([1440, 1, 1], 0.7, **dtype)
    target = {
        "Tensor.__add__.0.forward": forward([tensor([48], 0.4, **dtype)], [flat]),
        "Primitive.LSTM.0.forward": forward(
            [tensor([6, 4, 16], 2.0, **dtype), *ms_state, flat],
            [tensor([6, 4, 12], 3.0, **dtype), *(tensor([1, 4, 12], n, **dtype) for n in (5, 7))],
        ),
        "Functional.dense.0.forward": forward(
            [tensor([4, 12], 5.5, **dtype)], [tensor([4, 5], 9.0, **dtype)]
        ),
    }
    flags = [scalar("bool", True), scalar("int", 1), scalar("float", 0.0)]
    reference = {
        "VF.lstm.0.forward": forward(
            [tensor([4, 6, 16], 2.0), state, weights, *flags],
            [tensor([4, 6, 12], 3.0), tensor([1, 4, 12], 5), tensor([1, 4, 12], 7)],
        ),
        "Functional.linear.0.forward": forward([tensor([4, 12], 5.5)], [tensor([4, 5], 8.0)]),
    }
    names = ("reference", "target") if swap else ("target", "reference")
    write_side(tmp_path, target, source=names[0], framework="mindspore")
    write_side(tmp_path, reference, source=names[1])
    comparison = judged(*(tmp_path / name for name in ("target", "reference")))
    blamed = {
        name
        for row in comparison.rows
        if row.origin is Origin.INTRODUCED
        for name in (row.pair.target, row.pair.reference)
    }
    assert blamed == {"Functional.dense.0.forward", "Functional.linear.0.forward"}
    turned = [row for row in comparison.rows if row.cause is Cause.OTHER_LAYOUT]
    assert [row.value.role for row in turned] == [Role.INPUT, Role.OUTPUT]
    assert {row.status for row in turned} == {Status.CLOSE}


def test_other_numbers_in_another_layout_differ(tmp_path: Path) -> None:
    target = {"Primitive.LSTM.0.forward": forward([tensor([6, 4, 16])], [tensor([6, 4, 2], 3.0)])}
    reference = {"VF.lstm.0.forward": forward([tensor([4, 6, 16])], [tensor([4, 6, 2], 3.1)])}
    write_side(tmp_path, target, framework="mindspore")
    write_side(tmp_path, reference, source="reference")
    comparison = judged(tmp_path / "target", tmp_path / "reference")
    assert [row.status for row in comparison.rows] == [Status.CLOSE, Status.SHAPE]
