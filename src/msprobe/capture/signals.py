# SPDX-License-Identifier: Apache-2.0
"""SIGUSR1 asks a session for something, unless the program has a handler of its own."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

logger = logging.getLogger(__name__)

NAME: Final = "SIGUSR1"
"""Name of the signal."""


class EarlySignal:
    """Remembers a SIGUSR1 that comes before there is a `SignalRequest`, which then takes it."""

    def __init__(self) -> None:
        self.was_sent = False

    def __enter__(self) -> None:
        """Listen, where nothing else does."""
        _install(self)

    def __exit__(self, *_: object) -> None:
        """Let go of the signal, unless a `SignalRequest` or the program has it now."""
        number = getattr(signal, NAME, None)
        if number is not None and signal.getsignal(number) is self and _is_main_thread():
            signal.signal(number, signal.SIG_DFL)

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        """Remember the signal; `signal` calls this."""
        self.was_sent = True


class SignalRequest:
    """Calls a function for each SIGUSR1, until it is closed."""

    def __init__(self, asked: Callable[[], None]) -> None:
        """Listen, where the signal exists, this is the main thread, and no handler is installed.

        Args:
            asked: called in the main thread, between two of its instructions: it has to be short.
        """
        self._asked = asked
        self._listens = _install(self._signalled)

    def close(self) -> None:
        """Let go of the signal."""
        if self._listens and _is_main_thread():
            signal.signal(getattr(signal, NAME), signal.SIG_DFL)
        self._listens = False

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._asked()


def _install(handler: Callable[[int, FrameType | None], None]) -> bool:
    number = getattr(signal, NAME, None)
    if number is None or not _is_main_thread():
        return False
    before = signal.getsignal(number)
    early = before if isinstance(before, EarlySignal) else None
    if early is None and before is not signal.SIG_DFL:
        logger.info("%s has a handler already: it asks msprobe for nothing", NAME)
        return False
    signal.signal(number, handler)
    if early is not None and early.was_sent:
        handler(number, None)
    return True


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
