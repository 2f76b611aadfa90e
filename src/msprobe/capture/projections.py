# SPDX-License-Identifier: Apache-2.0
"""Projections by NumPy; the same as those of the C kernels up to rounding.

The signs are part of the format of dumps: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.capture.statistics import Projections
from msprobe.dump.records import SIGN_BLOCK, SIGN_PERIOD

_SIGN_WORDS: Final = 11
_SEED: Final = 2035


_PIECE_BLOCKS: Final = 1024
PIECE_ELEMENTS: Final = _PIECE_BLOCKS * SIGN_BLOCK
"""How many elements are widened at a time."""


def _random_at(n: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the n-th outputs, from 0, of the generator splitmix64 (public domain, S. Vigna)."""
    z = np.uint64(_SEED) + (n + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _make_signs() -> NDArray[np.float64]:
    words = _random_at(np.arange(_SIGN_WORDS, dtype=np.uint64))
    bits = words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    return bits.ravel().astype(np.float64) * 2 - 1


SIGNS: Final = _make_signs()
"""1 and -1; `SIGN_PERIOD` of them from a place that is drawn for each block."""


def project(values: NDArray[Any]) -> Projections | None:
    """Return the two projections of an array; None if empty, or beyond float64's range.

    Args:
        values: of real or complex numbers; those that are not finite count as zero. They are
            widened to float64 a piece at a time.
    """
    flat = values.reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    starts = range(0, flat.size, PIECE_ELEMENTS)
    return project_pieces(flat[start : start + PIECE_ELEMENTS] for start in starts)


def project_pieces(pieces: Iterable[NDArray[Any]]) -> Projections | None:
    """Same as `project` for real numbers in pieces of `PIECE_ELEMENTS`, the last one shorter."""
    totals = None
    with np.errstate(over="ignore", invalid="ignore"):
        for number, piece in enumerate(pieces):
            found = _project_blocks(piece.astype(np.float64), number * _PIECE_BLOCKS)
            totals = found if totals is None else totals + found
    if totals is None or not np.isfinite(totals).all():
        return None
    first, second = totals.tolist()
    return first, second


def _project_blocks(piece: NDArray[np.float64], first_block: int) -> NDArray[np.float64]:
    count = -(-piece.size // SIGN_BLOCK)
    blocks = np.zeros(count * SIGN_BLOCK)
    np.copyto(blocks[: piece.size], piece, where=np.isfinite(piece))
    folded = blocks.reshape(count, -1, SIGN_PERIOD).sum(axis=1)
    numbers = np.arange(first_block, first_block + count, dtype=np.uint64)
    random = _random_at(numbers + np.uint64(_SIGN_WORDS))
    starts = (random >> np.uint64(55), (random >> np.uint64(46)) & np.uint64(511))
    places = np.arange(SIGN_PERIOD)
    return np.array(
        [(folded * SIGNS[start.astype(np.int64)[:, None] + places]).sum() for start in starts]
    )
