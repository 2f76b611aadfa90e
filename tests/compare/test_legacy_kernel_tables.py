# SPDX-License-Identifier: Apache-2.0
"""The tables of kernel dumps: files of values, and statistics."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from judging import judged_views

from msprobe.compare.legacy.tables import legacy_table
from msprobe.dump.kernel_views import open_kernel_dump
from msprobe.report.tables import Colour

IDENTITY = [
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
]
STATISTICS = [
    "NPU max",
    "NPU min",
    "NPU mean",
    "NPU l2norm",
    "Bench max",
    "Bench min",
    "Bench mean",
    "Bench l2norm",
]
BASE = [*IDENTITY, *STATISTICS, "Accuracy Reached or Not", "Err_message"]
OWN = ["Status", "Origin", "Error", "Reason"]
VALUES = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)


def npy(path, kernel, values, time, io="output"):
    name = f"{kernel}.Default_{kernel}-op0.0.0.{time}.{io}.0.DefaultFormat.Float32.npy"
    np.save(folder_of(path) / name, values)


def folder_of(path):
    found = path / "rank_0" / "Net" / "0" / "0"
    found.mkdir(parents=True, exist_ok=True)
    return found


def table_of(tmp_path):
    views = [open_kernel_dump(tmp_path / side).step().rank() for side in ("target", "reference")]
    table = legacy_table(judged_views(*views))
    rows = [dict(zip(table.columns, cells, strict=True)) for cells, _ in table.rows()]
    return list(table.columns), rows, [colour for _, colour in table.rows()]


@pytest.fixture
def values(tmp_path):
    for side, product, extra in (("target", VALUES * 2, "Only"), ("reference", VALUES, "Other")):
        npy(tmp_path / side, "Add", VALUES, 100)
        npy(tmp_path / side, "Mul", product, 200)
        npy(tmp_path / side, extra, VALUES, 300)
    return tmp_path


def test_tables_of_values_have_the_base_and_six_metrics(values):
    columns, rows, colours = table_of(values)
    metrics = ["Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr"]
    ratios = ["One Thousandth Err Ratio", "Five Thousandths Err Ratio"]
    assert columns == [*BASE, *metrics, *ratios, *OWN]
    by_kernel = {(row["NPU Name"] or row["Bench Name"]).split(".")[0]: row for row in rows}
    equal, different = by_kernel["Add"], by_kernel["Mul"]
    assert [equal[title] for title in ("Cosine", "MaxAbsErr", *ratios)] == [1.0, 0.0, 1.0, 1.0]
    assert equal["Accuracy Reached or Not"] == "Yes"
    assert different["MaxAbsErr"] == 3.0
    assert different["NPU max"] == 6.0
    assert different["Accuracy Reached or Not"] == "No"
    assert different["Err_message"]
    reds = [row["NPU Name"].split(".")[0] for row, c in zip(rows, colours, strict=True) if c]
    assert reds == ["Mul"]
    assert set(colours) == {None, Colour.RED}


def test_kernels_of_one_side_have_an_empty_name_on_the_other(values):
    _, rows, _ = table_of(values)
    names = {(row["NPU Name"].split(".")[0], row["Bench Name"].split(".")[0]) for row in rows}
    assert names == {("Add", "Add"), ("Mul", "Mul"), ("Only", ""), ("", "Other")}
    alone = next(row for row in rows if row["NPU Name"] == "")
    assert alone["Accuracy Reached or Not"] == "None"
    assert alone["Cosine"] == "unsupported"


TITLES = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,Avg Value,L2Norm Value"
)


def statistics(path, rows):
    found = folder_of(path) / "statistic.csv"
    with found.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(TITLES.split(","))
        for number, (kernel, four) in enumerate(rows):
            name = f"Default/{kernel}-op0"
            writer.writerow(
                [kernel, name, 0, 0, 100 + number, "output", 0, 48, "float32", "(3,4)", *four]
            )
    return found


def test_tables_of_statistics_name_their_files(tmp_path):
    good = (3.0, -2.0, 0.5, 5.0)
    # A large negative difference is one, too.
    rows = [("Add", good), ("Mul", (1.0, -2.0, 0.5, 5.0)), ("Sub", (9.0, -2.0, 0.5, 9.5))]
    mine = statistics(tmp_path / "target", rows)
    theirs = statistics(tmp_path / "reference", [("Add", good), ("Mul", good), ("Sub", good)])
    columns, found, colours = table_of(tmp_path)
    assert columns[: len(BASE)] == BASE
    assert columns[len(BASE) : -len(OWN)] == [
        "Max diff",
        "Min diff",
        "Mean diff",
        "L2norm diff",
        "MaxRelativeErr",
        "MinRelativeErr",
        "MeanRelativeErr",
        "NormRelativeErr",
        "NPU CSV File",
        "Bench CSV File",
    ]
    assert [row["Accuracy Reached or Not"] for row in found] == ["Yes", "No", "No"]
    assert [row["Max diff"] for row in found] == [0, -2.0, 6.0]
    assert {row["NPU CSV File"] for row in found} == {str(mine)}
    assert {row["Bench CSV File"] for row in found} == {str(theirs)}
    assert colours == [None, Colour.RED, Colour.RED]
