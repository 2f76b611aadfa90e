# SPDX-License-Identifier: Apache-2.0
"""Keep observing inside a backward pass, on versions of torch that cannot redispatch a call.

A backward pass is started by a function that reaches the function mode, and while the mode handles
a call it is off; recomputed code would run unseen. Newer versions can run the call on with the
mode put back (``torch.overrides.redispatch_function``). On others the code of the function that
enters the engine is diverted while capturing, to put the mode back there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.code_swap import divert
from msprobe.pytorch.interception.function_mode import ApiObserver


def observe_engine(apis: ApiObserver) -> Callable[[], None] | None:
    """Let `apis` see what runs inside backward passes that this thread starts.

    Whoever replaces torch's function by another one (`torch.compiler` does at times) calls the
    diverted one in the end, and keeps the replacement.

    Returns: the undo; None where this version of torch has no such function.
    """
    entry = getattr(torch.autograd, "_engine_run_backward", None)
    if entry is None:
        return None
    thread = threading.get_ident()

    def handle(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (
            threading.get_ident() != thread
            or not apis.session.observing
            or mode_stack.is_installed(apis)
        ):
            return original(*args, **kwargs)
        with apis:
            return original(*args, **kwargs)

    return divert(entry, handle)
