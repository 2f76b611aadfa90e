# SPDX-License-Identifier: Apache-2.0
"""The operations: what is computed of each tensor, from what one reading of it gives."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from msprobe.monitor.rows import MISSING, Values


class Op(StrEnum):
    """Words of the key `ops`."""

    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    NORM = "norm"
    ZEROS = "zeros"
    """Share of elements with a magnitude below `eps`."""
    NANS = "nans"
    INFS = "infs"
    RMS = "rms"
    STD = "std"
    """Standard deviation of all elements (not of a sample)."""
    ABSMAX = "absmax"
    OUTLIER_RATIO = "outlier_ratio"
    """Largest magnitude over the root mean square (crest factor)."""
    ID = "id"
    """The value itself, of tensors without dimensions."""
    LOG2_HIST = "log2_hist"
    """Shares of elements by magnitude, see `BIN_OPS`."""
    SHAPE = "shape"
    """Always known; accepted for the files of mindstudio-probe."""
    DTYPE = "dtype"


MEASURES: Final = 8
"""Numbers of one reading: max, min, mean, norm, elements below eps, NaN, infinities, elements."""
BINS: Final = 35
"""Counts of one reading by magnitude: zeros, below 2^-40, 32 bins of two powers, 2^24 and above."""
BIN_OPS: Final = (
    "log2_zero",
    "log2_below_-40",
    *(f"log2_{power}" for power in range(-40, 24, 2)),
    "log2_from_24",
)
"""Columns of `Op.LOG2_HIST`; ``log2_-4`` is the share with 2^-4 <= magnitude < 2^-2."""

_MAX, _MIN, _MEAN, _NORM, _BELOW, _NANS, _INFS, _COUNT = range(MEASURES)


def columns_of(ops: Sequence[Op]) -> tuple[str, ...]:
    """Return the columns of operations, without those that every row has anyway."""
    found: list[str] = []
    for op in ops:
        if op is Op.LOG2_HIST:
            found += BIN_OPS
        elif op not in (Op.SHAPE, Op.DTYPE):
            found.append(op.value)
    return tuple(dict.fromkeys(found))


def evaluate(ops: Sequence[Op], measures: Values, bins: Values | None) -> Values:
    """Return the values of operations, shape (columns of `columns_of`, tensors).

    Args:
        ops: the operations.
        measures: shape (tensors, MEASURES).
        bins: shape (tensors, BINS), for `Op.LOG2_HIST`.

    Returns:
        `MISSING` for what a tensor does not have: extremes without elements, the mean of booleans.
    """
    count = measures[:, _COUNT]
    unknown = np.isnan(measures[:, _NORM]) & (measures[:, _NANS] == 0)
    rows: list[Values] = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for op in dict.fromkeys(ops):
            if op is Op.LOG2_HIST:
                assert bins is not None
                rows += list(np.where(count > 0, bins.T / count, MISSING))
            elif op not in (Op.SHAPE, Op.DTYPE):
                rows.append(_evaluate_one(op, measures, count, unknown))
    return np.array(rows, np.float64).reshape(len(rows), len(measures))


def _evaluate_one(op: Op, measures: Values, count: Values, unknown: Values) -> Values:
    mean, norm = measures[:, _MEAN], measures[:, _NORM]
    gap = count == 0
    match op:
        case Op.MAX | Op.MIN:
            found = measures[:, _MAX if op is Op.MAX else _MIN]
        case Op.MEAN:
            found, gap = mean, gap | (unknown & np.isnan(mean))
        case Op.NORM:
            found, gap = norm, gap | unknown
        case Op.ZEROS:
            below = measures[:, _BELOW]
            found, gap = below / count, gap | np.isnan(below)
        case Op.NANS | Op.INFS:
            return measures[:, _NANS if op is Op.NANS else _INFS]
        case Op.RMS:
            found, gap = norm / np.sqrt(count), gap | unknown
        case Op.STD:
            variance = norm * (norm / count) - mean * mean
            found, gap = np.sqrt(np.maximum(variance, 0)), gap | unknown
        case Op.ABSMAX:
            found = np.maximum(np.abs(measures[:, _MAX]), np.abs(measures[:, _MIN]))
        case Op.OUTLIER_RATIO:
            largest = np.maximum(np.abs(measures[:, _MAX]), np.abs(measures[:, _MIN]))
            found, gap = largest / (norm / np.sqrt(count)), gap | unknown | (norm == 0)
        case _:  # Op.ID; the collector says which tensors have no dimensions
            found = measures[:, _MAX]
    return np.where(gap, MISSING, found)
