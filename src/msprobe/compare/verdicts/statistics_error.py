# SPDX-License-Identifier: Apache-2.0
"""Errors of tensors by their statistics: max, min, mean, norm and projections.

Each of the first four bounds the true error from below: no norm, mean or extreme value can move
further than the elements do. The projections, which also tell the order of the elements, estimate
it: the square of the change of each has the squared norm of the difference as its expectation
(docs/metrics.md). The largest of the relative changes is the error.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msprobe.compare.distances import Distance
from msprobe.compare.model import Matched, Row
from msprobe.dump.records import Statistic
from msprobe.dump.values import Value
from msprobe.numerics.tolerances import EXACT, RowTolerance

_NAMES: Final = ("max", "min", "mean", "norm")
_INFINITY: Final = math.inf
_PROJECTIONS: Final = "projections"
_HALF: Final = math.sqrt(0.5)
_CERTAIN: Final = 3.0
"""How far an estimate may lie above the true norm: for each of 8000 tensors, one lies higher."""
_ROUNDING: Final = 2.0**-42
"""Error of two projections together, relative to the sum of the absolute values."""


class StatisticsError(NamedTuple):
    """Error of one tensor's statistics against another's.

    Attributes:
        relative: the largest change relative to the tensor's size; None if none can be compared.
        least: the same without the projections, which estimate: the error is no smaller.
        is_beyond: whether any of them moved further than elements may.
        some_differ: whether max, min or the projections show that some element is not equal.
        worst: name of the statistic that changed most; empty if there is none. Projections only
            where the others are within what elements may do.
        is_one_sided: only one side has statistics.
    """

    relative: float | None
    least: float = 0.0
    is_beyond: bool = False
    some_differ: bool = False
    worst: str = ""
    is_one_sided: bool = False


def statistics_equal(target: Value, reference: Value) -> bool:
    """Return whether all statistics are exactly equal, none is NaN, and as many elements are
    infinite.
    """
    return (
        target.norm == reference.norm
        and target.mean == reference.mean
        and target.max == reference.max
        and target.min == reference.min
        and (target.pair == reference.pair or target.pairs_with(reference) is None)
        # Counts are there where some elements are not finite.
        and (
            target.nan_count is reference.nan_count is None
            or _beside_nonfinite(target) == _beside_nonfinite(reference)
        )
    )


def _beside_nonfinite(value: Value) -> tuple[Statistic, ...]:
    """Return all that a dump says of a tensor because some of its elements are not finite."""
    counts = value.nan_count, value.pos_inf_count, value.neg_inf_count
    return (*counts, value.finite_max, value.finite_min)


def estimated_difference(target: Value, reference: Value) -> float | None:
    """Return an estimate of the L2 norm of the difference; None without projections of both.

    It is below 1/10 of the true norm for 1 tensor of 100, and above 3 times for 1 of 8000.
    """
    pairs = target.pairs_with(reference)
    if pairs is None:
        return None
    # Projections of float64's limits are so large that the difference is, or has no size.
    change = pairs[0] - pairs[1]
    size = _HALF * math.hypot(change.real, change.imag)
    return None if math.isnan(size) else size


def is_plain(value: Value) -> bool:
    """Return whether a tensor has all four statistics and none is NaN or infinite."""
    largest, least, mean, norm = value.max, value.min, value.mean, value.norm
    return (
        largest is not None
        and least is not None
        and mean is not None
        and norm is not None
        # A norm may overflow where every element is finite; NaN fails all comparisons.
        and -_INFINITY < least <= largest < _INFINITY
        and -_INFINITY < mean < _INFINITY
        and norm < _INFINITY
    )


class Nonfinite(NamedTuple):
    """Counts of NaN and infinite elements of a tensor.

    Where only the largest and the least element tell, 1 means some, and a NaN hides the rest.
    """

    nan: int
    pos_inf: int
    neg_inf: int
    is_counted: bool = True

    def words(self) -> str:
        """Return it in words."""
        named = zip(self[:3], ("NaN", "+Inf", "-Inf"), strict=True)
        shown = [f"{count} {name}" if self.is_counted else name for count, name in named if count]
        return ", ".join(shown) or "only finite values"


def nonfinite_of(target: Value, reference: Value) -> tuple[Nonfinite, Nonfinite]:
    """Return the non-finite elements of two tensors: kinds alone where one side has no counts."""
    counted = _counted(target), _counted(reference)
    if counted[0] is None or counted[1] is None:
        return _by_ends(target), _by_ends(reference)
    return counted[0], counted[1]


def _counted(value: Value) -> Nonfinite | None:
    """Return the counts that a dump holds; None where it holds none though some are not finite."""
    counts = value.nan_count, value.pos_inf_count, value.neg_inf_count
    if counts == (None, None, None) and any(_by_ends(value)[:3]):
        return None
    nan, pos_inf, neg_inf = (count or 0 for count in counts)
    return Nonfinite(nan, pos_inf, neg_inf)


def _by_ends(value: Value) -> Nonfinite:
    ends = [end for end in (value.max, value.min) if isinstance(end, float)]
    has_nan = any(map(math.isnan, ends))
    pos_inf, neg_inf = (not has_nan and infinity in ends for infinity in (math.inf, -math.inf))
    return Nonfinite(int(has_nan), int(pos_inf), int(neg_inf), is_counted=False)


def statistics_error(target: Value, reference: Value, allowed: RowTolerance) -> StatisticsError:
    """Return the error between two tensors of the same shape by their statistics.

    Non-finite values are left out on both sides: finite_max and finite_min replace max and min.
    """
    target_max, target_min = target.finite_ends
    reference_max, reference_min = reference.finite_ends
    target_norm, reference_norm = _size(target.norm), _size(reference.norm)
    mean, norm = _change(target.mean, reference.mean), _change(target_norm, reference_norm)
    largest, least = _change(target_max, reference_max), _change(target_min, reference_min)
    difference = estimated_difference(target, reference)
    if mean is None and norm is None and largest is None and least is None and difference is None:
        return StatisticsError(None, is_one_sided=(target_max is None) != (reference_max is None))
    peak = _peak(reference_max, reference_min) or _peak(target_max, target_min)
    total = float(_finite(reference_norm) or _finite(target_norm) or 0.0)
    count = math.sqrt(max(math.prod(reference.shape or ()), 1))
    changes = (largest or 0.0, least or 0.0, mean or 0.0, norm or 0.0)
    return _judge_changes(changes, difference or 0.0, peak, total, count, allowed)


def plain_statistics_error(
    target: Value, reference: Value, allowed: RowTolerance
) -> StatisticsError:
    """Same as `statistics_error`, for two tensors for which `is_plain` holds."""
    a, b, c, d = reference.max, reference.min, reference.mean, reference.norm
    e, f, g, h = target.max, target.min, target.mean, target.norm
    assert a is not None and b is not None and c is not None and d is not None  # noqa: PT018
    assert e is not None and f is not None and g is not None and h is not None  # noqa: PT018
    # mindstudio-probe gives the norm of a single number its sign.
    d, h = abs(d), abs(h)
    changes = (abs(e - a), abs(f - b), abs(g - c), abs(h - d))
    peak = max(a, -b) or max(e, -f)
    count = math.sqrt(max(math.prod(reference.shape or ()), 1))
    difference = estimated_difference(target, reference) or 0.0
    return _judge_changes(changes, difference, peak, d or h, count, allowed)


def _judge_changes(
    changes: tuple[float, float, float, float],
    difference: float,
    peak: float,
    total: float,
    count: float,
    allowed: RowTolerance,
) -> StatisticsError:
    """Return the verdict on the changes of all statistics.

    Args:
        changes: absolute changes of max, min, mean and norm.
        difference: estimated norm of the difference of the elements.
        peak: largest absolute value.
        total: norm.
        count: square root of the number of elements.
        allowed: the tolerance of elements.
    """
    largest, least, mean, norm = changes
    size = total / count if total else peak
    total = total or peak * count
    extreme = max(largest, least)
    shares = (
        _ratio(largest, peak),
        _ratio(least, peak),
        _ratio(mean, size),
        _ratio(norm, total),
    )
    least_error = most = max(shares)
    floor = allowed.absolute
    around = allowed.rtol + allowed.rms_tol
    is_beyond = (
        extreme > allowed.rtol * peak + allowed.rms_tol * size + floor
        or mean > around * size + floor
        or norm > around * total + floor * count
    )
    worst = _NAMES[shares.index(most)]
    if difference:
        if not is_beyond and difference > _CERTAIN * (around * total + floor * count):
            is_beyond, worst = True, _PROJECTIONS
        most = max(most, _ratio(difference, total))
    some_differ = extreme > 0 or difference > _ROUNDING * count * total
    return StatisticsError(most, least_error, is_beyond, some_differ, worst)


def distance_of(row: Row) -> Distance | None:
    """Return the error of a row for a sentence; None where it has none."""
    if row.error is None or not math.isfinite(row.error):
        return None
    is_exact = row.metrics is not None or math.prod(row.value.shape or ()) == 1
    if is_exact or not isinstance(row, Matched):
        return Distance(row.error, is_exact=is_exact)
    found = statistics_error(row.target, row.reference, EXACT)
    # What is beyond the four statistics is an estimate from the projections.
    is_drawn = row.error > found.least
    draws = len(row.target.projections or ()) if is_drawn else 0
    return Distance(row.error, min(found.least, row.error), draws=draws)


def describe_statistics(target: Value, reference: Value, worst: str) -> str:
    """Return the statistic that changed most, in words."""
    if worst == _PROJECTIONS:
        difference = estimated_difference(target, reference) or 0.0
        size = abs(float(_finite(reference.norm) or 0.0))
        if not size:
            return "elements differ; max, min, mean and norm agree"
        distance = Distance(difference / size, most=2.0, draws=len(target.projections or ()))
        return f"elements differ by {distance} of the norm; max, min, mean and norm agree"
    target_value, reference_value = getattr(target, worst), getattr(reference, worst)
    return f"{worst} {_shown(target_value)} instead of {_shown(reference_value)}"


def _size(norm: Statistic) -> Statistic:
    """Return a norm without the sign that mindstudio-probe gives that of a single number."""
    return None if norm is None else abs(norm)


def _peak(largest: Statistic, least: Statistic) -> float:
    known = [abs(float(end)) for end in (largest, least) if end is not None]
    return max(known, default=0.0)


def _finite(value: Statistic) -> Statistic:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _change(target: Statistic, reference: Statistic) -> float | None:
    value, expected = _finite(target), _finite(reference)
    return None if value is None or expected is None else float(abs(value - expected))


def _ratio(change: float, scale: float) -> float:
    if scale:
        return change / scale
    return 1.0 if change else 0.0


def _shown(value: Statistic) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
