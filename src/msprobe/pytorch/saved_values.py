# SPDX-License-Identifier: Apache-2.0
"""Level debug: record what the user hands to `PrecisionDebugger.save`, and its gradients.

The gradient of a computed tensor is seen by a hook that hangs on the graph alone: the tensor shows
no hook, nothing is added to the graph and nothing keeps it alive. It also fires where a backward
pass ends at that tensor (``autograd.grad(loss, y)``), which hooks on nodes do not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.capture.saved_values import GradientSlot, is_wanted
from msprobe.capture.session import Session
from msprobe.pytorch.compiled import run_eagerly
from msprobe.pytorch.quiet import quietly
from msprobe.pytorch.tracing import is_tracing

_clock: Final = time.perf_counter
_functorch_active: Final = torch._C._are_functorch_transforms_active


def save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable`, if level, task, step and rank are those to record.

    Args:
        session: the run.
        variable: a tensor, a number, a text, or a nested structure of these; only read.
        name: the user's name for it; anything but a str gets a warning and is skipped.
        save_backward: whether its gradients are recorded; anything but a bool likewise.
    """
    if not is_wanted(session.config, name, save_backward) or is_tracing():
        return
    started = _clock()
    quietly(session, "save", _save, session, variable, name, save_backward)
    session.account.spent_s += _clock() - started


def prepare_saving(session: Session) -> None:
    """Let compiled code run eagerly until `stop`, so that values inside it can be saved."""
    session.undo.close()
    if session.config.wants_step(session.step_number):
        run_eagerly(session)


def _save(session: Session, variable: Any, name: str, save_backward: bool) -> None:
    if not session.open_for_saving():
        return
    saved = session.saved
    for slot in saved.save(variable, name, with_gradients=save_backward):
        tensor = slot.tensor
        slot.tensor = None
        if not tensor.requires_grad or _functorch_active():
            continue
        saved.expect(slot)
        quietly(session, "save", _watch, session, tensor, slot)


class _Arrival:
    """The hook: passes a gradient on and returns nothing, so that it stays what it is."""

    __slots__ = ("_session", "_slot")

    def __init__(self, session: Session, slot: GradientSlot) -> None:
        self._session = session
        self._slot = slot

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None and not self._slot.is_filled:
            started = _clock()
            quietly(self._session, "saved gradient", self._slot.take, gradient)
            self._session.account.spent_s += _clock() - started


def _watch(session: Session, tensor: Tensor, slot: GradientSlot) -> None:
    arrival = _Arrival(session, slot)
    node = tensor.grad_fn
    if node is None:
        handle = tensor.register_hook(arrival)  # type: ignore[no-untyped-call]
        session.step_undo.callback(handle.remove)
        return
    register = getattr(node, "_register_hook_dict", None)
    if register is None:
        number = tensor.output_nr
        undo = node.register_prehook(lambda gradients: arrival(gradients[number]))
        session.step_undo.callback(undo.remove)
        return
    hooks: OrderedDict[int, Callable[[Tensor], Tensor | None]] = OrderedDict({0: arrival})
    with torch.inference_mode(False), torch.enable_grad():
        # The node takes two things from the tensor it is given: its hooks and its place among the
        # outputs. A stand-in gives both, and the user's tensor stays as it is.
        stand_in = torch.empty(tensor.output_nr + 1, 0, device="cpu", requires_grad=True).unbind()
        carrier = stand_in[tensor.output_nr]
    carrier._backward_hooks = hooks
    register(carrier)
    session.step_undo.callback(hooks.clear)
