# SPDX-License-Identifier: Apache-2.0
"""Level debug: record values given to `PrecisionDebugger.save`, and their gradients.

The gradient of a computed tensor is seen by a hook that hangs on the graph alone: the tensor shows
no hook, nothing is added to the graph and nothing keeps it alive. It also fires where a backward
pass ends at that tensor (``autograd.grad(loss, y)``), which hooks on nodes do not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.hooks import unserializable_hook

from msprobe.capture.saving import Arrival, save_value
from msprobe.capture.session import Session
from msprobe.pytorch.interception.compiled import run_eagerly
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing

_functorch_active: Final = torch._C._are_functorch_transforms_active


def save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable`, see `save_value`; while a graph is built there is nothing to record."""
    if not is_tracing():
        save_value(session, variable, name, save_backward, quietly=quietly, watch=_watch)


def prepare_saving(session: Session) -> None:
    """Let compiled code run eagerly until `stop`, so that values inside it can be saved."""
    session.undo.close()
    if session.config.wants_step(session.step_number):
        run_eagerly(session)


def _watch(tensor: Tensor, arrival: Arrival) -> Callable[[], None] | None:
    if not tensor.requires_grad or _functorch_active():
        return None
    node = tensor.grad_fn
    if node is None:
        # Copies and files of the leaf are made without the hook, and without a warning.
        hook = unserializable_hook(partial(arrival))  # type: ignore[no-untyped-call]
        remove: Callable[[], None] = tensor.register_hook(hook).remove  # type: ignore[no-untyped-call]
        return remove
    register = getattr(node, "_register_hook_dict", None)
    if register is None:
        number = tensor.output_nr
        return node.register_prehook(lambda gradients: arrival(gradients[number])).remove
    hooks: OrderedDict[int, Callable[[Tensor], Tensor | None]] = OrderedDict({0: arrival})
    with torch.inference_mode(False), torch.enable_grad():
        # The node takes two things from the tensor it is given: its hooks and its place among the
        # outputs. A stand-in gives both, and the user's tensor stays as it is.
        stand_in = torch.empty(tensor.output_nr + 1, 0, device="cpu", requires_grad=True).unbind()
        carrier = stand_in[tensor.output_nr]
    carrier._backward_hooks = hooks
    register(carrier)
    return hooks.clear
