# SPDX-License-Identifier: Apache-2.0
"""Laws that the element metrics obey, whatever the tensors are."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from elementwise_runs import (
    ALL_TYPES,
    IMPLEMENTATIONS,
    measure,
    measure_raw,
    moderate,
    nudged,
    random_bits,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.elementwise import Tolerance

TOLERANCE = Tolerance(rtol=1e-3, atol=1e-5)
LIMIT = 2.0**100
FINITE = st.floats(-LIMIT, LIMIT, width=32)
PAIRS = st.integers(1, 60).flatmap(
    lambda size: st.tuples(
        hnp.arrays(np.float32, size, elements=FINITE), hnp.arrays(np.float32, size, elements=FINITE)
    )
)
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def tensor(array):
    return StoredTensor(array=array, dtype=array.dtype.name)


@each_implementation
@pytest.mark.parametrize("dtype", ALL_TYPES)
def test_a_tensor_equals_itself(implementation, dtype):
    rng = np.random.default_rng(5)
    for values in (random_bits(rng, dtype, 2000), moderate(rng, dtype, 2000)):
        same = StoredTensor(array=values.array.copy(), dtype=dtype)
        metrics = measure(implementation, same, values, Tolerance(0.0, 0.0))
        assert metrics.is_equal
        assert metrics.mismatches == metrics.unequal == metrics.sign_flips == 0
        assert metrics.max_abs_err == metrics.max_rel_err == metrics.p999_abs_err == 0
        assert metrics.mean_abs_err == metrics.rmse == metrics.euclidean == 0
        assert metrics.relative_l2 == 0
        assert metrics.max_ulp in (0, None)
        assert metrics.cosine == 1
        assert metrics.target_norm == metrics.reference_norm
        assert metrics.ratio_1e3 == metrics.ratio_5e3 == 1
        assert metrics.max_abs_index is metrics.first_nonfinite_mismatch is None


@each_implementation
@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_sides_can_change_places(implementation, pair):
    first, second = map(tensor, pair)
    there = measure(implementation, first, second, TOLERANCE)
    back = measure(implementation, second, first, TOLERANCE)
    for name in ("unequal", "max_abs_err", "max_abs_index", "mean_abs_err", "p999_abs_err"):
        assert getattr(there, name) == getattr(back, name)
    for name in ("rmse", "euclidean", "max_ulp", "sign_flips", "cosine"):
        assert getattr(there, name) == getattr(back, name)
    assert there.target_norm == back.reference_norm


@each_implementation
@settings(deadline=None, max_examples=40)
@given(PAIRS, st.randoms(use_true_random=False))
def test_order_does_not_matter(implementation, pair, random):
    order = list(range(pair[0].size))
    random.shuffle(order)
    before = measure(implementation, *map(tensor, pair), TOLERANCE)
    after = measure(implementation, *(tensor(side[order]) for side in pair), TOLERANCE)
    same = ("mismatches", "unequal", "max_abs_err", "max_rel_err", "p999_abs_err", "max_ulp")
    for name in (*same, "sign_flips", "ratio_1e3", "ratio_5e3", "legacy_max_rel_err"):
        assert getattr(before, name) == getattr(after, name)
    for name in ("mean_abs_err", "rmse", "euclidean", "target_norm", "reference_norm"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-13)


@each_implementation
@settings(deadline=None, max_examples=40)
@given(PAIRS, st.integers(-5, 5))
def test_scaling_by_powers_of_16_is_exact(implementation, pair, power):
    """The floor of relative errors moves with the tensor; so does everything else."""
    factor = 16.0**power
    wide = [side.astype(np.float64) for side in pair]
    before = measure(implementation, *map(tensor, wide), Tolerance(1e-3, 0.0))
    after = measure(implementation, *(tensor(side * factor) for side in wide), Tolerance(1e-3, 0.0))
    scaled = ("max_abs_err", "mean_abs_err", "p999_abs_err", "rmse", "euclidean", "target_norm")
    for name in scaled:
        assert getattr(after, name) == getattr(before, name) * factor
    kept = ("mismatches", "unequal", "max_rel_err", "max_rel_index", "relative_l2")
    for name in kept:
        assert getattr(after, name) == getattr(before, name)
    if min(before.reference_norm, before.target_norm) * min(factor, 1) > 1e-15:
        assert after.cosine == before.cosine


@each_implementation
@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_norms_obey_the_triangle(implementation, pair):
    metrics = measure(implementation, *map(tensor, pair), TOLERANCE)
    assert metrics.euclidean <= (metrics.target_norm + metrics.reference_norm) * (1 + 1e-12)
    assert metrics.cosine is None or -1 <= metrics.cosine <= 1
    assert metrics.mean_abs_err <= metrics.rmse * (1 + 1e-12) <= metrics.max_abs_err * (1 + 2e-12)
    assert 0 <= metrics.ratio_1e3 <= metrics.ratio_5e3 <= 1
    assert metrics.mismatches <= metrics.unequal <= metrics.count


@each_implementation
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ALL_TYPES),
    st.sampled_from(ALL_TYPES),
    st.lists(st.integers(0, 3000), max_size=9),
    st.integers(0, 2**32 - 1),
)
def test_chunks_leave_no_trace(implementation, first, second, cuts, seed):
    rng = np.random.default_rng(seed)
    target, reference = (random_bits(rng, dtype, 3000) for dtype in (first, second))
    whole = measure_raw(implementation, target, reference, TOLERANCE)
    assert measure_raw(implementation, target, reference, TOLERANCE, cuts) == whole


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ALL_TYPES),
    st.sampled_from(ALL_TYPES),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_implementations_agree(first, second, is_similar, seed):
    """All is the same but the last bits of the sums; between instruction sets these are, too."""
    rng = np.random.default_rng(seed)
    reference = random_bits(rng, second, 2500)
    target = nudged(rng, reference, 0.2) if is_similar else random_bits(rng, first, 2500)
    expected = asdict(measure("numpy", target, reference, TOLERANCE))
    found = [
        asdict(measure(implementation, target, reference, TOLERANCE))
        for implementation in IMPLEMENTATIONS[1:]
    ]
    assert all(repr(other) == repr(found[0]) for other in found)
    sums = ("mean_abs_err", "rmse", "euclidean", "relative_l2", "target_norm", "reference_norm")
    for metrics in found[:1]:
        for name, value in metrics.items():
            if name in (*sums, "cosine") and value is not None:
                assert value == pytest.approx(expected[name], rel=1e-12, abs=1e-12)
            else:
                assert value == expected[name] or (value != value and expected[name] != value), name


@each_implementation
@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 6000),
    st.sampled_from([1.0, 0.3, 0.01, 0.001]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_quantile_is_exact(implementation, size, share, has_ties, seed):
    rng = np.random.default_rng(seed)
    error = rng.exponential(size=size) * (rng.random(size) < share)
    if has_ties:
        error = np.ceil(error)
    raw = measure_raw(implementation, tensor(error), tensor(np.zeros(size)), TOLERANCE)
    assert raw.p999 == pytest.approx(np.quantile(error, 0.999), rel=1e-14)


@each_implementation
def test_sums_are_right_where_plain_ones_are_not(implementation):
    """A large number among many small ones, beyond what one float64 sum can hold."""
    error = np.full(200_000, 0.1)
    error[::50_000] = 1e15
    metrics = measure(implementation, tensor(error), tensor(np.zeros(error.size)), TOLERANCE)
    assert metrics.mean_abs_err == pytest.approx(math.fsum(error) / error.size, rel=1e-15)
