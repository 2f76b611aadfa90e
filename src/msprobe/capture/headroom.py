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
_ODD: Final = 3
# CPython 3.11 uses about half a kilobyte of the C stack for each unit, and threads have 8 MB: this
# much cannot overflow it. A limit that the user set higher is raised by what modules need alone.
_SAFE: Final = 12_000


# Several may observe at once, and none must take the limit of another for the user's.
_raised: Final[dict[int, int]] = {}
"""The user's limits, by those that replaced them."""
_installed: Final[set[Headroom]] = set()


class Headroom:
    """Raises the recursion limit; the last one that ends puts it back.

    The limit is that of the interpreter: it holds for all threads.
    """

    __slots__ = ("_enough", "_factor")

    def __init__(self, session: Session) -> None:
        """Create it for the frames that the level of `session` adds."""
        # A module with a hook takes four frames for three; a custom function six for three, and
        # up to nine from PyTorch 2.14 on, whose `apply` a function mode is told of.
        self._factor = 4 / 3 if session.config.level is Level.L0 else 3
        self._enough: set[int] = set()  # limits that are known to be

    def install(self, session: Session) -> None:
        """Raise the limit until `stop`."""
        _installed.add(self)
        session.step_undo.callback(self._restore)  # when `stop` was called too deep in the stack
        session.undo.callback(self._restore)
        self.keep()

    def suffices(self) -> bool:
        """Return whether the limit is one that is known to be enough."""
        return sys.getrecursionlimit() in self._enough

    def keep(self) -> None:
        """Raise the limit if the user has set another one meanwhile."""
        if self.suffices():  # or put back one that was read while it was raised
            return
        limit = sys.getrecursionlimit()
        own = _raised.get(limit, limit)
        enough = max(int(own * 4 / 3), min(int(own * self._factor), _SAFE)) + _OUR_FRAMES
        # No round number, which the user may set and we would take for one of ours.
        enough += 10 - enough % 10 + _ODD
        if enough > limit:
            _raised[enough] = own
            sys.setrecursionlimit(enough)
        self._enough.add(max(enough, limit))

    def _restore(self) -> None:
        _installed.discard(self)
        if _installed:
            return
        limit = _raised.get(sys.getrecursionlimit())
        if limit is not None:
            with contextlib.suppress(RecursionError):
                sys.setrecursionlimit(limit)
