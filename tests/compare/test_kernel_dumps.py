# SPDX-License-Identifier: Apache-2.0
"""Kernel dumps of MindSpore, compared: files of values, statistics, one against the other."""

from __future__ import annotations

import polars as pl
import pytest

import msprobe
from builders.kernel_trees import FC1, GRAD, RELU, flat, iteration, write_network, write_statistics
from msprobe.errors import DumpFormatError

FAULT = f"ReLU.{flat(RELU)}.0.forward"


@pytest.fixture
def pair(tmp_path):
    write_network(tmp_path / "new", scale=1.5)
    write_network(tmp_path / "old")
    return tmp_path / "new", tmp_path / "old"


def test_the_faulty_kernel_is_named(pair):
    result = msprobe.compare_dumps(*pair)
    assert result.summary["mode"] == "tensor"
    culprit = result.summary["introduced"][0]
    assert (culprit["name"], culprit["module"]) == (FAULT, "network._backbone.relu")
    statuses = dict(result.frame.group_by("operation").agg(pl.col("status").unique()).iter_rows())
    assert statuses[f"MatMul.{flat(FC1)}.0.forward"] == ["equal"]
    assert statuses[f"MatMul.{flat(GRAD)}.0.backward"] == ["differs"]
    assert result.frame["target_max"].null_count() == 0


@pytest.mark.parametrize("below", ["rank_0", "rank_0/Net/0", "rank_0/Net/0/0"])
def test_any_folder_of_it_will_do(pair, below):
    whole = msprobe.compare_dumps(*pair).frame.drop("target_file", "reference_file")
    part = msprobe.compare_dumps(*(path / below for path in pair)).frame
    assert part.drop("target_file", "reference_file").equals(whole)


def test_files_are_named_by_rank_and_step(tmp_path):
    for side in ("new", "old"):
        for rank in (0, 1):
            for step in (0, 3):
                write_network(tmp_path / side, rank=rank, step=step)
    out = tmp_path / "out"
    result = msprobe.compare_dumps(
        tmp_path / "new", tmp_path / "old", output=out, ranks=[1], table="csv"
    )
    assert result.is_equal
    names = {path.name.rpartition("_")[0] for path in out.glob("compare_result_*.csv")}
    assert names == {"compare_result_1_0", "compare_result_1_3"}


def test_kernels_of_one_side_only(pair):
    for path in (pair[0] / "rank_0/Net/0/0").glob("ReLU.*"):
        path.unlink()
    result = msprobe.compare_dumps(*pair)
    missing = result.frame.filter(pl.col("status") == "missing")["operation"].unique().to_list()
    assert missing == [FAULT]
    assert result.summary["unmatched"]["reference"] == 1


def statistics(scale):
    return [
        f'MatMul,{FC1},5,0,100,input,0,64,Float32,"(2,8)",1.5,-2,0.25,0,0,0,3.5',
        f'MatMul,{FC1},5,0,101,output,0,64,Float32,"(2,4)",2.5,-2.5,0.5,0,0,0,7.5,',
        f'ReLU,{RELU},6,0,102,input,0,64,Float32,"(2,4)",2.5,-2.5,0.5,0,0,0,7.5,',
        f'ReLU,{RELU},6,0,103,output,0,64,Float32,"(2,4)",{2.5 * scale},0,'
        f"{0.75 * scale},0,0,0,{4.5 * scale}",
    ]


def test_statistics_of_kernels(tmp_path):
    for side, scale in (("new", 1.5), ("old", 1.0)):
        write_statistics(iteration(tmp_path / side), statistics(scale))
    result = msprobe.compare_dumps(tmp_path / "new", tmp_path / "old", output=tmp_path / "out")
    assert result.summary["mode"] == "statistics"
    assert [each["name"] for each in result.summary["introduced"]] == [FAULT]
    assert result.summary["introduced"][0]["error"] == pytest.approx(0.5)


def test_values_against_statistics(tmp_path):
    write_network(tmp_path / "new", scale=1.0)
    write_statistics(iteration(tmp_path / "old"), statistics(1.0))
    summary = msprobe.compare_dumps(tmp_path / "new", tmp_path / "old").summary
    assert summary["mode"] == "statistics"
    assert any("the reference kept no tensors" in note for note in summary["notes"])


def test_a_damaged_file_is_a_problem_of_its_row(pair):
    path = next((pair[0] / "rank_0/Net/0/0").glob("ReLU.*.output.*"))
    path.write_bytes(path.read_bytes()[:-4])
    frame = msprobe.compare_dumps(*pair).frame
    row = frame.row(by_predicate=pl.col("name") == f"{FAULT}.output.0", named=True)
    assert row["status"] != "equal"
    assert path.name in row["target_value"]
    assert row["count"] is None
    assert frame["count"].null_count() == 1


def test_a_folder_without_any_dump_is_refused(tmp_path, pair):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpFormatError, match="holds no dump"):
        msprobe.compare_dumps(pair[0], tmp_path / "empty")
