# SPDX-License-Identifier: Apache-2.0
"""`Distance`: how far apart two values are, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two values are; as text it says itself whether the number is an estimate.

    No number of two projections is exact, and norms bound it from below. So text is made of the
    distance, never of its value.

    Attributes:
        value: the number to decide by.
        least: they are no closer than this.
        is_exact: the value was computed from all elements.
    """

    value: float
    least: float = 0.0
    is_exact: bool = False

    def scaled(self, factor: float) -> Distance:
        """Return the distance in another unit."""
        return Distance(self.value * factor, self.least * factor, self.is_exact)

    def __str__(self) -> str:
        """Return the number with "about", "at least", or alone."""
        if self.is_exact:
            return f"{self.value:.2g}"
        if 0 < self.value <= 2 * self.least:
            return f"at least {self.least:.2g}"  # no less than half of what is estimated
        return f"about {self.value:.2g}"
