# SPDX-License-Identifier: Apache-2.0
"""Level debug: record what the user hands to `PrecisionDebugger.save`, and its gradients."""

from __future__ import annotations

from typing import Any

from msprobe.capture.saved_values import GradientSlot, is_wanted
from msprobe.capture.session import Session
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.quiet import quietly


def save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable` under a name of the user's, outside compiled code; see `SavedValues`."""
    if is_wanted(session.config, name, save_backward) and not is_compiling():
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
