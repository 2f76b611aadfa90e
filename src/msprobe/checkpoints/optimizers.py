# SPDX-License-Identifier: Apache-2.0
"""States of optimizers by the names of parameters, where a checkpoint has them by number.

``torch.optim`` saves ``{"state": {0: {"exp_avg": …}}, "param_groups": [{"params": [0], …}]}``. The
numbers follow the order of the parameters, which the saved model has, too. They are replaced only
where order and shapes leave no choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import AnyEntry, Content, Parameter, Value, renamed
from msprobe.dump.formats.dtypes import FLOATS

STATE: Final = "state"
GROUPS: Final = "param_groups"
_PARAMETERS: Final = "params"
_NAMES: Final = "param_names"
# Buffers that are of floating type and saved among the parameters.
_BUFFERS: Final = ("running_mean", "running_var", "inv_freq", "rotary_emb")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Place of an entry within the state of an optimizer.

    Attributes:
        optimizer: the keys that lead to the optimizer.
        parameter: the parameter's name, or its number where the name is not known.
        key: name of the state: ``exp_avg``, ``step`` …
    """

    optimizer: KeyPath
    parameter: str
    key: str


def find_optimizers(values: Iterable[Value]) -> list[KeyPath]:
    """Return the paths of the optimizers in a checkpoint."""
    found = (
        item.path[:-3]
        for item in values
        if len(item.path) >= 3 and item.path[-3] == GROUPS and item.path[-1] == _PARAMETERS
    )
    return list(dict.fromkeys(found))


def state_place(path: KeyPath, optimizers: Sequence[KeyPath]) -> StatePlace | None:
    """Return where in an optimizer's state an entry is, None if it is in none."""
    for optimizer in optimizers:
        inner = path[len(optimizer) :]
        if path[: len(optimizer)] == optimizer and len(inner) > 1 and inner[0] == STATE:
            return StatePlace(optimizer, str(inner[1]), path_name(inner[2:]))
    return None


def name_states(content: Content) -> None:
    """Replace the numbers of parameters in optimizers by their names, where these are certain."""
    optimizers = find_optimizers(content.values)
    content.values = [_in_order_of_names(item) for item in content.values]
    for optimizer in optimizers:
        names = _names(content, optimizer, optimizers)
        if names:
            content.parameters = [_named(item, optimizer, names) for item in content.parameters]
            content.values = [_named(item, optimizer, names) for item in content.values]


def names_parameters(path: KeyPath) -> bool:
    """Return whether an entry is the list of the parameters of a group of an optimizer."""
    return len(path) > 2 and path[-3] == GROUPS and path[-1] in (_PARAMETERS, _NAMES)


def _in_order_of_names(item: Value) -> Value:
    """Return the names of the parameters of a group sorted: their order means nothing."""
    if not names_parameters(item.path):
        return item
    if not isinstance(item.content, tuple) or not all(isinstance(x, str) for x in item.content):
        return item
    return replace(item, content=tuple(sorted(item.content)))


def _named(item: AnyEntry, optimizer: KeyPath, names: dict[int, str]) -> AnyEntry:
    inner: KeyPath = item.path[len(optimizer) :]
    if item.path[: len(optimizer)] != optimizer or len(inner) < 2:
        return item
    number = _number(inner[1])
    if inner[0] == STATE and number in names:
        return renamed(item, (*optimizer, STATE, names[number], *inner[2:]))
    if inner[0] == GROUPS and inner[-1] == _PARAMETERS and isinstance(item, Value):
        return replace(item, content=tuple(sorted(map(names.__getitem__, item.content))))
    return item


def _names(
    content: Content, optimizer: KeyPath, optimizers: Sequence[KeyPath]
) -> dict[int, str] | None:
    """Return the name of the parameter of each number, None if they are not certain."""
    groups, given = _groups(content, optimizer)
    numbers = [number for group in groups for number in group]
    if not numbers or not all(type(number) is int for number in numbers):
        return None
    if given is not None:
        flat = [name for group in given for name in group]
        unique = len(set(flat)) == len(flat) == len(set(numbers)) == len(numbers)
        return dict(zip(numbers, flat, strict=True)) if unique else None
    shapes = _shapes(content, optimizer)
    wanted = [[shapes.get(number) for number in group] for group in groups]
    for model in _models(content, optimizers):
        found = _assigned(wanted, model)
        if found is not None:
            return dict(zip(numbers, found, strict=True))
    return None


def _groups(
    content: Content, optimizer: KeyPath
) -> tuple[list[tuple[int, ...]], list[tuple[str, ...]] | None]:
    """Return the numbers of the parameters of each group, and their names if they were saved."""
    numbers: list[tuple[int, ...]] = []
    names: list[tuple[str, ...]] = []
    depth = len(optimizer)
    for item in content.values:
        if item.path[:depth] == optimizer and item.path[depth : depth + 1] == (GROUPS,):
            if item.path[-1] == _PARAMETERS and isinstance(item.content, tuple):
                numbers.append(item.content)
            elif item.path[-1] == _NAMES and isinstance(item.content, tuple):
                names.append(item.content)
    is_named = [len(group) for group in names] == [len(group) for group in numbers]
    return numbers, names if is_named else None


def _shapes(content: Content, optimizer: KeyPath) -> dict[int, Shape]:
    """Return the shapes of the parameters that have a state of their own shape."""
    found: dict[int, Shape] = {}
    depth = len(optimizer)
    for item in content.parameters:
        path = item.path
        if path[:depth] == optimizer and path[depth : depth + 1] == (STATE,) and item.shape:
            found.setdefault(_number(path[depth + 1]), item.shape)
    return found


def _number(key: Any) -> Any:
    """Return the number of a parameter, which distributed checkpoints save as text."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key


def _models(content: Content, optimizers: Sequence[KeyPath]) -> list[list[tuple[str, Parameter]]]:
    """Return the tensors that may be a model's parameters, by their outermost key, with names."""
    found: dict[KeyPath, list[tuple[str, Parameter]]] = defaultdict(list)
    for item in content.parameters:
        is_state = any(_is_inside(item.path, each) for each in optimizers)
        is_buffer = any(word in item.name for word in _BUFFERS)
        if not is_state and not is_buffer and item.dtype in FLOATS:
            depth = min(1, len(item.path) - 1)
            found[item.path[:depth]].append((path_name(item.path[depth:]), item))
    return list(found.values())


def _is_inside(path: KeyPath, optimizer: KeyPath) -> bool:
    depth = len(optimizer)
    return path[:depth] == optimizer and path[depth : depth + 1] in ((STATE,), (GROUPS,))


def _assigned(
    groups: Sequence[Sequence[Shape | None]], model: Sequence[tuple[str, Parameter]]
) -> list[str] | None:
    """Return the name of each parameter of each group, None if there is more than one way."""
    kinds = [set(group) for group in groups]
    if len(groups) == 1:
        parts = [list(model)]
    else:
        known = [kind for group in kinds for kind in group if kind is not None]
        if any(None in group for group in kinds) or len(set(known)) != len(known):
            return None
        parts = [[(name, item) for name, item in model if item.shape in kind] for kind in kinds]
    found: list[str] = []
    for group, part in zip(groups, parts, strict=True):
        names = _names_of_group(group, part, is_ordered=not _is_sorted(model))
        if names is None:
            return None
        found += names
    return found


def _names_of_group(
    group: Sequence[Shape | None], part: Sequence[tuple[str, Parameter]], *, is_ordered: bool
) -> list[str] | None:
    if len(group) != len(part):
        return None
    by_shape = {item.shape: name for name, item in part}
    if len(by_shape) == len(part) and set(group) == set(by_shape):
        return [by_shape[shape] for shape in group if shape is not None]
    fits = is_ordered and all(
        shape in (None, item.shape) for shape, (_, item) in zip(group, part, strict=True)
    )
    return [name for name, _ in part] if fits else None


def _is_sorted(model: Sequence[tuple[str, Parameter]]) -> bool:
    """Whether a file has its parameters in the order of their names and not of the model."""
    names = [name for name, _ in model]
    return names == sorted(names)
