# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor: reduced on its device, completed on the host.

The meaning of the numbers: `msprobe.capture.statistics`. What a reduction of a device makes of NaN
is nowhere said, so none is given to it: extremes and sums are taken of the finite elements, the
others are counted, and the host puts the two together.

**Precision.** Max, Min, counts and everything about integers but their Norm are exact. Sums are
taken in float64 where the device computes in it: one reduction adds at most `_ROW` elements, and
reductions of the results follow, so that the error of Mean (relative to the mean of the absolute
values) and Norm stays near 1e-14. Where a device has no float64, sums are taken in float32, in
shorter rows and of values scaled by the largest of them; the error is then below 1e-6. What a
device takes for zero (as some do denormal numbers) is zero in sums.

**Cost.** For each piece of floating point 17 operators, or 29 with more elements than a row, and 10
to 17 for integers; up to 45 and 28 with float32. Temporary memory of a few pieces in the wider
type. Nothing is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from mindspore.common import dtype as mstype

from mindspore import Tensor, ops
from msprobe.capture.statistics import NonFinite, Summary

PIECE_ELEMENTS: Final = 1 << 22
"""How many elements are converted at a time. A float32 counts them exactly."""

_ROW: Final = {mstype.float64: 256, mstype.float32: 64}
_DIGIT_BITS: Final = 22  # bits that a float32 holds exactly; three digits make a 64-bit integer
_LOW_HALF: Final = (1 << 32) - 1

FLOATS: Final = frozenset({mstype.float16, mstype.bfloat16, mstype.float32, mstype.float64})
INTEGERS: Final = frozenset(
    {
        mstype.int8,
        mstype.int16,
        mstype.int32,
        mstype.int64,
        mstype.uint8,
        mstype.uint16,
        mstype.uint32,
    }
)
"""The others are read on the host. uint64 has too few operators; the absolute value of a complex
number that is infinite or very large comes out wrong, on the CPU at least.
"""

# Old operators that every device has. FloorDiv is none of them for 64-bit integers:
# on the CPU it goes through float64.
# Devices lack some of them; SHIFT and GREATER are public because tests take these away.
_ALL: Final = ops.ReduceAll()
_AND: Final = ops.BitwiseAnd()
_ANY: Final = ops.ReduceAny()
_CAST: Final = ops.Cast()
_CONCAT: Final = ops.Concat(0)
_DIVIDE: Final = ops.RealDiv()
GREATER: Final = ops.Greater()
_IS_FINITE: Final = ops.IsFinite()
_LARGER: Final = ops.Maximum()
_LESS: Final = ops.Less()
_MAX: Final = ops.ReduceMax()
_MIN: Final = ops.ReduceMin()
_MULTIPLY: Final = ops.Mul()
_NEGATE: Final = ops.Neg()
_RESHAPE: Final = ops.Reshape()
_SELECT: Final = ops.Select()
SHIFT: Final = ops.RightShift()
_SLICE: Final = ops.Slice()
_STACK: Final = ops.Stack(0)
_SUM: Final = ops.ReduceSum()


class Constants:
    """Operands on the device, for sums in one type."""

    def __init__(self, accumulate: Any) -> None:
        """Make them.

        Args:
            accumulate: MindSpore's float32 or float64.
        """
        self.accumulate = accumulate
        self.row = _ROW[accumulate]
        limits = np.finfo(np.float64 if accumulate == mstype.float64 else np.float32)
        self.smallest = float(limits.tiny)
        self.zero = Tensor(0.0, accumulate)
        self.one = Tensor(1.0, accumulate)
        self.tiny = Tensor(self.smallest, accumulate)
        self.inf = Tensor(math.inf, accumulate)
        self.minus_inf = Tensor(-math.inf, accumulate)
        self.largest = Tensor(float(limits.max), accumulate)
        self.lowest = Tensor(float(limits.min), accumulate)
        self.half_bits = Tensor(32, mstype.int64)
        self.low_half = Tensor(_LOW_HALF, mstype.int64)
        self.digit_places = Tensor(np.arange(3, dtype=np.int64).reshape(1, 3) * _DIGIT_BITS)
        self.digit_mask = Tensor((1 << _DIGIT_BITS) - 1, mstype.int64)


class Reduction(NamedTuple):
    """Pending reductions of one tensor on its device.

    Attributes:
        columns: the numbers, one vector in the type of sums for each piece.
        counts: elements of the pieces.
        fill: makes the summary of the vectors' values.
    """

    columns: list[Any]
    counts: list[int]
    fill: Callable[[Summary, Sequence[list[float]], list[int]], None]


def is_reducible(dtype: Any) -> bool:
    """Return whether `reduce` takes tensors of a type."""
    return dtype == mstype.bool_ or dtype in FLOATS or dtype in INTEGERS


def reduce(tensor: Any, constants: Constants) -> Reduction:
    """Start the reductions of a tensor that is not empty; nothing is waited for.

    Args:
        tensor: of a reducible type; it is only read.
        constants: decide the type of sums: float64 for a float64.
    """
    dtype = tensor.dtype
    if dtype == mstype.bool_:
        found = _STACK((_ANY(tensor, ()), _ALL(tensor, ())))
        return Reduction([_CAST(found, constants.accumulate)], [tensor.size], _fill_bools)
    pieces = list(_pieces(tensor))
    counts = [piece.size for piece in pieces]
    if dtype in FLOATS:
        # Only squares of a float64 may leave the range of float64.
        is_scaled = dtype == constants.accumulate or constants.accumulate == mstype.float32
        columns = [_float_columns(piece, constants, is_scaled=is_scaled) for piece in pieces]
        unit = constants.smallest if is_scaled else None
        return Reduction(columns, counts, partial(_fill_floats, unit))
    is_scaled = constants.accumulate == mstype.float32
    columns = [_integer_columns(piece, constants, is_scaled=is_scaled) for piece in pieces]
    return Reduction(columns, counts, partial(_fill_integers, is_scaled))


# ---- on the device ------------------------------------------------------------------------------


def _pieces(tensor: Any) -> Iterator[Any]:
    if tensor.size <= PIECE_ELEMENTS:
        yield tensor
        return
    flat = _RESHAPE(tensor, (-1,))
    for start in range(0, tensor.size, PIECE_ELEMENTS):
        yield _SLICE(flat, (start,), (min(PIECE_ELEMENTS, tensor.size - start),))


def _float_columns(piece: Any, constants: Constants, *, is_scaled: bool) -> Any:
    """Return max, min, sum and sum of squares of the finite elements, and three counts."""
    known = constants
    x = _as(piece, known.accumulate)
    finite = _IS_FINITE(x)
    high = _MAX(_SELECT(finite, x, known.minus_inf), ())
    low = _MIN(_SELECT(finite, x, known.inf), ())
    rest = _SELECT(finite, x, known.zero)
    if is_scaled:
        rest = _DIVIDE(rest, _LARGER(_LARGER(high, _NEGATE(low)), known.tiny))
    masks = (finite, GREATER(x, known.largest), _LESS(x, known.lowest))
    counts = [_SUM(_SELECT(mask, known.one, known.zero), ()) for mask in masks]
    squares = _sum(_MULTIPLY(rest, rest), known.row)
    return _STACK((high, low, _sum(rest, known.row), squares, *counts))


def _integer_columns(piece: Any, constants: Constants, *, is_scaled: bool) -> Any:
    """Return the digits of max, min and the parts of the sum, and the sum of squares.

    The sum of 64-bit integers goes in two halves, none of which can leave 64 bits.
    """
    known = constants
    wide = _as(piece, mstype.int64)
    high, low = _MAX(wide, ()), _MIN(wide, ())
    if piece.dtype == mstype.int64:
        halves = (_AND(wide, known.low_half), SHIFT(wide, known.half_bits))
        words = _STACK((high, low, *(_SUM(half, ()) for half in halves)))
    else:
        words = _STACK((high, low, _SUM(wide, ())))
    digits = _AND(SHIFT(_RESHAPE(words, (-1, 1)), known.digit_places), known.digit_mask)
    x = _CAST(wide, known.accumulate)
    if is_scaled:
        both = _CAST(high, known.accumulate), _NEGATE(_CAST(low, known.accumulate))
        x = _DIVIDE(x, _LARGER(_LARGER(*both), known.one))
    squares = _RESHAPE(_sum(_MULTIPLY(x, x), known.row), (1,))
    return _CONCAT((_RESHAPE(_CAST(digits, known.accumulate), (-1,)), squares))


def _as(tensor: Any, dtype: Any) -> Any:
    return tensor if tensor.dtype == dtype else _CAST(tensor, dtype)


def _sum(x: Any, row: int) -> Any:
    """Return the sum of all elements, at most `row` of them one after the other."""
    while x.size > row:
        count, rest = divmod(x.size, row)
        flat = _RESHAPE(x, (-1,))
        whole = flat if rest == 0 else _SLICE(flat, (0,), (count * row,))
        x = _SUM(_RESHAPE(whole, (count, row)), (1,))
        if rest:
            x = _CONCAT((x, _SLICE(flat, (count * row,), (rest,))))
    return _SUM(x, ())


# ---- on the host --------------------------------------------------------------------------------


def _fill_bools(summary: Summary, pieces: Sequence[list[float]], counts: list[int]) -> None:
    (any_, all_), *_ = pieces
    summary.max, summary.min = bool(any_), bool(all_)


def _fill_floats(
    unit: float | None, summary: Summary, pieces: Sequence[list[float]], counts: list[int]
) -> None:
    """Put pieces together; `unit` is the smallest scale of their sums, None without scales."""
    count = sum(counts)
    finite, above, below = (int(sum(piece[k] for piece in pieces)) for k in (4, 5, 6))
    high = max(piece[0] for piece in pieces) + 0.0  # -0.0 + 0.0 is 0.0
    low = min(piece[1] for piece in pieces) + 0.0
    if finite == count:
        means, norms = [], []
        for piece in pieces:
            scale = 1.0 if unit is None else max(piece[0], -piece[1], unit)
            means.append(piece[2] / count * scale)
            norms.append(math.sqrt(piece[3]) * scale)
        summary.max, summary.min = high, low
        summary.mean, summary.norm = math.fsum(means), math.hypot(*norms)
        return
    nan = count - finite - above - below
    if nan:
        summary.max = summary.min = summary.mean = summary.norm = math.nan
    else:
        summary.max = math.inf if above else high
        summary.min = -math.inf if below else low
        summary.mean = math.nan if above and below else _infinity(above)
        summary.norm = math.inf
    extremes = (high, low) if finite else (None, None)
    summary.nonfinite = NonFinite(nan, above, below, *extremes)


def _infinity(above: int) -> float:
    return math.inf if above else -math.inf


def _fill_integers(
    is_scaled: bool, summary: Summary, pieces: Sequence[list[float]], counts: list[int]
) -> None:
    """Put pieces together; `is_scaled` says whether squares are those of scaled elements."""
    highs, lows, total, norms = [], [], 0, []
    for piece in pieces:
        high, low, *parts = _words(piece[:-1])
        highs.append(high)
        lows.append(low)
        total += sum(part << (32 * place) for place, part in enumerate(parts))
        scale = float(np.float32(max(high, -low, 1))) if is_scaled else 1.0
        norms.append(math.sqrt(piece[-1]) * scale)
    summary.max, summary.min = max(highs), min(lows)
    summary.mean, summary.norm = total / sum(counts), math.hypot(*norms)


def _words(digits: list[float]) -> list[int]:
    """Return the 64-bit integers whose digits these are, three each, lowest first."""
    found = []
    for first in range(0, len(digits), 3):
        word = sum(int(digits[first + k]) << (_DIGIT_BITS * k) for k in range(3))
        is_negative = word >> (3 * _DIGIT_BITS - 1)
        found.append(word - (1 << 3 * _DIGIT_BITS) if is_negative else word)
    return found
