# SPDX-License-Identifier: Apache-2.0
"""The open step of a program that calls no method of the debugger (`msprobe run`)."""

from __future__ import annotations

import logging
import threading
from typing import Final, Generic, Protocol, TypeVar

from msprobe.capture.session import Session
from msprobe.log import warn_once

logger = logging.getLogger(__name__)

FOLLOWING: Final = "following the program"
"""Where an exception of ours happened, for `Session.attempt`."""


class Steps(Protocol):
    """The part of a debugger's run that a program controls."""

    @property
    def session(self) -> Session:
        """Return the state of the run."""

    def end(self) -> None:
        """End observing."""

    def end_step(self) -> None:
        """End the step."""


Run = TypeVar("Run", bound=Steps)


class FollowedSteps(Generic[Run]):
    """The step that a program is in, by the calls of its models and optimizers.

    It ends for the observers with the optimizer's call, and altogether when the next one begins:
    schedules and scalers come behind the optimizer. Only the thread that calls a model first is
    followed. A class for each framework finds the calls.
    """

    def __init__(self, run: Run) -> None:
        """Begin outside of steps.

        Args:
            run: is controlled.
        """
        self._run = run
        self._thread: int | None = None
        # Whether a step has begun and not ended; whether it is observed now.
        self._is_open = self._is_observed = False

    def skipped(self, call: str) -> None:
        """Warn once that calls of the program's have no effect."""
        key = "steps are found"
        warn_once(logger, key, f"msprobe finds the steps of this program itself: {call} is skipped")

    def finish(self) -> None:
        """End the open step: the program came to its end."""
        self._run.session.attempt(FOLLOWING, self._end_step)

    def _open(self) -> None:
        self._thread = threading.get_ident()
        self._is_open = self._is_observed = True

    def _stop(self) -> None:
        self._is_observed = False
        self._run.session.current.ending.stopped()
        self._run.end()

    def _end_step(self) -> None:
        if not self._is_open:
            return
        if self._is_observed:
            self._stop()
        self._is_open = False
        self._run.end_step()

    def _is_own_thread(self) -> bool:
        return self._thread in (None, threading.get_ident())
