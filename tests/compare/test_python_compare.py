# SPDX-License-Identifier: Apache-2.0
"""`compare` and `compare_distributed` of `msprobe.pytorch`, as existing scripts call them."""

from __future__ import annotations

import json

import pytest
from run_dumps import write_dump

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
        "compare_result_rank0",
        "compare_result_rank1",
        "worst_ranks",
        "summary.json",
    }


def test_compare_all_ranks_of_a_step(tmp_path, pair):
    result = adapter.compare_distributed(
        str(pair[0] / "step0"), str(pair[1] / "step0"), tmp_path / "out", auto_analyze=False
    )
    assert [part["rank"] for part in result.summary["comparisons"]] == [0, 1]
    assert "compare_result_rank1" in names(tmp_path / "out")


def test_refusals(tmp_path, pair):
    with pytest.raises(UsageError, match="suffix"):
        adapter.compare_distributed(*pair, tmp_path / "out", suffix="_rank0")
    with pytest.raises(ConfigError, match="bench_path"):
        adapter.compare({"npu_json_path": str(pair[0])}, tmp_path / "out")
    with pytest.raises(ConfigError, match="golden"):
        adapter.compare({"npu_json_path": "x", "golden": "y"}, tmp_path / "out")
