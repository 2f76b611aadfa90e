# SPDX-License-Identifier: Apache-2.0
"""How far two tensors are apart as far as max, min, mean and norm can tell.

Each statistic bounds the true error from below: no norm, mean or extreme value can move further
than the elements do. So the largest of the four relative changes is the best single number, and it
is never too large.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msprobe.compare.model import Leaf
from msprobe.compare.verdicts.tolerances import RowTolerance, root_mean_square
from msprobe.dump.records import Statistic

_NAMES: Final = ("max", "min", "mean", "norm")


class StatisticsError(NamedTuple):
    """How far the statistics are apart.

    Attributes:
        relative: the largest change relative to the tensor's size; None if none can be compared.
        extreme: largest change of max and min.
        mean: change of the mean.
        norm: change of the norm.
        extreme_scale: largest absolute value of the reference.
        mean_scale: root mean square of the reference.
        norm_scale: norm of the reference.
        is_one_sided: only one side has statistics.
    """

    relative: float | None
    extreme: float
    mean: float
    norm: float
    extreme_scale: float
    mean_scale: float
    norm_scale: float
    is_one_sided: bool = False

    @property
    def is_missing(self) -> bool:
        """Whether there was nothing to compare."""
        return self.relative is None

    @property
    def ends_differ(self) -> bool:
        """Whether max or min are not exactly equal."""
        return self.extreme > 0

    def exceeds(self, allowed: RowTolerance) -> bool:
        """Return whether any statistic moved further than its elements may."""
        floor = allowed.absolute
        spread = allowed.atol * self.mean_scale + floor
        return (
            self.extreme > allowed.rtol * self.extreme_scale + spread
            or self.mean > allowed.relative * self.mean_scale + floor
            or self.norm > allowed.relative * self.norm_scale + self._norm_floor(floor)
        )

    def _norm_floor(self, floor: float) -> float:
        return floor * (self.norm_scale / self.mean_scale if self.mean_scale else 1.0)


def statistics_equal(target: Leaf, reference: Leaf) -> bool:
    """Return whether all statistics are exactly equal and finite."""
    return (
        target.norm == reference.norm
        and target.mean == reference.mean
        and target.max == reference.max
        and target.min == reference.min
        and target.extra.get("nan_count") == reference.extra.get("nan_count")
    )


def nonfinite_signature(leaf: Leaf) -> str:
    """Return what is not finite in a tensor, in words; empty if all is finite or unknown."""
    extra = leaf.extra
    if "nan_count" in extra or "pos_inf_count" in extra or "neg_inf_count" in extra:
        counts = [
            (extra.get("nan_count") or 0, "NaN"),
            (extra.get("pos_inf_count") or 0, "+Inf"),
            (extra.get("neg_inf_count") or 0, "-Inf"),
        ]
        return ", ".join(f"{count} {name}" for count, name in counts if count)
    ends = (leaf.max, leaf.min)
    if any(isinstance(end, float) and math.isnan(end) for end in ends):
        return "NaN"
    found = [
        "+Inf" if end > 0 else "-Inf" for end in ends if isinstance(end, float) and math.isinf(end)
    ]
    return ", ".join(dict.fromkeys(found))


def statistics_error(target: Leaf, reference: Leaf) -> StatisticsError:
    """Return how far two tensors of the same shape are apart by their statistics.

    Non-finite values are left out on both sides: finite_max and finite_min stand in for the ends.
    """
    target_max, target_min = _ends(target)
    reference_max, reference_min = _ends(reference)
    changes = [
        abs(mine - theirs)
        for mine, theirs in ((target_max, reference_max), (target_min, reference_min))
        if mine is not None and theirs is not None
    ]
    mean = _change(target.mean, reference.mean)
    norm = _change(target.norm, reference.norm)
    if not changes and mean is None and norm is None:
        has_target, has_reference = target_max is not None, reference_max is not None
        return StatisticsError(None, 0, 0, 0, 0, 0, 0, is_one_sided=has_target != has_reference)
    extreme = float(max(changes, default=0.0))
    peak = _peak(reference_max, reference_min) or _peak(target_max, target_min)
    size = root_mean_square(reference) or root_mean_square(target) or peak
    total = _finite(reference.norm) or _finite(target.norm) or 0.0
    relative = max(
        _ratio(extreme, peak),
        _ratio(mean or 0.0, size),
        _ratio(norm or 0.0, float(total)),
    )
    return StatisticsError(relative, extreme, mean or 0.0, norm or 0.0, peak, size, float(total))


def describe_statistics(target: Leaf, reference: Leaf) -> str:
    """Return the statistic that changed most, in words."""
    worst, words = -1.0, ""
    scale = _peak(*_ends(reference)) or _peak(*_ends(target))
    for name in _NAMES:
        mine, theirs = getattr(target, name), getattr(reference, name)
        change = _change(mine, theirs)
        if change is None:
            continue
        size = abs(float(theirs)) if name == "norm" and theirs else scale
        ratio = _ratio(change, size)
        if ratio > worst:
            worst, words = ratio, f"{name} {_shown(mine)} instead of {_shown(theirs)}"
    return words


def _ends(leaf: Leaf) -> tuple[Statistic, Statistic]:
    largest, least = leaf.max, leaf.min
    if _finite(largest) is None or _finite(least) is None:
        extra = leaf.extra
        largest = _finite(extra.get("finite_max", largest))
        least = _finite(extra.get("finite_min", least))
    return largest, least


def _peak(largest: Statistic, least: Statistic) -> float:
    known = [abs(float(end)) for end in (largest, least) if end is not None]
    return max(known, default=0.0)


def _finite(value: Statistic) -> Statistic:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _change(target: Statistic, reference: Statistic) -> float | None:
    mine, theirs = _finite(target), _finite(reference)
    return None if mine is None or theirs is None else float(abs(mine - theirs))


def _ratio(change: float, scale: float) -> float:
    if change == 0:
        return 0.0
    return change / scale if scale else 1.0


def _shown(value: Statistic) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
