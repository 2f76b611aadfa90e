# SPDX-License-Identifier: Apache-2.0
"""How far apart rounding takes two values: what their types resolve, and how many units of that.

Limits are in units of the resolution of the coarsest type that values were computed in, and hold
for errors relative to the norm. The bounds of single operators are those of `conditioning`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from msprobe.compare.model import Row, Status
from msprobe.dump.values import Value
from msprobe.numerics.number_types import epsilon_of

FINE: Final = epsilon_of("float32")
"""Resolution of the types that are not coarse: what is computed in them is not rounded again."""
HALF: Final = epsilon_of("float16")
"""From here on frameworks compute in a finer type and round the result once."""
ONCE: Final = 2.0
"""A result in a coarse type, of finer sums: half a unit on each side, as much for its inputs."""
IN_SUM: Final = 4.0
"""A sum of gradients: of few consumers, each rounded once, and each partial sum again."""
NEAR: Final = 10.0
"""A module computed in another way: units of its type, and times the errors of its inputs."""
IN_AUTOCAST: Final = 8.0
"""A kernel that rounds its inputs, and what it computes between, to the type of autocast."""
IN_OTHER_CALLS: Final = 64.0
"""Losses or inputs that other calls make: some tens of calls, with a rounding or two each."""
LARGEST: Final = 0.5
"""Relative to the norm: an error that is half of the value is no rounding that grew."""
_GROWN: Final = 1e5  # Errors that grew so far from call to call are no rounding any more.
# The error of an element after some roundings is 0.7 or less in the root mean square, that of the
# mean of n elements by the root of n less: four times that may be, three times a measured error.
_SHIFT_OF_ONE: Final = 2.8
_DEVIATIONS: Final = 3.0
_LEAST_SHIFT: Final = 0.25


def resolution_of(values: Iterable[Value | None]) -> float:
    """Return the resolution of the coarsest type among values; 0 where none is a float."""
    return max((epsilon_of(value.dtype) for value in values if value is not None), default=0.0)


def is_near(row: Row, worst: float, resolution: float = 0.0) -> bool:
    """Return whether a value is hardly further apart than what it is made of.

    Args:
        row: the value.
        worst: largest relative error of its inputs.
        resolution: of a coarser type that it was computed in.
    """
    if row.status is not Status.DIFFERS or row.error is None:
        return False
    return row.error <= max(NEAR * max(worst, resolution_of(row.values)), ONCE * resolution)


def is_far_apart(error: float | None, resolution: float) -> bool:
    """Return whether a relative error is more than rounding gets in a chain of calls."""
    return error is not None and error > min(_GROWN * resolution, LARGEST)


def after_calls(resolution: float) -> float:
    """Return the relative error that rounding makes of what some tens of calls compute.

    Results in a coarse type are rounded up and down, once each: their errors grow as the root of
    how many there are.
    """
    return (IN_OTHER_CALLS if resolution <= FINE else NEAR) * resolution


def is_of_sum(distance: float, moved: float, count: int, resolution: float, typical: float) -> bool:
    """Return whether two tensors differ as sums do that are rounded to a coarse type.

    Rounding moves elements up and down: the norm stays where it is. A factor moves it.

    Args:
        distance: estimated norm of the difference, relative to the norm.
        moved: change of the norm, relative to it.
        count: number of elements.
        resolution: of the coarse type.
        typical: root mean square of the distances of all such tensors; one of them may be twice
            as far apart as sums are.
    """
    if resolution <= FINE or max(typical, distance / 2) > IN_SUM * resolution:
        return False
    return moved <= shift_of(count, max(distance, typical) / resolution) * resolution


def shift_of(count: int, error: float = 0.0) -> float:
    """Return by how many units rounding may move the norm or mean of elements.

    Args:
        count: how many there are.
        error: of one of them, in units, in the root mean square, where it is measured.
    """
    return max(_LEAST_SHIFT, max(_SHIFT_OF_ONE, _DEVIATIONS * error) / math.sqrt(count))
