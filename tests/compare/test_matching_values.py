# SPDX-License-Identifier: Apache-2.0
"""The values of paired operations find each other: by place, keyword, shape and mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairing import both, rows_of, write_side

import msprobe
from builders.records import backward, forward, tensor
from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Match, OperationPair, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.compare.value_pairs import pair_values

DATA = Path(__file__).parent / "data" / "checkpointing"
NAME = "Functional.f.0.forward"
BACK = "Functional.f.0.backward"


def slots(rows: list[Row]) -> list[tuple[str | None, str | None]]:
    return [(r.target and r.target.slot, r.reference and r.reference.slot) for r in rows]


def slots_of(directory: Path, target: Any, reference: Any, name: str = NAME) -> list[Any]:
    return slots(rows_of(*both(directory, {name: target}, {name: reference})))


def test_equal_places_pair_and_others_stay_alone(tmp_path: Path) -> None:
    target = forward([tensor(), tensor()], [tensor()])
    reference = forward([tensor((9,))], [tensor(), tensor()])
    assert slots_of(tmp_path, target, reference) == [
        ("input.0", "input.0"),
        ("input.1", None),
        ("output.0", "output.0"),
        (None, "output.1"),
    ]


def test_values_of_the_reference_stand_behind_their_kind(tmp_path: Path) -> None:
    target = {"input_args": [tensor()], "output": [tensor()]}
    reference = {
        "input_args": [tensor((5,)), tensor((6,))],
        "parameters": {"weight": tensor((7,))},
        "output": [tensor()],
    }
    assert slots_of(tmp_path, target, reference) == [
        ("input.0", "input.0"),
        (None, "input.1"),
        ("output.0", "output.0"),
        (None, "parameters.weight"),
    ]


def test_values_of_another_type_or_shape_are_still_partners(tmp_path: Path) -> None:
    number = {"type": "int", "value": 1}
    target = forward([tensor(dtype="torch.int64"), tensor((1, 3)), number], [None])
    reference = forward([tensor(), tensor((3,)), tensor(())], [tensor()])
    assert slots_of(tmp_path, target, reference) == [
        ("input.0", "input.0"),
        ("input.1", "input.1"),
        ("input.2", "input.2"),
        ("output.0", "output.0"),
    ]


def test_position_and_keyword_are_the_same_argument(tmp_path: Path) -> None:
    by_position = forward([tensor(), tensor((3, 3)), {"type": "bool", "value": True}], [tensor()])
    by_keyword = forward([tensor()], [tensor()], inplace={"type": "bool", "value": False})
    by_keyword["input_kwargs"]["weight"] = tensor((3, 3))
    assert slots_of(tmp_path, by_position, by_keyword) == [
        ("input.0", "input.0"),
        ("input.1", "input.weight"),
        ("input.2", "input.inplace"),
        ("output.0", "output.0"),
    ]


def test_keywords_that_look_alike_pair_by_their_values(tmp_path: Path) -> None:
    by_position = forward([tensor(), tensor((3,), 1.0), tensor((3,), 2.0)])
    by_keyword = forward([tensor()], bias=tensor((3,), 2.0), weight=tensor((3,), 1.0))
    assert slots_of(tmp_path, by_position, by_keyword) == [
        ("input.0", "input.0"),
        ("input.1", "input.weight"),
        ("input.2", "input.bias"),
    ]


def test_one_of_several_keywords_is_known_by_its_value(tmp_path: Path) -> None:
    def number(value: int) -> dict[str, Any]:
        return {"type": "int", "value": value}

    by_position = forward([tensor(), number(-1)])
    by_keyword = forward([tensor()], dim=number(-1), stacklevel=number(3))
    assert slots_of(tmp_path, by_position, by_keyword) == [
        ("input.0", "input.0"),
        ("input.1", "input.dim"),
        (None, "input.stacklevel"),
    ]


def test_keywords_pair_only_where_counts_allow(tmp_path: Path) -> None:
    target = forward([tensor(), tensor((3,), 1.0), tensor((3,), 2.0)])
    reference = forward([tensor()], mask=tensor((3,), 3.0))
    assert slots_of(tmp_path, target, reference)[1:] == [
        ("input.1", None),
        ("input.2", None),
        (None, "input.mask"),
    ]


def test_dumps_with_and_without_files_pair(tmp_path: Path) -> None:
    kept = forward(
        [tensor(data_name=f"{NAME}.input.0.pt")], mask=tensor(data_name=f"{NAME}.kwargs.mask.pt")
    )
    assert slots_of(tmp_path, kept, forward([tensor()], mask=tensor())) == [
        ("input.0", "input.0"),
        ("kwargs.mask", "input.mask"),
    ]


def test_gradients_in_another_order_pair_by_shape(tmp_path: Path) -> None:
    """Gradients stand in the order of the arguments, or in that of the autograd graph."""
    arguments = backward([tensor()], [tensor((3, 4)), tensor((2, 4)), tensor((2,))])
    graph = backward([tensor()], [tensor((2,)), tensor((3, 4)), tensor((4, 2))])
    assert slots_of(tmp_path, arguments, graph, BACK) == [
        ("input.0", "input.0"),
        ("output.0", "output.1"),
        ("output.1", "output.2"),  # the weight's gradient, transposed
        ("output.2", "output.0"),
    ]


def test_gradients_whose_shape_changed_keep_their_places(tmp_path: Path) -> None:
    target = backward([tensor((8, 2))], [tensor((8, 4)), tensor((4, 2))])
    reference = backward([tensor((6, 2))], [tensor((6, 4)), tensor((4, 2))])
    assert slots_of(tmp_path, target, reference, BACK) == [
        ("input.0", "input.0"),
        ("output.0", "output.0"),
        ("output.1", "output.1"),
    ]


def test_names_of_parameters_in_two_frameworks(tmp_path: Path) -> None:
    cell = {"parameters": {"gamma": tensor((4,)), "beta": tensor((4,)), "moving_mean": tensor()}}
    module = {
        "parameters": {"weight": tensor((4,)), "bias": tensor((4,)), "running_mean": tensor()}
    }
    target = write_side(tmp_path, {"Cell.n.BatchNorm.forward.0": cell}, framework="mindspore")
    reference = write_side(tmp_path, {"Module.n.BatchNorm2d.forward.0": module}, source="reference")
    assert slots(rows_of(target, reference)) == [
        ("parameters.gamma", "parameters.weight"),
        ("parameters.beta", "parameters.bias"),
        ("parameters.moving_mean", "parameters.running_mean"),
    ]


def test_gradients_of_parameters_in_two_frameworks(tmp_path: Path) -> None:
    target = write_side(
        tmp_path,
        {"Cell.e.Embedding.parameters_grad": {"embedding_table": [tensor((9, 2))]}},
        framework="mindspore",
    )
    reference = write_side(
        tmp_path,
        {"Module.e.Embedding.parameters_grad": {"weight": [tensor((9, 2))]}},
        source="reference",
    )
    assert slots(rows_of(target, reference)) == [("embedding_table", "weight")]


@pytest.mark.parametrize("side", ["target", "reference"])
def test_operation_without_a_partner(tmp_path: Path, side: str) -> None:
    record = {NAME: forward([tensor()], [tensor()])}
    pair = both(tmp_path, record, {}) if side == "target" else both(tmp_path, {}, record)
    rows = rows_of(*pair)
    alone = [("input.0", None), ("output.0", None)]
    assert slots(rows) == (alone if side == "target" else [(b, a) for a, b in alone])
    assert [row.name for row in rows] == [f"{NAME}.input.0", f"{NAME}.output.0"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"input.0": "input.1", "input.1": "input.0"}, [("0", "1"), ("1", "0"), ("k.a", "k.a")]),
        ({"input": None, "input.0": "input.0"}, [("0", "0"), ("1", None), ("k.a", None)]),
        ({"input.k.a": "input.1"}, [("0", "0"), ("1", None), ("k.a", "1")]),
        ({"kwargs.k": "kwargs.k"}, [("0", "0"), ("1", "1"), ("k.a", "k.a")]),
    ],
)
def test_mapped_slots_stand_for_what_is_below_them(
    tmp_path: Path, rules: dict[str, str | None], expected: list[tuple[str, str | None]]
) -> None:
    record = forward([tensor((1,)), tensor((2,))], k={"a": tensor((3,))})
    target, reference = both(tmp_path, {NAME: record}, {NAME: record})
    pair = OperationPair(position=0, target=NAME, reference=NAME, match=Match.MAPPED, slots=rules)
    found = [pair for pair in slots(pair_values(target, reference, pair)) if pair[0]]
    assert found == [
        (f"input.{mine}", None if other is None else f"input.{other}") for mine, other in expected
    ]


shapes = st.sampled_from([(), (2,), (2, 3)])
trees = st.recursive(
    st.builds(tensor, shapes, st.floats(-9, 9))
    | st.none()
    | st.builds(lambda n: {"type": "int", "value": n}, st.integers(0, 3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
made = st.builds(
    lambda args, kwargs, output: {"input_args": args, "input_kwargs": kwargs, "output": output},
    st.lists(trees, max_size=3),
    st.dictionaries(st.sampled_from(["x", "y"]), trees),
    st.lists(trees, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(first=made, second=made, name=st.sampled_from([NAME, BACK]))
def test_every_value_is_in_one_row(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, name: str
) -> None:
    target, reference = both(tmp_path_factory.mktemp("d"), {name: first}, {name: second})
    rows = rows_of(target, reference)
    mine = [row.target.slot for row in rows if row.target is not None]
    theirs = [row.reference.slot for row in rows if row.reference is not None]
    assert mine == [value.slot for value in target.values(name)]
    assert sorted(theirs) == sorted(value.slot for value in reference.values(name))
    assert all(row.target or row.reference for row in rows)
    # A record and itself are equal value by value.
    same = rows_of(target, target)
    assert all(a == b for a, b in slots(same))


def open_checkpointing(kind: str, source: str) -> Side:
    return Side(msprobe.open_dump(DATA / kind).step().rank(), source=source)


@pytest.mark.parametrize("kind", ["reentrant", "non_reentrant"])
def test_dumps_of_mindstudio_probe_with_and_without_checkpointing(kind: str) -> None:
    """It records recomputed calls under further numbers; every other value finds its partner."""
    target, reference = open_checkpointing("plain", "target"), open_checkpointing(kind, "reference")
    rows = rows_of(target, reference)
    assert all(row.reference is not None for row in rows if row.target is not None)
    for row in rows:
        if row.target is not None and row.reference is not None and row.target.is_tensor:
            assert (row.target.max, row.target.norm) == (row.reference.max, row.reference.norm)
    recomputed = {row.pair.reference for row in rows if row.target is None}
    pairs = pair_operations(target, reference, CompareOptions())
    assert recomputed == {pair.reference for pair in pairs if pair.match is Match.UNMATCHED}
    assert len(recomputed) == {"reentrant": 14, "non_reentrant": 9}[kind]
    assert all(name is not None and ".forward" in name for name in recomputed)


@pytest.mark.parametrize(("back", "is_pair"), [("float32", False), ("bfloat16", True)])
def test_casts_in_opposite_directions_are_no_partners(
    tmp_path: Path, back: str, is_pair: bool
) -> None:
    """One side casts labels to the type of results, the other one results to that of labels."""
    single, half = (tensor(dtype=f"torch.{name}") for name in ("float32", "float16"))
    target = {"Tensor.half.0.forward": forward([single], [half])}
    reference = {"Tensor.float.0.forward": forward([half], [single | {"dtype": f"torch.{back}"}])}

    pairs = pair_operations(*both(tmp_path, target, reference), CompareOptions())

    assert len(pairs) == (1 if is_pair else 2)
