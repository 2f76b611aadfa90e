# SPDX-License-Identifier: Apache-2.0
"""The operator by which a compiled graph gives a tensor to Python (CPU only).

It is MindSpore's `Custom` operator with a Python function. A call of plain Python from a graph
(a module in ``MS_JIT_IGNORE_MODULES``) would be simpler to write, but MindSpore 2.10 cannot compile
it into gradients of jitted parts, and may run it twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from mindspore.ops import functional as F  # noqa: N812 - MindSpore's own name for it
from numpy.typing import NDArray

import mindspore
from mindspore import Tensor, ops
from msprobe.mindspore.compiled.values import GraphValue, graph_value
from msprobe.mindspore.compiled.walk import at_compile_time, compiled, make_fold

Receiver = Callable[[int, int, int, "Delivered"], None]

# How a value was changed to get through the operator.
_SCALAR, _BFLOAT16 = 1, 2
_receivers: Final[list[Receiver]] = []
_NOTHING: Final = Tensor(np.zeros(1, np.float32))


@dataclass(frozen=True, slots=True)
class Delivered:
    """A value from a running graph.

    Attributes:
        values: its values, in memory of the graph: to be read now. bfloat16 comes as float32.
        is_bfloat16: whether it is.
    """

    values: NDArray[Any]
    is_bfloat16: bool

    def now(self) -> GraphValue:
        """Return the value, to be read before the graph goes on."""
        return graph_value(self.values, is_bfloat16=self.is_bfloat16)

    def copy(self) -> GraphValue:
        """Return the value in memory of its own."""
        return self.now() if self.is_bfloat16 else graph_value(self.values.copy())


def receiver(function: Receiver) -> int:
    """Return the number by which a graph reaches `function`, for as long as the process lives.

    It is called with the number of what the value belongs to, the side, the leaf and the value.
    """
    _receivers.append(function)
    return len(_receivers) - 1


def _deliver(key: NDArray[np.int32], value: NDArray[Any]) -> NDArray[np.float32]:
    """Take a value from a running graph; an operator has to have a result."""
    form, number, owner, side, leaf = key.tolist()
    if form & _SCALAR:
        value = value.reshape(())
    _receivers[number](owner, side, leaf, Delivered(value, bool(form & _BFLOAT16)))
    return np.zeros(1, np.float32)


@cache
def operator() -> ops.Custom:
    """Return the operator; its calls keep their order, and none is left out."""
    made = ops.Custom(
        _deliver,
        out_shape=lambda key, value: (1,),
        out_dtype=lambda key, value: mindspore.float32,
        func_type="pyfunc",
        bprop=_no_gradient,
    )
    made.add_prim_attr("side_effect_io", True)
    return made


def _no_gradient(key, value, out, dout):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    return ops.zeros_like(key), ops.zeros_like(value)


compiled(_no_gradient)


def keys_of(number: int, *place: int) -> tuple[Tensor, ...]:
    """Return what tells the operator the place of a value, one tensor for each form."""
    return tuple(Tensor([form, number, *place], mindspore.int32) for form in range(4))


@at_compile_time
def _form(shape: tuple[int, ...], dtype: Any) -> int:
    if 0 in shape:
        return -1
    return (_BFLOAT16 if dtype == mindspore.bfloat16 else 0) + (0 if shape else _SCALAR)


@compiled
def form_of(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Return, compiled, how a tensor gets through; -1 for one that is, or may be, empty."""
    if not F.isconstant(value.shape):
        return -1
    return _form(value.shape, value.dtype)


@compiled
def deliver(call, keys, value, form):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Give a tensor to Python, compiled, in the form that `form_of` says.

    Returns what the graph has to wait for.
    """
    if form == 0:
        return call(keys[0], value)
    if form == _SCALAR:
        return call(keys[form], ops.reshape(value, (1,)))
    wide = ops.cast(value, mindspore.float32)
    if form == _BFLOAT16:
        return call(keys[form], wide)
    return call(keys[form], ops.reshape(wide, (1,)))


@at_compile_time
def _keys(number: int, owner: int, side: int, leaf: int) -> tuple[Tensor, ...]:
    return keys_of(number, owner, side, leaf)


@at_compile_time
def _operator() -> ops.Custom:
    return operator()


@compiled
def _deliver_one(context, value, leaf):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    number, owner, side = context
    form = form_of(value)
    if form < 0:
        return ()
    keys = _keys(number, owner, side, leaf)
    # No gradient must come back from here, not even zeros: they would be added.
    return (deliver(_operator(), keys, ops.stop_gradient(value), form),)


deliver_all: Final = make_fold(_deliver_one)
"""``deliver_all((receiver, owner, side), value, 0)``, compiled: give all tensors of a value to
Python; returns what the graph has to wait for, and the number after the last leaf."""


@compiled
def deliver_mark(context, leaf):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Tell Python, compiled, that a place was reached where there is no tensor."""
    number, owner, side = context
    return _operator()(_keys(number, owner, side, leaf)[0], _NOTHING)
