# SPDX-License-Identifier: Apache-2.0
"""Gradients inside compiled graphs, handed over where they cross the boundary of a cell.

A value that passes an `InsertGradientOf` is unchanged; its callback, compiled into the gradient
graph, hands the gradient over. Two ways that look simpler do not do. The backward hooks of cells
cannot be compiled where a graph is part of a dynamic one, whose gradient is taken from outside. And
an identity cell with a `bprop` of its own has MindSpore 2.10 compute wrong gradients there, for
weights that are used more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import mindspore
from mindspore import ops
from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT
from msprobe.mindspore.compiled.delivery import delivery
from msprobe.mindspore.compiled.sink import GraphEvents
from msprobe.mindspore.compiled.structure import (
    Leaf,
    Look,
    Place,
    Structure,
    Written,
    compiled,
    rewritten,
    tensors,
)
from msprobe.mindspore.compiled.values import GraphValue

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
_EFFECTS: Final = ("side_effect_backprop", "side_effect_backprop_mem")


def reader(cell: str, side: str, number: int, leaf: Leaf) -> ops.InsertGradientOf | None:
    """Return the operator that passes a tensor on and hands over its gradient.

    Args:
        cell: the cell's name.
        side: `ARGUMENTS` or `RESULT`.
        number: the leaf's, in these.
        leaf: its kind, dtype and shape; None is returned where it can have no gradient.
    """
    if leaf.dtype not in _DIFFERENTIABLE:
        return None
    look = Look(partial(_passing, cell, side, number))

    @compiled
    def callback(gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return look(gradient)(gradient)

    made = ops.InsertGradientOf(callback)
    # MindSpore 2.10 cannot compile what they ask for where there is control flow. The operator in
    # the callback says for itself that it must not be left out.
    for effect in _EFFECTS:
        if effect in made.attrs:
            made.del_prim_attr(effect)
    return made


def handing_over(cell: str, side: str) -> Look:
    """Return a maker of the function that hands over all gradients of a value, and returns it."""
    return Look(partial(_passing, cell, side, 0))


def _passing(cell: str, side: str, first: int, structure: Structure) -> Callable[..., Any]:
    """Return a function that returns a value as it is, after its tensors were handed over.

    Args:
        cell: the cell's name.
        side: of its backward record.
        first: number of the first leaf.
        structure: how the value is built.
    """
    code = Written("value")
    places = tensors(structure, "value")
    if not places:
        return code.returning("value")
    numbers = [first + place.number for place in places]
    done = code.let("done", delivery(code, places, partial(_take, cell, side, numbers)))

    def waiting(place: Place) -> str:
        return code.call(ops.depend, place.code, done)

    return code.returning(rewritten(structure, "value", waiting))


def _take(
    cell: str, side: str, numbers: list[int], events: GraphEvents, gradients: list[GraphValue]
) -> None:
    for number, gradient in zip(numbers, gradients, strict=True):
        events.gradient(cell, side, number, gradient)
