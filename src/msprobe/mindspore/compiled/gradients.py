# SPDX-License-Identifier: Apache-2.0
"""Gradients inside compiled graphs, handed over where they cross the boundary of a cell.

A value that passes an `InsertGradientOf` is unchanged; its callback, compiled into the gradient
graph, hands the gradient over. Two ways that look simpler do not do. The backward hooks of cells
cannot be compiled where a graph is part of a dynamic one, whose gradient is taken from outside. And
an identity cell with a `bprop` of its own has MindSpore 2.10 compute wrong gradients there, for
weights that are used more than once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mindspore
from mindspore import ops
from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT
from msprobe.mindspore.compiled.delivery import delivery
from msprobe.mindspore.compiled.sink import GraphEvents, Handed
from msprobe.mindspore.compiled.structure import (
    Leaf,
    Look,
    Place,
    Structure,
    Written,
    rewritten,
    tensors,
)

ARGUMENTS: Final = SIDE_OUTPUT
RESULT: Final = SIDE_INPUT
"""The sides of a backward record that belong to a call's arguments and to its result."""

_DIFFERENTIABLE: Final = (
    mindspore.float16,
    mindspore.float32,
    mindspore.float64,
    mindspore.bfloat16,
    mindspore.complex64,
    mindspore.complex128,
)
_numbers: Final = itertools.count()


def reader(cell: str, side: str, number: int, leaf: Leaf) -> ops.Primitive | None:
    """Return the operator that passes a tensor on and hands over its gradient.

    Args:
        cell: the cell's name.
        side: `ARGUMENTS` or `RESULT`.
        number: the leaf's, in these.
        leaf: its kind, dtype and shape, which are its gradient's, too; None is returned where it
            can have no gradient.
    """
    if leaf.dtype not in _DIFFERENTIABLE:
        return None
    code = Written("value", "out", "gradient")
    arrived = [Place(number, leaf, "gradient")]
    done = delivery(code, arrived, partial(_take, cell, side, [number]))
    return _GradientReader(code.returning(f"({code.call(ops.depend, 'gradient', done)},)"))


class _GradientReader(ops.Primitive):  # type: ignore[misc]  # MindSpore is untyped
    """MindSpore's `InsertGradientOf` with another `bprop`.

    That of MindSpore asks for the kind of its function's result, which makes two more graphs of it.
    And MindSpore 2.10 cannot compile the effects that it claims where there is control flow; the
    operator in the function says for itself that it must not be left out.
    """

    def __init__(self, bprop: Callable[..., Any]) -> None:
        super().__init__("InsertGradientOf")
        # To MindSpore two operators of one name and with the same attributes are the same.
        self.add_prim_attr("number", next(_numbers))
        self._bprop = bprop

    def get_bprop(self) -> Callable[..., Any]:
        return self._bprop


def handing_over(cell: str, side: str) -> Look:
    """Return a maker of the function that hands over all gradients of a value, and returns it."""
    return Look(partial(_passing, cell, side))


def _passing(cell: str, side: str, structure: Structure) -> Callable[..., Any]:
    """Return a function that returns a value as it is, after its tensors were handed over.

    Args:
        cell: the cell's name.
        side: of its backward record.
        structure: how the value is built.
    """
    code = Written("value")
    places = tensors(structure, "value")
    if not places:
        return code.returning("value")
    numbers = [place.number for place in places]
    done = code.let("done", delivery(code, places, partial(_take, cell, side, numbers)))

    def waiting(place: Place) -> str:
        return code.call(ops.depend, place.code, done)

    return code.returning(rewritten(structure, "value", waiting))


def _take(
    cell: str, side: str, numbers: list[int], events: GraphEvents, gradients: list[Handed]
) -> None:
    for number, gradient in zip(numbers, gradients, strict=True):
        events.gradient(cell, side, number, gradient)
