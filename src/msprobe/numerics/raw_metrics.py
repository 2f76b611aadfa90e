# SPDX-License-Identifier: Apache-2.0
"""Raw counts and sums of both implementations, and their conversion to `ElementMetrics`."""

from __future__ import annotations

import math
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.element_types import Category, ElementType

# Below it the documented format takes a norm for zero: float64's unit roundoff, as it writes it.
_NEGLIGIBLE_NORM: Final = 2.220446049250313e-16

# Numbers of opposite signs at the ends of float64 are 2**64 units apart; tables hold int64.
_MOST_ULP: Final = (1 << 63) - 1

# For one element, NumPy would take longer than all the rest.
_LAYOUTS: Final = {
    "float16": Struct("=e"),
    "float32": Struct("=f"),
    "float64": Struct("=d"),
    "int8": Struct("=b"),
    "uint8": Struct("=B"),
    "int16": Struct("=h"),
    "uint16": Struct("=H"),
    "int32": Struct("=i"),
    "uint32": Struct("=I"),
    "int64": Struct("=q"),
    "uint64": Struct("=Q"),
    "bool": Struct("=B"),
    "complex64": Struct("=2f"),
    "complex128": Struct("=2d"),
}

Number = float | int | complex


class Scaled(NamedTuple):
    """The number mantissa · 2**exponent: sums of squares leave the range of float64."""

    mantissa: float
    exponent: int


class Extreme(NamedTuple):
    """The first element with the largest error.

    Attributes:
        error: the error; 0.0 when all are.
        position: its index, in row-major order.
        target: its raw bytes in the target; `reference`: those in the reference.
    """

    error: float
    position: int
    target: bytes
    reference: bytes


class RawMetrics(NamedTuple):
    """Counts and sums over all elements, in the order in which the C extension gives them.

    Attributes:
        elements: elements seen.
        finite: elements that are finite on both sides; all sums and errors are over these.
        unequal: elements that are not equal.
        mismatches: elements outside the tolerance.
        sign_flips: elements of opposite sign.
        within_1e3: elements whose relative error is below 0.001, zero references shifted.
        within_5e3: same for a limit of 0.005.
        positions_differ: whether NaN or infinities are at different indices on the two sides.
        first_nonfinite: first place where the sides disagree about one; -1 if nowhere.
        target_counts: NaN, +Inf, -Inf of the target.
        reference_counts: same for the reference.
        target_squares: sum of its squares; `reference_squares`: same for the reference.
        products: sum of the products.
        error_squares: sum of the squared errors.
        errors: sum of the errors.
        largest: the largest error, None without a finite element.
        largest_relative: the largest relative error over references not below the floor; None when
            no reference is.
        shifted_relative: the largest relative error, zero references shifted.
        max_ulp: largest distance in units in the last place; -1 for types without.
        p999: 99.9 % quantile of the errors, None when unknown.
    """

    elements: int
    finite: int
    unequal: int
    mismatches: int
    sign_flips: int
    within_1e3: int
    within_5e3: int
    positions_differ: bool
    first_nonfinite: int
    target_counts: tuple[int, int, int]
    reference_counts: tuple[int, int, int]
    target_squares: Scaled
    reference_squares: Scaled
    products: Scaled
    error_squares: Scaled
    errors: Scaled
    largest: Extreme | None
    largest_relative: Extreme | None
    shifted_relative: float
    max_ulp: int
    p999: float | None


def element_metrics(
    raw: RawMetrics, target_type: ElementType, reference_type: ElementType
) -> ElementMetrics:
    """Return the metrics that follow from the raw counts and sums."""
    metrics = ElementMetrics(
        count=raw.elements,
        is_equal=raw.unequal == 0,
        mismatches=raw.mismatches,
        unequal=raw.unequal,
        sign_flips=raw.sign_flips,
        max_ulp=None if raw.max_ulp < 0 or not raw.finite else min(raw.max_ulp, _MOST_ULP),
        target_nan=raw.target_counts[0],
        target_pos_inf=raw.target_counts[1],
        target_neg_inf=raw.target_counts[2],
        reference_nan=raw.reference_counts[0],
        reference_pos_inf=raw.reference_counts[1],
        reference_neg_inf=raw.reference_counts[2],
        first_nonfinite_mismatch=None if raw.first_nonfinite < 0 else raw.first_nonfinite,
    )
    _fill_means(metrics, raw)
    _fill_extremes(metrics, raw, target_type, reference_type)
    if raw.elements and not raw.positions_differ:
        metrics.ratio_1e3 = raw.within_1e3 / raw.elements
        metrics.ratio_5e3 = raw.within_5e3 / raw.elements
        metrics.legacy_max_rel_err = raw.shifted_relative
    return metrics


def _fill_means(metrics: ElementMetrics, raw: RawMetrics) -> None:
    if not raw.finite:
        metrics.mean_abs_err = metrics.rmse = metrics.p999_abs_err = None
        metrics.euclidean = metrics.relative_l2 = None
        return
    metrics.target_norm = _root(raw.target_squares)
    metrics.reference_norm = _root(raw.reference_squares)
    metrics.mean_abs_err = _value(raw.errors.mantissa / raw.finite, raw.errors.exponent)
    metrics.p999_abs_err = raw.p999
    metrics.euclidean = _root(raw.error_squares)
    mean_square = raw.error_squares.mantissa / raw.finite
    metrics.rmse = _root(Scaled(mean_square, raw.error_squares.exponent))
    metrics.relative_l2 = _root_ratio(raw.error_squares, raw.reference_squares)
    metrics.cosine = _cosine(raw, metrics.target_norm, metrics.reference_norm)


def _cosine(raw: RawMetrics, target_norm: float, reference_norm: float) -> float | None:
    negligible = (target_norm <= _NEGLIGIBLE_NORM) + (reference_norm <= _NEGLIGIBLE_NORM)
    if negligible:
        return 1.0 if negligible == 2 else None
    squares = raw.target_squares.mantissa * raw.reference_squares.mantissa
    exponent = raw.target_squares.exponent + raw.reference_squares.exponent
    # The root of x * x is x: a tensor and itself have a cosine of exactly 1.
    cosine = raw.products.mantissa / math.sqrt(squares)
    cosine = _value(cosine, raw.products.exponent - exponent // 2)
    return max(-1.0, min(1.0, cosine))


def _fill_extremes(
    metrics: ElementMetrics, raw: RawMetrics, target_type: ElementType, reference_type: ElementType
) -> None:
    types = (target_type, reference_type)
    if raw.largest is None:
        metrics.max_abs_err = metrics.max_rel_err = None
        return
    if raw.largest.error > 0:
        values = _values(raw.largest, types)
        metrics.max_abs_err = _exact_difference(values, types, raw.largest.error)
        metrics.max_abs_index = raw.largest.position
        metrics.max_abs_target, metrics.max_abs_reference = values
    if raw.largest_relative is None:
        metrics.max_rel_err = None if raw.largest.error > 0 else 0.0
    elif raw.largest_relative.error > 0:
        metrics.max_rel_err = raw.largest_relative.error
        metrics.max_rel_index = raw.largest_relative.position
        metrics.max_rel_target, metrics.max_rel_reference = _values(raw.largest_relative, types)


def _exact_difference(
    values: tuple[Number, Number], types: tuple[ElementType, ElementType], error: float
) -> float | int:
    exact = (Category.INTEGER, Category.BOOLEAN)
    if all(kind.category in exact for kind in types):
        target, reference = values
        assert isinstance(target, int)
        assert isinstance(reference, int)
        return abs(target - reference)
    return error


def _values(extreme: Extreme, types: tuple[ElementType, ElementType]) -> tuple[Number, Number]:
    return _element(extreme.target, types[0]), _element(extreme.reference, types[1])


def _element(raw: bytes, kind: ElementType) -> Number:
    if kind.name not in _LAYOUTS:
        array = np.frombuffer(raw, dtype=kind.storage, count=1)
        return float(StoredTensor(array=array, dtype=kind.name).values()[0])
    parts: tuple[Number, ...] = _LAYOUTS[kind.name].unpack(raw)
    if kind.category is Category.COMPLEX:
        return complex(*parts)
    return parts[0]


def _value(mantissa: float, exponent: int) -> float:
    try:
        return math.ldexp(mantissa, exponent)
    except OverflowError:
        return math.copysign(math.inf, mantissa)


def _root(squares: Scaled) -> float:
    # Exponents of squares are even.
    return _value(math.sqrt(squares.mantissa), squares.exponent // 2)


def _root_ratio(numerator: Scaled, denominator: Scaled) -> float:
    if numerator.mantissa == 0:
        return 0.0
    if denominator.mantissa == 0:
        return math.inf
    ratio = math.sqrt(numerator.mantissa) / math.sqrt(denominator.mantissa)
    return _value(ratio, (numerator.exponent - denominator.exponent) // 2)
