# SPDX-License-Identifier: Apache-2.0
"""The 99.9 % quantile of a stream of errors, exact, from the largest thousandth of them.

Only as many of the largest numbers are kept as can decide the quantile, so the memory is a
thousandth of the stream's, and once the buffer has filled, most blocks are dismissed by comparing
their maximum with the smallest number kept.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

QUANTILE: Final = 0.999
UNKNOWN_COUNT_KEPT: Final = 1 << 21
"""Numbers kept when the total is not known in advance: enough for two thousand million."""


def kept_for(count: int | None) -> int:
    """Return how many of the largest of `count` numbers decide the quantile."""
    return UNKNOWN_COUNT_KEPT if count is None else count // 1000 + 3


class LargestErrors:
    """The largest numbers of a stream; zeros need not be added."""

    def __init__(self, keep: int) -> None:
        """Keep the `keep` largest."""
        self._keep = keep
        self._threshold = 0.0
        self._pieces: list[NDArray[np.float64]] = []
        self._held = 0

    def add(self, errors: NDArray[np.float64]) -> None:
        """Take numbers >= 0."""
        larger = errors[errors > self._threshold]
        if larger.size:
            self._pieces.append(larger)
            self._held += larger.size
        if self._held > 2 * self._keep:
            self._prune()

    def quantile(self, total: int) -> float | None:
        """Return the quantile of `total` numbers, interpolated linearly as `numpy.quantile` does.

        Numbers that were not added count as 0. None when too few were kept to know.
        """
        if total == 0:
            return None
        position = QUANTILE * (total - 1)
        lower = math.floor(position)
        fraction = position - lower
        if total - lower > self._keep:
            return None
        kept = np.sort(np.concatenate(self._pieces)) if self._pieces else np.empty(0)
        low = _ranked(kept, total - 1 - lower)
        high = _ranked(kept, max(total - 2 - lower, 0))
        return low if fraction == 0 or low == high else low + (high - low) * fraction

    def _prune(self) -> None:
        everything = np.concatenate(self._pieces)
        kept = np.partition(everything, everything.size - self._keep)[-self._keep :]
        self._pieces = [kept]
        self._held = kept.size
        self._threshold = float(kept[0])


def _ranked(kept: NDArray[np.float64], rank: int) -> float:
    """Return the number with `rank` larger ones."""
    return float(kept[kept.size - 1 - rank]) if rank < kept.size else 0.0
