# SPDX-License-Identifier: Apache-2.0
"""The documented precision standards: metrics against hand-computed values, limits, choices."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from msprobe.checks.standards.first_verdict import Status, first_verdict
from msprobe.checks.standards.metrics import Metrics, largest_value, measure, ulp_errors
from msprobe.checks.standards.ratio_verdict import ratio_verdict
from msprobe.checks.standards.standard import Algorithm, Generation, RatioMetric, Standards
from msprobe.errors import ConfigError, ConfigFileError

STANDARDS = Standards.load()


def measured(target, reference, *, dtype="float32", api="gelu", algorithm=Algorithm.BENCHMARK):
    return measure(
        np.asarray(target),
        np.asarray(reference),
        dtype=dtype,
        reference_dtype="float64",
        api=api,
        algorithm=algorithm,
        standards=STANDARDS,
    )


def first(target, reference, *, dtype="float32", api="gelu"):
    target, reference = np.asarray(target), np.asarray(reference)
    metrics = measured(target, reference, dtype=dtype, api=api)
    return first_verdict(
        target, reference, metrics, dtype=dtype, api=api, standards=STANDARDS
    ).status


def second(target: Metrics, reference: Metrics, *, api="gelu", dtype="float32", **options):
    return ratio_verdict(
        target,
        reference,
        api=api,
        dtype=dtype,
        standards=STANDARDS,
        generation=options.get("generation", Generation.NEW),
    )


def test_benchmark_metrics_of_four_elements() -> None:
    found = measured([1.0, 2.5, 4.0, 1e-7], [1.0, 2.0, 5.0, 0.0])
    # Three values are not small; one small value is off by more than 2^-30.
    assert found.rmse == pytest.approx(math.sqrt((0.25 + 1.0) / 3), rel=1e-4)
    assert found.small_value_error == 1.0
    assert found.error_balance == pytest.approx((2 - 1) / 4)
    assert found.max_rel_error == pytest.approx(0.25)
    assert found.mean_rel_error == pytest.approx((0.25 + 0.2) / 3)
    assert found.max_abs_error == 1.0
    assert found.ulp_share is None
    assert found.binary_error is None


def test_relative_errors_of_bfloat16_have_its_epsilon_whatever_the_reference_is() -> None:
    found = measured([1.5], [1.0], dtype="bfloat16")
    assert found.max_rel_error == 0.5 / (1 + 2.0**-8)


def test_absolute_threshold_metrics_count_each_kind_of_element() -> None:
    found = measured(
        [1.0, 1.1, 1e-7, 2e-7, math.nan, math.inf, math.nan],
        [1.0, 1.0, 1e-7, 0.0, math.nan, math.inf, 1.0],
        algorithm=Algorithm.ABSOLUTE,
    )
    assert found.rel_error_share == 0.5
    assert found.abs_error_share == 0.5
    assert found.nonfinite_error == pytest.approx(1 / 3)


def test_ulps_are_counted_in_the_outputs_own_type() -> None:
    one, small = 1.0, 2.0**-140
    target = np.array([one + 3 * 2.0**-23, small * 2, 0.0, math.nan])
    reference = np.array([one, small, 0.0, math.nan])
    # Below the smallest normal number the unit stays 2^-149.
    assert ulp_errors(target, reference, "float32").tolist() == [3.0, 512.0, 0.0, 0.0]
    assert ulp_errors(np.array([1.0]), np.array([math.nan]), "float16").tolist() == [math.inf]


def test_ulp_metrics_use_the_threshold_of_the_type() -> None:
    target = [1 + 2 * 2.0**-7, 1.0]
    found = measured(target, [1.0, 1.0], dtype="bfloat16", algorithm=Algorithm.ULP)
    assert (found.max_ulp, found.mean_ulp, found.ulp_share) == (2.0, 1.0, 0.5)
    assert measured(target, [1.0, 1.0], algorithm=Algorithm.ULP).ulp_share == 0.5


def test_accumulative_metrics_hold_values_to_one_bound() -> None:
    found = measured([0.5, 10.0, 0.6], [0.5, 10.1, 0.5], algorithm=Algorithm.ACCUMULATIVE)
    assert (found.rel_error_share, found.abs_error_share) == (1.0, 0.5)
    assert found.error_balance == 0.0


def test_complex_numbers_are_measured_by_their_parts() -> None:
    found = measured([1 + 1j, 2 + 2.5j], [1 + 1j, 2 + 2j], dtype="complex64")
    assert found.max_abs_error == 0.5
    assert found.hundredth == 0.75


def test_the_same_nan_and_infinity_are_no_error() -> None:
    values = [math.nan, math.inf, -math.inf, 1.0]
    found = measured(values, values)
    assert (found.max_abs_error, found.thousandth, found.rmse) == (0.0, 1.0, 0.0)
    assert first(values, values) is Status.PASS


def test_integers_and_truth_values_must_be_equal() -> None:
    assert measured([1, 2, 3], [1, 2, 4], dtype="int64").binary_error == pytest.approx(1 / 3)
    assert first([1, 2, 3], [1, 2, 3], dtype="int64") is Status.PASS
    assert first([1, 2, 3], [1, 2, 4], dtype="int64") is Status.ERROR
    assert first([1, 2, 3], [1, 2, 4], dtype="int8", api="npu_dynamic_quant") is Status.PASS
    assert first([True, False], [True, True], dtype="bool") is Status.ERROR


@pytest.mark.parametrize(
    ("factor", "dtype", "status"),
    [
        (1 + 2e-5, "float32", Status.PASS),
        (1 + 5e-4, "float32", Status.WARNING),
        (1 + 2e-3, "float32", Status.ERROR),
        (1 + 5e-4, "bfloat16", Status.PASS),
        (1 + 5e-3, "bfloat16", Status.WARNING),
        (1 + 2e-2, "bfloat16", Status.ERROR),
    ],
)
def test_first_verdict_by_shares_of_relative_errors(factor, dtype, status) -> None:
    reference = np.linspace(100.0, 200.0, 1000)
    assert first(reference * factor, reference, dtype=dtype) is status


def test_first_verdict_by_direction_zeros_and_shape() -> None:
    reference = np.linspace(-1.0, 1.0, 100)
    assert first(-reference, reference) is Status.ERROR
    assert first(np.zeros(100), reference) is Status.ERROR
    assert first(np.zeros(0), np.zeros(0)) is Status.SKIP


def test_first_verdict_of_dropout_looks_at_zeros_only() -> None:
    reference = np.tile([0.0, 2.0], 100)
    assert first(reference * 99, reference, api="dropout") is Status.PASS
    assert first(np.full(200, 2.0), reference, api="dropout") is Status.ERROR


def test_which_standard_judges_an_operator() -> None:
    old, new = Generation.DOCUMENTED, Generation.NEW
    choose = STANDARDS.algorithm
    assert choose("mul", "float32", old) is Algorithm.ABSOLUTE
    assert choose("topk", "float16", old) is Algorithm.BINARY
    assert choose("linear", "bfloat16", old) is Algorithm.ULP
    assert choose("conv2d", "float32", old) is Algorithm.THOUSANDTH
    assert choose("gelu", "float32", old) is Algorithm.BENCHMARK
    assert choose("linear", "bfloat16", new) is Algorithm.BENCHMARK
    assert choose("linear", "int64", new) is Algorithm.BINARY
    assert choose("linear", "float8_e4m3fn", new) is Algorithm.ULP


def test_constants_are_those_of_the_documents() -> None:
    half, wide = STANDARDS.limits("mul", "float16"), STANDARDS.limits("mul", "float32")
    assert (half.absolute_small_value, half.absolute_atol, half.rtol) == (
        2.0**-10,
        2.0**-16,
        2.0**-10,
    )
    assert STANDARDS.limits("mul", "bfloat16").rtol == 2.0**-8
    assert (wide.benchmark_small_value, wide.benchmark_atol) == (2.0**-20, 2.0**-30)
    assert (wide.ratio_floor, wide.ulp_threshold) == (2.0**-14, 32)
    limit = STANDARDS.ratio_limit
    assert limit(RatioMetric.MAX_REL_ERROR, "matmul", Generation.NEW) == 2
    assert limit(RatioMetric.MAX_REL_ERROR, "embedding", Generation.NEW) == 5
    assert limit(RatioMetric.MAX_REL_ERROR, "matmul", Generation.DOCUMENTED) == 10


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        ("float16", 65504.0),
        ("bfloat16", 3.3895313892515355e38),
        ("float8_e4m3fn", 448.0),
        ("float8_e5m2", 57344.0),
        ("float8_e4m3fnuz", 240.0),
    ],
)
def test_largest_value(dtype, largest) -> None:
    assert largest_value(dtype) == largest


def benchmark(**changes: float) -> Metrics:
    values = dict.fromkeys(RatioMetric, 1e-3) | changes
    return Metrics(**{str(name): value for name, value in values.items()})


def test_ratios_of_two_devices() -> None:
    assert second(benchmark(), benchmark()).status is Status.PASS
    worse = second(benchmark(rmse=3e-3), benchmark())
    assert worse.status is Status.ERROR
    assert worse.ratios[RatioMetric.RMSE] == (pytest.approx(3.0), Status.ERROR)
    assert "root mean square" in worse.reasons[0]
    # The error balance is shown and never decides.
    unbalanced = second(benchmark(error_balance=0.5), benchmark())
    assert unbalanced.status is Status.PASS
    assert unbalanced.ratios[RatioMetric.ERROR_BALANCE][1] is Status.ERROR


def test_ratios_have_a_floor_and_agree_on_infinities() -> None:
    assert second(benchmark(rmse=1e-9), benchmark(rmse=0.0)).status is Status.PASS
    assert second(benchmark(rmse=math.inf), benchmark(rmse=math.inf)).status is Status.PASS
    assert second(benchmark(rmse=math.nan), benchmark(rmse=math.nan)).status is Status.PASS
    assert second(benchmark(rmse=math.nan), benchmark()).status is Status.ERROR


def test_limits_of_ratios_depend_on_the_operator() -> None:
    target, reference = benchmark(max_rel_error=3e-3), benchmark()
    assert second(target, reference, api="gelu").status is Status.PASS
    assert second(target, reference, api="matmul").status is Status.ERROR
    old = second(target, reference, api="matmul", generation=Generation.DOCUMENTED)
    assert old.status is Status.PASS


@pytest.mark.parametrize(
    ("metrics", "dtype", "status"),
    [
        ({"max_ulp": 9.0, "mean_ulp": 1.0, "ulp_share": 0.0009}, "bfloat16", Status.PASS),
        ({"max_ulp": 9.0, "mean_ulp": 1.0, "ulp_share": 0.1}, "bfloat16", Status.ERROR),
        ({"max_ulp": 99.0, "mean_ulp": 63.0, "ulp_share": 0.9}, "float32", Status.PASS),
        ({"max_ulp": 99.0, "mean_ulp": 65.0, "ulp_share": 0.9}, "float32", Status.ERROR),
        ({"nonfinite_error": 0.0, "rel_error_share": 0.0, "abs_error_share": 0.1}, "float32",
         Status.ERROR),
        ({"binary_error": 0.0}, "int64", Status.PASS),
        ({"binary_error": 0.5}, "int64", Status.ERROR),
    ],
)  # fmt: skip
def test_other_standards_of_two_devices(metrics, dtype, status) -> None:
    reference = Metrics(**dict.fromkeys(metrics, 0.0))
    assert second(Metrics(**metrics), reference, dtype=dtype).status is status


def test_thousandth_standard_is_for_listed_operators() -> None:
    target, reference = Metrics(thousandth=0.9995), Metrics(thousandth=1.0)
    found = second(target, reference, api="conv2d")
    assert (found.status, found.algorithm) == (Status.PASS, Algorithm.THOUSANDTH)
    assert second(Metrics(thousandth=0.9), reference, api="conv2d").status is Status.ERROR
    assert second(target, reference, api="gelu").status is Status.SKIP


def test_files_of_the_user_are_laid_over(tmp_path: Path) -> None:
    (tmp_path / "api_precision_standard.yaml").write_text("ULPStandard:\n  - my_op\n")
    (tmp_path / "api_precision_threshold.yaml").write_text(
        "mul:\n  torch.float32:\n    rtol: 1.0e-6\n    small_value: 1.0e-6\n"
    )
    own = Standards.load(tmp_path)
    assert own.algorithm("my_op", "float32", Generation.DOCUMENTED) is Algorithm.ULP
    assert own.algorithm("linear", "float32", Generation.DOCUMENTED) is Algorithm.BENCHMARK
    limits = own.limits("mul", "float32")
    assert (limits.rtol, limits.absolute_small_value, limits.absolute_atol) == (
        1e-6,
        1e-6,
        2.0**-30,
    )
    assert own.limits("mul", "float16") == STANDARDS.limits("mul", "float16")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("api_precision_standard.yaml", "UlpStandard: [a]", "did you mean"),
        ("api_precision_threshold.yaml", "mul: {torch.float32: {rtol: x}}", "number of 0 or more"),
        ("api_precision_threshold.yaml", "mul: {torch.float32: {rtl: 1}}", "did you mean"),
        ("torch_ut_setting.json", '{"topk": {"grad_inex": 0}}', "did you mean"),
        ("torch_ut_setting.json", '{"topk": {"grad_index": -1}}', "an output, from 0"),
        ("checker_support_api.yaml", "tensors: [add]", "did you mean"),
    ],
)
def test_faulty_files_of_the_user_are_refused(tmp_path: Path, name, text, said) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        Standards.load(tmp_path)


def test_a_folder_without_such_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigFileError, match="has none of api_precision_standard"):
        Standards.load(tmp_path)
