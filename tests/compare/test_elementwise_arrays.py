# SPDX-License-Identifier: Apache-2.0
"""What a caller of the element metrics may hand in, and what is refused."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
from elementwise_runs import IMPLEMENTATIONS, measure, moderate, stored

from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import UnsupportedError, UsageError
from msprobe.numerics.elementwise import ElementAccumulator, Tolerance, compare_arrays

TOLERANCE = Tolerance(rtol=1e-3, atol=1e-5)
each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def tensor(array, dtype=None):
    return StoredTensor(array=array, dtype=dtype or array.dtype.name)


def test_a_case_worked_out_by_hand():
    target = tensor(np.array([1.0, -2.0, 0.5, 3.0], dtype=np.float32))
    reference = tensor(np.array([1.0, 2.0, 0.0, 4.0], dtype=np.float32))
    metrics = compare_arrays(target, reference, Tolerance(rtol=0.25, atol=0.0))
    assert (metrics.count, metrics.unequal, metrics.mismatches) == (4, 3, 2)
    assert (metrics.max_abs_err, metrics.max_abs_index) == (4.0, 1)
    assert (metrics.max_abs_target, metrics.max_abs_reference) == (-2.0, 2.0)
    assert (metrics.max_rel_err, metrics.max_rel_index) == (2.0, 1)
    assert metrics.mean_abs_err == 5.5 / 4
    assert metrics.rmse == math.sqrt(17.25 / 4)
    assert metrics.euclidean == math.sqrt(17.25)
    assert metrics.reference_norm == math.sqrt(21)
    assert metrics.relative_l2 == pytest.approx(math.sqrt(17.25 / 21))
    assert metrics.cosine == pytest.approx(9 / math.sqrt(14.25 * 21))
    assert metrics.sign_flips == 1
    assert (metrics.ratio_1e3, metrics.ratio_5e3) == (0.25, 0.25)
    # 0.5 against a zero that is shifted by float32's epsilon.
    assert metrics.legacy_max_rel_err == 0.5 / 2.0**-23
    # From -2 down to 0 and up to 2: each has the exponent and fraction 0x40000000.
    assert metrics.max_ulp == 2 * 0x40000000


def test_scalars_have_metrics():
    metrics = compare_arrays(stored(1.5, "float32"), stored(1.0, "float32"), TOLERANCE)
    assert (metrics.count, metrics.mismatches, metrics.max_abs_err) == (1, 1, 0.5)
    assert (metrics.max_abs_index, metrics.cosine, metrics.max_rel_err) == (0, 1.0, 0.5)


def test_empty_tensors_are_equal_and_have_no_numbers():
    metrics = compare_arrays(stored([[]], "float16"), stored([[]], "float16"), TOLERANCE)
    assert metrics.is_equal
    assert metrics.count == metrics.mismatches == 0
    for name in ("max_abs_err", "max_rel_err", "mean_abs_err", "p999_abs_err", "rmse", "cosine"):
        assert getattr(metrics, name) is None


def test_only_signs_of_zero_differ():
    metrics = compare_arrays(
        stored([0.0, -0.0], "float32"), stored([-0.0, 0.0], "float32"), TOLERANCE
    )
    assert metrics.is_equal
    assert metrics.max_ulp == metrics.sign_flips == 0


def test_signs_of_infinity_count():
    metrics = compare_arrays(
        stored([math.inf, 1.0], "float32"), stored([-math.inf, 1.0], "float32"), TOLERANCE
    )
    assert not metrics.is_equal
    assert (metrics.mismatches, metrics.first_nonfinite_mismatch) == (1, 0)
    assert (metrics.target_pos_inf, metrics.reference_neg_inf) == (1, 1)
    # The documented format looks at positions alone.
    assert metrics.ratio_1e3 == 1.0


def test_nan_against_infinity_leaves_the_documented_metrics_out():
    metrics = compare_arrays(
        stored([math.nan, 1.0], "float32"), stored([math.inf, 1.0], "float32"), TOLERANCE
    )
    assert metrics.ratio_1e3 is metrics.legacy_max_rel_err is None
    assert (metrics.max_abs_err, metrics.cosine) == (0.0, 1.0)


def test_all_zero_reference_has_no_relative_error():
    metrics = compare_arrays(
        stored([1.0, 0.0], "float32"), stored([0.0, 0.0], "float32"), TOLERANCE
    )
    assert metrics.max_rel_err is metrics.cosine is None
    assert metrics.relative_l2 == math.inf


def test_relative_errors_of_tiny_references_are_left_out():
    """16**0 <= 1 < 16**1: references below 16**-2 are negligible beside 1."""
    edge = 16.0**-2
    reference = np.array([1.0, edge, np.nextafter(edge, 0)])
    metrics = compare_arrays(tensor(reference * [1.0, 1.5, 9.0]), tensor(reference), TOLERANCE)
    assert (metrics.max_rel_err, metrics.max_rel_index) == (0.5, 1)


@each_implementation
def test_the_floor_rises_with_later_elements(implementation):
    """Errors that counted beside small references no longer do when larger ones come."""
    reference = np.concatenate([np.full(40_000, 16.0**k) for k in range(-3, 3)])
    target = reference * (1 + np.repeat([2.0**-k for k in range(1, 7)], 40_000))
    for size, expected in ((40_000, 0), (80_000, 0), (120_000, 0), (160_000, 1), (240_000, 3)):
        found = measure(implementation, tensor(target[:size]), tensor(reference[:size]), TOLERANCE)
        assert found.max_rel_index == expected * 40_000
        assert found.max_rel_err == 2.0 ** -(expected + 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_indices_count_in_rows_whatever_the_layout(order):
    reference = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    target = reference.copy(order="F")
    target[1, 0, 2] += 7
    metrics = compare_arrays(tensor(target), tensor(reference), TOLERANCE)
    assert metrics.max_abs_index == np.ravel_multi_index((1, 0, 2), (2, 3, 4))
    strided = compare_arrays(
        tensor(target[:, ::-1, ::2]), tensor(reference[:, ::-1, ::2]), TOLERANCE
    )
    assert strided.max_abs_index == np.ravel_multi_index((1, 2, 1), (2, 3, 2))


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "float16"])
def test_byte_order_does_not_matter(dtype):
    values = moderate(np.random.default_rng(0), dtype, 100).array
    swapped = values.astype(values.dtype.newbyteorder(">"))
    assert compare_arrays(tensor(swapped, dtype), tensor(values, dtype), TOLERANCE).is_equal


def test_read_only_and_unaligned_memory():
    memory = b"x" + np.arange(1000, dtype=np.float64).tobytes()
    values = np.frombuffer(memory, dtype=np.float64, offset=1)
    metrics = compare_arrays(tensor(values), tensor(np.arange(1000.0)), TOLERANCE)
    assert metrics.is_equal


@each_implementation
def test_the_callers_arrays_stay_as_they_are(implementation):
    target = np.array([1.0, math.nan, 3.0])
    reference = np.array([math.inf, 2.0, 3.0])
    before = target.tobytes() + reference.tobytes()
    measure(implementation, tensor(target), tensor(reference), TOLERANCE)
    assert target.tobytes() + reference.tobytes() == before


def test_a_buffer_may_be_filled_anew_for_each_chunk():
    values = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    accumulator = ElementAccumulator("float32", "float32", TOLERANCE)
    buffer = np.empty(100, dtype=np.float32)
    for start in range(0, 3000, 100):
        buffer[:] = values[start : start + 100]
        accumulator.update(buffer, buffer + np.float32(0.5))
    whole = compare_arrays(tensor(values), tensor(values + np.float32(0.5)), TOLERANCE)
    assert accumulator.finish() == whole


def test_quantile_without_a_known_count():
    error = np.random.default_rng(0).exponential(size=30_000)
    accumulator = ElementAccumulator("float64", "float64", TOLERANCE)
    accumulator.update(error, np.zeros_like(error))
    assert accumulator.finish().p999_abs_err == pytest.approx(np.quantile(error, 0.999), rel=1e-14)


@each_implementation
def test_values_at_the_worst_element_are_those_stored(implementation):
    bits = np.array([0x3F80, 0x4049], dtype=np.uint16)
    metrics = measure(
        implementation, tensor(bits, "bfloat16"), stored([1.0, 3.0], "float32"), TOLERANCE
    )
    assert (metrics.max_abs_target, metrics.max_abs_reference) == (3.140625, 3.0)
    # 3.0 is 0x4040 in bfloat16.
    assert metrics.max_ulp == 9


def test_threads_have_their_own_accumulators():
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.standard_normal((2, 300_000)).astype(np.float32)) for _ in range(8)]

    def run(pair):
        return compare_arrays(tensor(pair[0]), tensor(pair[1]), TOLERANCE)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, pairs)) == list(map(run, pairs))


@pytest.mark.torch
def test_subnormal_numbers_survive_a_thread_that_flushes_them():
    torch = pytest.importorskip("torch")
    tiny = tensor(np.full(600, 1e-45, dtype=np.float32))
    zero = tensor(np.zeros(600, dtype=np.float32))
    expected = compare_arrays(tiny, zero, TOLERANCE)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        flushed = compare_arrays(tiny, zero, TOLERANCE)
    finally:
        torch.set_flush_denormal(False)
    if len(IMPLEMENTATIONS) > 1:
        assert (flushed.unequal, flushed.max_ulp) == (600, 1)
        assert flushed.max_abs_err == expected.max_abs_err > 0


def test_without_the_c_extension():
    """A process that may not use the extension finds the same."""
    program = (
        "import numpy as np\n"
        "from msprobe.numerics.elementwise import compare_arrays, Tolerance\n"
        "from msprobe.dump.tensor_files import StoredTensor\n"
        "import sys\n"
        "assert 'msprobe.numerics._elementwise' not in sys.modules\n"
        "pair = [StoredTensor(array=np.arange(2000.) ** p, dtype='float64') for p in (2, 1)]\n"
        "print(compare_arrays(*pair, Tolerance(1e-3, 1e-5)))\n"
    )
    environment = {**os.environ, "MSPROBE_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    pair = [tensor(np.arange(2000.0) ** power) for power in (2, 1)]
    metrics = asdict(compare_arrays(*pair, TOLERANCE))
    for name in ("unequal", "max_abs_err", "max_abs_index", "max_rel_err", "p999_abs_err"):
        assert f"{name}={metrics[name]!r}" in done.stdout


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "str", "float128", ""])
def test_types_without_comparable_elements(dtype):
    with pytest.raises(UnsupportedError, match="cannot be compared one by one; known are float32"):
        ElementAccumulator(dtype, "float32", TOLERANCE)


def test_different_shapes():
    with pytest.raises(UsageError, match=r"shape \(2,\) and \(3,\)"):
        compare_arrays(stored([1, 2], "int8"), stored([1, 2, 3], "int8"), TOLERANCE)


def test_chunks_that_do_not_fit():
    accumulator = ElementAccumulator("float32", "float32", TOLERANCE)
    with pytest.raises(UsageError, match=r"shape \(2,\) and \(3,\)"):
        accumulator.update(np.zeros(2, np.float32), np.zeros(3, np.float32))
    with pytest.raises(UsageError, match=r"shape \(1, 2\)"):
        accumulator.update(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))


def test_elements_of_another_type():
    accumulator = ElementAccumulator("bfloat16", "float32", TOLERANCE)
    with pytest.raises(UsageError, match="stored as float32, expected uint16"):
        accumulator.update(np.zeros(2, np.float32), np.zeros(2, np.float32))


def test_more_elements_than_announced():
    accumulator = ElementAccumulator("float32", "float32", TOLERANCE, count=3)
    accumulator.update(np.zeros(2, np.float32), np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="1 elements more than announced"):
        accumulator.update(np.zeros(2, np.float32), np.zeros(2, np.float32))
