# SPDX-License-Identifier: Apache-2.0
"""Operators that run at once instead of through MindSpore's queue, while one thread is alone.

On the CPU MindSpore queues operators; to wait for its queue costs a millisecond each time, and
while capturing there is something to wait for at every value. With ``pynative_synchronize`` the
value is there when it is read; the order and the kernels stay the same. But with it, operators
in two threads at once end the process (MindSpore 2.10, without msprobe as well). So it is set only
where this thread is alone, and no other is begun before it is unset.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from mindspore.common import api

import mindspore
from mindspore import _c_expression as core
from mindspore import context
from msprobe.capture.session import Session

_SYNCHRONIZE: Final = "pynative_synchronize"
_OWN_THREADS: Final = "msprobe-"
_PARAMETER: Final[Any] = getattr(getattr(core, "ms_ctx_param", None), _SYNCHRONIZE, None)


def wait_for_launched() -> None:
    """Return when all operators and graphs that were launched have run."""
    api._pynative_executor.sync()


def are_immediate() -> bool:
    """Return whether operators run at once."""
    return bool(mindspore.get_context(_SYNCHRONIZE))


def set_immediate(value: bool) -> None:
    """Let operators run at once, or wait in MindSpore's queue."""
    if _PARAMETER is None:
        mindspore.set_context(pynative_synchronize=value)
    else:  # `set_context` warns each time that the setting is deprecated; its successor has no off
        context._context().set_param(_PARAMETER, value)


class ImmediateOperators:
    """Sets ``pynative_synchronize`` for the time between `start` and `stop`."""

    def __init__(self, session: Session) -> None:
        """Create it; nothing is set."""
        self._session = session
        self._is_set = False

    def install(self) -> None:
        """Let operators run at once if that is safe; the session's undo ends it."""
        if are_immediate() or not _is_alone():
            return
        set_immediate(True)
        self._is_set = True
        self._session.undo.callback(self.end)
        self._session.undo.callback(_watch_new_threads(self.end))

    def end(self) -> None:
        """Let operators wait in MindSpore's queue again."""
        if self._is_set:
            self._is_set = False
            set_immediate(False)


def _is_alone() -> bool:
    """Return whether no other thread than this one could run operators."""
    own = threading.get_ident()
    in_python = sys._current_frames()
    # MindSpore's threads that once called Python stay listed as threads: they only count inside it.
    return all(
        thread.ident == own or thread.ident not in in_python or thread.name.startswith(_OWN_THREADS)
        for thread in threading.enumerate()
    )


def _watch_new_threads(begins: Callable[[], None]) -> Callable[[], None]:
    """Call `begins` before each thread that is started from now on; return the undo."""
    owner: Any = threading.Thread
    original = owner.start

    @wraps(original)
    def start(thread: threading.Thread) -> None:
        if not thread.name.startswith(_OWN_THREADS):
            begins()
        original(thread)

    owner.start = start

    def undo() -> None:
        if owner.__dict__.get("start") is start:
            owner.start = original

    return undo
