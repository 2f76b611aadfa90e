# SPDX-License-Identifier: Apache-2.0
"""Find the function that a record's name means.

A dump may come from anywhere, so a name in it must never reach a function that does more than
compute. Names are looked up among PyTorch's functions of tensors, in operators that are loaded
already, and in modules that the user named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch._VF
import torch.nn.functional
from torch.overrides import get_testing_overrides

from msprobe.replay.references import imported_module

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
# Functions and operators that open the file which their argument names.
_OPEN_FILES: Final = frozenset(("from_file", "save"))


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
    module = imported_module(prefix)
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


def functions_named(prefix: str, api: str) -> tuple[Function, ...]:
    """Return all functions that may have made a record, the likeliest first; empty for none."""
    if api in _OPEN_FILES:
        return ()
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
    for place in _PLACES.get(prefix, (_operators(prefix), imported_module(prefix))):
        function = getattr(place, api, None)
        if not callable(function) or isinstance(function, type):
            continue
        if place is not torch or _is_of_tensors(api, function):
            yield function


def _is_of_tensors(api: str, function: Function) -> bool:
    """Return whether a function of `torch` takes or makes tensors: others load or set things."""
    own = getattr(torch._C._VariableFunctions, api, None)
    return function is own or function in get_testing_overrides()


def _subclasses(kind: Any) -> Iterator[Any]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _operators(namespace: str) -> Any:
    """Return the custom operators of a namespace; None for a name that is none."""
    found = getattr(torch.ops, namespace) if namespace.isidentifier() else None
    return found if _is_operator(found) else None


def _copy(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return tensor.clone()
