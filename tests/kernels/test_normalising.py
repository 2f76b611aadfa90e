# SPDX-License-Identifier: Apache-2.0
"""What is left of an iteration after it was brought into shape."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from builders.csv_files import csv_rows
from builders.kernel_binaries import Value, write
from msprobe.dump.kernel_files import find_kernel_folders
from msprobe.kernels.normalising import Wanted, clear_kernel_dump, normalise, read_code
from msprobe.kernels.overflow_info import overflowed_parts

NAMES = ["Default/fc1-Dense/MatMul-op0", "Default/relu-ReLU/ReLU-op1"]


@pytest.fixture
def folder(tmp_path):
    """An iteration with a product that overflows in between, and a weight."""
    place = tmp_path / "rank_0" / "Net" / "0" / "3"
    place.mkdir(parents=True)
    order = tmp_path / "rank_0" / "execution_order"
    order.mkdir()
    lines = ["NodeExecutionOrder-FullNameWithScope", *NAMES]
    (order / "ms_execution_order_graph_0.csv").write_text("\n".join(lines) + "\n")
    finite, wild = np.array([1.0, 2.0], np.float32), np.array([np.inf, np.nan], np.float32)
    for op_type, name, time, io, values in (
        ("MatMul", NAMES[0], 1000, "input", finite),
        ("MatMul", NAMES[0], 1001, "output", wild),
        ("ReLU", NAMES[1], 2000, "input", wild),
        ("ReLU", NAMES[1], 2001, "output", finite),
        ("Parameter", "fc1_weight", 3000, "output", finite),
    ):
        flat = name.replace("/", "_")
        np.save(place / f"{op_type}.{flat}.0.0.{time}.{io}.0.DefaultFormat.Float32.npy", values)
    (found,) = find_kernel_folders(tmp_path)
    return found


def types(folder):
    return sorted(path.name.partition(".")[0] for path in folder.directory.glob("*.npy"))


def test_everything_is_listed_in_order(folder):
    done = normalise(folder, Wanted())
    assert (done.kernels, done.values, done.overflowing, done.notes) == (3, 5, [], [])
    rows = csv_rows(folder.directory / "kernel_index.csv")
    assert [(row["Order"], row["Full Name"], row["IO"]) for row in rows] == [
        ("0", NAMES[0], "input"),
        ("0", NAMES[0], "output"),
        ("1", NAMES[1], "input"),
        ("1", NAMES[1], "output"),
        ("2", "fc1_weight", "output"),
    ]
    assert len(types(folder)) == 5
    assert normalise(folder, Wanted()).values == 5  # a second time, too


def test_statistics_replace_tensors(folder):
    normalise(folder, Wanted(statistics=True, checksums=True))
    assert types(folder) == []
    rows = csv_rows(folder.directory / "statistic.csv")
    assert [row["Op Name"] for row in rows] == [*np.repeat(NAMES, 2), "fc1_weight"]
    assert (rows[1]["NaN Count"], rows[1]["Positive Inf Count"]) == ("1", "1")
    assert float(rows[0]["L2Norm Value"]) == pytest.approx(5**0.5)
    assert (rows[0]["Data Type"], rows[0]["Shape"], rows[0]["Data Size"]) == (
        "Float32", "(2)", "8",
    )  # fmt: skip
    assert {len(row["MD5"]) for row in rows} == {8}
    index = csv_rows(folder.directory / "kernel_index.csv")
    assert {(row["File"], row["Shape"]) for row in index} == {("", "(2)")}


COUNTS = (
    "Count", "Negative Zero Count", "Positive Zero Count", "NaN Count", "Negative Inf Count",
    "Positive Inf Count", "Zero Count",
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([-2.0, -0.0, 0.0, 3.0, np.nan, -np.inf, np.inf], (7, 2, 2, 1, 1, 1, 2)),
        (np.array([-2, 0, 5, 5], np.int64), (4, 1, 2, 0, 0, 0, 1)),
        (np.array([0, 255], np.uint8), (2, 0, 1, 0, 0, 0, 1)),
        (np.array([True, False, False]), (3, 0, 1, 0, 0, 0, 2)),
        (np.array([3 - 4j, 0j, complex(np.nan, 1)]), (3, 0, 1, 1, 0, 0, 1)),
        (np.zeros((0, 3), np.float32), (0, 0, 0, 0, 0, 0, 0)),
    ],
)
def test_elements_are_counted_by_kind(folder, values, counts):
    """The library's "Negative Zero Count" counts elements below zero, and so on."""
    place = next(folder.directory.glob("ReLU.*output*"))
    np.save(place, values)
    normalise(folder, Wanted(statistics=True))
    row = csv_rows(folder.directory / "statistic.csv")[3]
    assert row["Op Type"] == "ReLU"
    assert tuple(int(row[name]) for name in COUNTS) == counts


@pytest.mark.parametrize("most", [None, 1])
def test_overflowing_operators_alone(folder, most):
    done = normalise(folder, Wanted(overflows=True, most=most))
    assert done.overflowing == ["MatMul.Default_fc1-Dense_MatMul-op0.0.forward"]
    assert types(folder) == ["MatMul", "MatMul"]


def test_no_more_overflows_than_wanted(folder):
    assert normalise(folder, Wanted(overflows=True, most=0)).overflowing == []
    assert types(folder) == []


def test_parts_of_the_time(folder):
    normalise(folder, Wanted(times=((0, 500), (1500, 2500))))
    assert types(folder) == ["ReLU", "ReLU"]


def test_notes_on_overflows(folder):
    raw = bytearray(2048)
    struct.pack_into("<Q", raw, 1040, 32)
    name = "Opdebug.Node_OpDebug.3.1.1795182233644492"
    write(folder.directory / name, [Value("output", 4, 2, (2048,), bytes(raw))])
    (folder.directory / "Opdebug.Node_OpDebug.3.2.1795182233644493.output.0.json").write_text(
        json.dumps({"AI Core": {"status": 0}, "L2 Atomic Add": {"status": 3}})
    )
    done = normalise(folder, Wanted())
    assert [overflowed_parts(json.loads(path.read_text())) for path in done.notes] == [
        ["AI Core: status 32"],
        ["L2 Atomic Add: status 3"],
    ]


def test_a_damaged_graph_only_lacks_sources(folder):
    assert read_code(folder) is None
    graphs = folder.directory.parents[2] / "graphs"
    graphs.mkdir()
    graph = graphs / "ms_output_trace_code_graph_0.ir"
    graph.write_text("nothing")
    assert read_code(folder) is None
    graph.write_text(
        f"  %0(x) = PrimFunc_MatMul(%1)\n      # Fullname with scope: ({NAMES[0]})\n"
        "      # In file /lib/site-packages/mindspore/nn/basic.py:7, 1~2/    y/\n"
        "      # In file train.py:5, 1~2/    x/\n"
    )
    normalise(folder, Wanted(), read_code(folder))
    rows = csv_rows(folder.directory / "kernel_index.csv")
    assert [row["Source"] for row in rows] == ["train.py:5", "train.py:5", "", "", "train.py:5"]


def test_clearing_leaves_what_is_not_of_the_dump(folder):
    normalise(folder, Wanted())
    mine = folder.directory / "notes.txt"
    mine.write_text("mine")
    root = folder.directory.parents[2]
    removed = clear_kernel_dump(root)
    assert removed == 7
    assert [path for path in root.rglob("*") if path.is_file()] == [mine]
    mine.unlink()
    assert clear_kernel_dump(root) == 0
    assert not root.exists()
    assert clear_kernel_dump(root) == 0
