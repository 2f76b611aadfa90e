# SPDX-License-Identifier: Apache-2.0
"""Run compiled code eagerly while capturing, so that its modules and APIs can be seen."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from typing import Any, Final

import torch

from msprobe.capture.session import Session
from msprobe.config import CompileMode

# torch says this when a compiled module is called while global hooks are on. That its wrapper is
# recorded beside the module itself is what a reader of the dump expects.
_HOOK_WARNING: Final = r"Using `torch\.compile\(module\)` when there are global hooks"


def run_eagerly(session: Session) -> bool:
    """Set torch's stance to eager until `stop`, if anything was compiled at all.

    Importing dynamo costs about a second, so it is only asked when it is loaded already. A stance
    that the user sets meanwhile is left alone.

    Returns: whether compiled code may stay compiled: the settings or the user's stance say so.
    """
    stays_compiled = session.config.compile is CompileMode.MODULES_ONLY
    if "torch._dynamo" not in sys.modules and not stays_compiled:
        return False
    silence_hook_warning(session.undo)
    if stays_compiled:
        return True
    from torch._dynamo import eval_frame

    compiled = any(backend is not None for backend in eval_frame.cached_backends.values())
    if eval_frame._stance.stance != "default":
        session.account.note(f"compiled code ran under the stance {eval_frame._stance.stance!r}")
        return True
    before = eval_frame._stance
    torch.compiler.set_stance("force_eager")
    ours = eval_frame._stance
    if compiled:
        session.account.note("compiled code ran eagerly")

    def restore() -> None:
        if eval_frame._stance is ours:
            torch.compiler.set_stance(before.stance)

    session.undo.callback(restore)
    return False


def silence_hook_warning(undo: ExitStack) -> None:
    """Keep torch from warning of global hooks around compiled modules, until `undo` is closed."""
    warnings.filterwarnings("ignore", message=_HOOK_WARNING, category=UserWarning)
    ours = warnings.filters[0]

    def restore() -> None:
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        for index, entry in enumerate(filters):
            if entry is ours:
                del filters[index]
                warnings._filters_mutated()  # type: ignore[attr-defined]
                return

    undo.callback(restore)


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Return whether `module` is the result of ``torch.compile(model)``."""
    return "torch._dynamo" in sys.modules and type(module).__name__ == "OptimizedModule"
