# SPDX-License-Identifier: Apache-2.0
"""Recognise the backward passes that run through recorded calls.

A hook on a parameter is told of every backward pass, also of one over a forward run that was not
recorded. Hooks on the outputs of recorded calls tell them apart: they come before the gradients of
what the call used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from mindspore import Tensor
from msprobe.capture.session import Session
from msprobe.mindspore.jit_calls import in_homes

_CURRENT: Final = "get_current_autodiff_engine_id"

# The number of the backward pass that runs now; no two passes have the same.
_current: Final[Callable[[], int] | None] = getattr(in_homes("_pynative_executor"), _CURRENT, None)


class RecordedPasses:
    """The backward passes of one step."""

    def __init__(self, session: Session) -> None:
        """Create it for the steps of `session`; `forget` ends a step."""
        self._session = session
        self._numbers: set[int] = set()

    def follow(self, outputs: Iterable[Any]) -> None:
        """Recognise the passes over these outputs of a recorded call, until the step ends."""
        if _current is None:
            return
        hook = partial(self._reached, _current, self._session.step_number)
        seen: list[Any] = []
        for output in outputs:
            if not isinstance(output, Tensor) or not output._requires_grad:
                continue
            node = output._grad_node
            if node is not None and not any(node is one for one in seen):
                seen.append(node)
                node.register_prehook(hook)

    def _reached(self, current: Callable[[], int], step: int, _gradients: object) -> None:
        if step == self._session.step_number:
            self._numbers.add(current())

    def is_running(self) -> bool:
        """Return whether such a pass runs now; True where this MindSpore does not number them."""
        return _current is None or _current() in self._numbers

    def forget(self) -> None:
        """Forget the step's passes."""
        self._numbers.clear()
