# SPDX-License-Identifier: Apache-2.0
"""Stop observing while compiled code runs, so that it is compiled and runs as if not observed.

torch's compiler follows a call into the hooks and modes that are on, makes them part of its graphs,
and compiles again when they change. So they are taken off where a compiled function begins, and put
back where it ends. Both are seen at the function with which torch switches its compiler on and off.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, Final

import torch

from msprobe.capture.session import Session

# The name by which torch's wrapper of a compiled function calls this function.
_COMPILED: Final = "fn"
_graph_task: Final = torch._C._current_graph_task_id
_SWITCHES: Final = ("_maybe_set_eval_frame", "set_eval_frame")  # the second before torch 2.5


class CompiledRegions:
    """Sees where compiled code begins and ends, in the observed thread."""

    __slots__ = ("_back", "_outermost", "_session", "_step_aside", "_switch")

    def __init__(
        self, session: Session, step_aside: Callable[[FrameType, ExitStack], None]
    ) -> None:
        """Create it, not yet installed.

        Args:
            session: whose thread is observed.
            step_aside: takes off what observes, given the frame of torch's wrapper; it leaves the
                way back on the stack.
        """
        self._session = session
        self._step_aside = step_aside
        self._switch: Callable[[Any], Any] | None = None
        self._outermost: FrameType | None = None
        self._back = ExitStack()

    def install(self) -> None:
        """Begin to watch; the session's undo ends it."""
        from torch._dynamo import eval_frame

        name = next(name for name in _SWITCHES if hasattr(eval_frame, name))
        before = self._switch = getattr(eval_frame, name)
        ours = self._cross
        setattr(eval_frame, name, ours)

        def undo() -> None:
            if getattr(eval_frame, name) is ours:
                setattr(eval_frame, name, before)
            self._outermost = None
            self._back.pop_all()  # taken off already, and the recording is over

        self._session.undo.callback(undo)

    def _cross(self, callback: Any) -> Any:
        """Same as torch's function: set the compiler of the frames of this thread, or None."""
        assert self._switch is not None
        session = self._session
        # A backward pass, which may recompute, runs in a thread for each device.
        is_ours = threading.get_ident() == session.thread or _graph_task() != -1
        if not is_ours or not session.capturing:
            return self._switch(callback)
        frame = sys._getframe(1)
        if self._outermost is None:
            if callback is not None and _COMPILED in frame.f_code.co_freevars:
                self._outermost = frame
                session.account.note("compiled code stayed compiled, seen at its module boundaries")
                session.attempt("compiled code", self._step_aside, frame, self._back)
            return self._switch(callback)
        result = self._switch(callback)
        if frame is self._outermost:
            self._outermost = None
            session.attempt("compiled code", self._back.close)
        return result
