# SPDX-License-Identifier: Apache-2.0
"""How far a value may be off, judged by a handful of samples of its noise.

A sample is the size of a difference: how far a recording with noise is from the reference. The
spread of K samples is their root mean square. Few samples may all be small by chance, so the
allowed difference is a multiple of the spread. It is taken from the distribution of a further
sample divided by the spread: for normal noise, the square of it has the F distribution with n and
K * n degrees of freedom (N. L. Johnson, S. Kotz, N. Balakrishnan, Continuous Univariate
Distributions 2, 1995, chapter 27).

n says how many independent random numbers make a sample. A single number, or a small tensor, may
be moved by one alone: n is 1, which is Student's t with K degrees of freedom. Statistics see a
large tensor through two projections, which are nearly independent: n is 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

# A further sample lies within the allowed difference 999 times of 1000.
_RISK: Final = 1e-3
# Tensors from this size on are moved by several random numbers.
_LARGE: Final = 64
# Two legal programs also differ by roundings inside of operators, which noise does not move: sums
# in another order. Without this factor 4 of 11,480 differences of legal pairs were beyond what
# three recordings allow, by 1.84 at most (a convolution with channels last).
_INSIDE: Final = 2.0


def spread_of(samples: Sequence[float]) -> float:
    """Return the root mean square of samples; 0 where there is none."""
    largest = max(samples, default=0.0)
    if not largest or math.isinf(largest):
        return largest
    return largest * math.sqrt(sum((each / largest) ** 2 for each in samples) / len(samples))


def allowed_multiple(samples: int, count: int) -> float:
    """Return how many spreads another legal program may be off.

    Args:
        samples: how many there are.
        count: elements of the value.
    """
    return _INSIDE * quantile(samples, count, _RISK)


@cache
def quantile(samples: int, count: int, risk: float) -> float:
    """Return how many spreads a further sample is off at most, but for a small risk.

    Args:
        samples: how many there are.
        count: elements of the value.
        risk: probability that it is further off.
    """
    if count >= _LARGE:
        # The quantile of F with 2 and 2K degrees of freedom has a closed form.
        return math.sqrt(samples * (risk ** (-1 / samples) - 1))
    low, high = 0.0, 1.0
    while _within(high, samples) < 1 - risk:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, samples) < 1 - risk else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """Return the probability of Student's t between -t and t.

    M. Abramowitz, I. A. Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    is_odd = degrees % 2
    cosine = math.cos(angle)
    term = cosine if is_odd else 1.0
    total = 0.0
    for place in range(degrees // 2):
        total += term
        upper = 2 * place + (2 if is_odd else 1)
        term *= upper / (upper + 1) * cosine**2
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if is_odd else total
