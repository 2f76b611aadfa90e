# SPDX-License-Identifier: Apache-2.0
"""`msprobe export` and queries: the values of a dump as one table."""

from __future__ import annotations

import importlib.util
import json
import struct

import numpy as np
import polars as pl
import pytest

from builders.dumps import DumpBuilder, Value
from builders.networks import write_dump
from msprobe import compare_dumps, open_dump
from msprobe.cli import main
from msprobe.errors import UsageError
from msprobe.report.scalars import DIFFERENCES, STATISTICS, scalars_of


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


def test_json_lines_keep_what_is_not_finite(tmp_path):
    builder = DumpBuilder(tmp_path / "dump")
    given = [Value(np.float32(numbers)) for numbers in ([1, np.inf], [1, -np.inf], [np.nan], [1])]
    builder.call("Functional.cat.0.forward", given, [])
    builder.write()
    path = tmp_path / "values.jsonl"
    assert main(["export", str(tmp_path / "dump"), str(path)]) == 0
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["max"], row["min"]) for row in written] == [
        ("Infinity", 1.0), (1.0, "-Infinity"), ("NaN", "NaN"), (1.0, 1.0)
    ]  # fmt: skip
    assert [row["shape"] for row in written] == [[2], [2], [1], [1]]
    query = ["--sql", "select slot from records"]
    assert main(["export", str(tmp_path / "dump"), str(path), *query]) == 0
    assert json.loads(path.read_text().splitlines()[0]) == {"slot": "input.0"}


def test_a_query_chooses_rows_and_columns(tmp_path, dump):
    query = "select record, max(norm) as norm from records where step = 0 group by record"
    found = open_dump(dump).sql(query)
    frame = open_dump(dump).frame()
    assert found.columns == ["record", "norm"]
    assert found.height == frame["record"].n_unique()
    assert main(["export", str(dump), str(tmp_path / "some.parquet"), "--sql", query]) == 0
    assert pl.read_parquet(tmp_path / "some.parquet").height == found.height


def test_data_sets_and_duckdb_read_the_file(tmp_path, dump):
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "values.parquet"
    assert main(["export", str(dump), str(path)]) == 0
    frame = open_dump(dump).frame()
    read = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "c"))
    assert read["train"]["norm"][:] == frame["norm"].to_list()
    duckdb = pytest.importorskip("duckdb")
    ((count,),) = duckdb.sql(f"select count(norm) from '{path}'").fetchall()
    assert count == frame["norm"].count()


def test_a_wrong_query_names_the_columns(dump):
    with pytest.raises(UsageError, match="the table is records, with the columns step, rank"):
        open_dump(dump).sql("select nrom from records")


def test_other_formats_are_refused(capsys, tmp_path, dump):
    assert main(["export", str(dump), str(tmp_path / "values.xls")]) == 2
    assert ".parquet, .csv, .jsonl" in capsys.readouterr().err


def test_scalars_of_a_dump_become_events(capsys, tmp_path, dump):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    assert main(["export", str(dump), "--tensorboard", str(tmp_path / "events")]) == 0
    written = {}
    for path in (tmp_path / "events").glob("rank0/*"):
        for event in loader.EventFileLoader(str(path)).Load():
            for one in event.summary.value:
                written[event.step, one.tag] = one.tensor.float_val[0]
    frame = open_dump(dump).frame().filter(pl.col("rank") == "0")
    expected = {
        (step, f"{record}/{slot}/norm"): norm
        for step, record, slot, norm in frame.select("step", "record", "slot", "norm").iter_rows()
        if norm is not None
    }
    found = {key: value for key, value in written.items() if key[1].endswith("/norm")}
    assert found == pytest.approx(expected, rel=1e-6)
    assert f"wrote {len(written):,} scalars" in capsys.readouterr().out


def test_scalars_of_a_comparison_and_of_a_dump_in_mlflow(capsys, tmp_path, dump, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no other local one
    other = write_dump(tmp_path / "other")
    words = ["export", str(dump), "--against", str(other), "--mlflow", "ports"]
    assert main(words) == 0
    assert "scalars to MLflow experiment ports" in capsys.readouterr().out
    runs = mlflow.search_runs(experiment_names=["ports"], output_format="list")
    frame = compare_dumps(dump, other).frame
    expected = {
        f"{record}/{slot}/error": error
        for record, slot, error in frame.select("operation", "slot", "error").iter_rows()
        if error is not None
    }
    found = {name: value for run in runs for name, value in run.data.metrics.items()}
    assert expected
    assert {name: found[name] for name in found if name.endswith("/error")} == expected


def test_a_place_that_mlflow_refuses_is_named(capsys, dump, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://runs")
    assert main(["export", str(dump), "--mlflow", "ports"]) == 2
    assert "MLflow cannot write (see MLFLOW_TRACKING_URI)" in capsys.readouterr().err


def test_scalars_of_a_dump_in_wandb(tmp_path, dump, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert main(["export", str(dump), "--wandb", "ports"]) == 0
    wandb.teardown()  # its service writes the end of the file after `finish` has returned
    (written,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    expected = {
        (step, f"{record}/{slot}/norm"): norm
        for step, record, slot, norm in open_dump(dump)
        .frame()
        .select("step", "record", "slot", "norm")
        .iter_rows()
        if norm is not None
    }
    found = {key: value for key, value in _history(written).items() if key[1].endswith("/norm")}
    assert found == expected


def _history(path):
    """Return what the file of an offline run of W&B holds: step, name and value."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, found = path.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):  # a log of LevelDB behind seven bytes: blocks of 32 kB
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or its last part
            record, parts = Record.FromString(parts), b""
            for item in record.history.item:
                name = item.key or "/".join(item.nested_key)
                found[record.history.step.num, name] = json.loads(item.value_json)
    return found


def test_scalars_of_tables_are_in_order_of_steps(dump):
    frame = open_dump(dump).frame()
    found = list(scalars_of(frame.reverse(), STATISTICS))
    assert [(each.run, each.step) for each in found] == sorted(
        (each.run, each.step) for each in found
    )
    assert sum(len(each.values) for each in found) == sum(
        frame[column].is_not_null().sum() for column in STATISTICS
    )


def test_scalars_without_ranks_are_a_run_called_rank(dump):
    frame = open_dump(dump).frame()
    alone = frame.with_columns(rank=pl.lit("rank"))
    assert {each.run for each in scalars_of(alone, STATISTICS)} == {"rank"}
    assert {each.run for each in scalars_of(frame, STATISTICS)} == {"rank0"}


def test_scalars_of_a_comparison_are_its_errors(tmp_path, dump):
    frame = compare_dumps(dump, write_dump(tmp_path / "other")).frame
    found = list(scalars_of(frame, DIFFERENCES))
    assert sum(len(each.values) for each in found) == sum(
        frame[column].is_not_null().sum() for column in DIFFERENCES
    )
    assert all(value == 0 for each in found for tag, value in each.values.items()
               if tag.endswith("max_abs_err"))  # fmt: skip


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named(package, capsys, tmp_path, dump):
    option = f"--{package}"
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    for words in ([], ["--against", str(dump)]):
        assert main(["export", str(dump), option, str(tmp_path / "out"), *words]) == 2
        assert f"need the package {package}" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    ([], "name a file to write"),
    (["values.csv", "--tensorboard", "events"], "without FILE and --sql"),
    (["values.csv", "--against", "other"], "--against goes with"),
])  # fmt: skip
def test_options_that_do_not_fit_together_are_refused(words, message, capsys, dump):
    assert main(["export", str(dump), *words]) == 2
    assert message in capsys.readouterr().err
