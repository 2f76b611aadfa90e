# SPDX-License-Identifier: Apache-2.0
"""Record calls of custom ``torch.autograd.Function`` classes as ``Autograd.{Class}``.

``apply`` reaches neither a function mode nor a module hook. So the code of ``Function.apply`` is
diverted while capturing (see `code_swap`): the method itself stays the same object, and
scripts that keep ``my_function = MyFunction.apply`` are seen, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from msprobe.pytorch.interception.code_swap import divert
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

    return divert(vars(torch.autograd.Function)["apply"].__func__, handle)


def _is_torchs_own(function: Any) -> bool:
    module: str = function.__module__
    return module == "torch" or module.startswith("torch.")
