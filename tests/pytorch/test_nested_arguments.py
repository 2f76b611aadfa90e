# SPDX-License-Identifier: Apache-2.0
"""Nested arguments: each container once, a limit per call, and no code of the user's is run."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from builders.recordings import Json, recording
from msprobe.dump.value_types import rebuild_value
from msprobe.pytorch.values.describing import MAKERS

pytestmark = pytest.mark.torch

LIMIT = 10_000


class Takes(nn.Module):
    """Takes anything; its result depends on `read`, a tensor in it."""

    def forward(self, *values: Any, read: Any = None, **keywords: Any) -> Any:
        return torch.ones(()) if read is None else read(*values, **keywords) * 2


def recorded(folder: Path, *values: Any, read: Any = None, **keywords: Any) -> tuple[Json, Json]:
    """The forward and the backward record (empty without one) of a call with these arguments."""
    with recording(folder, "L0") as run:
        model = Takes()
        with run.step_of(model):
            result = model(*values, read=read, **keywords)
            if result.requires_grad:
                result.sum().backward()
        assert run.account()["complete"] is True, run.account()
        records = run.records()
    return records["Module.Takes.forward.0"], records.get("Module.Takes.backward.0", {})


def described(folder: Path, *values: Any) -> list[Any]:
    """What the record of a call says of its positional arguments."""
    arguments: list[Any] = recorded(folder, *values)[0]["input_args"]
    return arguments


@dataclasses.dataclass(eq=False)
class Node:
    value: torch.Tensor
    parent: Node | None = None
    near: list[Node] = dataclasses.field(default_factory=list)


def tree(depth: int, parent: Node | None = None) -> Node:
    node = Node(torch.full((2,), float(depth), requires_grad=True), parent)
    node.near = [tree(depth - 1, node) for _ in range(2)] if depth else []
    return node


def tensors_in(described: Any) -> int:
    if isinstance(described, dict):
        return 1 if "shape" in described else sum(map(tensors_in, described.values()))
    return sum(map(tensors_in, described)) if isinstance(described, list) else 0


def test_a_tree_with_links_to_the_parents_is_described_once(tmp_path: Path) -> None:
    root = tree(4)
    middle = root.near[0].near[1]
    forward, backward = recorded(tmp_path, middle, read=lambda node: node.near[0].value)
    (record,) = forward["input_args"]
    assert tensors_in(record) == 31
    same = {"type": f"{__name__}.Node", "value": "same as input.0"}
    assert record["near"][0]["parent"] == same
    assert backward["output"][0]["near"][0]["value"]["Max"] == 2.0


def test_objects_that_all_refer_to_each_other_are_described_once(tmp_path: Path) -> None:
    nodes = [Node(torch.ones(1)) for _ in range(40)]
    for node in nodes:
        node.near = nodes
    assert tensors_in(described(tmp_path, nodes)) == 40


def test_what_is_given_twice_is_described_twice_unless_it_is_nested(tmp_path: Path) -> None:
    flat, nested = [1, torch.ones(2)], {"a": [torch.ones(3)]}
    first, second, third, fourth = described(tmp_path, flat, flat, nested, nested)
    assert first == second
    assert second[1]["shape"] == [2]
    assert third["a"][0]["shape"] == [3]
    assert fourth == {"type": "dict", "value": "same as input.2"}


def test_a_long_list_of_numbers_is_cut_off(tmp_path: Path) -> None:
    with recording(tmp_path, "L1") as run:
        with run.step_of():
            torch.tensor(list(range(1_000_000)))
        (numbers,) = run.records()["Torch.tensor.0.forward"]["input_args"]
        assert (run.place() / "dump.json").stat().st_size < 500_000
    assert len(numbers) == LIMIT + 1
    assert numbers[LIMIT - 1] == {"type": "int", "value": LIMIT - 1}
    assert numbers[LIMIT] == {"type": "omitted", "value": "990000 int"}


def test_numbers_without_end_do_not_hide_a_tensor_that_comes_later(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    many = {f"k{index}": index for index in range(LIMIT)}
    batch = {"ids": [[1, "a"] * 10] * (LIMIT // 10), "list": [1.5, x], "many": many, "x": x * 1}
    forward, backward = recorded(tmp_path, batch, x * 3, read=lambda batch, y: batch["x"] * y)
    record, y = forward["input_args"]
    assert record["x"]["shape"] == y["shape"] == [2]
    assert record["list"][1]["shape"] == [2]
    assert record["many"] == {"…": {"type": "omitted", "value": "10000 int"}}
    assert backward["output"][0]["x"]["Max"] == 6.0
    assert backward["output"][1]["Max"] == 2.0


def test_of_one_large_mapping_the_first_entries_are_described(tmp_path: Path) -> None:
    for large in (dict.fromkeys(range(5 * LIMIT)), [None] * (5 * LIMIT) + [[]]):
        (record,) = described(tmp_path, large)
        assert len(record) == LIMIT + 1
        rest = record["…"] if isinstance(record, dict) else record[LIMIT]
        assert rest["type"] == "omitted"
        assert rest["value"].startswith(f"{4 * LIMIT} NoneType")


def test_a_linked_list_has_its_gradients_at_its_places(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    first = Node(x * 1)
    for number in range(2, 6):
        first = Node(x * number, near=[first])

    def total(node: Node) -> torch.Tensor:
        below = [total(near) for near in node.near]
        return (node.value + sum(below)) * 2

    (gradient,) = recorded(tmp_path, first, read=total)[1]["output"]
    for depth in range(1, 6):
        assert gradient["value"]["Max"] == 2.0 ** (depth + 1)
        gradient = gradient.get("near", [None])[0]


def test_of_very_many_tensors_the_first_are_recorded(tmp_path: Path) -> None:
    one = torch.ones(1)
    (record,) = described(tmp_path, [one] * (LIMIT + 200))
    assert len(record) == LIMIT + 1
    assert record[LIMIT] == {"type": "omitted", "value": "200 torch.Tensor"}


def refuse(*_: Any) -> Any:
    raise AssertionError("code of the user's was run")


class Drawing(Mapping[str, torch.Tensor]):
    """A batch that is augmented when it is read."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.x + torch.randn_like(self.x)

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def test_a_mapping_that_draws_random_numbers_is_not_read(tmp_path: Path) -> None:
    def losses(step_of: Any) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        found = []
        for _ in range(3):
            with step_of(model):
                model.register_forward_pre_hook(lambda _, args: (args[0]["x"],))
                found.append(model(Drawing(torch.ones(3, 4))).sum().item())
                model._forward_pre_hooks.clear()
        return found

    with recording(tmp_path, "mix") as run:
        with_recording = losses(run.step_of)
        (record,) = run.records()["Module.Linear.forward.0"]["input_args"]
    assert record == {"type": f"{__name__}.Drawing", "value": f"<{__name__}.Drawing>"}
    assert with_recording == losses(nullcontext)


class LoudDict(dict[Any, Any]):
    __getitem__ = __iter__ = __len__ = __contains__ = get = keys = values = items = refuse  # type: ignore[assignment]


class Output(OrderedDict[str, Any]):
    """As the outputs of transformers are: a dict with ways of its own to read it."""

    __getitem__ = __iter__ = items = keys = refuse  # type: ignore[assignment]


class LoudUserDict(UserDict[str, Any]):
    __getitem__ = __iter__ = __len__ = __contains__ = __getattr__ = refuse  # type: ignore[assignment]


class LoudList(list[Any]):
    __getitem__ = __iter__ = __len__ = __getattr__ = refuse  # type: ignore[assignment]


class LoudTuple(tuple[Any, ...]):
    __getitem__ = __iter__ = __len__ = __getattr__ = refuse  # type: ignore[assignment]


class Pair(NamedTuple):
    a: Any
    b: Any = 1


class LoudPair(Pair):
    __getitem__ = __iter__ = __len__ = __getattr__ = refuse  # type: ignore[assignment]


@dataclasses.dataclass
class LoudData:
    a: Any

    def __getattribute__(self, name: str) -> Any:
        return refuse()


@dataclasses.dataclass(slots=True)
class SlottedData:
    a: Any
    b: Any = dataclasses.field(init=False)


T = torch.ones(2)
TENSOR = object()  # stands for the description of a tensor


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (LoudDict(a=T), {"a": TENSOR}),
        (Output(a=T), {"a": TENSOR}),
        (defaultdict(refuse, {"a": T}), {"a": TENSOR}),
        (LoudUserDict(a=T), {"a": TENSOR}),
        (LoudList([T]), [TENSOR]),
        (LoudTuple([T]), [TENSOR]),
        (LoudPair(T), {"a": TENSOR, "b": {"type": "int", "value": 1}}),
        (LoudData(T), {"a": TENSOR}),
        (SlottedData(T), {"a": TENSOR}),
        (torch.return_types.max((T, T)), [TENSOR, TENSOR]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_are_read_past_the_methods_of_their_classes(
    value: Any, expected: Any, tmp_path: Path
) -> None:
    def shape_of(record: Any) -> Any:
        if isinstance(record, list):
            return [shape_of(item) for item in record]
        if "shape" in record:
            return TENSOR
        if isinstance(record.get("type"), str):
            return record
        return {key: shape_of(item) for key, item in record.items()}

    assert shape_of(described(tmp_path, value)[0]) == expected


@dataclasses.dataclass
class Computed:
    a: Any
    b: Any = 2

    @property
    def a(self) -> Any:  # type: ignore[no-redef]
        return refuse()

    @a.setter
    def a(self, value: Any) -> None:
        self._a = value


class Proxy:
    """Says that it is of any class, as lazy objects do."""

    __class__ = property(refuse)  # type: ignore[assignment]
    __getattr__ = refuse


class Colour(enum.Enum):
    RED = 1

    name = value = property(refuse)  # type: ignore[assignment]


class LoudInt(int):
    __int__ = __index__ = __str__ = __repr__ = __eq__ = __lt__ = refuse  # type: ignore[assignment]
    __hash__ = int.__hash__


class LoudArray(np.ndarray):  # type: ignore[type-arg]
    max = min = mean = sum = astype = __array_finalize__ = __getattr__ = refuse  # type: ignore[assignment]


class LoudSet(set[Any]):
    __iter__ = __len__ = refuse  # type: ignore[assignment]


class array:  # noqa: N801 - named as a class of Python's
    typecode = property(refuse)
    __iter__ = __len__ = refuse


class Key:
    __repr__ = __str__ = __eq__ = refuse  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Computed(1), {"b": {"type": "int", "value": 2}}),
        (Proxy(), {"type": f"{__name__}.Proxy", "value": f"<{__name__}.Proxy>"}),
        (Colour.RED, {"type": f"{__name__}.Colour", "value": "Colour.RED"}),
        (LoudInt(3), {"type": "int", "value": 3}),
        (LoudSet([1]), {"type": f"{__name__}.LoudSet", "value": f"<{__name__}.LoudSet>"}),
        (array(), {"type": f"{__name__}.array", "value": f"<{__name__}.array>"}),
        ({Key(): 1}, {f"<{__name__}.Key>": {"type": "int", "value": 1}}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_described_without_asking_them(
    value: Any, expected: Any, tmp_path: Path
) -> None:
    first, second = described(tmp_path, value, [value])
    assert first == expected
    assert second == [expected]


def test_an_array_of_a_class_of_the_users_is_read_as_numpy_would(tmp_path: Path) -> None:
    LoudArray.__array_finalize__ = lambda *_: None  # type: ignore[method-assign]
    array_of_theirs = np.arange(3.0).view(LoudArray)
    LoudArray.__array_finalize__ = refuse  # type: ignore[method-assign]
    (record,) = described(tmp_path, array_of_theirs)
    assert [record[key] for key in ("Max", "Min", "Mean")] == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "value",
    [torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), torch.channels_last, torch.strided],
    ids=repr,
)
def test_values_of_torch_are_made_again_from_their_record(value: Any, tmp_path: Path) -> None:
    (record,) = described(tmp_path, [value, 1.5])
    assert rebuild_value(record, MAKERS) == [value, 1.5]


def test_keywords_that_are_no_unicode_text_are_recorded(tmp_path: Path) -> None:
    class Keywords(nn.Module):
        def forward(self, x: torch.Tensor, **keywords: Any) -> torch.Tensor:
            return x * keywords["\ud800"]

    with recording(tmp_path, "L0") as run:
        model = Keywords()
        with run.step_of(model):
            model(torch.full((2,), 3.0), **{"\ud800": 2, "after": torch.ones(2)})
        account, record = run.account(), run.records()["Module.Keywords.forward.0"]
    assert account["complete"], account
    assert record["input_args"][0]["Max"] == 3.0
    assert record["input_kwargs"]["\ud800"] == {"type": "int", "value": 2}
    assert record["input_kwargs"]["after"]["Max"] == 1.0
    assert record["output"][0]["Max"] == 6.0


def test_tensors_beside_a_container_are_described_and_followed_once(tmp_path: Path) -> None:
    first, second = (torch.full((2,), value, requires_grad=True) for value in (3.0, 5.0))
    forward, backward = recorded(
        tmp_path, first, [second], read=lambda one, others: one * others[0]
    )
    assert forward["input_args"][0]["Max"] == 3.0
    assert forward["input_args"][1][0]["Max"] == 5.0
    assert backward["output"][0]["Max"] == 10.0
    assert backward["output"][1][0]["Max"] == 6.0
