# SPDX-License-Identifier: Apache-2.0
"""Run msprobe's own code at events of the user's program; its exceptions are noted, not raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msprobe.capture.session import Session

T = TypeVar("T")


def quietly(session: Session, where: str, action: Callable[..., T], *args: Any) -> T | None:
    """Run `action`; see `msprobe.capture.guard.Quietly`.

    `action` may read tensors and must not run operators: these would be recorded by the
    automatic differentiation of the user's program.
    """
    with session.lock:
        try:
            return action(*args)
        except Exception as error:  # noqa: BLE001 - the user's training must survive us
            session.failed(where, error)
            return None
