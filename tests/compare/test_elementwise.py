# SPDX-License-Identifier: Apache-2.0
"""The element metrics against exact fractions, for every type and every implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from elementwise_oracle import (
    UNIT,
    Expected,
    as_numbers,
    divided,
    exact,
    expect,
    largest_of,
    largest_ulp,
    parts,
    unit_of,
)
from elementwise_runs import (
    ALL_TYPES,
    COMPLEX,
    FLOATS,
    IMPLEMENTATIONS,
    measure,
    moderate,
    nudged,
    random_bits,
    shift_of,
    stored,
)

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.elementwise import Tolerance

TOLERANCE = Tolerance(rtol=2.0**-7, atol=2.0**-10)
EXACT = Tolerance(rtol=0.0, atol=0.0)


def near(found: float | int | None, expected: int, scale: int | None = None) -> bool:
    """Whether a float is right to 1e-12, or beyond the range as the exact number is.

    Args:
        found: what a metric says.
        expected: what it should say, in UNIT.
        scale: what the error is relative to, if not to `expected`.
    """
    assert found is not None
    if math.isinf(found):
        return math.isinf(divided(expected, UNIT))
    # Results below the normal range have an absolute error of one step.
    allowed = abs(expected if scale is None else scale) // 10**12 + exact(5e-324)
    return abs(exact(found) - expected) <= allowed


def check(target: StoredTensor, reference: StoredTensor, tolerance: Tolerance) -> None:
    """Compare what every implementation finds with the exact numbers."""
    shift = shift_of(target, reference)
    expected = expect(target, reference, tolerance.rtol, tolerance.atol, shift)
    for implementation in IMPLEMENTATIONS:
        metrics = measure(implementation, target, reference, tolerance)
        check_counts(metrics, expected, target, reference)
        if expected.finite:
            check_sums(metrics, expected)
            check_worst(metrics, expected, target, reference)
            check_ulp(metrics, target, reference)
        else:
            assert metrics.max_abs_err is metrics.mean_abs_err is metrics.cosine is None


def check_counts(
    metrics: ElementMetrics, expected: Expected, target: StoredTensor, reference: StoredTensor
) -> None:
    assert metrics.count == target.array.size
    assert metrics.unequal == expected.unequal
    assert metrics.is_equal == (expected.unequal == 0)
    least, most = expected.sign_flips
    assert least <= metrics.sign_flips <= most
    assert metrics.mismatches == expected.mismatches
    assert metrics.first_nonfinite_mismatch == expected.first_nonfinite
    check_nonfinite(metrics, target, reference)
    check_documented(metrics, expected, target, reference)


def check_documented(
    metrics: ElementMetrics, expected: Expected, target: StoredTensor, reference: StoredTensor
) -> None:
    """The three metrics of the documented format, which knows no sign of infinity."""
    first, second = target.values(), reference.values()
    differ = np.any(np.isnan(first) != np.isnan(second)) or np.any(
        (np.isinf(first) & ~np.isnan(first)) != (np.isinf(second) & ~np.isnan(second))
    )
    if differ or not metrics.count:
        assert metrics.ratio_1e3 is metrics.ratio_5e3 is metrics.legacy_max_rel_err is None
        return
    shares = [sum(x < bound for x in expected.shifted) for bound in (0.001, 0.005)]
    assert metrics.ratio_1e3 == shares[0] / metrics.count
    assert metrics.ratio_5e3 == shares[1] / metrics.count
    assert metrics.legacy_max_rel_err == pytest.approx(max(expected.shifted), rel=1e-15, abs=0)


def check_ulp(metrics: ElementMetrics, target: StoredTensor, reference: StoredTensor) -> None:
    unit = unit_of(target, reference)
    if unit is None:
        assert metrics.max_ulp is None
        return
    numbers = [*as_numbers(target), *as_numbers(reference)]
    sizes = [abs(part) for x in numbers for part in parts(x) if math.isfinite(part)]
    # The oracle knows no numbers beyond the type's last.
    if max(sizes) <= largest_of(unit):
        assert metrics.max_ulp == min(largest_ulp(target, reference), 2**63 - 1)


def check_nonfinite(metrics: ElementMetrics, target: StoredTensor, reference: StoredTensor) -> None:
    for side, tensor in (("target", target), ("reference", reference)):
        values = tensor.values()
        nan, infinite = np.isnan(values), np.isinf(values) & ~np.isnan(values)
        negative = infinite & (values.real < 0) if tensor.dtype not in COMPLEX else infinite & False
        assert getattr(metrics, f"{side}_nan") == nan.sum()
        assert getattr(metrics, f"{side}_pos_inf") == (infinite & ~negative).sum()
        assert getattr(metrics, f"{side}_neg_inf") == negative.sum()


def check_sums(metrics: ElementMetrics, expected: Expected) -> None:
    squares = sum(error * error for error in expected.errors)
    euclidean, target_norm, reference_norm = map(math.isqrt, (squares, *expected.squares))
    assert near(metrics.mean_abs_err, sum(expected.errors) // expected.finite)
    assert near(metrics.rmse, math.isqrt(squares // expected.finite))
    assert near(metrics.euclidean, euclidean)
    assert near(metrics.target_norm, target_norm)
    assert near(metrics.reference_norm, reference_norm)
    if reference_norm:
        assert near(metrics.relative_l2, euclidean * UNIT // reference_norm)
    else:
        assert metrics.relative_l2 == (math.inf if squares else 0.0)
    tiny = [norm <= exact(2.0**-52) for norm in (target_norm, reference_norm)]
    if any(tiny):
        assert metrics.cosine == (1.0 if all(tiny) else None)
    else:
        cosine = expected.product * UNIT // (target_norm * reference_norm)
        assert near(metrics.cosine, cosine, UNIT)


def check_worst(
    metrics: ElementMetrics, expected: Expected, target: StoredTensor, reference: StoredTensor
) -> None:
    is_complex = target.dtype in COMPLEX or reference.dtype in COMPLEX
    largest = max(expected.errors)
    assert near(metrics.max_abs_err, largest)
    rounded = [divided(error, UNIT) for error in expected.errors]
    if math.isfinite(max(rounded)):
        assert metrics.p999_abs_err == pytest.approx(np.quantile(rounded, 0.999), rel=1e-12)
    values = as_numbers(target), as_numbers(reference)
    if largest == 0:
        assert metrics.max_abs_index is metrics.max_abs_target is None
        assert metrics.max_rel_err in (0.0, None)
        return
    if is_complex or is_rounded_twice(target, reference):
        worst = expected.errors[expected.indices.index(metrics.max_abs_index)]
        assert near(metrics.max_abs_err, worst)
    else:
        are_integers = target.dtype not in FLOATS and reference.dtype not in FLOATS
        ranking = [error // UNIT for error in expected.errors] if are_integers else rounded
        assert metrics.max_abs_err == max(ranking)
        assert metrics.max_abs_index == expected.indices[ranking.index(max(ranking))]
    assert metrics.max_abs_target == values[0][metrics.max_abs_index]
    assert metrics.max_abs_reference == values[1][metrics.max_abs_index]
    check_worst_relative(metrics, expected, values)


def is_rounded_twice(target: StoredTensor, reference: StoredTensor) -> bool:
    """Whether a 64-bit integer meets a float: only the last bit of the error is uncertain."""
    types = {target.dtype, reference.dtype}
    return bool(types & {"int64", "uint64"} and types & set(FLOATS))


def check_worst_relative(
    metrics: ElementMetrics, expected: Expected, values: tuple[list, list]
) -> None:
    if not expected.relative:
        assert metrics.max_rel_err is None
        return
    worst = max(expected.relative.values())
    assert metrics.max_rel_err == pytest.approx(worst, rel=1e-15, abs=0)
    if worst:
        assert expected.relative[metrics.max_rel_index] == pytest.approx(worst, rel=1e-15, abs=0)
        assert metrics.max_rel_target == values[0][metrics.max_rel_index]
        assert metrics.max_rel_reference == values[1][metrics.max_rel_index]


@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_numbers_of_usual_size(dtype):
    rng = np.random.default_rng(1)
    reference = moderate(rng, dtype, 700)
    for target in (moderate(rng, dtype, 700), nudged(rng, reference, 0.1)):
        check(target, reference, TOLERANCE)


@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_any_bits(dtype):
    """NaN, infinities, subnormal numbers and the largest ones, at equal and other places."""
    rng = np.random.default_rng(2)
    reference = random_bits(rng, dtype, 300)
    for target in (random_bits(rng, dtype, 300), nudged(rng, reference, 0.3)):
        check(target, reference, EXACT)


MIXED = [
    ("bfloat16", "float32"),
    ("float32", "bfloat16"),
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("float64", "float32"),
    ("float64", "float16"),
    ("float8_e4m3fn", "bfloat16"),
    ("float8_e5m2", "float8_e4m3fn"),
    ("float8_e4m3fnuz", "float32"),
    ("int64", "float32"),
    ("float64", "int64"),
    ("int64", "uint64"),
    ("uint64", "int8"),
    ("int32", "int64"),
    ("bool", "int64"),
    ("bool", "float16"),
    ("complex64", "complex128"),
    ("complex128", "float32"),
    ("int64", "complex64"),
]


@pytest.mark.parametrize(("target_dtype", "reference_dtype"), MIXED)
def test_two_types(target_dtype, reference_dtype):
    rng = np.random.default_rng(3)
    target, reference = moderate(rng, target_dtype, 700), moderate(rng, reference_dtype, 700)
    check(target, reference, TOLERANCE)


@pytest.mark.parametrize(
    ("target_dtype", "reference_dtype"),
    [("int64", "uint64"), ("uint64", "int64"), ("int64", "float64"), ("float32", "uint64")],
)
def test_two_types_beyond_float64(target_dtype, reference_dtype):
    rng = np.random.default_rng(4)
    target, reference = (random_bits(rng, dtype, 200) for dtype in (target_dtype, reference_dtype))
    check(target, reference, EXACT)


BIG = 2**53
HARD = {
    "empty": stored([], "float32"),
    "one": stored([1.5], "float32"),
    "zeros": stored([0.0, -0.0, 0.0], "float64"),
    "nan": stored([math.nan, 1.0, math.nan], "float32"),
    "infinities": stored([math.inf, -math.inf, math.inf], "float64"),
    "huge": stored([1e200, -1e200, 1e-200], "float64"),
    "ends": stored([1.7e308, -1.7e308, 5e-324], "float64"),
    "tiny": stored([1e-300, -1e-310, 3e-320], "float64"),
    "single ends": stored([3.4e38, -3.4e38, 1e-45], "float32"),
    "half ends": stored([65504.0, 6e-8, -6e-8], "float16"),
    "neighbours of 2**53": stored([BIG, BIG + 1, -BIG - 1], "int64"),
    "ends of int64": stored([-(2**63), 2**63 - 1, 0], "int64"),
    "ends of uint64": stored([0, 2**64 - 1, 2**63], "uint64"),
    "huge complex": stored([1e200 + 1e200j, 1e-200j, 3 - 4j], "complex128"),
    "partly infinite": stored([complex(math.inf, 1), complex(1, math.nan), 1j], "complex64"),
    "truths": stored([True, False, True], "bool"),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_cases_of_one_type(name):
    reference = HARD[name]
    for order in ([0, 1, 2], [2, 0, 1], [1, 1, 0]):
        usable = [index for index in order if index < reference.array.size]
        target = StoredTensor(array=reference.array[usable], dtype=reference.dtype)
        if target.array.size != reference.array.size:
            target = reference
        check(target, reference, EXACT)


@pytest.mark.parametrize("first", HARD)
def test_hard_cases_of_two_types(first):
    target = HARD[first]
    for reference in HARD.values():
        if reference.array.size == target.array.size:
            check(target, reference, EXACT)
