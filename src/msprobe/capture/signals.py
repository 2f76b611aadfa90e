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


class SignalRequest:
    """Calls a function for each SIGUSR1, until it is closed."""

    def __init__(self, asked: Callable[[], None]) -> None:
        """Listen, where the signal exists, this is the main thread, and no handler is installed.

        Args:
            asked: called in the main thread, between two of its instructions: it has to be short.
        """
        self._asked = asked
        self._listens = self._listen()

    def close(self) -> None:
        """Let go of the signal."""
        if self._listens and _is_main_thread():
            signal.signal(getattr(signal, NAME), signal.SIG_DFL)
        self._listens = False

    def _listen(self) -> bool:
        number = getattr(signal, NAME, None)
        if number is None or not _is_main_thread():
            return False
        if signal.getsignal(number) is not signal.SIG_DFL:
            logger.info("%s has a handler already: it asks msprobe for nothing", NAME)
            return False
        signal.signal(number, self._signalled)
        return True

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._asked()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
