# SPDX-License-Identifier: Apache-2.0
"""Whether the elements of values are finite: the states, and the interface that asks for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from msprobe.capture.statistics import Summary

if TYPE_CHECKING:
    from msprobe.capture.values import Found, Position


class State(IntEnum):
    """State of the elements of a value, or the worst of several; numbers as in ``_tensors.c``."""

    SOUND = 0
    """All are finite."""
    NEAR = 1
    """One is near the largest number of its type."""
    NONFINITE = 2
    """One is NaN or infinite."""
    UNKNOWN = 3
    """A device has not said yet."""


class ValueWatch(Protocol):
    """Asks whether values are finite, as cheaply as the framework allows; nothing is kept."""

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found) -> int:
        """Return the worst `State` of the arguments of a call; append each tensor to `found`.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            found: gets each tensor with its position.
        """

    def result(self, output: Any) -> int:
        """Return the worst `State` of the tensors in a result."""

    def tensor(self, tensor: Any) -> int:
        """Return the `State` of a tensor."""

    def gradients(self, arrived: Sequence[tuple[Any, str, Position]]) -> tuple[int, int]:
        """Return the worst states of gradients: those of the side ``input``, those of the other."""

    def version(self, tensor: Any) -> int:
        """Return a number that changes when the tensor is written; -1 where there is none."""

    def share_memory(self, one: Any, other: Any) -> bool:
        """Return whether writing one tensor may change the other."""


def state_of(summary: Summary, largest: float) -> State:
    """Return the state that the statistics of a tensor tell.

    Args:
        summary: the statistics.
        largest: the magnitude from which a value is near the largest of its type.
    """
    if not summary.ready:
        return State.UNKNOWN
    if summary.nonfinite is not None:
        return State.NONFINITE
    ends = [end for end in (summary.max, summary.min) if isinstance(end, float)]
    if any(not math.isfinite(end) for end in ends):
        return State.NONFINITE
    return State.NEAR if any(abs(end) >= largest for end in ends) else State.SOUND
