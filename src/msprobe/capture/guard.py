# SPDX-License-Identifier: Apache-2.0
"""What the rooms of the frameworks offer to run our own code at an event of the user's program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msprobe.capture.session import Session

T = TypeVar("T")


class Quietly(Protocol):
    """Runs our code so that the user's program does not notice; no exception of ours gets out."""

    def __call__(
        self, session: Session, where: str, action: Callable[..., T], *args: Any
    ) -> T | None:
        """Return ``action(*args)``, or None when it raised; the session then knows.

        Args:
            session: takes note of errors. Its lock is held meanwhile, as hooks of one backward
                pass may run in several threads.
            where: what was being done, for the error log.
            action: our own code; never the user's.
            args: passed on.
        """
