# SPDX-License-Identifier: Apache-2.0
"""Code under ``jit(capture_mode="bytecode")`` runs as Python code while capturing.

Such code is compiled piece by piece as the interpreter reaches it, and its pieces call neither
our wrappers nor hooks on cells. Run as it is written it shows its APIs and cells like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

_HOMES: Final = ("mindspore.graph._utils.pijit_context", "mindspore.common._pijit_context")
_CONTEXT: Final = "PIJitCaptureContext"


def context_class() -> Any:
    """Return the class in whose context such code runs; it has moved between MindSpore's versions.

    None where this MindSpore has none.
    """
    return found_in(_CONTEXT, _HOMES)


def found_in(name: str, homes: Sequence[str]) -> Any:
    """Return an attribute of the first module that has it; None if none does."""
    for home in homes:
        try:
            found = getattr(import_module(home), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None


def run_as_python() -> Callable[[], None] | None:
    """Compile no bytecode from now on; return the undo, None where there is nothing to do."""
    owner = context_class()
    if owner is None:
        return None
    enter, leave = owner.__enter__, owner.__exit__
    # Contexts that were entered while this was on: each must be left in the same way.
    entered: list[Any] = []

    def quiet_enter(context: Any) -> None:
        entered.append(context)

    def quiet_leave(context: Any, *error: Any) -> None:
        if any(context is one for one in entered):
            entered.remove(context)
        else:
            leave(context, *error)

    owner.__enter__, owner.__exit__ = quiet_enter, quiet_leave

    def undo() -> None:
        if owner.__dict__.get("__enter__") is quiet_enter:
            owner.__enter__, owner.__exit__ = enter, leave

    return undo
