# SPDX-License-Identifier: Apache-2.0
"""`msprobe export` and queries: the values of a dump as one table."""

from __future__ import annotations

import polars as pl
import pytest

from builders.networks import write_dump
from msprobe import open_dump
from msprobe.cli import main
from msprobe.errors import UsageError


@pytest.fixture
def dump(tmp_path):
    return write_dump(tmp_path / "dump")


def test_all_values_are_written_in_each_format(capsys, tmp_path, dump):
    frame = open_dump(dump).frame()
    assert frame.height > 10
    assert {"step", "rank", "record", "slot", "norm"} <= set(frame.columns)
    for name, read in (
        ("values.parquet", pl.read_parquet),
        ("values.csv", pl.read_csv),
        ("values.jsonl", pl.read_ndjson),
    ):
        assert main(["export", str(dump), str(tmp_path / name)]) == 0
        assert f"{frame.height:,} rows" in capsys.readouterr().out
        found = read(tmp_path / name)
        assert found["record"].to_list() == frame["record"].to_list()
        assert found["norm"].to_list() == frame["norm"].to_list()


def test_a_query_chooses_rows_and_columns(tmp_path, dump):
    query = "select record, max(norm) as norm from records where step = 0 group by record"
    found = open_dump(dump).sql(query)
    frame = open_dump(dump).frame()
    assert found.columns == ["record", "norm"]
    assert found.height == frame["record"].n_unique()
    assert main(["export", str(dump), str(tmp_path / "some.parquet"), "--sql", query]) == 0
    assert pl.read_parquet(tmp_path / "some.parquet").height == found.height


def test_a_wrong_query_names_the_columns(dump):
    with pytest.raises(UsageError, match="the table is records, with the columns step, rank"):
        open_dump(dump).sql("select nrom from records")


def test_other_formats_are_refused(capsys, tmp_path, dump):
    assert main(["export", str(dump), str(tmp_path / "values.xls")]) == 2
    assert ".parquet, .csv, .jsonl" in capsys.readouterr().err
