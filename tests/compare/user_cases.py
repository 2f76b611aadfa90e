# SPDX-License-Identifier: Apache-2.0
"""What users do with comparisons: run the command, look into its tables, judge two values."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import python_calamine
from judging import compare

from builders.dumps import DumpBuilder, Value, value
from msprobe.cli import main

TASKS = ("statistics", "tensor", "md5")


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
        dump = DumpBuilder(tmp_path / name, task)
        dump.call("Torch.made.0.forward", [value([1.0, 2.0], 1)], [made])
        paths.append(dump.write())
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
