# SPDX-License-Identifier: Apache-2.0
"""`Quietly`: the type of functions that run msprobe's own code at events of the user's program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msprobe.capture.session import Session

T = TypeVar("T")


class Quietly(Protocol):
    """Runs msprobe's code without effect on the user's program; its exceptions are noted."""

    def __call__(
        self, session: Session, where: str, action: Callable[..., T], *args: Any
    ) -> T | None:
        """Return ``action(*args)``, or None when it raised; the session then knows.

        Args:
            session: takes note of errors. Its lock is held meanwhile, as hooks of one backward
                pass may run in several threads.
            where: the activity, for the error log.
            action: msprobe's own code; never the user's.
            args: passed on.
        """
