# SPDX-License-Identifier: Apache-2.0
"""How far apart rounding takes two values: what their types resolve, and how many units of that.

Limits are in units of the resolution of the coarsest type that values were computed in, and hold
for errors relative to the norm. The bounds of single operators are those of `conditioning`.

What moves no value as a whole, and no element by more than its type resolves, is not told from
rounding: GELU by its tangent and by its error function are 5e-4 apart at most, where bfloat16
resolves 4e-3 to 8e-3; only the argument shows it, where calls are recorded. An eps of 1e-3 takes
5e-4 of a norm whose variance is 1: no element shows it, but the norm of 64 rows does.
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
# So far apart are gradients that are given otherwise; those of a coarse type get further.
_OTHER_GRADIENT: Final = 0.05
_GROWN_IN_STEP: Final = 64.0
# Rounding to the nearest moves an element by 0.21 units in the root mean square (the spacing of a
# type is 0.5 to 1 unit, evenly in the logarithm, and errors are even within it), two sides by 0.3.
# Norms and means weigh elements by their sizes, of which some are several times the common one:
# 0.7 is more than twice that.
_ERROR_OF_ONE: Final = 0.7
_DEVIATIONS: Final = 4.0
_MANY: Final = 4.5 / 4.0  # of hundreds of gradients none may: once in 150,000
_FEWER: Final = 3.0 / 4.0  # a measured error has some of a shift in it
OF_ONE_NUMBER: Final = 0.5
"""A number that is rounded once and scales all: the mean of a loss divides by one."""
_LEAST_SHIFT: Final = 0.25
"""The same of a sum, whose parts are divided by a number that is rounded alike, or nearly so."""
LARGEST_SHIFT: Final = 8.0
"""What moves by more units is judged by its size."""


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
    return row.error <= in_other_module(max(worst, resolution_of(row.values)), resolution)


def in_other_module(error: float, resolution: float) -> float:
    """Return the relative error of what a module makes that is computed in another way.

    Args:
        error: of its inputs, or what their type resolves.
        resolution: of a coarser type in which it computes.
    """
    return max(NEAR * error, ONCE * resolution)


def is_far_apart(error: float | None, resolution: float) -> bool:
    """Return whether a relative error is more than rounding gets in a chain of calls."""
    return error is not None and error > min(_GROWN * resolution, LARGEST)


def is_other_gradient(error: float | None, resolution: float) -> bool:
    """Return whether a gradient that is no noise is further apart than rounding gets in a step."""
    return error is not None and error > max(_OTHER_GRADIENT, _GROWN_IN_STEP * resolution)


def after_calls(resolution: float) -> float:
    """Return the relative error that rounding makes of what some tens of calls compute.

    Results in a coarse type are rounded up and down, once each: their errors grow as the root of
    how many there are.
    """
    return (IN_OTHER_CALLS if resolution <= FINE else NEAR) * resolution


def is_of_sum(
    distance: float,
    moved: float,
    count: int,
    resolution: float,
    typical: float,
    *,
    is_one_sided: bool = False,
) -> bool:
    """Return whether two tensors differ as sums do that are rounded to a coarse type.

    Rounding moves elements up and down: the norm stays where it is. A factor moves it.

    Args:
        distance: estimated norm of the difference, relative to the norm.
        moved: change of the norm, relative to it.
        count: number of elements.
        resolution: of the coarse type.
        typical: root mean square of the distances of all such tensors; one of them may be twice
            as far apart as sums are.
        is_one_sided: one side alone computes in that type: it rounds what scales all elements.
    """
    if resolution <= FINE or max(typical, distance / 2) > IN_SUM * resolution:
        return False
    error = max(distance, typical) / resolution
    if is_one_sided:
        return moved <= gradient_shift(count, error) * resolution
    most = _MANY * max(shift_of(count), _FEWER * shift_of(count, error))
    return moved <= max(_LEAST_SHIFT, most) * resolution


def shift_of(count: int, error: float = 0.0, fewest: float = math.inf) -> float:
    """Return by how many units rounding may move the norm of elements, or their mean as much.

    Errors of elements that are rounded by themselves have either sign: of `count` such errors the
    sum is as large as the root of `count` of them, in the root mean square, and four times that
    once in 16,000 values. What is computed with one rounded number moves as a whole.

    Args:
        count: how many elements there are whose errors have nothing to do with each other.
        error: of one of them, in units, in the root mean square, where it is measured.
        fewest: elements of the smallest tensor that one side alone rounds before.
    """
    few = min(OF_ONE_NUMBER, _DEVIATIONS * _ERROR_OF_ONE / math.sqrt(fewest))
    return max(few, _DEVIATIONS * max(_ERROR_OF_ONE, error) / math.sqrt(count))


def gradient_shift(count: int, error: float) -> float:
    """Return the same of the norm of a gradient, which the mean of a loss scales."""
    return OF_ONE_NUMBER + _MANY * shift_of(count, error)
