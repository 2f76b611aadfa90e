# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters inside compiled graphs, handed over where an optimiser receives them.

A hook on a parameter would do, but MindSpore 2.10 cannot compile it where the way to the parameter
leads through a `stop_gradient`. What a graph computes for its parameters goes to an optimiser, in
the order of the optimiser's parameters.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from types import MethodType
from typing import Any, Final

from mindspore.experimental import optim

from mindspore import nn
from msprobe.mindspore.cell_hooks import CellNames
from msprobe.mindspore.compiled.cells import living_cells, plain_construct
from msprobe.mindspore.compiled.delivery import delivery
from msprobe.mindspore.compiled.sink import GraphEvents, Handed
from msprobe.mindspore.compiled.structure import Look, Structure, Written, compiled, tensors

OPTIMIZERS: Final = (nn.Optimizer, optim.Optimizer)
"""The base classes of optimisers."""


def is_optimizer(value: object) -> bool:
    """Return whether this is an optimiser."""
    return issubclass(type(value), OPTIMIZERS)


def optimizers_of(names: CellNames, wanted: Container[int]) -> Iterator[tuple[nn.Cell, str]]:
    """Yield the optimisers that train wanted parameters, with the name of their class.

    None where a cell gives its weights sparse gradients, which cannot be handed over; and none that
    another one wraps, which would be given the same gradients once more.

    Args:
        names: the cells of the models.
        wanted: identities of the parameters whose gradients are recorded.
    """
    if any(getattr(cell, "sparse", False) is True for cell, _ in names.items()):
        return
    found = [
        cell
        for cell in living_cells()
        if is_optimizer(cell) and any(id(one) in wanted for one in getattr(cell, "parameters", ()))
    ]
    wrapped = {id(part) for one in found for _, part in one.cells_and_names() if part is not one}
    for optimizer in found:
        if id(optimizer) not in wrapped:
            yield optimizer, type(optimizer).__name__


def handing_optimizer(wanted: Container[int], _name: str, optimizer: nn.Cell) -> MethodType:
    """Return a `construct` that hands over the wanted gradients that an optimiser receives.

    Args:
        wanted: identities of their parameters.
        optimizer: the optimiser.
    """
    original = plain_construct(optimizer)
    # They come first in what it is given, in the order of the parameters.
    numbers = [n for n, one in enumerate(optimizer.parameters) if id(one) in wanted]
    look = Look(partial(_handing_over, weakref.ref(optimizer), numbers))

    @compiled
    def construct(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        given = (args, kwargs)
        hand_over = look(given)
        hand_over(given)
        return original(*args, **kwargs)

    return MethodType(construct, optimizer)


def _handing_over(
    optimizer: weakref.ref[Any], numbers: Container[int], given: Structure
) -> Callable[..., Any]:
    """Return a function that hands over some of the tensors that an optimiser is given."""
    code = Written("given")
    places = [place for place in tensors(given, "given") if place.number in numbers]
    found = [place.number for place in places]
    return code.returning(delivery(code, places, partial(_take, optimizer, found)))


def _take(
    optimizer: weakref.ref[Any],
    numbers: Sequence[int],
    events: GraphEvents,
    gradients: Sequence[Handed],
) -> None:
    living = optimizer()
    for number, gradient in zip(numbers, gradients, strict=True):
        if living is not None:
            events.parameter_gradient(living.parameters[number], gradient)
