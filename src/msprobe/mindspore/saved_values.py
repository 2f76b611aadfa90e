# SPDX-License-Identifier: Apache-2.0
"""Level debug: record what the user hands to `PrecisionDebugger.save`, and its gradients."""

from __future__ import annotations

import logging
from typing import Any

from msprobe.capture.saved_values import GradientSlot
from msprobe.capture.session import Session
from msprobe.config import Level, Task
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.quiet import quietly

logger = logging.getLogger(__name__)


def save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable`, if level, task, step and rank are those to record.

    Args:
        session: the run.
        variable: a tensor, a number, a text, or a nested structure of these; only read.
        name: the user's name for it; anything but a str gets a warning and is skipped.
        save_backward: whether its gradients are recorded; anything but a bool likewise.
    """
    config = session.config
    if config.level is not Level.DEBUG or config.task not in (Task.STATISTICS, Task.TENSOR):
        return
    for key, found, kind in (("name", name, str), ("save_backward", save_backward, bool)):
        if not isinstance(found, kind):
            text = "save(): %s must be a %s, found a %s; nothing is saved"
            logger.warning(text, key, kind.__name__, type(found).__name__)
            return
    if not is_compiling():
        quietly(session, "save", _save, session, variable, name, save_backward)


def _save(session: Session, variable: Any, name: str, save_backward: bool) -> None:
    if not session.open_for_saving():
        return
    for slot in session.saved.save(variable, name, with_gradients=save_backward):
        tensor, slot.tensor = slot.tensor, None
        if tensor._requires_grad:
            session.saved.expect(slot)
            handle = tensor.register_hook(_Arrival(session, slot))
            session.step_undo.callback(handle.remove)


class _Arrival:
    """The hook: passes a gradient on and returns nothing, so that it stays what it is."""

    __slots__ = ("_session", "_slot")

    def __init__(self, session: Session, slot: GradientSlot) -> None:
        self._session = session
        self._slot = slot

    def __call__(self, gradient: Any) -> None:
        quietly(self._session, "saved gradient", self._slot.take, gradient)
