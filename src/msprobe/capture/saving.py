# SPDX-License-Identifier: Apache-2.0
"""Level debug: record values given to `PrecisionDebugger.save`, and wait for gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msprobe.capture.saved_values import GradientSlot, is_wanted
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


class Arrival:
    """The hook of a tensor: passes its gradient on and returns nothing, so that it stays as it is.

    Only the first gradient that arrives is recorded.
    """

    __slots__ = ("_quietly", "_session", "_slot")

    def __init__(self, session: Session, slot: GradientSlot, quietly: Quietly) -> None:
        """Make the hook of the tensor of `slot`."""
        self._session = session
        self._slot = slot
        self._quietly = quietly

    def __call__(self, gradient: Any) -> None:
        """Record the gradient; None is passed over."""
        if gradient is not None and not self._slot.is_filled:
            with self._session.spending():
                self._quietly(self._session, "saved gradient", self._slot.take, gradient)


Watch = Callable[[Any, Arrival], Callable[[], None] | None]


def save_value(
    session: Session,
    variable: Any,
    name: Any,
    save_backward: Any,
    *,
    quietly: Quietly,
    watch: Watch,
) -> None:
    """Record a value, if level, task, step and rank are those to record.

    Args:
        session: the run.
        variable: a tensor, a number, a text, or a nested structure of these; only read.
        name: the user's name for it; anything but a str gets a warning and is skipped.
        save_backward: whether its gradients are recorded; anything but a bool too.
        quietly: runs msprobe's own code.
        watch: has a tensor call the hook with its gradient; returns how to end that, or None for a
            tensor that gets none.
    """
    if is_wanted(session.config, name, save_backward):
        with session.spending():
            quietly(session, "save", _save, session, variable, name, save_backward, quietly, watch)


def _save(
    session: Session, variable: Any, name: str, save_backward: bool, quietly: Quietly, watch: Watch
) -> None:
    if not session.open_for_saving():
        return
    for slot in session.saved.save(variable, name, with_gradients=save_backward):
        tensor, slot.tensor = slot.tensor, None
        end = quietly(session, "save", watch, tensor, Arrival(session, slot, quietly))
        if end is not None:
            session.saved.expect(slot)
            session.step_undo.callback(end)
