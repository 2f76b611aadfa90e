# SPDX-License-Identifier: Apache-2.0
"""Record calls of custom ``torch.autograd.Function`` classes as ``Autograd.{Class}``.

``apply`` reaches neither a function mode nor a module hook. Before PyTorch 2.14 it is written in
Python, and its code is diverted while capturing (see `code_swap`): the method itself stays the same
object, and scripts that keep ``my_function = MyFunction.apply`` are seen, too. Since then it is
written in C, and the attribute is exchanged instead: what a script kept before is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from msprobe.pytorch.interception.code_swap import Handler, divert
from msprobe.pytorch.interception.function_mode import ApiObserver
from msprobe.pytorch.interception.hidden_calls import record_call

_functorch_active = torch._C._are_functorch_transforms_active


def watch_autograd_functions(apis: ApiObserver) -> Callable[[], None]:
    """Record every call of a custom Function while `apis` is on; return the undo.

    torch's own Functions (checkpointing, collectives, parallel layers) are machinery and make no
    records. Under functorch transforms the inner call that torch makes of it is not seen either.
    """

    def handle(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = args[0]
        if not apis.is_on() or _is_torchs_own(function) or _functorch_active():
            return original(*args, **kwargs)
        name = f"Autograd.{function.__name__}"
        run = partial(original, function)
        return record_call(apis, name, run, args[1:], kwargs, hides_inner=False)

    apply = vars(torch.autograd.Function)["apply"]
    if isinstance(apply, classmethod):
        return divert(apply.__func__, handle)
    return _exchange(apply, handle)


def _exchange(apply: Any, handler: Handler) -> Callable[[], None]:
    """Let ``Function.apply`` run ``handler(original, args, kwargs)`` until the undo is called."""

    def original(function: type, *args: Any, **kwargs: Any) -> Any:
        return apply.__get__(None, function)(*args, **kwargs)

    def diverted(function: type, *args: Any, **kwargs: Any) -> Any:
        return handler(original, (function, *args), kwargs)

    diverted.__name__, diverted.__qualname__ = "apply", "Function.apply"
    installed: Any = classmethod(diverted)
    owner: Any = torch.autograd.Function
    owner.apply = installed

    def undo() -> None:
        if vars(owner).get("apply") is installed:  # else other code has exchanged it since
            owner.apply = apply

    return undo


def _is_torchs_own(function: Any) -> bool:
    module: str = function.__module__
    return module == "torch" or module.startswith("torch.")
