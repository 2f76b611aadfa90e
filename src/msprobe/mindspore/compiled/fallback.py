# SPDX-License-Identifier: Apache-2.0
"""Compile code without msprobe's additions where MindSpore cannot compile it with them.

Nothing has run when a compilation fails, so it can be tried again. If that fails as well, the error
is the user's and goes on to them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from msprobe.mindspore.jit_calls import executor_class, in_homes

_COMPILE: Final = "compile"
_CELLS: Final = "_CellGraphExecutor"


class CompileFallback:
    """Watches compilations between `install` and `remove`."""

    def __init__(
        self,
        runs: Callable[[], None],
        take_out: Callable[[], bool],
        was_ours: Callable[[Exception], None],
    ) -> None:
        """Create it, not yet installed.

        Args:
            runs: is told before each call of compiled code, compiled already or not.
            take_out: removes msprobe's additions; returns whether there were any.
            was_ours: is told an error that did not come again without it.
        """
        self._runs = runs
        self._take_out = take_out
        self._was_ours = was_ours
        self._undo = ExitStack()
        self._is_installed = False

    def install(self) -> None:
        """Begin, unless it has begun."""
        if self._is_installed:
            return
        self._is_installed = True
        for owner in (executor_class(), in_homes(_CELLS)):
            if isinstance(owner, type) and _COMPILE in vars(owner):
                self._replace(owner)

    def remove(self) -> None:
        """End, unless it has ended."""
        self._undo.close()
        self._is_installed = False

    def _replace(self, owner: Any) -> None:
        original = vars(owner)[_COMPILE]

        def compile_or_leave_out(*args: Any, **kwargs: Any) -> Any:
            self._runs()
            try:
                return original(*args, **kwargs)
            except Exception as error:
                if not self._take_out():
                    raise
                failed = error
            result = original(*args, **kwargs)
            self._was_ours(failed)
            return result

        setattr(owner, _COMPILE, compile_or_leave_out)
        self._undo.callback(partial(_restore, owner, compile_or_leave_out, original))


def _restore(owner: Any, ours: Any, original: Any) -> None:
    if vars(owner).get(_COMPILE) is ours:
        setattr(owner, _COMPILE, original)
