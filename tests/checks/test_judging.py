# SPDX-License-Identifier: Apache-2.0
"""The verdict of single tensors: hard cases of rounding, and damage that must not pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.checks.budgets import Budget, budget_of, largest_of, unit_of
from msprobe.checks.judging import Judgement, Verdict, judge
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.lookup import operator_of
from msprobe.replay.generated import narrow

HALVES = ("float16", "bfloat16")


def stored(values: Any, dtype: str) -> StoredTensor:
    array = np.asarray(values, np.float64)
    return StoredTensor(array=narrow(array.reshape(-1), dtype).reshape(array.shape), dtype=dtype)


def budget(dtype: str, function: str = "mul", shape: Sequence[int] = (1,)) -> Budget:
    return budget_of(
        operator_of("Torch", function), dtype, unit=unit_of(dtype), shape=shape, operands=[shape]
    )


def judged(
    found: StoredTensor,
    expected: Any,
    *,
    function: str = "mul",
    probes: Callable[[int], Sequence[StoredTensor]] = lambda _: (),
) -> Judgement:
    reference = StoredTensor(array=np.asarray(expected, np.float64), dtype="float64")
    return judge(found, reference, budget(found.dtype, function, found.array.shape), probes)


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_ten_percent_are_a_fault_at_every_scale(dtype: str, scale: float) -> None:
    exact = np.linspace(1, 2, 50) * scale

    # Below 6e-5, float16 has fewer bits: there it is no more than suspicious.
    assert judged(stored(exact * 1.1, dtype), exact).ratio > 1


def test_three_times_too_large_is_wrong_and_named_as_a_factor() -> None:
    exact = np.linspace(1e-5, 2e-5, 50)

    found = judged(stored(exact * 3, "float32"), exact)

    assert found.verdict is Verdict.WRONG
    assert found.factor == 3


def test_a_small_scalar_is_judged_by_its_own_size() -> None:
    assert judged(stored(1e-4, "float32"), 6e-4).verdict is Verdict.WRONG


@pytest.mark.parametrize("count", [100, 1_000, 10_000, 100_000])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_one_nan_among_many_is_wrong(dtype: str, odd: float, count: int) -> None:
    exact = np.ones(count)
    values = exact.copy()
    values[count // 2] = odd

    found = judged(stored(values, dtype), exact)

    assert (found.verdict, found.mismatches, found.index) == (Verdict.WRONG, 1, count // 2)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_the_same_nan_or_infinity_on_both_sides_agrees(odd: float) -> None:
    values = [1.0, odd, 2.0]

    assert judged(stored(values, "float32"), values).verdict is Verdict.EXACT


def test_overflow_that_the_type_makes_unavoidable_is_overflow() -> None:
    found = judged(stored([1.0, np.inf], "float16"), [1.0, 70_000.0])

    assert (found.verdict, found.overflows) == (Verdict.OVERFLOW, 1)
    assert judged(stored([1.0, np.inf], "float16"), [1.0, 60_000.0]).verdict is Verdict.WRONG


@pytest.mark.parametrize("dtype", HALVES)
def test_perfectly_rounded_results_are_exact(dtype: str) -> None:
    exact = np.random.default_rng(0).normal(size=1000) * 30

    assert judged(stored(exact, dtype), exact).verdict is Verdict.EXACT


def test_noise_around_zero_is_judged_by_the_measured_condition() -> None:
    probe = StoredTensor(array=np.full(4, 1e-8), dtype="float64")
    noisy = stored(np.full(4, 2e-8), "float32")

    assert judged(noisy, np.zeros(4), probes=lambda count: [probe] * count).ratio <= 1
    assert judged(noisy, np.zeros(4)).verdict is Verdict.WRONG


def test_integers_must_be_equal_unless_the_last_bit_decides() -> None:
    reference = StoredTensor(array=np.array([1, 2, 3]), dtype="int64")
    found = StoredTensor(array=np.array([1, 2, 4]), dtype="int64")
    rule = budget("int64", "argmax")

    assert judge(found, reference, rule, lambda _: ()).verdict is Verdict.WRONG
    assert judge(reference, reference, rule, lambda _: ()).verdict is Verdict.EXACT
    assert judge(found, reference, rule, lambda n: [found] * n).verdict is Verdict.ROUNDING


def test_complex_results_are_judged() -> None:
    exact = np.array([1 + 1j, 2 - 1j])
    reference = StoredTensor(array=exact, dtype="complex128")
    rule = budget("complex64")
    sound = StoredTensor(array=exact.astype(np.complex64), dtype="complex64")
    turned = StoredTensor(array=exact.conj().astype(np.complex64), dtype="complex64")

    assert judge(sound, reference, rule, lambda _: ()).verdict is Verdict.EXACT
    assert judge(turned, reference, rule, lambda _: ()).verdict is Verdict.WRONG


def test_subnormal_results_may_be_flushed_to_zero() -> None:
    assert judged(stored([0.0], "float32"), [1e-39]).ratio <= 1
    assert judged(stored([0.0], "float32"), [1e-37]).verdict is Verdict.WRONG


def test_an_exact_function_may_not_lose_a_bit() -> None:
    exact = np.array([1.0, 3.0])
    next_one = np.nextafter(exact.astype(np.float32), 10).astype(np.float64)

    assert judged(stored(next_one, "float32"), exact, function="cat").ratio > 1
    assert judged(stored(next_one, "float32"), exact).ratio <= 1


def test_an_empty_tensor_is_exact() -> None:
    assert judged(stored(np.empty((0, 3)), "float32"), np.empty((0, 3))).verdict is Verdict.EXACT


def test_the_largest_number_of_float16_is_that_of_the_standard() -> None:
    assert largest_of("float16") == 65_520  # rounds to infinity from here


@given(
    st.lists(st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=30),
    st.integers(-20, 20),
    st.randoms(use_true_random=False),
)
def test_the_ratio_does_not_depend_on_scale_or_order(
    values: list[float], exponent: int, random: Any
) -> None:
    exact = np.asarray(values)
    found = (exact * (1 + 1e-6)).astype(np.float32).astype(np.float64)
    order = random.sample(range(exact.size), exact.size)
    base = judged(stored(found, "float32"), exact)

    scaled = judged(stored(found * 2.0**exponent, "float32"), exact * 2.0**exponent)
    shuffled = judged(stored(found[order], "float32"), exact[order])

    assert scaled.ratio == pytest.approx(base.ratio, rel=1e-6)
    assert shuffled.ratio == base.ratio


def test_a_computed_change_explains_noise_around_zero_without_probes() -> None:
    def probes(_: int) -> Sequence[StoredTensor]:
        raise AssertionError("probes are not needed")

    def spread(places: Any) -> Any:
        return np.full(places.shape, 1e-8)

    reference = StoredTensor(array=np.zeros(4), dtype="float64")
    noisy = stored(np.full(4, 2e-8), "float32")
    rule = budget("float32")

    assert judge(noisy, reference, rule, probes, spread=spread).ratio <= 1
    wrong = stored([0, 0, 0, 2e-6], "float32")
    found = judge(wrong, reference, rule, lambda _: (), spread=spread)
    assert (found.verdict, found.index) == (Verdict.WRONG, 3)


def test_only_elements_that_are_left_are_judged_by_probes() -> None:
    exact = np.array([1.0, 1e-9, 1.0])
    probe = StoredTensor(array=np.array([1.0, 2e-8, 1.0]), dtype="float64")

    found = judged(stored([1.0, 1e-8, 1.5], "float32"), exact, probes=lambda count: [probe] * count)

    assert (found.verdict, found.index) == (Verdict.WRONG, 2)
    assert (
        judged(
            stored([1.0, 1e-8, 1.0], "float32"), exact, probes=lambda count: [probe] * count
        ).verdict
        is Verdict.ROUNDING
    )
