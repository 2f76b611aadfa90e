# SPDX-License-Identifier: Apache-2.0
"""What comparisons used to get wrong elsewhere: each test is one case that a user met."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import python_calamine
import yaml
from run_dumps import RankWriter, write_debug_dump, write_dump
from written_dumps import Book, Value, Verdicts, compare, value

from msprobe.cli import main

TASKS = ("statistics", "tensor", "md5")
LINEAR = "Functional.linear.{}.forward"

Build = Callable[[Book], object]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def cli(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run the command; return exit code, what it printed, what it complained about."""
    try:
        code = main(["compare", *map(str, words)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def judge(
    tmp_path: Path, target: Value | float, reference: Value | float, task: str = "tensor"
) -> dict[str, Any]:
    """Compare two values that a call made; return their row."""
    paths = []
    for name, made in (("new", target), ("old", reference)):
        book = Book(tmp_path / name, task)
        book.call("Torch.made.0.forward", [value([1.0, 2.0], 1)], [made])
        paths.append(book.write())
    found = compare(*paths)
    return dict(found.rows["Torch.made.0.forward.output.0"])


def rows_of_xlsx(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the only spreadsheet of a folder."""
    [path] = folder.glob("compare_result_*.xlsx")
    head, *rows = python_calamine.load_workbook(path).get_sheet_by_index(0).to_python()
    return [dict(zip(map(str, head), row, strict=True)) for row in rows]


def rows_of_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a csv file."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


# One layer's weights are perturbed: nearly all rows used to pass.


@pytest.mark.parametrize("task", TASKS)
def test_every_row_behind_a_perturbed_weight_differs_and_one_is_to_blame(tmp_path, task):
    new = write_dump(tmp_path / "new", task, drift=0.05)
    found = compare(new, write_dump(tmp_path / "old", task))
    for row in ("Functional.linear.2.forward.input.1", "Functional.linear.2.forward.output.0"):
        assert (found.status(row), found.origin(row)) == ("differs", "inherited")
    assert found.culprits == ["Module.fc2.Linear.forward.0"]
    assert found.summary["introduced"][0]["kind"] == "parameter"
    for layer in (0, 1):
        assert found.status(f"{LINEAR.format(layer)}.output.0") == "equal"


@pytest.mark.parametrize("task", TASKS)
def test_other_data_differ_everywhere_and_nobody_is_to_blame(tmp_path, task):
    found = compare(write_dump(tmp_path / "new", task, data=5), write_dump(tmp_path / "old", task))
    assert found.culprits == []
    assert found.origin("Module.Net.forward.0.input.0") == "input"
    for layer in range(3):
        row = f"{LINEAR.format(layer)}.output.0"
        assert (found.status(row), found.origin(row)) == ("differs", "inherited")


# The first difference used to be a later call, found by a threshold on outputs alone.


def test_the_first_difference_says_which_input_already_differed(tmp_path, capsys):
    def write(name: str, weight: float) -> Path:
        x, w = value([1.0, 2.0], 1), value([[weight, 0.5]])
        y = value([float(weight + 1)], 2)
        book = Book(tmp_path / name)
        book.call("Functional.linear.0.forward", [x, w], [y], parent="Module.fc.Linear.forward.0")
        book.call("Module.fc.Linear.forward.0", [x], [y], parameters={"weight": w})
        book.call("Functional.linear.1.forward", [y, value([[2.0]])], [value([2 * weight + 2], 3)])
        return book.write()

    new, old = write("new", 3.0), write("old", 2.0)
    code, out, _ = cli(capsys, new, old)
    assert code == 0
    first = json.loads(Path("output/summary.json").read_text())["first_difference"]
    assert first["name"] == "Functional.linear.0.forward.input.1"
    assert "Module.fc.Linear.forward.0.parameters.weight" in first["reason"]
    assert out.index("First difference") < out.index("Functional.linear.0.forward.input.1")


# The first-difference search did nothing on two files, one process, or MindSpore's dumps.


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
@pytest.mark.parametrize("below", ["", "step0", "step0/rank0", "step0/rank0/dump.json"])
def test_first_difference_files_for_every_input(tmp_path, capsys, below, framework):
    new = write_dump(tmp_path / "new", scale=1.5, framework=framework)
    old = write_dump(tmp_path / "old", framework=framework)
    code, _, _ = cli(capsys, new / below, old / below, "-da", "--quiet")
    assert code == 0
    [analysis] = Path("output").glob("diff_analyze_*.json")
    assert "Functional.linear.1.forward" in analysis.read_text()
    assert list(Path("output").glob("compare_result_rank*_*.json"))


# Fuzzy matching a dump with itself used to find no partner at all.


@pytest.mark.parametrize("task", TASKS)
def test_a_dump_aligned_with_itself(tmp_path, capsys, task):
    dump = write_dump(tmp_path / "dump", task)
    code, out, _ = cli(capsys, dump, dump, "-fm", "--exit-code", "--json")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (0, True)
    assert summary["counts"]["equal"] == summary["rows"] > 0
    assert summary["unmatched"]["target"] == summary["unmatched"]["reference"] == 0


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_one_call_more_shifts_nothing(tmp_path, task):
    def write(name: str, *, has_more: bool) -> Path:
        book = Book(tmp_path / name, task)
        number = 0
        for index in range(6):
            if has_more and index == 3:
                book.call(f"Functional.relu.{number}.forward", [value([9.0, 8.0])], [value([9.0])])
                number += 1
            x = value([float(index), index + 0.5])
            book.call(f"Functional.relu.{number}.forward", [x], [x])
            number += 1
        return book.write()

    found = compare(write("new", has_more=True), write("old", has_more=False))
    unmatched = found.summary["unmatched"]
    assert unmatched["operations"] == {"added": ["Functional.relu.3.forward"], "missing": []}
    assert found.summary["counts"]["differs"] == 0


# Values without a partner passed in silence, those of the reference were not even listed.


@pytest.mark.parametrize("kind", ["xlsx", "csv"])
def test_calls_of_either_side_alone_are_counted_and_listed(tmp_path, capsys, kind):
    def write(name: str, own: str) -> Path:
        book = Book(tmp_path / name)
        x = value([1.0, 2.0])
        book.call("Functional.relu.0.forward", [x], [x])
        book.call(f"Functional.{own}.0.forward", [x], [value([3.0, 5.0])])
        return book.write()

    new, old = write("new", "gelu"), write("old", "dropout")
    code, out, _ = cli(capsys, new, old, "--json", "--format", kind, "--align", "never")
    summary = json.loads(out)
    assert code == 0
    assert summary["unmatched"]["operations"] == {
        "added": ["Functional.gelu.0.forward"],
        "missing": ["Functional.dropout.0.forward"],
    }
    assert (summary["counts"]["added"], summary["counts"]["missing"]) == (2, 2)
    assert not summary["equal"]
    if kind == "xlsx":
        rows = rows_of_xlsx(Path("output"))
    else:
        [path] = Path("output").glob("compare_result_*.csv")
        rows = rows_of_csv(path)
    verdicts = {(row["NPU Name"], row["Bench Name"]): row["Result"] for row in rows}
    assert verdicts["Functional.gelu.0.forward.output.0", "N/A"] == "warning"
    assert verdicts["N/A", "Functional.dropout.0.forward.output.0"] == "warning"


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
        Book(tmp_path / name).call("Torch.sqrt.0.forward", [x], [value(made, 2)]).write()
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
    statistics = {"Max": None, "Min": None, "Mean": None, "Norm": None}
    made = [Value(np.abs(array), 0, {"dtype": "torch.complex128"}) for array in (one, other)]
    paths = []
    for name, values, entry in zip(("new", "old"), (one, other), made, strict=True):
        book = Book(tmp_path / name, "tensor")
        x = value([1.0, 2.0], 1)
        book.call("Torch.fft.0.forward", [x], [Value(entry.array, 0, entry.about | statistics)])
        path = book.write()
        np.save(path / "step0" / "rank" / "dump_tensor_data" / "2.npy", values)
        paths.append(path)
    row = compare(*paths).rows["Torch.fft.0.forward.output.0"]
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


# MindSpore against PyTorch: another spelling of a type was an error in every row.


def test_two_frameworks_agree_where_their_values_do(tmp_path, capsys):
    x, y = np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)
    for name, framework, api, dtype in (
        ("new", "mindspore", "Functional.abs", "Float32"),
        ("old", "pytorch", "Torch.abs", "torch.float32"),
    ):
        book = Book(tmp_path / name, framework=framework)
        of_framework = {"dtype": dtype}
        values = [Value(array, 0, of_framework) for array in (x, y)]
        book.call(f"{api}.0.forward", values[:1], values[1:]).write()
    code, out, _ = cli(capsys, "new", "old", "-am", "--json", "--exit-code")
    assert code == 0
    assert json.loads(out)["counts"]["equal"] == 2
    assert {row["Result"] for row in rows_of_xlsx(Path("output"))} == {"pass"}


def test_the_documented_api_mapping_is_taken_and_its_faults_have_lines(tmp_path, capsys):
    for name, framework, api in (
        ("new", "mindspore", "Primitive.Mine"),
        ("old", "pytorch", "Torch.theirs"),
    ):
        book = Book(tmp_path / name, framework=framework)
        book.call(f"{api}.0.forward", [value([1.0, 2.0])], [value([4.0])]).write()
    mapping = tmp_path / "api.yaml"
    good = (
        "- ms_api: Primitive.Mine\n  pt_api: Torch.theirs\n  ms_args: [0]\n  pt_args: [0]\n"
        "  ms_outputs: [0]\n  pt_outputs: [0]\n"
    )
    mapping.write_text(good)
    code, out, _ = cli(capsys, "new", "old", "-am", mapping, "--json")
    assert (code, json.loads(out)["counts"]["equal"]) == (0, 2)
    mapping.write_text(good.replace("ms_outputs: [0]", "ms_outputs: [0, 1]"))
    code, out, err = cli(capsys, "new", "old", "-am", mapping)
    assert (code, out) == (2, "")
    assert "api.yaml" in err
    assert "line 6" in err


# A change of shape crashed, and rows came in alphabetical order.


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("flags", [(), ("-i",)], ids=["now", "compare.json"])
def test_rows_stand_in_order_of_execution_though_a_shape_changed(tmp_path, capsys, task, flags):
    names = [f"Torch.{name}.0.forward" for name in ("zeta", "alpha", "mid")]
    for side, length in (("new", 3), ("old", 2)):
        book = Book(tmp_path / side, task)
        for name in names:
            book.call(name, [value([1.0, 2.0])], [value([1.0] * length + [2.0])])
        book.write()
    words: tuple[object, ...] = ("new", "old")
    if flags:
        dumps = {f"{key}_path": f"{side}/step0/rank/dump.json" for key, side in
                 (("npu", "new"), ("bench", "old"))}  # fmt: skip
        Path("compare.json").write_text(json.dumps(dumps))
        words = ("-i", "compare.json")
    code, out, _ = cli(capsys, *words, "--json")
    assert code == 0
    assert json.loads(out)["counts"]["shape"] == 3
    shown = [row["NPU Name"] for row in rows_of_xlsx(Path("output"))]
    assert shown == [f"{name}.{slot}.0" for name in names for slot in ("input", "output")]


# Rank 0 was left out of the sets of ranks.


@pytest.mark.parametrize("guilty", [0, 1])
def test_the_guilty_rank_is_named_also_if_it_is_rank_0(tmp_path, capsys, guilty):
    for rank in (0, 1):
        scale = 1.5 if rank == guilty else 1.0
        RankWriter(tmp_path / "new" / "step0" / f"rank{rank}", scale=scale)
        RankWriter(tmp_path / "old" / "step0" / f"rank{rank}")
    code, out, _ = cli(capsys, "new", "old", "--json", "-da")
    summary = json.loads(out)
    assert code == 0
    assert summary["first_difference"]["rank"] == guilty
    assert {entry["rank"] for entry in summary["introduced"]} == {guilty}
    [analysis] = Path("output").glob("diff_analyze_*.json")
    assert list(json.loads(analysis.read_text())) == [f"rank_{guilty}"]


# NaN that came in with the data: "no anomaly".


def test_nan_in_the_input_of_the_model_came_in_from_outside(tmp_path):
    nan = float("nan")

    def write(name: str, first: float) -> Path:
        x, y = value([first, 2.0], 1), value([first, 3.0], 2)
        book = Book(tmp_path / name)
        book.call("Torch.exp.0.forward", [x], [y], parent="Module.Net.forward.0")
        book.call("Module.Net.forward.0", [x], [y])
        return book.write()

    found = compare(write("new", nan), write("old", 1.0))
    assert found.culprits == []
    assert found.origin("Module.Net.forward.0.input.0") == "input"
    assert found.status("Torch.exp.0.forward.output.0") == "nonfinite"
    assert found.origin("Torch.exp.0.forward.output.0") == "inherited"
    assert found.summary["first_difference"]["origin"] == "input"


def test_nan_from_a_call_that_only_the_target_makes_is_its_fault_through_views_too(tmp_path):
    def write(name: str, *, spoils: bool) -> Path:
        x, last = np.array([[1.0, 2.0]], np.float32), np.array([3.0, 4.0], np.float32)
        net = "Module.Net.forward.0"
        book = Book(tmp_path / name)
        book.call("Torch.exp.0.forward", [value(last, 1)], [value(x, 2)], parent=net)
        if spoils:
            x = x.copy()
            x[0, 0] = np.nan
            made = value(x, 3, nan_count=1, finite_max=2.0, finite_min=2.0)
            book.call("Tensor.index_fill.0.forward", [value([[1.0, 2.0]], 2)], [made], parent=net)
            last = np.array([np.nan, np.nan], np.float32)
        # The transposed view in between is not recorded: nothing else leads to the maker.
        about = {"nan_count": 1, "finite_max": 2.0, "finite_min": 2.0} if spoils else {}
        inputs = [value(x.T.copy(), 4, **about)]
        book.call("Torch.cos.0.forward", inputs, [value(last, 5)], parent=net)
        return book.call(net, [value([0.5, 0.25])], [value(last, 5)]).write()

    found = compare(write("new", spoils=True), write("old", spoils=False))
    assert found.culprits == ["Tensor.index_fill.0.forward"]
    assert found.origin("Torch.cos.0.forward.input.0") == "inherited"


# Masks that differ and look the same by their largest and least element.


def masked(folder: Path, length: int, *, plants: bool = False) -> Path:
    """Write a run that lets only the first `length` positions through."""
    positions = np.arange(4)
    mask = positions < length
    scores = np.array([1.0, 2.0, 3.0, 5.0], np.float32)
    book = Book(folder)
    net = "Module.Net.forward.0"
    given = value(np.array([length, 0]), 3)
    book.call("Tensor.__lt__.0.forward", [value(positions, 4), given], [value(mask, 5)], parent=net)
    book.call("Tensor.__invert__.0.forward", [value(mask, 5)], [value(~mask, 6)], parent=net)
    book.call("Tensor.__invert__.1.forward", [value(~mask, 6)], [value(mask, 7)], parent=net)
    made = scores * mask * (2 if plants else 1)
    inputs = [value(scores, 8), value(mask, 7)]
    book.call("Tensor.__mul__.0.forward", inputs, [value(made, 9)], parent=net)
    book.call(net, [given], [value(made, 9)])
    return book.write()


def test_a_mask_made_from_other_values_is_inherited_though_it_looks_the_same(tmp_path):
    found = compare(masked(tmp_path / "new", 2), masked(tmp_path / "old", 3))
    assert found.status("Tensor.__mul__.0.forward.input.1") == "equal"
    assert found.culprits == []
    assert found.origin("Tensor.__mul__.0.forward.output.0") == "inherited"
    assert "mask" in found.reason("Tensor.__mul__.0.forward.output.0")


def test_a_mask_made_with_another_argument_is_inherited_too(tmp_path):
    def write(name: str, diagonal: int) -> Path:
        ones, scores = np.ones((3, 3), bool), np.arange(9, dtype=np.float32).reshape(3, 3)
        mask = np.tril(ones, diagonal)
        book = Book(tmp_path / name)
        book.call("Tensor.tril.0.forward", [value(ones), diagonal], [value(mask, 1)])
        inputs, made = [value(scores, 2), value(mask, 1)], [value(scores * mask, 3)]
        return book.call("Tensor.__mul__.0.forward", inputs, made).write()

    found = compare(write("new", 1), write("old", 0))
    assert found.culprits == ["Tensor.tril.0.forward"]
    assert found.origin("Tensor.__mul__.0.forward.output.0") == "inherited"


def test_a_mask_made_from_the_same_values_excuses_nobody(tmp_path):
    found = compare(masked(tmp_path / "new", 3, plants=True), masked(tmp_path / "old", 3))
    assert found.culprits == ["Tensor.__mul__.0.forward"]


@pytest.mark.parametrize("least", [(0.0, 10.0), (10.0, 0.0)])
def test_a_divisor_that_reaches_zero_since_it_differs_is_not_introduced(tmp_path, least):
    def write(name: str, least: float) -> Verdicts | Path:
        x = value([least, 900.0, 1000.0], 1)
        y = value([float("nan") if least == 0 else 1.0, 1.0, 1.0], 2)
        book = Book(tmp_path / name)
        book.call("Tensor.__truediv__.0.forward", [x, x], [y], parent="Module.Net.forward.0")
        return book.call("Module.Net.forward.0", [x], [y]).write()

    found = compare(write("new", least[0]), write("old", least[1]))
    assert found.culprits == []
    assert found.origin("Tensor.__truediv__.0.forward.output.0") == "amplified"


# Confusing output.


def test_exit_codes_and_one_line(tmp_path, capsys):
    new, old = write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old")
    assert cli(capsys, new, old, "--quiet")[0] == 0
    code, out, _ = cli(capsys, new, old, "--quiet", "--exit-code")
    assert (code, out.count("\n")) == (1, 1)
    assert cli(capsys, old, old, "--quiet", "--exit-code")[0] == 0
    for words in ((new,), (new, tmp_path / "none"), (new, old, "--tolerence", "x")):
        code, out, err = cli(capsys, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_arguments_that_agree_are_no_clutter_on_the_terminal(tmp_path, capsys):
    for name, eps in (("new", 1e-3), ("old", 1e-5)):
        book = Book(tmp_path / name)
        x = value([1.0, 2.0], 1)
        book.call("Functional.norm.0.forward", [x, 7, 1, eps], [value([eps], 2)]).write()
    _, out, _ = cli(capsys, "new", "old")
    assert "input.3" in out
    assert "input.1" not in out
    assert "input.2" not in out


def test_numeric_columns_hold_numbers_alone(tmp_path):
    import polars as pl

    found = compare(write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old"))
    frame = found.result.frame
    for column in ("error", "max_abs_err", "cosine", "target_max", "reference_norm", "ratio_1e3"):
        assert frame.schema[column] == pl.Float64


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_tables_of_all_ranks_can_be_merged(tmp_path, capsys, kind):
    new = write_dump(tmp_path / "new", ranks=("rank0", "rank1"), scale=1.5)
    old = write_dump(tmp_path / "old", ranks=("rank0", "rank1"))
    assert cli(capsys, new, old, "--format", kind, "--quiet")[0] == 0
    [worst] = Path("output").glob("worst_ranks_*.csv")
    assert len(rows_of_csv(worst)) > 0
    Path("merge.yaml").write_text(
        "api:\n  - Functional.linear.1.forward\ncompare_index:\n  - Max diff\n"
    )
    code = main(["merge_result", "-i", "output", "-o", "merged", "-config", "merge.yaml"])
    capsys.readouterr()
    assert code == 0
    assert list(Path("merged").iterdir())


# A layer mapping leaves behind what it came to.


def test_a_layer_mapping_is_written_as_a_data_mapping_that_does_the_same(tmp_path, capsys):
    for side, child in (("new", "fc"), ("old", "dense")):
        book = Book(tmp_path / side)
        x, y = value([1.0, 2.0], 1), value([3.0, 4.0], 2)
        module, net = f"Module.{child}.Linear.forward.0", "Module.Net.forward.0"
        book.call("Functional.linear.0.forward", [x], [y], parent=module, line=3)
        book.call(module, [x], [y], parameters={"weight": value([5.0])}, parent=net, line=2)
        book.call(net, [x], [y], line=1).write()
    Path("layers.yaml").write_text("TopLayer:\n  fc: dense\n")
    code, out, _ = cli(capsys, "new", "old", "-lm", "layers.yaml", "-o", "a", "--json")
    assert (code, json.loads(out)["equal"]) == (0, True)
    [mapping] = Path("a").glob("data_mapping_*.yaml")
    name = "Module.{}.Linear.forward.0.parameters.weight"
    assert yaml.safe_load(mapping.read_text())[name.format("fc")] == name.format("dense")
    code, again, _ = cli(capsys, "new", "old", "-dm", mapping, "-o", "b", "--json")
    assert json.loads(again)["counts"] == json.loads(out)["counts"]
    assert not list(Path("b").glob("data_mapping_*"))


def test_results_that_could_not_be_written_are_refused_before_the_work(tmp_path, capsys):
    Path("taken").write_text("")
    for place in ("taken", "taken/below"):
        # The dumps are looked at afterwards: these do not even exist.
        code, out, err = cli(capsys, "none", "nor", "-o", place)
        assert (code, out) == (2, "")
        assert "taken: is a file" in err


# What one level does not record at all was missing, and a gradient without its module a fault.


def of_level(folder: Path, level: str, scale: float = 1.0) -> Path:
    """Write a run of one module with one call in it, as a level records it."""
    book = Book(folder, level=level)
    x, y = value([1.0, 2.0], 1), value([scale, 4.0], 2)
    module = "Module.fc.Linear.forward.0" if level != "L1" else None
    if level != "L0":
        book.call("Functional.linear.0.forward", [x], [y], parent=module)
    if level != "L1":
        book.call("Module.fc.Linear.forward.0", [x], [y], parameters={"weight": value([5.0, 6.0])})
        book.gradients("Module.fc.Linear.parameters_grad", weight=value([7.0, 8.0]))
    return book.write()


@pytest.mark.parametrize("levels", [("mix", "L0"), ("L0", "mix"), ("L1", "mix"), ("mix", "L1")])
def test_levels_are_compared_by_what_both_record(tmp_path, capsys, levels):
    old = of_level(tmp_path / "old", levels[1])
    code, out, _ = cli(capsys, of_level(tmp_path / "new", levels[0]), old, "--json", "--exit-code")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (0, True)
    assert summary["rows"] == summary["counts"]["equal"] > 0
    [note] = [note for note in summary["notes"] if "different levels" in note]
    words = "modules" if "L0" in levels else "calls of APIs"
    assert f"only {words} were compared" in note
    found = compare(of_level(tmp_path / "bad", levels[0], scale=3.0), old)
    assert found.culprits == [
        "Module.fc.Linear.forward.0" if "L0" in levels else "Functional.linear.0.forward"
    ]


@pytest.mark.parametrize("level", ["L1", "debug"])
def test_levels_without_a_record_in_common_are_refused(tmp_path, capsys, level):
    new = of_level(tmp_path / "new", "L0")
    if level == "debug":
        old = write_debug_dump(tmp_path / "old", {"x": np.ones((2, 2), np.float32)})
    else:
        old = of_level(tmp_path / "old", level)
    code, out, err = cli(capsys, new, old)
    assert (code, out) == (2, "")
    assert "no record in common" in err


# Gradients that the optimizer or a clipping reads are no data from outside.


def test_a_gradient_that_is_read_again_is_inherited(tmp_path):
    def write(name: str, weight: float) -> Path:
        x, w, y = value([1.0, 2.0]), value([weight, 4.0]), value([weight, 8.0], 1)
        gradient = value([2 * weight, 16.0])
        fc = "Module.fc.Scale.forward.0"
        book = Book(tmp_path / name)
        book.call("Tensor.__mul__.0.forward", [x, w], [y], parent=fc)
        book.call(fc, [x], [y], parameters={"weight": w})
        book.gradients("Module.fc.Scale.parameters_grad", weight=gradient)
        book.call("Torch.norm.0.forward", [gradient], [value([weight + 3], 2)])
        return book.write()

    found = compare(write("new", 3.0), write("old", 2.0))
    assert found.culprits == ["Module.fc.Scale.forward.0"]
    assert found.origin("Torch.norm.0.forward.input.0") == "inherited"
    assert "parameters_grad.weight" in found.reason("Torch.norm.0.forward.input.0")


# Matrices for tensors were read only where there were tensors.


def test_a_file_of_matrices_is_looked_at_and_noted_without_tensors_too(tmp_path, capsys):
    dump = write_dump(tmp_path / "dump")
    config = Path("matrices.yaml")
    config.write_text("a: [")
    code, out, err = cli(capsys, dump, dump, "--config", config)
    assert (code, out) == (2, "")
    assert "matrices.yaml" in err
    np.save("q.npy", np.eye(8, dtype=np.float32))
    config.write_text("right_matmul:\n  target_tensor_map: {q.npy: [x.npy]}\n")
    code, out, _ = cli(capsys, dump, dump, "--config", config, "--json")
    assert code == 0
    assert any("matrices.yaml has no effect" in note for note in json.loads(out)["notes"])


# A run that ended early, or recorded nothing.


@pytest.mark.parametrize("is_target_empty", [True, False])
def test_a_side_without_records_makes_nothing_a_fault(tmp_path, capsys, is_target_empty):
    full = of_level(tmp_path / "full", "mix")
    empty = Book(tmp_path / "empty").write()
    dumps = (empty, full) if is_target_empty else (full, empty)
    code, out, _ = cli(capsys, *dumps, "--json", "--exit-code")
    summary = json.loads(out)
    assert (code, summary["equal"]) == (1, False)
    assert summary["counts"]["missing" if is_target_empty else "added"] == summary["rows"]
    assert summary["introduced"] == []
    assert summary["first_difference"]["name"] == "Functional.linear.0.forward.input.0"
    assert any("holds no records" in note for note in summary["notes"])


@pytest.mark.parametrize(("flags", "expected"), [((), 0), (("--exit-code",), 1)])
@pytest.mark.parametrize("form", [(), ("--json",), ("--quiet",)], ids=["text", "json", "quiet"])
def test_a_reader_who_leaves_early_does_not_change_the_exit_code(tmp_path, flags, expected, form):
    new, old = write_dump(tmp_path / "new", scale=1.5), write_dump(tmp_path / "old")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        words = [sys.executable, "-m", "msprobe", "compare", new, old, *flags, *form]
        ran = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert ran.returncode == expected
    assert "Error" not in ran.stderr


# Checksums beside statistics are no reason to refuse a dump that has statistics alone.


@pytest.mark.parametrize("other", ["statistics", "tensor"])
def test_checksums_with_statistics_are_compared_with_statistics(tmp_path, other):
    def write(name: str, task: str, factor: float) -> Path:
        about = {"md5": f"{int(factor):08x}"} if task == "md5" else {}
        book = Book(tmp_path / name, "tensor" if task == "tensor" else "statistics")
        x, y = value([1.0, 2.0], 1, **about), value([3.0 * factor, 4.0], 2, **about)
        return book.call("Torch.exp.0.forward", [x], [y]).write()

    sums, plain = write("sums", "md5", 2.0), write("plain", other, 1.0)
    for target, reference, lacking in ((sums, plain, "reference"), (plain, sums, "target")):
        found = compare(target, reference)
        assert found.summary["mode"] == "statistics"
        assert found.status("Torch.exp.0.forward.input.0") == "equal"
        assert found.culprits == ["Torch.exp.0.forward"]
        assert any(f"the {lacking} kept no checksums" in note for note in found.summary["notes"])


# Data that one side makes while it is recorded are data all the same.


def test_data_made_inside_the_recording_are_no_fault_of_the_first_call(tmp_path):
    def write(name: str, data: float, *, is_recorded: bool) -> Path:
        number = 1 if is_recorded else 0
        x, y = value([data, 2.0], number), value([data * 3, 6.0], 2)
        book = Book(tmp_path / name)
        if is_recorded:
            book.call("Torch.randn.0.forward", [2], [x])
        net = "Module.Net.forward.0"
        book.call("Tensor.__mul__.0.forward", [x, 3.0], [y], parent=net)
        return book.call(net, [x], [y]).write()

    found = compare(write("new", 5.0, is_recorded=True), write("old", 4.0, is_recorded=False))
    assert found.culprits == []
    assert found.origin("Tensor.__mul__.0.forward.input.0") == "input"
    assert found.origin("Module.Net.forward.0.input.0") == "input"


def test_one_culprit_in_several_steps_is_one(tmp_path):
    new = write_dump(tmp_path / "new", scale=1.5, steps=(0, 1))
    summary = compare(new, write_dump(tmp_path / "old", steps=(0, 1))).summary
    assert {entry["name"] for entry in summary["introduced"]} == {"Functional.linear.1.forward"}
    assert summary["introduced_total"] == 2
    assert not any("this one first" in step for step in summary["next_steps"])
