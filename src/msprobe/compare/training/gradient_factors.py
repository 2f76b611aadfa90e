# SPDX-License-Identifier: Apache-2.0
"""The number by which gradients differ from those of another run, and its meaning."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, NamedTuple

from msprobe.compare.model import Matched, Row
from msprobe.compare.rounding import resolution_of
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.fingerprints import Fingerprint
from msprobe.dump.facts import Facts, Scaler

SAME_FACTOR: Final = 2e-3
"""Gradients of one factor agree this far, relative; coarse types need more."""
# Of the norm: what the rounding of coarse types leaves to a factor.
_ALONG: Final = 0.2  # projections of a multiple, beside rounding to a coarse type
_SAME_DIRECTION: Final = 2e-2
# Of the norm, or so many roundings: what a multiple that is said leaves; projections leave more.
_TOLD: Final = 1e-3
_ROUNDINGS: Final = 4.0
_OF_PROJECTIONS: Final = 5.0
# Noise moves the norm, too, but leaves more than this share of its difference to a factor.
_MOST_LEFT: Final = 0.5
_LITTLE: Final = 0.1
MOST: Final = 0.9
"""This share of the gradients must have a factor, or another reason, for it to be one of all."""
LEAST_POWER: Final = 3
"""From here on powers of two are scales, which keep gradients of coarse types from becoming zero.

Lower ones may be mistakes.
"""
_MOST_SAMPLES: Final = 12  # binary logarithm: of a micro batch
_FEW_SAMPLES: Final = 2  # by their number gradients may be doubled or halved, for other reasons
# Limits are numbers of two digits; one norm in a thousand is by chance as near to such a number.
_SAME_LIMIT: Final = 1e-5


class Factor(NamedTuple):
    """A factor between two gradients.

    Attributes:
        value: the target's gradient is about this times the reference's.
        residual: norm of what the factor leaves, relative to the target's norm; None if unknown.
    """

    value: float
    residual: float | None

    @property
    def is_multiple(self) -> bool:
        """Whether the target's gradient is a multiple of the reference's, and not the same."""
        change = abs(self.value - 1)
        most = min(_SAME_DIRECTION, _MOST_LEFT * change)
        return change > SAME_FACTOR and (self.residual is None or self.residual <= most)

    @property
    def is_proved(self) -> bool:
        """Whether the factor leaves next to nothing of the difference."""
        return self.residual is not None and self.residual <= _LITTLE * abs(self.value - 1)

    def agrees_with(self, value: float) -> bool:
        """Return whether this is a certain factor."""
        return math.isclose(self.value, value, rel_tol=SAME_FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meanings:
    """Numbers that factors of gradients come from.

    Attributes:
        world_size: number of ranks.
        micro_batches: number of backward passes in the step.
        scales: scales of gradient scalers.
        samples: numbers of samples and of tokens in the micro batches.
    """

    world_size: int = 1
    micro_batches: int = 1
    scales: Sequence[float] = ()
    samples: Sequence[int] = ()

    def of(
        self, factor: float, tolerance: float = SAME_FACTOR, *, may_lack_division: bool = True
    ) -> str:
        """Return the meaning of a factor in words; empty if it is no known number.

        Args:
            factor: the factor.
            may_lack_division: whether it may come from a scaler, or a division that one side alone
                makes; not where a call that multiplies by it is known.
            tolerance: how far it may be from a number, relative to it, if it is known better than
                factors of gradients are.
        """
        is_near = partial(math.isclose, factor, rel_tol=min(tolerance, SAME_FACTOR))
        for scale in self.scales:
            if is_near(scale) and scale != 1:
                return f"the scale of the gradient scaler, {scale:g}: they are not unscaled"
        counts = {self.micro_batches: "number of micro batches"}
        # Where both are the same number, either may be meant.
        either = "number of micro batches or world size"
        counts[self.world_size] = either if self.world_size in counts else "world size"
        for count, name in counts.items():
            if count > 1 and is_near(count):
                return (
                    f"the {name}, {count}: they are summed, not averaged"
                    if may_lack_division
                    else f"{count}, as the {name}"
                )
            if count > 1 and is_near(1 / count):
                return (
                    f"1 / {count}, the inverse of the {name}, as by one division too many"
                    if may_lack_division
                    else f"1 / {count}, the inverse of the {name}"
                )
        for count in self.samples:
            if count > _FEW_SAMPLES and is_near(count):
                return f"{count}, the number of samples, as by a sum in place of a mean"
            if count > _FEW_SAMPLES and is_near(1 / count):
                return f"1 / {count}, the inverse of the number of samples"
        if is_near(2):
            return "2: they are doubled"
        if is_near(0.5):
            return "1/2: they are halved"
        if is_near(-1):
            return "-1: their sign is reversed"
        power = round(math.log2(factor)) if 0 < factor < math.inf else 0
        # It may as well be the size of a batch that is not known.
        is_scale = may_lack_division and (self.samples or power > _MOST_SAMPLES)
        words = f"2^{power}: a scale that is not taken back" if is_scale else f"2^{power}"
        return words if abs(power) >= LEAST_POWER and is_near(2.0**power) else ""


def meanings_of(pair: FactsPair, world_size: int) -> Meanings:
    """Return the numbers that factors of a step's gradients may come from."""
    return Meanings(
        world_size=world_size,
        micro_batches=max(map(_micro_batches, pair.sides)),
        scales=[each.scale for side in pair.events(Scaler) for each in side if each.scale],
        samples=sorted(
            {math.prod(each.shape[:rank]) for each in pair.target.data for rank in (1, 2)}
        ),
    )


def _micro_batches(facts: Facts) -> int:
    """Return how many backward passes of a step are of losses that are made alike.

    Those of a generator and of a discriminator are no micro batches of each other.
    """
    passes: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for loss in facts.loss:
        passes[tuple(loss.made_by)].add(loss.micro)
    return max(map(len, passes.values()), default=0)


def limited_words(target: float, reference: float) -> str:
    """Return that clipping explains the total norms of gradients, in words; empty if it does not.

    A side that clips is left with the limit itself.
    """
    limits = [limit_of(total) for total in (target, reference)]
    if limits[0] == limits[1]:
        return ""
    if None not in limits:
        return (
            f"the total norm of the gradients is limited to {limits[0]:g} in the target, to "
            f"{limits[1]:g} in the reference"
        )
    for side, other, total, limit in (
        ("target", "reference", target, limits[1]),
        ("reference", "target", reference, limits[0]),
    ):
        if limit is not None and total > limit:
            return (
                f"the {side} does not clip as the {other} does, whose gradients are limited to the "
                f"total norm {limit:g}: the {side}'s is {total:.6g}"
            )
    return ""


def limit_of(total: float) -> float | None:
    """Return the limit that clipping has left a total norm with; None if it is none."""
    limit = float(f"{total:.1e}")
    return limit if limit and math.isclose(total, limit, rel_tol=_SAME_LIMIT) else None


def factor_between(target: Fingerprint, reference: Fingerprint) -> Factor | None:
    """Return the factor between two gradients by norms and projections; None if unknown."""
    if not target.norm or not reference.norm:
        return None
    value = target.norm / reference.norm
    if not math.isfinite(value):
        return None
    pairs = [
        (a, b)
        for a, b in zip(target.projections or (), reference.projections or (), strict=False)
        if a is not None and b is not None
    ]
    if not pairs:
        return Factor(value, None)
    if sum(a * b for a, b in pairs) < 0:
        value = -value
    left = sum((a - value * b) ** 2 for a, b in pairs)
    size = sum(a * a for a, _ in pairs)
    return Factor(value, math.sqrt(left / size) if size else None)


def factor_of_row(row: Row) -> Factor | None:
    """Return the factor between the two values of a row; None if there is none to tell."""
    if not isinstance(row, Matched):
        return None
    metrics = row.metrics
    if metrics is not None:
        cosine, target, reference = metrics.cosine, metrics.target_norm, metrics.reference_norm
        if cosine is None or not target or not reference:
            return None
        # Of all factors this one leaves least: sin² of the angle between the two.
        return Factor(
            cosine * target / reference,
            math.sqrt(max(0.0, (1 - abs(cosine)) * (1 + abs(cosine)))),
        )
    return _factor_of_statistics(row)


def multiple_words(row: Row) -> str:
    """Return that a value is a multiple of the reference's, in words; empty if it is none."""
    factor = factor_of_row(row) if row.holds_tensor else None
    if factor is None or not (factor.is_multiple and factor.is_proved):
        return ""
    # What is only near to a multiple is something else.
    limit = max(_TOLD, _ROUNDINGS * resolution_of(row.values))
    if (factor.residual or 0.0) > limit:
        return ""
    if isinstance(row, Matched) and row.metrics is None:
        left = _projected_distance(row, factor.value)
        if left > _OF_PROJECTIONS * limit * float(row.target.norm or 0.0):
            return ""
    return f"{factor.value:.6g} times the reference's"


def _factor_of_statistics(row: Matched) -> Factor | None:
    target, reference = row.target, row.reference
    if not target.norm or not reference.norm:
        return None
    value = float(target.norm) / float(reference.norm)
    if not math.isfinite(value) or value == 0:
        return None
    known = [[value.max, value.min, value.mean] for value in row.values]
    own, other = ([float(each) for each in side if each is not None] for side in known)
    if [len(own), len(other)] != [3, 3]:
        return Factor(value, None)
    size = float(target.norm) / math.sqrt(max(math.prod(target.shape or ()), 1))
    peak = max(abs(own[0]), abs(own[1]))
    # Extremes and means alone are nearly a multiple where both are drawn from one range.
    for factor in (value, -value):
        low, high = sorted((factor * other[0], factor * other[1]))
        ends = max(abs(own[0] - high), abs(own[1] - low)) / peak
        left = max(ends, abs(own[2] - factor * other[2]) / size)
        is_along = _projected_distance(row, factor) <= _ALONG * float(target.norm)
        if left <= _SAME_DIRECTION and is_along:
            return Factor(factor, left)
    return Factor(value, 1.0)  # another direction


def _projected_distance(row: Matched, factor: float) -> float:
    """Return about how far the target is from a multiple of the reference; 0 if nothing tells."""
    pairs = [*zip(row.target.projections or (), row.reference.projections or (), strict=False)]
    return math.hypot(*(own - factor * other for own, other in pairs)) / math.sqrt(len(pairs) or 1)


def common_factor(factors: Iterable[Factor | None]) -> Factor | None:
    """Return the factor that nearly all of these share, if it is not 1; None if there is none."""
    known = [factor for factor in factors if factor is not None]
    multiples = [factor for factor in known if factor.is_multiple]
    if not multiples or len(multiples) < MOST * len(known):
        return None
    value = median(factor.value for factor in multiples)
    if sum(factor.agrees_with(value) for factor in multiples) < MOST * len(known):
        return None
    residuals = [factor.residual for factor in multiples if factor.residual is not None]
    return Factor(value, max(residuals, default=None))
