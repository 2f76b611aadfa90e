# SPDX-License-Identifier: Apache-2.0
"""Gradients inside compiled graphs, handed over where they cross the boundary of a cell.

What passes an `InsertGradientOf` is unchanged; its callback, compiled into the gradient graph,
hands the gradient over. Two ways that look simpler do not do. The backward hooks of cells cannot be
compiled where a graph is part of a dynamic one, whose gradient is taken from outside. And an
identity cell with a `bprop` of its own has MindSpore 2.10 compute wrong gradients there, for
weights that are used more than once.
"""

from __future__ import annotations

from typing import Final

import mindspore
from mindspore import Parameter, Tensor, ops
from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT
from msprobe.mindspore.compiled import sink
from msprobe.mindspore.compiled.delivery import (
    Delivered,
    deliver,
    deliver_all,
    form_of,
    keys_of,
    operator,
    receiver,
)
from msprobe.mindspore.compiled.walk import at_compile_time, compiled

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
_SIDES: Final = (SIDE_INPUT, SIDE_OUTPUT)
_cells: Final[list[str]] = []
_numbers: Final[dict[str, int]] = {}


def _number(cell: str) -> int:
    """Return the number of a cell: a graph knows numbers, and lives as long as the process."""
    if cell not in _numbers:
        _numbers[cell] = len(_cells)
        _cells.append(cell)
    return _numbers[cell]


def _receive(cell: int, side: int, leaf: int, gradient: Delivered) -> None:
    if sink.is_open():
        sink.gradient(_cells[cell], _SIDES[side], leaf, gradient.now())


_RECEIVER: Final = receiver(_receive)


@at_compile_time
def _reader(cell: str, side: str, leaf: int) -> ops.InsertGradientOf:
    """Return, while a graph is compiled, what passes a value on and hands over its gradient."""
    keys = keys_of(_RECEIVER, _number(cell), _SIDES.index(side), leaf)
    call = operator()

    @compiled
    def callback(gradient):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        form = form_of(gradient)
        if form < 0:
            return gradient
        return ops.depend(gradient, deliver(call, keys, gradient, form))

    made = ops.InsertGradientOf(callback)
    # MindSpore 2.10 cannot compile what they ask for where there is control flow. The operator in
    # the callback says for itself that it must not be left out.
    for effect in _EFFECTS:
        if effect in made.attrs:
            made.del_prim_attr(effect)
    return made


@compiled
def watch_gradient(cell, side, value, leaf):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return a tensor as it is; its gradient will be handed over."""
    if isinstance(value, Tensor) and value.dtype in _DIFFERENTIABLE:
        if isinstance(value, Parameter):
            return value
        return _reader(cell, side, leaf)(value)
    return value


@at_compile_time
def _numbers_of(cell: str, side: str) -> tuple[int, int]:
    return _number(cell), _SIDES.index(side)


@compiled
def deliver_gradients(cell, side, gradients):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Hand over, compiled, the gradients of all arguments, or of the result.

    Returns what the graph has to wait for.
    """
    number, side_number = _numbers_of(cell, side)
    found, _ = deliver_all((_RECEIVER, number, side_number), gradients, 0)
    return found
