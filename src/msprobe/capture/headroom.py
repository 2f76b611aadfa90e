# SPDX-License-Identifier: Apache-2.0
"""Room on the interpreter's stack for the frames that observing adds.

A hooked module takes a frame more for each level of nesting, and our own code runs on top of the
innermost call. A recursion that just fits without us must fit with us, so the limit is higher while
we observe.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Final

from msprobe.capture.session import Session
from msprobe.config import Level

_OUR_FRAMES: Final = 200  # on top of the innermost call
# CPython 3.11 uses about half a kilobyte of the C stack for each unit, and threads have 8 MB: this
# much cannot overflow it. A limit that the user set higher is raised by what modules need alone.
_SAFE: Final = 12_000


class Headroom:
    """Raises the recursion limit, and puts it back.

    The limit is that of the interpreter: it holds for all threads.
    """

    __slots__ = ("_factor", "_raised")

    def __init__(self, session: Session) -> None:
        """Create it for the frames that the level of `session` adds."""
        # A module with a hook takes four frames for three, a custom function six for three.
        self._factor = 4 / 3 if session.config.level is Level.L0 else 2
        # The user's limits, by those that replaced them.
        self._raised: dict[int, int] = {}

    def install(self, session: Session) -> None:
        """Raise the limit until `stop`."""
        session.step_undo.callback(self._restore)  # when `stop` was called too deep in the stack
        session.undo.callback(self._restore)
        self.keep()

    def keep(self) -> None:
        """Raise the limit if the user has set another one meanwhile."""
        limit = sys.getrecursionlimit()
        if limit in self._raised:  # or put back one that was read while it was raised
            return
        enough = max(int(limit * 4 / 3), min(int(limit * self._factor), _SAFE)) + _OUR_FRAMES
        self._raised[enough] = limit
        sys.setrecursionlimit(enough)

    def _restore(self) -> None:
        limit = self._raised.get(sys.getrecursionlimit())
        if limit is not None:
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(limit)
