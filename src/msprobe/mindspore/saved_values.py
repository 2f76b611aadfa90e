# SPDX-License-Identifier: Apache-2.0
"""Level debug: values that the user hands to `PrecisionDebugger.save`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msprobe.capture.saving import Arrival, save_value
from msprobe.capture.session import Session
from msprobe.config import Level
from msprobe.mindspore.compiled.cells import refuse_static_graph
from msprobe.mindspore.guard import quietly


def save(session: Session, variable: Any, name: Any, save_backward: Any) -> None:
    """Record `variable`, see `save_value`.

    Raises:
        UnsupportedError: MindSpore is in graph mode.
    """
    if session.config.level is Level.DEBUG:
        refuse_static_graph("save()", Level.DEBUG)
    save_value(session, variable, name, save_backward, quietly=quietly, watch=_watch)


def _watch(tensor: Any, arrival: Arrival) -> Callable[[], None] | None:
    if not tensor._requires_grad:
        return None
    remove: Callable[[], None] = tensor.register_hook(arrival).remove
    return remove
