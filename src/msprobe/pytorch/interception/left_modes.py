# SPDX-License-Identifier: Apache-2.0
"""Take a mode off the stack of a thread other than the one that stops the recording.

torch keeps a stack of modes for each thread, which no other thread reaches. The main thread can be
asked to run something. Any other takes the mode away itself, right after the next call that the
mode is given: while it handles a call it is off the stack, and torch puts it back afterwards.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch

_PendingCall: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_graph_task: Final = torch._C._current_graph_task_id


class LeftMode:
    """Removes a mode, on request from any thread.

    Attributes:
        threads: those that still have it on their stacks, though the recording has stopped.
    """

    __slots__ = ("_is_installed", "_pending", "_remove", "threads")

    def __init__(self, is_installed: Callable[[], bool], remove: Callable[[], None]) -> None:
        """Create it for a mode.

        Args:
            is_installed: whether the mode is on this thread's stack.
            remove: takes it off this thread's stack.
        """
        self._is_installed = is_installed
        self._remove = remove
        self.threads: set[int] = set()
        self._pending: Any = None

    def remove_from(self, thread: int) -> None:
        """Take the mode off the stack of the thread that installed it, at once or when it can be.

        The autograd engine restores the stack after each node: inside it nothing happens.
        """
        if thread == threading.get_ident():
            if _graph_task() == -1:
                self._remove()
            return
        self.threads.add(thread)
        if thread == threading.main_thread().ident:
            self._pending = _PendingCall(self._in_main_thread)  # must live until it was called
            ctypes.pythonapi.Py_AddPendingCall(self._pending, None)

    def keep(self) -> None:
        """Let the mode be on this thread's stack again: a recording begins here."""
        self.threads.discard(threading.get_ident())

    def is_left_here(self) -> bool:
        """Return whether this thread's calls are none of the recording; the mode goes then."""
        if threading.get_ident() not in self.threads:
            return False
        self._go_soon()
        return True

    def _in_main_thread(self, _argument: Any) -> int:
        self._go_soon()
        return 0

    def _go_soon(self) -> None:
        if not self._goes() and sys.getprofile() is None:  # the user's own would be lost
            sys.setprofile(self._at_event)

    def _at_event(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        if self._goes():
            sys.setprofile(None)

    def _goes(self) -> bool:
        """Take the mode away if it is on the stack now; return whether it is gone for good."""
        here = threading.get_ident()
        if here in self.threads:
            if not self._is_installed() or _graph_task() != -1:
                return False
            self._remove()
            self.threads.discard(here)
        return True
