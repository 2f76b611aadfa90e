# SPDX-License-Identifier: Apache-2.0
"""The operators by which a compiled graph gives tensors to msprobe (CPU only).

They are MindSpore's `Custom` operator with a function in C, of the C extension; without that, with
a Python function. A call of plain Python from a graph (a module in ``MS_JIT_IGNORE_MODULES``) would
be simpler to write, but MindSpore 2.10 cannot compile it into gradients of jitted parts, and may
run it twice.

One call costs about 10 µs in C, 60 in Python, however many tensors it takes: so it takes all that
are there.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import mindspore
from mindspore import Tensor, ops
from msprobe.mindspore.compiled.sink import NATIVE, Handed, Take, call_key, receiver
from msprobe.mindspore.compiled.structure import Leaf, Place, Written
from msprobe.mindspore.compiled.values import graph_value

_CAST: Final = ops.Cast()
_RESHAPE: Final = ops.Reshape()
_STOP_GRADIENT: Final = ops.Primitive("StopGradient")
_DONE: Final = np.zeros(1, np.float32)  # an operator has to have a result
_NOTHING: Final = Tensor(_DONE)
_numbers: Final = itertools.count()
_WHITE_LIST: Final = "MS_CUSTOM_AOT_WHITE_LIST"
# A graph calls functions by their address, for as long as the process lives.
_alive: Final[list[Any]] = []


def delivery(code: Written, places: Sequence[Place], take: Take) -> str:
    """Return the code of a call that gives tensors to us; the graph can wait for its result.

    Args:
        code: of the function that will make the call.
        places: the tensors.
        take: called with them while recording.
    """
    leaves = [place.leaf for place in places]
    # No gradient must come back from the operator, not even zeros: they would be added.
    sent = [code.call(_STOP_GRADIENT, place.code) for place in places]
    library = _library()
    key = None if library is None else call_key(take, leaves)
    if library is not None and key is not None:
        told = code.constant(Tensor(np.array(key, np.int64)))
        operator = _operator(f"{library}:msprobe_take", "aot", len(sent) + 1)
        return code.call(operator, told, *sent)
    arguments = [_sendable(code, *one) for one in zip(places, sent, strict=True)]
    operator = _calling_python(leaves, take)
    return code.call(operator, *(arguments or [code.constant(_NOTHING)]))


def _library() -> str | None:
    """Return the file of the C extension, None where MindSpore would not take a function of it."""
    file = None if NATIVE is None else NATIVE.__file__
    return None if file is None or ":" in file or _WHITE_LIST in os.environ else file


def _sendable(code: Written, place: Place, sent: str) -> str:
    """Return the code for a tensor in a form that NumPy has."""
    if place.leaf.dtype == mindspore.bfloat16:
        sent = code.call(_CAST, sent, code.constant(mindspore.float32))
    return sent if place.leaf.shape else code.call(_RESHAPE, sent, "(1,)")


def _received(leaf: Leaf, values: NDArray[Any]) -> Handed:
    values = values if leaf.shape else values.reshape(())
    return graph_value(values, is_bfloat16=leaf.dtype == mindspore.bfloat16)


def _calling_python(leaves: Sequence[Leaf], take: Take) -> ops.Custom:
    """Return an operator that has `take` called with tensors."""

    def receive(*values: NDArray[Any]) -> NDArray[np.float32]:
        events = receiver()
        if events is not None:
            received = [_received(*one) for one in zip(leaves, values, strict=False)]
            events.hand_over(take, received, 0.0)
        return _DONE

    names = _argument_names(max(len(leaves), 1))
    kind = inspect.Parameter.POSITIONAL_ONLY
    receive.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    _alive.append(receive)
    return _operator(receive, "pyfunc", len(names))


def _operator(function: Callable[..., Any] | str, kind: str, count: int) -> ops.Custom:
    """Return an operator with so many inputs; its calls keep their order, and none is left out."""
    made = ops.Custom(
        function,
        out_shape=lambda *_: (1,),
        out_dtype=lambda *_: mindspore.float32,
        func_type=kind,
        bprop=_no_gradients(count),
    )
    made.add_prim_attr("side_effect_io", True)
    # To MindSpore two operators of one name and with the same attributes are the same.
    made.add_prim_attr("number", next(_numbers))
    return made


def _no_gradients(count: int) -> Callable[..., Any]:
    """Return the `bprop` of an operator with so many inputs.

    A new one for each operator: MindSpore 2.10 changes the one that it has compiled.
    """
    names = _argument_names(count)
    code = Written(*names, "out", "dout")
    return code.returning(_tuple(code.call(ops.zeros_like, name) for name in names))


def _argument_names(count: int) -> list[str]:
    return [f"a{number}" for number in range(count)]


def _tuple(items: Iterable[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items) + ")"
