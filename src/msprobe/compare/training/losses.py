# SPDX-License-Identifier: Apache-2.0
"""`OtherLoss`: the first loss of a step that differs, and of what multiple it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from msprobe.compare.rounding import FINE, IN_OTHER_CALLS, IN_SUM, ONCE, after_calls
from msprobe.compare.training.differences import shown
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.gradient_factors import SAME_FACTOR, meanings_of
from msprobe.dump.facts import Loss
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of


@dataclass(frozen=True, slots=True)
class OtherLoss:
    """A loss that differs.

    Attributes:
        target: the target's.
        reference: the reference's.
        values: both values in words.
        factor: the target's loss is so many times the reference's; infinite where that is zero.
        meaning: of the factor; empty if it is no known number.
        number: the meaning without what it says of a division that one side alone makes.
    """

    target: Loss
    reference: Loss
    values: str
    factor: float
    meaning: str
    number: str

    @property
    def words(self) -> str:
        """Both values in words, with the meaning."""
        return self.values + (f": the factor is {self.meaning}" if self.meaning else "")

    def multiple(self, *, is_divided: bool) -> str:
        """Return both values in words, with the factor, which calls that are known tell.

        Args:
            is_divided: they are those of one side alone, which divides.
        """
        meaning = self.meaning if is_divided else self.number
        return f"{self.values}: the factor is {meaning or shown(self.factor)}"

    def is_scaled_by(self, ratio: float | None) -> bool:
        """Return whether calls that multiply by another number, so many times, explain it all."""
        is_other = ratio is not None and not math.isclose(ratio, 1.0, rel_tol=SAME_FACTOR)
        return is_other and math.isclose(self.factor, ratio or 1.0, rel_tol=SAME_FACTOR)


def other_loss(
    pair: FactsPair,
    resolution: Callable[[], float] = float,
    scale: Callable[[], float] = float,
) -> OtherLoss | None:
    """Return the first loss of a step that differs by more than rounding; None without one.

    Other calls make other roundings of what a model returns in a coarse type.

    Args:
        pair: the facts.
        resolution: of the type to which these calls round.
        scale: how large the terms are that losses are made of.
    """
    losses = pair.target.loss, pair.reference.loss
    made = [[each.made_by for each in side] for side in losses]
    if made[0][: len(made[1])] != made[1][: len(made[0])] and len(made[0]) != len(made[1]):
        return None  # a pass too many or too few: they are not each other's
    for target, reference in zip(*losses, strict=False):
        value, expected = target.value, reference.value
        if value is None or expected is None or target.micro != reference.micro:
            continue
        if _is_same(target, reference) or _is_same(target, reference, scale()):
            continue
        makes = [[text.partition("(")[0] for text in each.made_by] for each in (target, reference)]
        if makes[0] != makes[1] and abs(value - expected) <= ONCE * resolution() * abs(expected):
            continue
        # Losses of the same samples are as exact as their type: what is only near is another loss.
        near = after_calls(max(FINE, resolution()))
        factor = value / expected if expected else math.inf
        meanings = meanings_of(pair, 1)
        of_micro = f", micro batch {target.micro}" if target.micro else ""
        values = (
            f"the loss is {shown(value)} in the target, {shown(expected)} in the reference "
            f"(step {pair.step}{of_micro})"
        )
        meaning, number = (
            meanings.of(factor, near, may_lack_division=may) for may in (True, False)
        )
        return OtherLoss(target, reference, values, factor, meaning, number)
    return None


def _is_same(target: Loss, reference: Loss, scale: float = 0.0) -> bool:
    """Return whether two values are equal up to a few roundings, or neither is finite.

    Those of terms that cancel are as large as the terms.
    """
    value, expected = target.value or 0.0, reference.value or 0.0
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.isfinite(value) == math.isfinite(expected)
    epsilon = max(epsilon_of(normal_dtype(each.dtype)) for each in (target, reference))
    return abs(value - expected) <= epsilon * max(IN_OTHER_CALLS * abs(expected), IN_SUM * scale)
