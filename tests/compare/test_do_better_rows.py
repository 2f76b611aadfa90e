# SPDX-License-Identifier: Apache-2.0
"""Two values that used to be judged wrong elsewhere: NaN, signs, types, shapes, scalars."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from user_cases import cli, judge, rows_of_xlsx

from builders.dumps import DumpBuilder, value

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


# Whole numbers against floating ones were "unmatched" and passed.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(("other", "says"), [([1.0, 2.0], "equal"), ([1.0, 2.5], "different")])
def test_another_kind_of_number_is_told_and_its_values_compared(tmp_path, task, other, says):
    row = judge(tmp_path, value(np.array([1, 2])), value(other), task)
    assert row["status"] == "dtype"
    assert "int64 instead of float32" in row["reason"]
    assert f"the values are {says}" in row["reason"]
    assert row["reference_name"] is not None


# NaN at other places passed, and so did one infinity for the other.


def test_nan_at_other_places_is_told_with_the_first_of_them(tmp_path):
    nan = float("nan")
    row = judge(tmp_path, value([1.0, nan, 3.0]), value([nan, 2.0, 3.0]))
    assert row["status"] == "nonfinite"
    assert (row["target_nan"], row["reference_nan"]) == (1, 1)
    assert row["first_nonfinite"] == "[0]"


def test_the_sign_of_an_infinity_matters(tmp_path):
    inf = float("inf")
    row = judge(tmp_path, value([1.0, 2.0, inf]), value([1.0, 2.0, -inf]))
    assert (row["status"], row["first_nonfinite"]) == ("nonfinite", "[2]")
    assert (row["target_inf"], row["reference_inf"]) == (1, 1)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_nan_in_both_at_the_same_places_is_no_difference(tmp_path, task):
    same = value([1.0, float("nan"), 3.0])
    assert judge(tmp_path, same, same, task)["status"] == "equal"


# NaN in the statistics of the target was never warned of.


def test_nan_in_statistics_is_an_error_in_both_forms_of_the_table(tmp_path, capsys):
    nan = float("nan")
    x = value([1.0, 2.0], 1)
    for name, made in (("new", [1.0, nan]), ("old", [1.0, 2.0])):
        DumpBuilder(tmp_path / name).call("Torch.sqrt.0.forward", [x], [value(made, 2)]).write()
    code, out, _ = cli(capsys, "new", "old", "--json", "--exit-code")
    summary = json.loads(out)
    assert code == 1
    assert summary["counts"]["nonfinite"] == 1
    assert summary["introduced"][0]["name"] == "Torch.sqrt.0.forward"
    assert rows_of_xlsx(Path("output"))[-1]["Result"] == "error"


# Of statistics only the norm was looked at.


@pytest.mark.parametrize(
    "changed",
    [{"Max": -1.0, "Min": -2.0, "Mean": -1.5}, {"Max": 2.5}, {"Min": 0.5}, {"Mean": 1.0}],
    ids=["sign", "max", "min", "mean"],
)
def test_every_statistic_is_judged(tmp_path, changed):
    plain = value([1.0, 2.0])
    row = judge(tmp_path, value([1.0, 2.0], **changed), plain, "statistics")
    assert row["status"] == "differs"
    assert row["origin"] == "introduced"


# Numbers were cut: large integers, tiny values, imaginary parts.


def test_large_integers_are_compared_exactly(tmp_path):
    row = judge(tmp_path, value(np.array([2**53 + 1, 3])), value(np.array([2**53, 3])))
    assert (row["status"], row["unequal"], row["max_abs_err"]) == ("differs", 1, 1.0)


def test_tiny_values_keep_all_their_digits(tmp_path):
    row = judge(tmp_path, value(np.array([3e-14, 1.0])), value(np.array([1e-14, 1.0])))
    assert row["max_abs_err"] == pytest.approx(2e-14, rel=1e-12)
    assert row["unequal"] == 1


def test_imaginary_parts_count(tmp_path):
    one, other = np.array([1 + 2j, 3 - 1j]), np.array([1 - 2j, 3 - 1j])
    row = judge(tmp_path, value(one), value(other))
    assert row["status"] == "differs"
    assert (row["unequal"], row["max_abs_err"]) == (1, 4.0)


def test_masks_count_their_differences(tmp_path):
    row = judge(tmp_path, value(np.array([True, False])), value(np.array([False, True])))
    assert (row["status"], row["unequal"], row["cosine"]) == ("differs", 2, 0.0)


# Relative errors exploded where the reference is zero.


def test_relative_errors_stand_clear_of_zero(tmp_path):
    row = judge(tmp_path, value([1e-9, 2.0, 1.1]), value([0.0, 2.0, 1.0]))
    assert row["max_rel_err"] == pytest.approx(0.1, rel=1e-5)
    assert row["max_rel_index"] == "[2]"
    labels = judge(tmp_path / "labels", value(np.array([1, 5])), value(np.array([0, 5])))
    assert (labels["max_abs_err"], labels["max_abs_index"]) == (1.0, "[0]")
    assert labels["max_rel_err"] is None or labels["max_rel_err"] <= 1


# Losses and scales had neither metrics nor a verdict.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_single_numbers_are_judged(tmp_path, task, shape):
    numbers = [value(np.full(shape, number, np.float32)) for number in (1.5, 1.0)]
    row = judge(tmp_path, *numbers, task)
    assert (row["status"], row["error"]) == ("differs", pytest.approx(0.5))
    same = judge(tmp_path / "same", numbers[0], numbers[0], task)
    assert same["status"] == "equal"


# Dimensions of size 1: the metrics agreed, the shape was an error.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_shapes_are_equal_up_to_dimensions_of_size_1(tmp_path, task):
    row = judge(tmp_path, value([[1.0, 2.0, 3.0]]), value([1.0, 2.0, 3.0]), task)
    assert row["status"] == "equal"
    assert "size 1" in row["reason"]
    assert (row["target_shape"], row["reference_shape"]) == ("[1, 3]", "[3]")
    other = judge(tmp_path / "other", value([[1.0, 2.0], [3.0, 4.0]]), value([1.0, 2.0]), task)
    assert other["status"] == "shape"


# bfloat16 against float32 was an error everywhere, for the type alone.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_coarser_type_is_information_and_decides_the_tolerance(tmp_path, task):
    exact = np.linspace(0.1, 1, 16, dtype=np.float32)
    half = exact.astype(np.float16)
    row = judge(tmp_path, value(half), value(exact), task)
    assert row["status"] == "close"
    assert "judged as float16" in row["reason"]
    wrong = judge(tmp_path / "wrong", value((exact * 1.1).astype(np.float16)), value(exact), task)
    assert wrong["status"] == "differs"
