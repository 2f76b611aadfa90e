# SPDX-License-Identifier: Apache-2.0
"""Files of the accuracy check, and `msprobe api_precision_compare` on two of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from msprobe.checks.accuracy_csv import (
    DetailRow,
    ResultRow,
    Style,
    new_files,
    read_details,
    read_results,
    resumed_files,
)
from msprobe.checks.standards.first_verdict import Status
from msprobe.checks.standards.metrics import Metrics
from msprobe.cli import main

BENCHMARK = Metrics(
    cosine=1.0,
    max_abs_error=1e-4,
    error_balance=0.0,
    rmse=1e-3,
    small_value_error=0.0,
    max_rel_error=1e-3,
    mean_rel_error=1e-17,
)
# As mindstudio-probe 26.2.0 writes them: unset cells are a space, messages have line breaks, and
# rows of results without a message have a field less.
PEER_DETAILS = (
    "\ufeffAPI Name,Bench Dtype,DEVICE Dtype,Shape,余弦相似度,最大绝对误差,双百指标,双千指标,"
    "双万指标,二进制一致错误率,误差均衡性,均方根误差,小值域错误占比,相对误差最大值,"
    "相对误差平均值,inf/nan错误率,相对误差错误率,绝对误差错误率,ULP误差最大值,ULP误差平均值,"
    "ULP误差大于阈值占比,Status,Message\r\n"
    'Torch.rand.0.forward.output.0,{17}SKIP,"Bench output is None"\r\n'
    'Functional.gelu.0.forward.output.0,torch.float64,torch.float32,"(4, 8)",1.00000000000000,'
    "0.00000009518962, , , , ,0.02441406250000,0.00000001384065,0,0.00000049403735,"
    '0.00000003587542, , , , , , ,pass,"\nMax abs error is small.\n"\r\n'
    'Tensor.__gt__.0.forward.output.0,torch.bool,torch.bool,"(4,)", , , , , ,0.5, , , , , , , , , '
    ", , ,error,\r\n"
).replace("{17}", " ," * 20)


def row(name: str = "Functional.gelu.0.forward.output.0", **changes) -> DetailRow:
    plain = DetailRow(
        name=name,
        dtype="float32",
        reference_dtype="float64",
        shape="(4, 8)",
        metrics=BENCHMARK,
        status=Status.PASS,
    )
    return replace(plain, **changes)


def write(directory: Path, *rows: DetailRow, style: Style = Style()) -> Path:  # noqa: B008
    files = new_files(directory, style)
    for call in {row.call: None for row in rows}:
        of_call = [row for row in rows if row.call == call]
        result = ResultRow(name=call, forward=Status.PASS, backward=None)
        files.add(result, of_call)
    return files.details


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def compare(*arguments: object) -> int:
    return main(["api_precision_compare", *map(str, arguments)])


@pytest.mark.parametrize("english", [False, True])
def test_files_are_read_as_they_were_written(tmp_path: Path, english: bool) -> None:
    rows = [
        row(),
        row("Tensor.mul.1.backward.output.0", status=Status.ERROR, message="=too, \n far"),
        row("Torch.rand.0.forward.output.0", metrics=Metrics(), dtype="", status=Status.SKIP),
    ]
    path = write(tmp_path, *rows, style=Style(english=english))
    assert read_details(path) == [rows[0], replace(rows[1], message="=too, far"), rows[2]]
    assert (cells(path)[0][4] == "cosine") is english
    assert {len(line) for line in cells(path)} == {23}
    results = path.with_name(path.name.replace("details", "result"))
    assert cells(results)[1] == ["Functional.gelu.0", "pass", " ", ""]
    assert [each.name for each in read_results(results)] == [each.call for each in rows]


def test_small_numbers_keep_their_digits(tmp_path: Path) -> None:
    (line,) = cells(write(tmp_path, row()))[1:]
    assert line[11] == "0.00100000000000"
    assert float(line[14]) == 1e-17


def test_files_of_the_other_tool_are_read(tmp_path: Path) -> None:
    path = tmp_path / "accuracy_checking_details_20261123063908.csv"
    path.write_text(PEER_DETAILS, encoding="utf-8", newline="")
    skipped, gelu, greater = read_details(path)
    assert (skipped.status, skipped.dtype) == (Status.SKIP, "")
    assert (gelu.dtype, gelu.shape, gelu.metrics.rmse) == ("float32", "(4, 8)", 1.384065e-08)
    assert (greater.metrics.binary_error, greater.status) == (0.5, Status.ERROR)
    assert (greater.call, greater.api) == ("Tensor.__gt__.0", "__gt__")


def test_an_interrupted_check_goes_on(tmp_path: Path) -> None:
    style = Style(english=True)
    details = write(tmp_path, row(), row("Tensor.mul.1.forward.output.0"), style=style)
    result = details.with_name(details.name.replace("details", "result"))
    # The process was killed between the details and the result, and within a line.
    last = cells(details)[-1]
    with details.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(["Torch.abs.0.forward.output.0", *last[1:]])
    with result.open("a", encoding="utf-8") as file:
        file.write("Torch.abs.0,pa")
    calls = {"Functional.gelu.0", "Tensor.mul.1"}
    files = resumed_files(result, Style(), calls=calls, shape_of=lambda each: each.shape)
    assert set(files.done) == {"Functional.gelu.0", "Tensor.mul.1"}
    again = row("Torch.abs.0.forward.output.0")
    files.add(ResultRow(name="Torch.abs.0", forward=Status.PASS, backward=None), [again])
    assert [each.call for each in read_details(details)] == [
        each.name for each in read_results(result)
    ]
    assert cells(details)[0][4] == "cosine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no column 'API Name'"),
        (PEER_DETAILS.replace("error,", "bad,"), "'bad' is no status"),
        (PEER_DETAILS.replace("0.00000009518962", "x1"), "'x1' is no number"),
        ("API Name,Status\n", "has no row"),
        ("\0", "no text"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, capsys, text, said) -> None:
    good = write(tmp_path, row())
    path = tmp_path / "other.csv"
    path.write_text(text, encoding="utf-8")
    assert compare(good, path, "-o", tmp_path) == 2
    assert said in capsys.readouterr().err


def test_two_devices_that_agree(tmp_path: Path, capsys) -> None:
    path = write(tmp_path, row(), row("Functional.gelu.0.backward.output.0"))
    assert compare("-npu", path, "-gpu", path, "-o", tmp_path / "out") == 0
    assert "2 outputs: 2 pass" in capsys.readouterr().out
    (result,) = (tmp_path / "out").glob("api_precision_compare_result_*.csv")
    assert cells(result) == [
        ["API Name", "Forward Test Success", "Backward Test Success", "Message"],
        ["Functional.gelu.0", "pass", "pass", ""],
    ]
    (details,) = (tmp_path / "out").glob("api_precision_compare_details_*.csv")
    title, line, _ = cells(details)
    assert title[1:5] == [
        "小值域错误比值",
        "小值域判定结果",
        "均方根误差比值",
        "均方根误差判定结果",
    ]
    assert title[-3:] == ["比对结果", "比对算法", "Message"]
    assert len(title) == len(line) == 28
    assert line[-3:] == ["pass", "标杆比对法", " "]


def test_a_less_precise_device_is_an_error(tmp_path: Path, capsys) -> None:
    worse = row(metrics=replace(BENCHMARK, rmse=0.1))
    target = write(tmp_path / "a", worse)
    reference = write(tmp_path / "b", row())
    assert compare(target, reference, "-o", tmp_path, "--english") == 1
    assert "root mean square error: ratio 100 is above 2" in capsys.readouterr().out
    (details,) = tmp_path.glob("api_precision_compare_details_*.csv")
    title, line = cells(details)
    assert dict(zip(title, line, strict=True))["rmse_result"] == "error"
    assert line[-2] == "benchmark"


def test_rows_that_one_side_lacks_are_listed_and_fail(tmp_path: Path, capsys) -> None:
    target = write(tmp_path / "a", row(), row("Tensor.mul.0.forward.output.0"))
    reference = write(tmp_path / "b", row(), row("Torch.abs.0.forward.output.0"))
    assert compare(target, reference, "-o", tmp_path) == 1
    said = capsys.readouterr().out
    assert "2 missing on one side" in said
    assert "Tensor.mul.0.forward.output.0: missing in the reference's file" in said
    assert "Torch.abs.0.forward.output.0: missing in the target's file" in said
    (details,) = tmp_path.glob("api_precision_compare_details_*.csv")
    assert len(cells(details)) == 4


def test_a_repeated_row_is_a_note_or_an_error(tmp_path: Path, capsys) -> None:
    once = write(tmp_path / "a", row())
    same = write(tmp_path / "b", row(), row())
    other = write(tmp_path / "c", row(), row(status=Status.ERROR))
    assert compare(once, same, "-o", tmp_path) == 0
    assert "is there twice" in capsys.readouterr().out
    assert compare(once, other, "-o", tmp_path) == 2
    assert "two different rows" in capsys.readouterr().err


def test_files_are_found_in_the_current_folder(tmp_path: Path, capsys, monkeypatch) -> None:
    worse = write(tmp_path, row(metrics=replace(BENCHMARK, rmse=0.1)))
    worse.rename(tmp_path / "npu_accuracy_checking_details_20260102030405.csv")
    better = write(tmp_path, row())
    better.rename(tmp_path / "gpu_accuracy_checking_details_20260102030405.csv")
    monkeypatch.chdir(tmp_path)
    assert compare() == 1
    assert "target:    npu_" in capsys.readouterr().out
    Path("gpu_accuracy_checking_details_20260102030405.csv").unlink()
    assert compare() == 2
    assert "name two files" in capsys.readouterr().err


def test_limits_go_with_the_spelling_of_the_command(tmp_path: Path) -> None:
    name = "Torch.matmul.0.forward.output.0"
    target = write(tmp_path / "a", row(name, metrics=replace(BENCHMARK, max_rel_error=5e-3)))
    reference = write(tmp_path / "b", row(name))
    both = ["-npu", str(target), "-gpu", str(reference), "-o", str(tmp_path)]
    assert main(["api_precision_compare", *both]) == 1
    assert main(["-f", "pytorch", "api_precision_compare", *both]) == 0
