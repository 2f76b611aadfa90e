# SPDX-License-Identifier: Apache-2.0
"""Signs and random projections of a gradient: direction and length in a kilobyte.

A sketch has 256 sums. Each element is added to one of them, with a random sign; both are fixed by
its place in the tensor. For two tensors x and y with sketches s and t, ``s · t`` estimates
``x · y``, and ``‖s - t‖²`` estimates ``‖x - y‖²`` with a standard error of 9 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WIDTH: Final = 256
_PIECE: Final = WIDTH * WIDTH
_SEED: Final = 2046
_STRIDE: Final = 97  # odd, so that the rows of a piece are shifted in all ways
_SHIFTED: Final = (np.arange(WIDTH) + _STRIDE * np.arange(WIDTH)[:, None]) % WIDTH

# Number of bits that are set in each byte.
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)

Floats = NDArray[np.float32]


def _signs(piece: int) -> NDArray[np.float64]:
    """Return the signs of a piece, by splitmix64 (public domain, S. Vigna)."""
    numbers = np.arange(piece * (_PIECE // 64), (piece + 1) * (_PIECE // 64), dtype=np.uint64)
    z = np.uint64(_SEED) + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words = (z ^ (z >> np.uint64(31))).astype("<u8")
    return np.unpackbits(words.view(np.uint8)).astype(np.float64) * 2 - 1


def sketch(values: Floats) -> Floats:
    """Return the 256 sums of a tensor; what is not finite counts as zero."""
    flat = values.reshape(-1)
    total = np.zeros(WIDTH)
    for number, start in enumerate(range(0, flat.size, _PIECE)):
        part = np.zeros(_PIECE)
        taken = flat[start : start + _PIECE]
        np.copyto(part[: taken.size], taken, where=np.isfinite(taken))
        rows = (part * _signs(number)).reshape(WIDTH, WIDTH)
        total += np.take_along_axis(rows, _SHIFTED, axis=1).sum(axis=0)
    return total.astype(np.float32)


def cosine(s: Floats, t: Floats, norm_s: float, norm_t: float) -> float:
    """Return the cosine of two tensors by their sketches and norms; NaN without directions.

    It is exact for equal tensors, and its distance from 1 has a standard error of 9 %.
    """
    if not (0 < norm_s < math.inf and 0 < norm_t < math.inf):
        return math.nan
    apart = float(np.square(s.astype(np.float64) - t).sum())
    value = (norm_s**2 + norm_t**2 - apart) / (2 * norm_s * norm_t)
    return max(-1.0, min(1.0, value))


@dataclass(frozen=True, slots=True)
class Signs:
    """The signs of a tensor, one bit each for positive and for zero.

    Attributes:
        positive: packed bits, ``np.packbits``; NaN is neither positive nor zero.
        zero: packed bits; None where they are not known.
        count: number of elements.
    """

    positive: NDArray[np.uint8]
    zero: NDArray[np.uint8] | None
    count: int

    @classmethod
    def of(cls, values: Floats) -> Signs:
        """Return the signs of a tensor."""
        flat = values.reshape(-1)
        return cls(np.packbits(flat > 0), np.packbits(flat == 0), flat.size)

    def similarity(self, other: Signs) -> float:
        """Return the share of elements that are positive in both or in neither; 1 if empty."""
        return self._share(np.bitwise_xor(self.positive, other.positive))

    def three_state_similarity(self, other: Signs) -> float | None:
        """Return the share of elements with equal signs, zero being one; None if not known."""
        if self.zero is None or other.zero is None:
            return None
        differs = np.bitwise_xor(self.positive, other.positive)
        return self._share(np.bitwise_or(differs, np.bitwise_xor(self.zero, other.zero)))

    def _share(self, differs: NDArray[np.uint8]) -> float:
        return 1 - int(_ONES[differs].sum(dtype=np.int64)) / self.count if self.count else 1.0
