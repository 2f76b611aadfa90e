# SPDX-License-Identifier: Apache-2.0
"""Find the function that a record's name means.

Names are looked up in PyTorch's own modules and in operators that are loaded already: nothing is
imported because a dump names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
import torch._VF
import torch.nn.functional

Function = Callable[..., Any]

# Where the functions of a prefix live; several of them may have one name.
_PLACES: Final = {
    "Functional": (torch.nn.functional, torch._C._nn),
    "Torch": (
        torch,
        torch.linalg,
        torch.fft,
        torch.special,
        torch.functional,
        torch.sparse,
        torch._C._VariableFunctions,
    ),
    "Tensor": (torch.Tensor,),
    "VF": (torch._VF, torch),
    "Aten": (torch.ops.aten,),
    "NPU": (torch.ops.npu,),
}
# Methods that only move a tensor to another device.
_MOVES: Final = frozenset(("cpu", "cuda", "npu", "xpu", "mps", "hpu", "mlu", "pin_memory"))


def function_path(prefix: str, api: str, function: Function) -> str | None:
    """Return the name under which a script finds a function; None if there is none.

    Args:
        prefix: of the record.
        api: of the record.
        function: one of `functions_named`.
    """
    for place in _PLACES.get(prefix, ()):
        if getattr(place, api, None) is function or _is_operator(place):
            return f"{_place_name(place)}.{api}"
    if prefix in _PLACES or prefix == "Autograd":
        return None
    module = sys.modules.get(prefix)
    is_plain = module is not None and getattr(module, api, None) is function
    return f"{prefix}.{api}" if is_plain else f"torch.ops.{prefix}.{api}"


def _is_operator(place: Any) -> bool:
    return type(place).__module__ == "torch._ops"


def _place_name(place: Any) -> str:
    if _is_operator(place):
        return str(place.__name__)
    if isinstance(place, type):
        return f"{place.__module__}.{place.__qualname__}"
    return str(place.__name__).replace("torch._C._VariableFunctions", "torch")


@cache
def functions_named(prefix: str, api: str) -> tuple[Function, ...]:
    """Return all functions that may have made a record, the likeliest first; empty for none."""
    if prefix == "Tensor" and api in _MOVES:
        return (_copy,)
    found: dict[int, Function] = {}
    for function in _lookup(prefix, api):
        found.setdefault(id(function), function)
    return tuple(found.values())


def _lookup(prefix: str, api: str) -> Iterator[Function]:
    if prefix == "Autograd":
        yield from (
            one.apply for one in _subclasses(torch.autograd.Function) if one.__name__ == api
        )
        return
    places = _PLACES.get(prefix)
    if places is None:
        places = (_operators(prefix), sys.modules.get(prefix))
    for place in places:
        function = getattr(place, api, None)
        if callable(function) and not isinstance(function, type):
            yield function


def _subclasses(kind: Any) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _operators(namespace: str) -> Any:
    """Return the custom operators of a namespace; None for a name that is none."""
    return getattr(torch.ops, namespace) if namespace.isidentifier() else None


def _copy(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return tensor.clone()
