# SPDX-License-Identifier: Apache-2.0
"""Run code around every backward pass, where torch enters its autograd engine.

The code of torch's function is diverted while there is something to do, by one diversion for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from msprobe.pytorch.interception.code_swap import divert

Around = Callable[[Sequence[Any], Sequence[Any]], AbstractContextManager[None]]
"""Makes the context for a backward pass, of its roots and the gradients given for these."""


class BackwardEntry:
    """Wraps the beginning and the end of every backward pass of the process.

    Code that replaces torch's function by another one (`torch.compiler` does at times) calls the
    diverted one in the end, and keeps the replacement.
    """

    __slots__ = ("_around", "_undo")

    def __init__(self) -> None:
        """Create it; nothing is diverted."""
        self._around: list[Around] = []
        self._undo: Callable[[], None] | None = None

    def open(self, until: ExitStack, around: Around) -> bool:
        """Enter `around` for every backward pass until `until` is closed.

        Returns: whether that works: False where this version of torch has no such function.
        """
        entry = getattr(torch.autograd, "_engine_run_backward", None)
        if entry is None:
            return False
        if self._undo is None:
            self._undo = divert(entry, self._handle)
        self._around.append(around)
        until.callback(self._close, around)
        return True

    def _close(self, around: Around) -> None:
        self._around.remove(around)
        if not self._around and self._undo is not None:
            self._undo()
            self._undo = None

    def _handle(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        roots = args[0] if args else ()
        gradients = args[1] if len(args) > 1 else ()
        with ExitStack() as contexts:
            for around in self._around:
                contexts.enter_context(around(roots, gradients))
            return original(*args, **kwargs)
