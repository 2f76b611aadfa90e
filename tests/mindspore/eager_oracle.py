# SPDX-License-Identifier: Apache-2.0
"""What the cells of a net see when it runs eagerly: values, and gradients of the net cut there.

Nothing of msprobe is used. A gradient is that of the loss with respect to zeros that are added to a
value where it enters or leaves a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mindspore as ms
from mindspore import Tensor, nn

Path = tuple[int | str, ...]
INPUT, OUTPUT = "input", "output"


@dataclass
class Seen:
    """A cell's call.

    Attributes:
        name: ``Cell.{path}.{class}`` and which call it is.
        parent: the call around it, the same way; None around the model itself.
        values: each tensor that entered or left, by side and path.
        parameters: the cell's own when it was called.
    """

    name: tuple[str, int]
    parent: tuple[str, int] | None
    values: dict[tuple[str, Path], np.ndarray] = field(default_factory=dict)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield the tensors in nested structures with their paths."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for index, one in enumerate(value):
            yield from leaves(one, (*path, index))
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, (*path, key))


def _replaced(value: Any, change: Callable[[Path, Tensor], Tensor], path: Path = ()) -> Any:
    if isinstance(value, Tensor):
        return change(path, value)
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(one, change, (*path, i)) for i, one in enumerate(value))
    if isinstance(value, dict):
        return {key: _replaced(one, change, (*path, key)) for key, one in value.items()}
    return value


def name_of(path: str, cell: nn.Cell) -> str:
    return ".".join(["Cell", *([path] if path else []), type(cell).__name__])


@contextmanager
def _hooked(model: nn.Cell, around: Callable[[str, int, str, Any], Any]) -> Iterator[None]:
    """Let `around` replace what enters and leaves; called with cell, number, side and value."""
    counts: dict[str, int] = {}
    running: dict[str, list[int]] = {}

    def register(stack: ExitStack, name: str, cell: nn.Cell) -> None:
        def before(_: nn.Cell, args: Any, kwargs: Any) -> Any:
            number = counts.get(name, 0)
            counts[name] = number + 1
            running.setdefault(name, []).append(number)
            both = around(name, number, INPUT, (*args, kwargs))
            return both[:-1], both[-1]

        def after(_: nn.Cell, args: Any, kwargs: Any, output: Any) -> Any:
            return around(name, running[name].pop(), OUTPUT, output)

        stack.callback(cell.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(cell.register_forward_hook(after, with_kwargs=True).remove)

    with ExitStack() as stack:
        for path, cell in model.cells_and_names():
            register(stack, name_of(path, cell), cell)
        yield


@contextmanager
def kept(model: nn.Cell) -> Iterator[None]:
    """Give a model back what it had: a forward pass changes the statistics of a batch norm."""
    before = [(one, one.asnumpy().copy()) for one in model.get_parameters()]
    yield
    for parameter, value in before:
        parameter.set_data(Tensor(value))


def calls(model: nn.Cell, inputs: Sequence[Tensor]) -> list[Seen]:
    """Run a model forward; return the calls of its cells, in the order in which they begin."""
    cells = {name_of(path, cell): cell for path, cell in model.cells_and_names()}
    found: dict[tuple[str, int], Seen] = {}
    open_calls: list[tuple[str, int]] = []

    def around(name: str, number: int, side: str, value: Any) -> Any:
        key = (name, number)
        if side == INPUT:
            found[key] = Seen(key, open_calls[-1] if open_calls else None)
            found[key].parameters = {
                attribute: parameter.asnumpy().copy()
                for attribute, parameter in cells[name]._params.items()
                if parameter is not None
            }
            open_calls.append(key)
            value, kwargs = value[:-1], value[-1]
            tensors = [*leaves(value), *leaves(kwargs)]
        else:
            open_calls.pop()
            tensors = list(leaves(value))
        for path, tensor in tensors:
            found[key].values[side, path] = tensor.asnumpy().copy()
        return (*value, kwargs) if side == INPUT else value

    with kept(model), _hooked(model, around):
        model(*inputs)
    return list(found.values())


Place = tuple[str, int, str, Path]


def gradients(
    model: nn.Cell, inputs: Sequence[Tensor], seen: Sequence[Seen]
) -> dict[Place, np.ndarray]:
    """Return the gradient of a model's result at every place where a number enters or leaves."""
    places = [
        (*call.name, *where)
        for call in seen
        for where, value in call.values.items()
        if value.dtype.kind == "f" and value.size
    ]
    by_name = {(one.name, where): value for one in seen for where, value in one.values.items()}
    zeros = [Tensor(np.zeros_like(by_name[(place[:2], place[2:])])) for place in places]
    index = {place: i for i, place in enumerate(places)}

    def cut(*offsets: Tensor) -> Tensor:
        def around(name: str, number: int, side: str, value: Any) -> Any:
            def add(path: Path, tensor: Tensor) -> Tensor:
                found = index.get((name, number, side, path))
                return tensor if found is None else tensor + offsets[found]

            if side == INPUT:
                return (*_replaced(value[:-1], add), _replaced(value[-1], add))
            return _replaced(value, add)

        with _hooked(model, around):
            return model(*inputs)

    with kept(model):
        found = ms.grad(cut, tuple(range(len(zeros))))(*zeros)
    found = found if isinstance(found, tuple) else (found,)
    return {place: one.asnumpy() for place, one in zip(places, found, strict=True)}


def depending(
    model: nn.Cell, inputs: Sequence[Tensor], seen: Sequence[Seen]
) -> set[tuple[Any, ...]]:
    """Return the places whose value is another with other weights."""
    with kept(model):
        for weight in model.trainable_params():
            weight.set_data(Tensor(weight.asnumpy() * 1.01 + 0.001))
        other = {call.name: call for call in calls(model, inputs)}
    return {
        (*call.name, *where)
        for call in seen
        for where, value in call.values.items()
        if not np.array_equal(value, other[call.name].values[where])
    }
