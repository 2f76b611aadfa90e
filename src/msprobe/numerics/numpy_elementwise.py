# SPDX-License-Identifier: Apache-2.0
"""The element metrics in NumPy, for installations without the C extension.

Elements are taken in blocks of fixed size, counted from the first element, for any chunks
they come in; so chunks leave no trace in the sums.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.numerics.element_types import ElementType, coarser, zero_shift
from msprobe.numerics.numpy_blocks import (
    Block,
    Candidate,
    agree,
    count_nonfinite,
    dot,
    is_infinite,
    largest_ulp,
    rescaled,
)
from msprobe.numerics.quantile import LargestErrors
from msprobe.numerics.raw_metrics import Extreme, RawMetrics, Scaled

_BLOCK: Final = 1 << 15
_FLOORS: Final = 3

Floats = NDArray[np.float64]


class NumpyAccumulator:
    """Element metrics of a stream of chunks."""

    def __init__(
        self,
        target_type: ElementType,
        reference_type: ElementType,
        rtol: float,
        atol: float,
        keep: int,
    ) -> None:
        self._types = (target_type, reference_type)
        self._rtol = rtol
        self._atol = atol
        self._shift = zero_shift(target_type, reference_type)
        self._coarser = coarser(target_type, reference_type)
        self._has_ulp = target_type.has_ulp and reference_type.has_ulp
        self._pending: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._pending_count = 0
        self._count = 0
        self._finite = 0
        self._unequal = self._mismatches = self._sign_flips = 0
        self._within_1e3 = self._within_5e3 = 0
        self._positions_differ = False
        self._first_nonfinite = -1
        self._nonfinite = ([0, 0, 0], [0, 0, 0])
        self._squares = (_Total(), _Total())
        self._products = _Total()
        self._error_squares = _Total()
        self._errors = _Total()
        self._largest: Candidate | None = None
        self._relative = _RelativeErrors()
        self._shifted_relative = 0.0
        self._max_ulp = 0
        self._quantile = LargestErrors(keep)

    def update(self, target: NDArray[Any], reference: NDArray[Any]) -> None:
        """Take the next elements: raw, flat, equally many."""
        at = 0
        while at < target.size:
            step = min(_BLOCK - self._pending_count, target.size - at)
            piece = slice(at, at + step)
            if step == _BLOCK:
                self._take(target[piece], reference[piece])
            else:
                # A copy: the caller may use its buffer again.
                self._pending.append((target[piece].copy(), reference[piece].copy()))
                self._pending_count += step
                if self._pending_count == _BLOCK:
                    self._take_pending()
            at += step

    def finish(self) -> RawMetrics:
        """Return the raw metrics of all elements so far."""
        self._take_pending()
        return RawMetrics(
            elements=self._count,
            finite=self._finite,
            unequal=self._unequal,
            mismatches=self._mismatches,
            sign_flips=self._sign_flips,
            within_1e3=self._within_1e3,
            within_5e3=self._within_5e3,
            positions_differ=self._positions_differ,
            first_nonfinite=self._first_nonfinite,
            target_counts=_three(self._nonfinite[0]),
            reference_counts=_three(self._nonfinite[1]),
            target_squares=self._squares[0].scaled(),
            reference_squares=self._squares[1].scaled(),
            products=self._products.scaled(),
            error_squares=self._error_squares.scaled(),
            errors=self._errors.scaled(),
            largest=None if self._largest is None else self._largest.extreme(),
            largest_relative=self._relative.extreme(),
            shifted_relative=self._shifted_relative,
            max_ulp=self._max_ulp if self._has_ulp else -1,
            p999=self._quantile.quantile(self._finite),
        )

    def _take_pending(self) -> None:
        if self._pending:
            target, reference = (np.concatenate(side) for side in zip(*self._pending, strict=True))
            self._pending.clear()
            self._pending_count = 0
            self._take(target, reference)

    def _take(self, raw_target: NDArray[Any], raw_reference: NDArray[Any]) -> None:
        """Count one block."""
        with np.errstate(all="ignore"):
            block = Block(raw_target, raw_reference, self._types)
            self._take_nonfinite(block)
            self._take_errors(block)
            self._take_sums(block)
            if self._has_ulp:
                self._max_ulp = max(self._max_ulp, largest_ulp(block, self._coarser))
        self._count += raw_target.size

    def _take_nonfinite(self, block: Block) -> None:
        """Count NaN and infinities, and put zeros on both sides where either has one."""
        target, reference = block.target, block.reference
        finite = np.isfinite(target) & np.isfinite(reference)
        kept = int(np.count_nonzero(finite))
        self._finite += kept
        if kept == finite.size:
            return
        count_nonfinite(target, self._types[0], self._nonfinite[0])
        count_nonfinite(reference, self._types[1], self._nonfinite[1])
        if np.any(np.isnan(target) != np.isnan(reference)) or np.any(
            is_infinite(target) != is_infinite(reference)
        ):
            self._positions_differ = True
        unequal = ~finite & ~agree(target, reference)
        wrong = int(np.count_nonzero(unequal))
        self._unequal += wrong
        self._mismatches += wrong
        if wrong and self._first_nonfinite < 0:
            self._first_nonfinite = self._count + int(np.argmax(unequal))
        block.clear(~finite)

    def _take_errors(self, block: Block) -> None:
        error, low, size = block.error, block.error_low, block.reference_size
        self._unequal += int(np.count_nonzero(error))
        self._mismatches += int(np.count_nonzero(error > self._atol + self._rtol * size))
        self._sign_flips += int(np.count_nonzero(block.opposite()))
        largest = float(error.max())
        if self._finite:
            self._take_largest(block, error, low, largest)
        relative = error / np.where(size == 0, self._shift, size)
        self._within_1e3 += int(np.count_nonzero(relative < 0.001))
        self._within_5e3 += int(np.count_nonzero(relative < 0.005))
        self._shifted_relative = max(self._shifted_relative, float(relative.max()))
        self._relative.add(block, relative, size, self._count)
        self._quantile.add(error)

    def _take_largest(
        self, block: Block, error: Floats, low: Floats | None, largest: float
    ) -> None:
        best = self._largest
        if best is not None and largest < best.error:
            return
        index = int(np.argmax(error))
        low_part = 0.0
        if low is not None:
            ties = np.flatnonzero(error == largest)
            index = int(ties[np.argmax(low[ties])])
            low_part = float(low[index])
        if best is None or (largest, low_part) > (best.error, best.low):
            self._largest = block.candidate(index, self._count, largest, low_part)

    def _take_sums(self, block: Block) -> None:
        target, reference = block.parts()
        target, target_exponent = rescaled(target)
        reference, reference_exponent = rescaled(reference)
        self._squares[0].add(dot(target, target), 2 * target_exponent)
        self._squares[1].add(dot(reference, reference), 2 * reference_exponent)
        self._products.add(dot(target, reference), target_exponent + reference_exponent)
        error, exponent = block.rescaled_error()
        self._error_squares.add(dot(error, error), 2 * exponent)
        self._errors.add(float(error.sum()), exponent)


class _RelativeErrors:
    """The largest relative error over references that are not negligible.

    With 16**k <= largest |reference| < 16**(k+1), references below 16**(k-2) are negligible. As k
    is known at the end only, the largest error is kept for each of the three floors that can still
    become the last one.
    """

    def __init__(self) -> None:
        self._class: int | None = None
        self._best: list[Candidate | None] = [None] * _FLOORS

    def add(self, block: Block, relative: Floats, size: Floats, before: int) -> None:
        largest = float(size.max())
        if largest > 0:
            self._raise_class((math.frexp(largest)[1] - 1) // 4)
        if self._class is None:
            return
        for number in range(_FLOORS):
            floor = math.ldexp(1.0, 4 * (self._class - 2 + number)) or math.ulp(0.0)
            ranked = np.where(size >= floor, relative, -1.0)
            index = int(np.argmax(ranked))
            error = float(ranked[index])
            best = self._best[number]
            if error >= 0 and (best is None or error > best.error):
                self._best[number] = block.candidate(index, before, error, 0.0)

    def extreme(self) -> Extreme | None:
        best = self._best[0]
        return None if best is None else best.extreme()

    def _raise_class(self, found: int) -> None:
        if self._class is None:
            self._class = found
        elif found > self._class:
            step = min(found - self._class, _FLOORS)
            self._best = self._best[step:] + [None] * step
            self._class = found


class _Total:
    """A sum of scaled numbers: (value + error) · 2**exponent, with the roundings made so far."""

    def __init__(self) -> None:
        self._value = 0.0
        self._error = 0.0
        self._exponent = 0

    def add(self, value: float, exponent: int) -> None:
        if value == 0:
            return
        if self._value == 0:
            self._exponent = exponent
        elif exponent > self._exponent:
            self._value = math.ldexp(self._value, self._exponent - exponent)
            self._error = math.ldexp(self._error, self._exponent - exponent)
            self._exponent = exponent
        else:
            value = math.ldexp(value, exponent - self._exponent)
        total = self._value + value
        part = total - self._value
        self._error += (self._value - (total - part)) + (value - part)
        self._value = total

    def scaled(self) -> Scaled:
        return Scaled(self._value + self._error, self._exponent)


def _three(counts: list[int]) -> tuple[int, int, int]:
    nan, positive, negative = counts
    return nan, positive, negative
