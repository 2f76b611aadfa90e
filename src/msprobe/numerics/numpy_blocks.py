# SPDX-License-Identifier: Apache-2.0
"""One block of two tensors as NumPy computes with it: widened, subtracted, measured.

A block becomes float64 (complex128), exactly; 64-bit integers beyond 2**52 become sums of two
float64, so that their differences stay exact.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.element_types import Category, ElementType
from msprobe.numerics.raw_metrics import Extreme

# Blocks whose largest number lies outside are scaled before they are squared.
_SAFE: Final = (2.0**-200, 2.0**200)
# Parts of complex128 beyond would overflow or vanish when squared.
_SAFE_PART: Final = (2.0**-400, 2.0**400)

# Up to here float64 holds integers and their differences.
_EXACT_INTEGER: Final = 1 << 52

Floats = NDArray[np.float64]


class Candidate(NamedTuple):
    """An element that is the worst so far; its error is error + low."""

    error: float
    low: float
    position: int
    target: bytes
    reference: bytes

    def extreme(self) -> Extreme:
        """Return the element in the form that the metrics report."""
        return Extreme(self.error, self.position, self.target, self.reference)


class Block:
    """A block, widened: the two sides, their error and the size of the reference."""

    def __init__(
        self,
        raw_target: NDArray[Any],
        raw_reference: NDArray[Any],
        types: tuple[ElementType, ElementType],
    ) -> None:
        self._raw = (raw_target, raw_reference)
        self.target, self._target_low = _widened(raw_target, types[0])
        self.reference, self._reference_low = _widened(raw_reference, types[1])
        self.is_complex = any(kind.category is Category.COMPLEX for kind in types)
        if self.is_complex:
            self.target = self.target.astype(np.complex128)
            self.reference = self.reference.astype(np.complex128)
            self._target_low = self._reference_low = np.zeros(())
        self._are_integers = not any(kind.has_ulp for kind in types)
        self._error: tuple[Floats, Floats | None] | None = None

    def clear(self, where: NDArray[np.bool_]) -> None:
        """Put zeros on both sides."""
        # The widened float64 may be the caller's own memory.
        self.target = np.where(where, 0, self.target)
        self.reference = np.where(where, 0, self.reference)
        self._target_low = np.where(where, 0, self._target_low)
        self._reference_low = np.where(where, 0, self._reference_low)

    @property
    def error(self) -> Floats:
        """|target - reference|, rounded once."""
        return self._errors()[0]

    @property
    def error_low(self) -> Floats | None:
        """Rounding error of `error`, for integers; None where `error` is exact."""
        return self._errors()[1]

    @property
    def reference_size(self) -> Floats:
        """|reference|."""
        return _absolute(self.reference)

    def _errors(self) -> tuple[Floats, Floats | None]:
        if self._error is None:
            self._error = self._compute_errors()
        return self._error

    def _compute_errors(self) -> tuple[Floats, Floats | None]:
        difference = self.target - self.reference
        low = self._target_low - self._reference_low
        if not np.any(self._target_low) and not np.any(self._reference_low):
            return _absolute(difference), None
        high, rest = _two_sum(self.target, -self.reference)
        high, low = _two_sum(high, rest + low)
        return np.abs(high), np.where(high < 0, -low, low) if self._are_integers else None

    def opposite(self) -> NDArray[np.bool_]:
        """Return where the two sides have opposite signs."""
        target, reference = self.target, self.reference
        if self.is_complex:
            target, reference = target * _part_scale(target), reference * _part_scale(reference)
            product = target.real * reference.real + target.imag * reference.imag
            against: NDArray[np.bool_] = product < 0
            return against
        opposite: NDArray[np.bool_] = ((target < 0) & (reference > 0)) | (
            (target > 0) & (reference < 0)
        )
        return opposite

    def parts(self) -> tuple[Floats, Floats]:
        """Return the two sides as real numbers; complex ones as two each."""
        if self.is_complex:
            return self.target.view(np.float64), self.reference.view(np.float64)
        return self.target, self.reference

    def rescaled_error(self) -> tuple[Floats, int]:
        """Return the error in a range where its squares are numbers, and the exponent taken out."""
        error = self.error
        if math.isfinite(float(error.max())):
            return rescaled(error)
        # The difference of two numbers can leave the range that both are in.
        smaller = _absolute(self.target * 2.0**-600 - self.reference * 2.0**-600)
        scaled, exponent = rescaled(smaller)
        return scaled, exponent + 600

    def candidate(self, index: int, before: int, error: float, low: float) -> Candidate:
        """Return one element, kept apart from the block."""
        target, reference = (raw[index].tobytes() for raw in self._raw)
        return Candidate(error, low, before + index, target, reference)


def _widened(raw: NDArray[Any], kind: ElementType) -> tuple[NDArray[Any], Floats]:
    """Return values as float64 (complex128), and the remainder lost by that conversion."""
    zero = np.zeros((), dtype=np.float64)
    if kind.category is Category.COMPLEX:
        return raw.astype(np.complex128), zero
    if kind.is_long and raw.size and _exceeds_float64(raw):
        # Both halves are exact; so is their sum as two float64.
        upper = (raw >> 32).astype(np.float64) * 2.0**32
        lower = (raw & raw.dtype.type(0xFFFFFFFF)).astype(np.float64)
        return _two_sum(upper, lower)
    values = StoredTensor(array=raw, dtype=kind.name).values()
    return values.astype(np.float64, copy=False), zero


def _exceeds_float64(raw: NDArray[Any]) -> bool:
    return int(raw.max()) > _EXACT_INTEGER or int(raw.min()) < -_EXACT_INTEGER


def _two_sum(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Return the sum and its rounding error (Knuth)."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


def _absolute(values: NDArray[Any]) -> Floats:
    if values.dtype.kind != "c":
        magnitude: Floats = np.abs(values)
        return magnitude
    scale = _part_scale(values)
    real, imaginary = values.real * scale, values.imag * scale
    size: Floats = np.sqrt(real * real + imaginary * imaginary) / scale
    return size


def _part_scale(values: NDArray[Any]) -> Floats:
    """Return a scale for complex numbers at which products of their parts do not overflow."""
    larger = np.maximum(np.abs(values.real), np.abs(values.imag))
    scale: Floats = np.where(
        larger > _SAFE_PART[1], 2.0**-600, np.where(larger < _SAFE_PART[0], 2.0**600, 1.0)
    )
    return scale


def is_infinite(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are infinite; a complex number with a NaN is NaN."""
    infinite: NDArray[np.bool_] = np.isinf(values) & ~np.isnan(values)
    return infinite


def count_nonfinite(values: NDArray[Any], kind: ElementType, counts: list[int]) -> None:
    """Add NaN, +Inf and -Inf; an infinite complex number without NaN counts as +Inf."""
    infinite = is_infinite(values)
    has_sign = kind.category is not Category.COMPLEX
    negative = infinite & (values.real < 0) & has_sign
    counts[0] += int(np.count_nonzero(np.isnan(values)))
    counts[1] += int(np.count_nonzero(infinite & ~negative))
    counts[2] += int(np.count_nonzero(negative))


def agree(target: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where elements are equal, NaN being equal to NaN."""
    if target.dtype.kind == "c":
        return agree(target.real, reference.real) & agree(target.imag, reference.imag)
    equal: NDArray[np.bool_] = (target == reference) | (np.isnan(target) & np.isnan(reference))
    return equal


def rescaled(values: Floats) -> tuple[Floats, int]:
    """Return values / 2**exponent, in a range where squares are numbers, and the exponent."""
    largest = float(np.abs(values).max())
    if largest == 0 or _SAFE[0] <= largest <= _SAFE[1]:
        return values, 0
    exponent = math.frexp(largest)[1]
    return np.ldexp(values, -exponent), exponent


def dot(first: Floats, second: Floats) -> float:
    """Return the sum of the products."""
    # Not `np.dot`: the sum below is pairwise, the same on every machine.
    return float((first * second).sum())


def largest_ulp(block: Block, kind: ElementType) -> int:
    """Return the largest distance, counted in the numbers that `kind` has in between."""
    target, reference = block.parts()
    target_key, reference_key = _magnitude_keys(target, kind), _magnitude_keys(reference, kind)
    larger = np.maximum(target_key, reference_key)
    smaller = np.minimum(target_key, reference_key)
    same_side = np.signbit(target) == np.signbit(reference)
    return int(np.where(same_side, larger - smaller, larger + smaller).max())


def _magnitude_keys(values: Floats, kind: ElementType) -> NDArray[np.uint64]:
    """Number the magnitudes that `kind` has: 0 for zero, 1 for the smallest, and so on.

    Values are rounded to the nearest of them, ties to even; beyond the largest one the count goes
    on as if exponents had no end.
    """
    size = np.abs(values)
    bits = size.view(np.uint64)
    dropped = 52 - kind.fraction_bits
    if dropped == 0:
        return bits
    shift, one = np.uint64(dropped), np.uint64(1)
    half = np.uint64((1 << (dropped - 1)) - 1)
    lowest = np.uint64((kind.min_exponent + 1022) << kind.fraction_bits)
    normal = ((bits + half + ((bits >> shift) & one)) >> shift) - lowest
    # Adding a number whose last bit is the subnormal step rounds to that step.
    magic = math.ldexp(1.0, kind.min_exponent - kind.fraction_bits + 52)
    base = np.float64(magic).view(np.uint64)
    subnormal = (size + magic).view(np.uint64) - base
    keys: NDArray[np.uint64] = np.where(
        size < math.ldexp(1.0, kind.min_exponent), subnormal, normal
    )
    return keys
