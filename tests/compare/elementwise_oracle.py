# SPDX-License-Identifier: Apache-2.0
"""The element metrics computed slowly, with exact fractions, from their definitions."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from msprobe.dump.tensor_files import StoredTensor

FRACTION_BITS = {
    "float64": 52,
    "float32": 23,
    "float16": 10,
    "bfloat16": 7,
    "float8_e4m3fn": 3,
    "float8_e4m3fnuz": 3,
    "float8_e5m2": 2,
    "float8_e5m2fnuz": 2,
    "float8_e8m0fnu": 0,
    "complex64": 23,
    "complex128": 52,
}
WORD = {"float32": np.uint32, "float64": np.uint64, "complex64": np.uint32, "complex128": np.uint64}


# Exact numbers are integers that count this unit: a part of float64's smallest number.
UNIT = 1 << 1474


@dataclass
class Expected:
    """What the metrics should be; sums and errors exact, squares in UNIT**2."""

    finite: int
    unequal: int
    mismatches: int
    sign_flips: tuple[int, int]
    first_nonfinite: int | None
    errors: list[int]
    indices: list[int]
    relative: dict[int, float]
    shifted: list[float]
    squares: tuple[int, int]
    product: int


def as_numbers(tensor: StoredTensor) -> list[int | float | complex]:
    values = tensor.values().reshape(-1).tolist()
    return [int(x) if isinstance(x, bool) else x for x in values]


def parts(x: Any) -> tuple[Any, Any]:
    return (x.real, x.imag) if isinstance(x, complex) else (x, 0)


def is_finite(x: Any) -> bool:
    return all(math.isfinite(part) for part in parts(x))


def same(x: Any, y: Any) -> bool:
    """Equal, or both NaN, part by part."""
    pairs = zip(parts(x), parts(y), strict=True)
    return all(a == b or (a != a and b != b) for a, b in pairs)


def exact(x: float) -> int:
    numerator, denominator = x.as_integer_ratio()
    return numerator * (UNIT // denominator)


def length(real: int, imaginary: int) -> int:
    return math.isqrt(real * real + imaginary * imaginary) if imaginary else abs(real)


def divided(numerator: int, denominator: int) -> float:
    """Divide integers, rounded once."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def floor_of(largest: int) -> int:
    """16**(k - 2) where 16**k <= largest < 16**(k + 1); a little below where that is too small."""
    k = (largest.bit_length() - 1 - UNIT.bit_length() + 1) // 4
    return UNIT << 4 * (k - 2) if k >= 2 else UNIT >> 4 * (2 - k)


def expect(
    target: StoredTensor, reference: StoredTensor, rtol: float, atol: float, shift: float
) -> Expected:
    found = Expected(
        finite=0,
        unequal=0,
        mismatches=0,
        sign_flips=(0, 0),
        first_nonfinite=None,
        errors=[],
        indices=[],
        relative={},
        shifted=[],
        squares=(0, 0),
        product=0,
    )
    pairs = list(zip(as_numbers(target), as_numbers(reference), strict=True))
    sizes = [length(*map(exact, parts(r))) for t, r in pairs if is_finite(t) and is_finite(r)]
    floor = floor_of(max(sizes)) if any(sizes) else None
    for index, (t, r) in enumerate(pairs):
        if is_finite(t) and is_finite(r):
            take_finite(found, index, (t, r), (rtol, atol, shift), floor)
            continue
        found.shifted.append(0.0)
        if not same(t, r):
            found.unequal += 1
            found.mismatches += 1
            if found.first_nonfinite is None:
                found.first_nonfinite = index
    return found


def take_finite(
    found: Expected,
    index: int,
    pair: tuple[Any, Any],
    rule: tuple[float, float, float],
    floor: int | None,
) -> None:
    rtol, atol, shift = rule
    t, r = (tuple(map(exact, parts(x))) for x in pair)
    error, size = length(t[0] - r[0], t[1] - r[1]), length(*r)
    found.finite += 1
    found.unequal += t != r
    found.mismatches += error * UNIT > exact(atol) * UNIT + exact(rtol) * size
    found.errors.append(error)
    found.indices.append(index)
    if floor is not None and size >= floor:
        found.relative[index] = ratio(error, size)
    found.shifted.append(ratio(error, size or exact(shift)))
    product = t[0] * r[0] + t[1] * r[1]
    # The direction of complex numbers at a right angle is lost in float64.
    is_certain = abs(product) * 2**40 > length(*t) * size
    low, high = found.sign_flips
    found.sign_flips = (low + (product < 0 and is_certain), high + (product < 0 or not is_certain))
    squares = [x[0] * x[0] + x[1] * x[1] for x in (t, r)]
    found.squares = (found.squares[0] + squares[0], found.squares[1] + squares[1])
    found.product += product


def ratio(error: int, size: int) -> float:
    """Divide; an error beyond float64 stays infinite."""
    return divided(error, size) if math.isfinite(divided(error, UNIT)) else math.inf


# ---- units in the last place ---------------------------------------------------------------------


def unit_of(target: StoredTensor, reference: StoredTensor) -> str | None:
    """Return the type whose units are counted, None if there is none."""
    if target.dtype in FRACTION_BITS and reference.dtype in FRACTION_BITS:
        return min(target.dtype, reference.dtype, key=lambda dtype: FRACTION_BITS[dtype])
    return None


def largest_of(dtype: str) -> float:
    """Return the largest number of a type with units."""
    word = WORD.get(dtype)
    if word is None:
        return line_of(dtype)[-1]
    return float(np.finfo(np.float32 if word is np.uint32 else np.float64).max)


def largest_ulp(target: StoredTensor, reference: StoredTensor) -> int | None:
    """Count the numbers of the coarser type between the two, on the line of all its numbers."""
    unit = unit_of(target, reference)
    if unit is None:
        return None
    distances = [
        abs(place(a, unit) - place(b, unit))
        for t, r in zip(as_numbers(target), as_numbers(reference), strict=True)
        if is_finite(t) and is_finite(r)
        for a, b in zip(parts(t), parts(r), strict=True)
    ]
    return max(distances, default=None)


def place(x: float, dtype: str) -> int:
    """Where the number stands on the line of the type's numbers, 0 for zero."""
    magnitude = abs(x)
    word = WORD.get(dtype)
    if word is not None:
        single = np.float32 if word is np.uint32 else np.float64
        index = int(single(magnitude).view(word))
    else:
        index = nearest(magnitude, dtype)
    return -index if x < 0 else index


def nearest(magnitude: float, dtype: str) -> int:
    line = line_of(dtype)
    above = bisect.bisect_left(line, magnitude)
    if line[above] == magnitude:
        return above
    up = Fraction(line[above]) - Fraction(magnitude)
    down = Fraction(magnitude) - Fraction(line[above - 1])
    if up == down:
        return above if above % 2 == 0 else above - 1
    return above if up < down else above - 1


@cache
def line_of(dtype: str) -> list[float]:
    storage = {"float16": np.float16, "bfloat16": np.uint16}.get(dtype, np.uint8)
    bits = np.arange(1 << (16 if storage != np.uint8 else 8), dtype=np.uint32)
    raw = bits.astype(np.uint16).view(np.float16) if storage is np.float16 else bits.astype(storage)
    with np.errstate(invalid="ignore"):
        values = StoredTensor(array=raw, dtype=dtype).values().astype(np.float64)
    # float8_e8m0fnu has no zero; its smallest number takes the place.
    return sorted({abs(float(x)) for x in values if math.isfinite(x)})
