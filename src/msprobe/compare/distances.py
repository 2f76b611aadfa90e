# SPDX-License-Identifier: Apache-2.0
"""`Distance`: how far apart two values are, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

# This share of distances is beyond each of two ends.
_BEYOND: Final = 0.01
# Ends so near to each other make one number.
_NARROW: Final = 1.25


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two values are; as text it says itself how well the number is known.

    No number of two projections is exact, and norms bound it. So text is made of the distance,
    never of its value.

    Attributes:
        value: the number to decide by.
        least: they are no closer than this.
        is_exact: the value was computed from all elements.
        most: they are no further apart than this.
        draws: how many random projections of one size the value is the root mean square of; 0
            where it is another estimate.
        choices: of how many distances it is the largest: that of many estimates is too large.
    """

    value: float
    least: float = 0.0
    is_exact: bool = False
    most: float = math.inf
    draws: float = 0.0
    choices: int = 1

    def scaled(self, factor: float) -> Distance:
        """Return the distance in another unit."""
        ends = self.value * factor, self.least * factor, self.most * factor
        return replace(self, value=ends[0], least=ends[1], most=ends[2])

    def largest_of(self, count: int) -> Distance:
        """Return the same as the largest of so many."""
        return replace(self, choices=count)

    @property
    def ends(self) -> tuple[float, float]:
        """Two numbers between which the distance lies almost certainly."""
        if self.is_exact or not self.draws:
            return self.value, self.value
        beyond = _BEYOND / self.choices, _BEYOND
        low, high = (self.value / root for root in _roots_of_chi_squared(self.draws, beyond))
        return max(low, self.least), min(high, self.most)

    def __str__(self) -> str:
        """Return the number alone, with "about" or "at least", or the two around it."""
        if self.is_exact:
            return f"{self.value:.2g}"
        if 0 < self.value <= 2 * self.least:
            # No less than half of what is estimated.
            return f"at least {_two_digits(self.least, math.floor):g}"
        low, high = self.ends
        if high <= _NARROW * low or not math.isfinite(high):
            return f"about {self.value:.2g}"
        return f"{_two_digits(low, math.floor):g} to {_two_digits(high, math.ceil):g}"


def _roots_of_chi_squared(draws: float, beyond: tuple[float, float]) -> tuple[float, float]:
    """Return the roots of the upper and lower quantile of χ² per degree of freedom.

    That of two is an exponential distribution; others as Wilson and Hilferty (1931).
    """
    if draws <= 2:
        return math.sqrt(-math.log(beyond[0])), math.sqrt(-math.log1p(-beyond[1]))
    spread = 2 / (9 * draws)
    above, below = (NormalDist().inv_cdf(1 - each) * math.sqrt(spread) for each in beyond)
    return (1 - spread + above) ** 1.5, max(1 - spread - below, 0.1) ** 1.5


def _two_digits(number: float, way: Callable[[float], float]) -> float:
    if number <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(number)) - 1)
    # 0.7 / 0.01 is a little less than 70.
    return float(f"{way(round(number / unit, 6)) * unit:.2g}")
