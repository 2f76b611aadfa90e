# SPDX-License-Identifier: Apache-2.0
"""Runs in the formats of other programs: written as documented, read back without loss."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import msprobe
from msprobe.cli import main
from msprobe.errors import MonitorFormatError
from msprobe.monitor.exports import ExportFormat, export, import_run
from msprobe.monitor.rows import MISSING, Layout, Rows
from msprobe.monitor.store import RunWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("0.layers.1.mlp.output", "embedding.output")
    actv = Layout("actv", ("min", "norm"), names, (0, 1), (0, 0), ("[4, 2]",) * 2, ("f32",) * 2)
    state = Layout("exp_avg_sq", ("norm",), ("w",), (0,), (0,), ("[4]",), ("f32",))
    for rank in range(2):
        with RunWriter(tmp_path / "run", rank, {"began": "2026-01-02T03:04:05+00:00"}) as writer:
            for step in range(6):
                for micro in range(2):
                    values = np.array([[-1.0 - step, MISSING], [rank + 2.5, np.nan]])
                    writer.append(Rows(actv, rank, step, micro, 0.0, values))
                writer.append(Rows(state, rank, step, 0, 0.0, np.array([[1.23456789e-9]])))
    return tmp_path / "run"


def test_csv_files_have_names_windows_and_headers_of_the_documents(
    folder: Path, tmp_path: Path
) -> None:
    with msprobe.open_monitor(folder) as run:
        written = export(run, tmp_path / "csv", ExportFormat.CSV, steps_per_file=5)
    names = sorted(path.name for path in written)
    expected = ["actv_0-4.csv", "actv_5-9.csv", "exp_avg_sq_0-4.csv", "exp_avg_sq_5-9.csv"]
    assert names == sorted(expected * 2)
    assert all(path.parent.name.startswith("Jan02_03-04-05-rank") for path in written)
    first = next(path for path in written if path.name == "actv_0-4.csv")
    lines = first.read_text().splitlines()
    assert lines[0] == "vpp_stage,name,step,micro_step,min,norm,shape,dtype"
    assert lines[1] == '0,0.layers.1.mlp.output,0,0,-1.0,2.5,"[4, 2]",f32'
    state = next(path for path in written if path.name == "exp_avg_sq_0-4.csv")
    lines = state.read_text().splitlines()
    assert lines[0] == "vpp_stage,name,step,norm,shape,dtype"
    assert float(lines[1].split(",")[3]) == 1.23457e-9  # significant digits, not decimals


def test_counts_are_whole_numbers_in_csv_files(tmp_path: Path) -> None:
    layout = Layout("actv", ("zeros", "nans"), *map(tuple, ("ab", (0, 0), (0, 0), "ff", "gg")))
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        values = np.array([[0.5, MISSING], [1234567.0, MISSING]])
        writer.append(Rows(layout, 0, 0, 0, 0.0, values))
    with msprobe.open_monitor(tmp_path / "run") as run:
        (path,) = export(run, tmp_path / "csv", ExportFormat.CSV)
    assert path.read_text().splitlines()[1:] == ["0,a,0,0,0.5,1234567,f,g", "0,b,0,0,,,f,g"]


@pytest.mark.parametrize("kind", [ExportFormat.CSV, ExportFormat.TREND_DB])
def test_what_was_written_is_read_back(folder: Path, tmp_path: Path, kind: ExportFormat) -> None:
    with msprobe.open_monitor(folder) as run:
        export(run, tmp_path / "out", kind)
        expected = run.rows()
    import_run(tmp_path / "out", tmp_path / "again")
    with msprobe.open_monitor(tmp_path / "again") as run:
        found = run.rows()
    key = ["rank", "step", "micro_step", "stream", "chunk", "name", "op"]
    # Neither format knows a time, and a database no NaN.
    both = found.select(*key, "value").join(expected.select(*key, "value"), on=key, how="inner")
    finite = expected.filter(pl.col("value").is_finite())
    assert both.filter(pl.col("value").is_finite()).height == finite.height
    assert np.allclose(both["value"], both["value_right"], rtol=1e-5, atol=0, equal_nan=True)


def test_the_tables_of_a_trend_db(folder: Path, tmp_path: Path) -> None:
    with msprobe.open_monitor(folder) as run:
        (path,) = export(run, tmp_path, ExportFormat.TREND_DB)
    assert path.name == "monitor_data.trend.db"
    with closing(sqlite3.connect(path)) as database:
        ask = lambda text: database.execute(text).fetchall()  # noqa: E731
        assert ask("SELECT max_rank, min_step, max_step, actv FROM global_stats") == [
            (1, 0, 5, "min,norm")
        ]
        assert ask("SELECT metric_name FROM monitoring_metrics") == [("actv",), ("exp_avg_sq",)]
        tags = ask("SELECT tag_name, category FROM monitoring_tags")
        assert ("layers.1", "layer") in tags
        assert ("mlp", "module") in tags
        assert ask("SELECT count(*) FROM trend_data") == [(2 * 6 * 5,)]


def test_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("csv", "trend_db"):
        arguments = ["--data", str(folder), "--db", str(tmp_path / kind), "--to", kind]
        assert main(["data2db", *arguments]) == 0
    assert "monitor_data.trend.db" in capsys.readouterr().out
    again = ["--data", str(tmp_path / "csv"), "--db", str(tmp_path / "again")]
    assert main(["data2db", *again]) == 0
    assert (tmp_path / "again" / "monitor_data.trend.db").is_file()
    assert main(["data2db", "--data", str(tmp_path / "none"), "--db", str(tmp_path)]) == 2


def test_names_and_micro_steps_of_a_trend_db_as_asked(folder: Path, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.json"
    mapping.write_text('{"0.layers": "no", "0.layers.1": "0.blocks.7", "embed": "no"}')
    names = ["--mapping", str(mapping)]
    for micro_step, targets, steps in ((None, 3, 12), ("true", 3, 12), ("false", 5, 6)):
        words = ["--data", str(folder), "--db", str(tmp_path / "db"), *names]
        words += [] if micro_step is None else ["--micro_step", micro_step]
        assert main(["data2db", *words]) == 0
        with closing(sqlite3.connect(tmp_path / "db" / "monitor_data.trend.db")) as database:
            found = database.execute("SELECT target_name FROM monitoring_targets").fetchall()
            assert len(found) == targets
            assert set(found) == {("0.blocks.7.mlp.output",), ("embedding.output",), ("w",)}
            (axis,) = database.execute("SELECT count(DISTINCT step) FROM trend_data").fetchone()
            assert axis == steps
    words = ["data2db", "--data", str(folder), "--db", str(tmp_path / "db"), "--to", "csv", *names]
    assert main(words) == 2


@pytest.mark.parametrize("kind", [ExportFormat.CSV, ExportFormat.TREND_DB])
def test_calls_of_a_shared_module_are_kept_apart(tmp_path: Path, kind: ExportFormat) -> None:
    names, blank = ("shared.output",) * 2 + ("none.output",), ("",) * 3
    layout = Layout("actv", ("norm", "nans"), names, (0,) * 3, (0, 1, 0), blank, blank)
    values = np.array([[1.0, 2.0, MISSING], [0.0, 3.0, MISSING]])
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        writer.append(Rows(layout, 0, 0, 0, 0.0, values))
    with msprobe.open_monitor(tmp_path / "run") as run:
        export(run, tmp_path / "out", kind)
    import_run(tmp_path / "out", tmp_path / "again")
    with msprobe.open_monitor(tmp_path / "again") as run:
        found = run.table("actv").drop_nulls("norm").select("name", "call", "norm", "nans").rows()
    assert found == [("shared.output", 0, 1.0, 0.0), ("shared.output", 1, 2.0, 3.0)]


def test_events_of_calls_have_tags_of_their_own(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    blank = ("", "")
    layout = Layout("actv", ("norm",), ("a.output",) * 2, (0, 0), (0, 1), blank, blank)
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        writer.append(Rows(layout, 0, 0, 1, 0.0, np.array([[1.0, 2.0]])))
    with msprobe.open_monitor(tmp_path / "run") as run:
        export(run, tmp_path / "tb", ExportFormat.TENSORBOARD)
    (path,) = (tmp_path / "tb" / "rank0" / "actv").iterdir()
    events = loader.EventFileLoader(str(path)).Load()
    tags = [one.tag for event in events for one in event.summary.value]
    assert tags == ["vp0:a.output:micro1/norm", "vp0:a.output:call1:micro1/norm"]


def test_parquet_holds_everything(folder: Path, tmp_path: Path) -> None:
    with msprobe.open_monitor(folder) as run:
        export(run, tmp_path / "pq", ExportFormat.PARQUET)
        expected = run.table("actv")
    assert pl.read_parquet(tmp_path / "pq" / "actv.parquet").equals(expected)


@pytest.mark.parametrize("name", ["x.trend.db", "x-rank0-00000000/actv_0-0.csv"])
def test_foreign_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x00\x01 nonsense")
    with pytest.raises(MonitorFormatError):
        import_run(tmp_path / "in", tmp_path / "out")
    with pytest.raises(MonitorFormatError, match="neither"):
        import_run(tmp_path / "missing", tmp_path / "out")


def test_a_table_of_steps_that_lack_an_operation(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        for step, op in enumerate(("norm", "max")):
            layout = Layout("actv", (op,), ("a",), (0,), (0,), ("",), ("",))
            writer.append(Rows(layout, 0, step, 0, 0.0, np.array([[3.0]])))
    with msprobe.open_monitor(tmp_path / "run") as run:
        assert run.table("actv", steps=[0])["norm", "max"].rows() == [(3.0, None)]
        assert run.rows("actv", steps=[1])["op"].to_list() == ["max"]


@pytest.mark.parametrize("form", [ExportFormat.CSV, ExportFormat.TREND_DB])
def test_the_model_itself_has_our_name_in_an_imported_run(
    tmp_path: Path, form: ExportFormat
) -> None:
    layout = Layout("actv", ("norm",), (".input", "0.input"), (0, 0), (0, 0), ("", ""), ("", ""))
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        writer.append(Rows(layout, 0, 0, 0, 0.0, np.array([[1.0, 2.0]])))
    with msprobe.open_monitor(tmp_path / "run") as run:
        export(run, tmp_path / "theirs", form)
    with msprobe.open_monitor(import_run(tmp_path / "theirs", tmp_path / "ours")) as run:
        assert run.names("actv") == ["input", "0.input"]


@pytest.mark.parametrize("text", ["name,step,norm\na,x,1\n", "name,step,norm\na,,1\n"])
def test_a_csv_file_without_steps_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x-rank0-00000000" / "actv_0-0.csv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(MonitorFormatError):
        import_run(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("change", ["target_id = 99", "step = 'x'", "norm = 'x'", "rank = 'x'"])
def test_a_damaged_trend_db_is_refused(folder: Path, tmp_path: Path, change: str) -> None:
    with msprobe.open_monitor(folder) as run:
        (path,) = export(run, tmp_path, ExportFormat.TREND_DB)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE trend_data SET {change} WHERE step = 3")
    with pytest.raises(MonitorFormatError):
        import_run(path, tmp_path / "out")


def test_absent_values_are_no_events(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    blank = ("", "")
    layout = Layout("actv", ("mean",), ("a", "b"), (0, 0), (0, 0), blank, blank)
    with RunWriter(tmp_path / "run", 0, {}) as writer:
        writer.append(Rows(layout, 0, 0, 0, 0.0, np.array([[1.0, MISSING]])))
    with msprobe.open_monitor(tmp_path / "run") as run:
        export(run, tmp_path / "tb", ExportFormat.TENSORBOARD)
    (path,) = (tmp_path / "tb" / "rank0" / "actv").iterdir()
    values = [
        one for event in loader.EventFileLoader(str(path)).Load() for one in event.summary.value
    ]
    assert [one.tag for one in values] == ["vp0:a/mean"]


def test_tensorboard_events(folder: Path, tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with msprobe.open_monitor(folder) as run:
        export(run, tmp_path / "tb", ExportFormat.TENSORBOARD)
    (path,) = (tmp_path / "tb" / "rank1" / "exp_avg_sq").iterdir()
    events = [event for event in loader.EventFileLoader(str(path)).Load() if event.summary.value]
    assert [event.step for event in events] == list(range(6))
    assert {event.summary.value[0].tag for event in events} == {"vp0:w/norm"}


def test_csv_files_become_events_by_the_documented_function(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

    with msprobe.open_monitor(folder) as run:
        export(run, tmp_path / "csv", ExportFormat.CSV, steps_per_file=6)
    found = csv2tensorboard_by_step(
        tmp_path / "csv", "Jan01", "Jan03", 4, ["actv"], tmp_path / "out"
    )
    assert found.name.endswith("_csv2tensorboard_by_step")
    assert sorted(path.name for path in found.glob("rank*/*")) == ["actv", "actv"]
    for path in (tmp_path / "csv").glob("*/exp_avg_sq_*.csv"):
        path.rename(path.with_name(path.name.replace("exp_avg_sq", "param_origin")))
    found = csv2tensorboard_by_step(
        tmp_path / "csv", data_type_list=["param"], output_dirpath=tmp_path / "parameters"
    )
    assert {path.name for path in found.glob("rank*/*")} == {"param_origin"}
    with pytest.raises(MonitorFormatError):
        csv2tensorboard_by_step(tmp_path / "csv", "Jan03")
    # Scripts name the output folder, which holds our runs.
    found = csv2tensorboard_by_step(folder.parent, data_type_list=["actv"], output_dirpath=tmp_path)
    assert {path.name for path in found.glob("rank*/*")} == {"actv"}
