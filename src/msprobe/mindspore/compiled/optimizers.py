# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters inside compiled graphs, handed over where an optimiser receives them.

A hook on a parameter would do, but MindSpore 2.10 cannot compile it where the way to the parameter
leads through a `stop_gradient`. What a graph computes for its parameters goes to an optimiser, in
the order of the optimiser's parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from types import MethodType
from typing import Any, Final

from mindspore.experimental import optim

from mindspore import nn
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.compiled import sink
from msprobe.mindspore.compiled.cells import living_cells, plain_construct
from msprobe.mindspore.compiled.delivery import Delivered, deliver_all, receiver
from msprobe.mindspore.compiled.walk import compiled

_KINDS: Final = (nn.Optimizer, optim.Optimizer)
_SIDE: Final = 0
# A graph knows numbers, and lives as long as the process.
_optimizers: Final[list[weakref.ref[nn.Cell]]] = []


def is_optimizer(value: object) -> bool:
    """Return whether this is an optimiser."""
    return issubclass(type(value), _KINDS)


def optimizers_of(names: CellNames) -> Iterator[tuple[nn.Cell, str]]:
    """Yield the optimisers that train parameters of these cells, with the name of their class.

    None where a cell gives its weights sparse gradients, which cannot be handed over; and none that
    another one wraps, which would be given the same gradients once more.
    """
    cells = list(names.items())
    if any(getattr(cell, "sparse", False) is True for cell, _ in cells):
        return
    trained = {id(one) for cell, _ in cells for one in own_parameters(cell).values()}
    found = [
        cell
        for cell in living_cells()
        if is_optimizer(cell) and any(id(one) in trained for one in getattr(cell, "parameters", ()))
    ]
    wrapped = {id(part) for one in found for _, part in one.cells_and_names() if part is not one}
    for optimizer in found:
        if id(optimizer) not in wrapped:
            yield optimizer, type(optimizer).__name__


def handing_optimizer(optimizer: nn.Cell) -> MethodType:
    """Return a `construct` that hands over the gradients that an optimiser receives."""
    original = plain_construct(optimizer)
    number = len(_optimizers)
    _optimizers.append(weakref.ref(optimizer))

    @compiled
    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        # The gradients come first.
        deliver_all((_RECEIVER, number, _SIDE), (args, kwargs), 0)
        return original(*args, **kwargs)

    return MethodType(construct, optimizer)


def _receive(number: int, side: int, leaf: int, gradient: Delivered) -> None:
    optimizer: Any = _optimizers[number]()
    if sink.is_open() and optimizer is not None and leaf < len(optimizer.parameters):
        sink.parameter_gradient(optimizer.parameters[leaf], gradient.now())


_RECEIVER: Final = receiver(_receive)
