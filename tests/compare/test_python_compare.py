# SPDX-License-Identifier: Apache-2.0
"""`compare` and `compare_distributed` of `msprobe.pytorch`, as existing scripts call them."""

from __future__ import annotations

import json

import pytest
import python_calamine

from builders.networks import write_dump
from msprobe.errors import ConfigError, UsageError

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("msprobe.pytorch")
pytestmark = pytest.mark.torch


@pytest.fixture
def pair(tmp_path):
    return (
        write_dump(tmp_path / "new", "tensor", ranks=("rank0", "rank1"), scale=1.5),
        write_dump(tmp_path / "old", "tensor", ranks=("rank0", "rank1")),
    )


def names(folder):
    return {path.name.rpartition("_")[0] or path.name for path in folder.iterdir()}


def test_compare_two_files(tmp_path, pair):
    param = {
        "npu_json_path": str(pair[0] / "step0/rank1/dump.json"),
        "bench_json_path": str(pair[1] / "step0/rank1/dump.json"),
        "stack_json_path": str(pair[0] / "step0/rank1/stack.json"),
        "is_print_compare_log": True,
    }
    result = adapter.compare(param, str(tmp_path / "out"), True, True, False, True)
    assert result.summary["introduced"][0]["name"] == "Functional.linear.1.forward"
    assert names(tmp_path / "out") == {"compare_result", "advisor", "summary.json"}


def test_choices_of_the_call(tmp_path, pair):
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"npu_path": str(pair[0]), "bench_path": str(pair[1])}))
    adapter.compare(path, tmp_path / "out", auto_analyze=False, fuzzy_match=True)
    assert names(tmp_path / "out") == {
        "compare_result_rank0-rank0",
        "compare_result_rank1-rank1",
        "worst_ranks",
        "summary.json",
    }


def test_compare_all_ranks_of_a_step(tmp_path, pair):
    result = adapter.compare_distributed(
        str(pair[0] / "step0"),
        str(pair[1] / "step0"),
        tmp_path / "out",
        auto_analyze=False,
        is_print_compare_log=False,
    )
    assert [part["rank"] for part in result.summary["comparisons"]] == [0, 1]
    assert "compare_result_rank1-rank1" in names(tmp_path / "out")


def test_a_folder_with_one_rank_names_it_too(tmp_path):
    for side, rank in (("new", "rank3"), ("old", "rank0")):
        write_dump(tmp_path / side, ranks=(rank,))
    adapter.compare_distributed(tmp_path / "new/step0", tmp_path / "old/step0", tmp_path / "out")
    assert names(tmp_path / "out") >= {"compare_result_rank3-rank0", "advisor_rank3-rank0"}


def header(folder):
    (path,) = folder.glob("compare_result_*.xlsx")
    return python_calamine.CalamineWorkbook.from_path(path).get_sheet_by_index(0).to_python()[0]


@pytest.mark.parametrize(
    ("names_stacks", "stack_mode", "is_there"),
    [(True, True, True), (True, False, False), (False, False, True), (False, True, True)],
)
def test_the_stack_column(tmp_path, pair, names_stacks, stack_mode, is_there):
    rank = pair[0] / "step0/rank1"
    param = {
        "npu_json_path": str(rank / "dump.json"),
        "bench_json_path": str(pair[1] / "step0/rank1/dump.json"),
    }
    if names_stacks:
        param["stack_json_path"] = str(rank / "stack.json")
    adapter.compare(param, tmp_path / "out", stack_mode=stack_mode)
    assert ("NPU_Stack_Info" in header(tmp_path / "out")) is is_there


def test_a_stack_file_that_is_not_there_is_refused(tmp_path, pair):
    paths = [str(side / "step0/rank1/dump.json") for side in pair]
    param = {"npu_json_path": paths[0], "bench_json_path": paths[1], "stack_json_path": "gone.json"}
    with pytest.raises(ConfigError, match=r"stack_json_path.*gone\.json"):
        adapter.compare(param, tmp_path / "out")


def test_a_data_mapping_in_the_call(tmp_path, pair):
    name = "Functional.linear.0.forward.input.0"
    result = adapter.compare(
        {"npu_path": str(pair[0]), "bench_path": str(pair[1])},
        tmp_path / "out",
        data_mapping={name: "N/A"},
    )
    alone = result.frame.filter(name=name, rank="0")
    assert alone["status"].to_list() == ["added", "missing"]


def test_refusals(tmp_path, pair):
    with pytest.raises(UsageError, match="suffix"):
        adapter.compare_distributed(*pair, tmp_path / "out", suffix="_rank0")
    with pytest.raises(ConfigError, match="bench_path"):
        adapter.compare({"npu_json_path": str(pair[0])}, tmp_path / "out")
    with pytest.raises(ConfigError, match="golden"):
        adapter.compare({"npu_json_path": "x", "golden": "y"}, tmp_path / "out")
