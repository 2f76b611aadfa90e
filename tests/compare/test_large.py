# SPDX-License-Identifier: Apache-2.0
"""Comparisons of many rows: parquet files, made step by step, that say the same."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import msprobe
from builders.networks import write_dump
from msprobe.cli import main
from msprobe.compare import set_aside
from msprobe.errors import UsageError

STEPS = (0, 1, 2)


@pytest.fixture
def dumps(tmp_path):
    """Two ranks whose weights part in step 1: origins need the steps before and the other rank."""
    reference = write_dump(tmp_path / "reference", steps=STEPS, ranks=("rank0", "rank1"))
    for step in STEPS:
        for rank in (0, 1):
            write_dump(
                tmp_path / "target",
                steps=[step],
                ranks=[f"rank{rank}"],
                scale=1.01 if step and rank else 1.0,
                drift=0.1 * step,
                reduced=0.01,
            )
    return tmp_path / "target", reference


@pytest.fixture
def _few_are_many(monkeypatch):
    monkeypatch.setattr(set_aside, "LARGE_ROWS", 10)


def facts(summary):
    return {key: value for key, value in summary.items() if key not in ("elapsed_s", "notes")}


def test_rows_set_aside_give_the_same_answer(dumps, tmp_path, monkeypatch):
    kept = msprobe.compare_dumps(*dumps)
    monkeypatch.setattr(set_aside, "LARGE_ROWS", 10)
    out = tmp_path / "out"
    result = msprobe.compare_dumps(*dumps, output=out)
    assert facts(result.summary) == facts(kept.summary)
    assert result.frame.equals(kept.frame)
    assert result.worst_ranks().equals(kept.worst_ranks())
    tables = sorted(str(path.relative_to(out)).split("_2")[0] for path in out.rglob("*.parquet"))
    names = [f"step{step}/compare_result_rank{rank}" for step in STEPS for rank in (0, 1)]
    assert tables == [*names, "worst_ranks"]
    (first,) = out.glob("step0/*rank0*.parquet")
    assert pl.read_parquet(first).equals(kept.frame.filter(step=0, rank="0"))
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("_few_are_many")
def test_the_terminal_says_the_same_and_why_there_is_no_spreadsheet(dumps, tmp_path, capsys):
    words = ["compare", *map(str, dumps), "-v", "-o", str(tmp_path / "out")]
    main(words)
    many = capsys.readouterr().out
    main([*words, "--format", "csv"])
    few = capsys.readouterr().out

    def answer(text: str) -> list[str]:
        lines = text.partition("Notes")[0].partition("Written")[0].splitlines()
        return [line for line in lines if "judged by" not in line]

    assert answer(many) == answer(few)
    assert "parquet files because there are 126 rows in 6 tables; --format xlsx or csv" in " ".join(
        many.split()
    )


@pytest.mark.usefixtures("_few_are_many")
@pytest.mark.parametrize("words", [["--format", "csv"], ["--format", "xlsx"], ["--xlsx"]])
def test_a_format_that_was_asked_for_is_the_one_that_is_written(dumps, tmp_path, words):
    out = tmp_path / "out"
    main(["compare", *map(str, dumps), "-o", str(out), "--quiet", *words])
    assert len(list(out.rglob(f"compare_result*.{words[-1].strip('-')}"))) == 6
    assert list(out.rglob("*.parquet")) == []


@pytest.mark.usefixtures("_few_are_many")
def test_the_first_differences_of_large_comparisons_are_written(dumps, tmp_path):
    out = tmp_path / "out"
    main(["compare", *map(str, dumps), "-o", str(out), "--quiet", "-da"])
    assert len(list(out.rglob("compare_result*.parquet"))) == 6
    assert len(list(out.rglob("compare_result*.json"))) == 6


@pytest.mark.usefixtures("_few_are_many")
def test_rows_set_aside_make_no_spreadsheet(dumps, tmp_path):
    result = msprobe.compare_dumps(*dumps, output=tmp_path / "out")
    with pytest.raises(UsageError, match="parquet, not csv"):
        result.write(tmp_path / "other", table="csv")
    table = result.write(tmp_path / "other")[0]
    assert table.suffix == ".parquet"
    assert len(list((tmp_path / "out").rglob(table.name.rpartition("_")[0] + "*"))) == 3
    assert result.frame.height == 126


@pytest.mark.usefixtures("_few_are_many")
def test_an_error_on_the_way_leaves_no_files(dumps, tmp_path):
    (dumps[0] / "step2" / "rank1" / "dump.json").write_text('{"data": {')
    out = tmp_path / "out"
    assert main(["compare", *map(str, dumps), "-o", str(out), "--quiet"]) == 2
    assert list(out.rglob("*")) == []


@pytest.mark.parametrize(("most", "suffix"), [(6, "xlsx"), (5, "parquet")])
def test_many_tables_are_parquet_files(dumps, tmp_path, monkeypatch, most, suffix):
    monkeypatch.setattr(set_aside, "MANY_TABLES", most)
    result = msprobe.compare_dumps(*dumps, output=tmp_path / "out")
    assert len(list((tmp_path / "out").rglob(f"compare_result*.{suffix}"))) == 6
    assert any("in 6 tables" in note for note in result.summary["notes"]) is (suffix == "parquet")


def test_the_time_is_that_of_the_whole_call(dumps, tmp_path):
    result = msprobe.compare_dumps(*dumps)
    before = result.summary["elapsed_s"]
    files = result.write(tmp_path / "out", html=True)
    assert result.summary["elapsed_s"] > before
    summary = json.loads(Path(files[-1]).read_text())
    assert summary["elapsed_s"] == result.summary["elapsed_s"]
