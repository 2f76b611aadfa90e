# SPDX-License-Identifier: Apache-2.0
"""Whole comparisons: any path, any task; the fault is found; modes that do not fit are refused."""

from __future__ import annotations

import json
import random
import re
import shutil
from contextlib import suppress
from functools import partial

import numpy as np
import polars as pl
import pytest

import msprobe
from builders.networks import write_debug_dump, write_dump
from msprobe.compare.native_table import COLUMNS
from msprobe.errors import DumpFormatError, MsprobeError, UnsupportedError, UsageError

# No call is computed again, which takes a process.
compare_dumps = partial(msprobe.compare_dumps, verify=False)

TASKS = ["statistics", "tensor", "md5"]
FAULT = "Functional.linear.1.forward"


@pytest.fixture(params=TASKS)
def task(request):
    return request.param


@pytest.fixture
def pair(tmp_path, task):
    return (
        write_dump(tmp_path / "new", task, scale=1.5),
        write_dump(tmp_path / "old", task),
    )


def test_the_faulty_call_is_named_in_every_task(pair):
    result = compare_dumps(*pair)
    assert not result.is_equal
    assert result.summary["introduced"][0]["name"] == FAULT
    first = result.summary["first_difference"]
    assert first["name"] == f"{FAULT}.output.0"
    assert (first["status"], first["origin"], first["source"]) == (
        "differs",
        "introduced",
        "train.py:12",
    )


def test_a_dump_equals_itself(tmp_path, task):
    dump = write_dump(tmp_path / "dump", task)
    result = compare_dumps(dump, dump)
    assert result.is_equal
    assert result.summary["counts"]["equal"] == result.frame.height > 0
    assert result.summary["first_difference"] is None
    assert result.frame["origin"].null_count() == result.frame.height


@pytest.mark.parametrize("below", ["", "step0", "step0/rank0", "step0/rank0/dump.json"])
def test_any_path_of_a_dump_will_do(pair, below):
    whole = compare_dumps(*pair).frame
    part = compare_dumps(*(path / below for path in pair)).frame
    assert part.equals(whole)


def test_the_table_has_the_promised_columns(pair):
    frame = compare_dumps(*pair).frame
    assert frame.schema == {name: getattr(pl, kind) for name, kind in COLUMNS.items()}
    row = frame.row(by_predicate=pl.col("name") == f"{FAULT}.output.0", named=True)
    assert row["operation"] == FAULT
    assert (row["role"], row["slot"], row["kind"]) == ("output", "output.0", "forward")
    assert (row["module"], row["api"]) == ("fc1", "linear")
    assert (row["target_shape"], row["target_dtype"]) == ("[4, 8]", "float32")
    weight = frame.filter(pl.col("kind") == "parameter").row(0, named=True)
    assert weight["name"] == "Module.fc0.Linear.forward.0.parameters.weight"
    assert weight["api"] == "Linear"


def test_worst_elements_stand_in_the_table(tmp_path):
    new = write_dump(tmp_path / "new", "tensor", scale=1.5)
    old = write_dump(tmp_path / "old", "tensor")
    frame = compare_dumps(new, old).frame
    row = frame.row(by_predicate=pl.col("name") == f"{FAULT}.output.0", named=True)
    values = [
        np.load(path / "step0/rank0/dump_tensor_data" / f"{FAULT}.output.0.npy").astype(float)
        for path in (new, old)
    ]
    errors = np.abs(values[0] - values[1])
    worst = np.unravel_index(errors.argmax(), errors.shape)
    assert row["max_abs_index"] == str([int(place) for place in worst])
    assert row["max_abs_err"] == pytest.approx(errors.max(), rel=1e-6)
    assert (row["max_abs_target"], row["max_abs_reference"]) == (
        values[0][worst],
        values[1][worst],
    )
    assert row["mismatches"] == row["count"] == 32
    assert row["relative_l2"] == pytest.approx(0.5, rel=1e-6)


def test_tensors_against_statistics_fall_back_and_say_so(tmp_path):
    new = write_dump(tmp_path / "new", "tensor", scale=1.5)
    old = write_dump(tmp_path / "old", "statistics")
    for target, reference, lacking in ((new, old, "reference"), (old, new, "target")):
        summary = compare_dumps(target, reference).summary
        assert summary["mode"] == "statistics"
        assert any(f"the {lacking} kept no tensors" in note for note in summary["notes"])
        assert summary["introduced"][0]["name"] == FAULT


@pytest.mark.parametrize("other", ["statistics", "tensor"])
def test_checksums_against_anything_else_are_refused(tmp_path, other):
    new = write_dump(tmp_path / "new", "md5")
    old = write_dump(tmp_path / "old", other)
    for sides in ((new, old), (old, new)):
        with pytest.raises(UsageError) as refusal:
            compare_dumps(*sides)
        text = str(refusal.value)
        assert str(new / "step0/rank0/dump.json") in text
        assert str(old / "step0/rank0/dump.json") in text
        assert "summary_mode" in text


def test_dumps_without_values_are_refused(tmp_path):
    dump = write_dump(tmp_path / "dump")
    path = dump / "step0/rank0/dump.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task": "structure"}))
    with pytest.raises(UnsupportedError, match="structure"):
        compare_dumps(dump, dump)


def test_a_missing_dump_is_refused(tmp_path):
    dump = write_dump(tmp_path / "dump")
    with pytest.raises(DumpFormatError, match="does not exist"):
        compare_dumps(dump, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpFormatError, match="holds no dump"):
        compare_dumps(tmp_path / "empty", dump)


def test_an_empty_dump_compares_as_empty(tmp_path):
    new = write_dump(tmp_path / "new", layers=0)
    for side in ("new", "old"):
        path = write_dump(tmp_path / side, layers=0) / "step0/rank0/dump.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "data": {}}))
    result = compare_dumps(new, tmp_path / "old", output=tmp_path / "out")
    assert result.frame.is_empty()
    assert list(result.frame.columns) == list(COLUMNS)
    assert any("holds no records" in note for note in result.summary["notes"])
    assert (tmp_path / "out" / "summary.json").exists()


def test_one_side_empty_is_no_agreement(tmp_path):
    new, old = write_dump(tmp_path / "new"), write_dump(tmp_path / "old")
    path = new / "step0/rank0/dump.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": {}}))
    summary = compare_dumps(new, old).summary
    assert not summary["equal"]
    assert summary["counts"]["missing"] == summary["rows"] > 0


def test_a_lost_tensor_file_is_a_problem_of_its_row_alone(tmp_path):
    new, old = (write_dump(tmp_path / side, "tensor") for side in ("new", "old"))
    lost = "Functional.linear.0.forward.output.0.npy"
    (new / "step0/rank0/dump_tensor_data" / lost).unlink()
    frame = compare_dumps(new, old).frame
    row = frame.row(by_predicate=pl.col("target_file") == lost, named=True)
    assert lost in row["reason"]
    assert row["count"] is None
    others = frame.filter(pl.col("target_file").is_not_null() & (pl.col("target_file") != lost))
    assert others["count"].null_count() == 0


@pytest.mark.parametrize("file", ["construct.json", "stack.json", "account.json"])
@pytest.mark.parametrize("text", ["", "[1, 2]", '{"0": 5}', '{"a": ["b"'])
def test_files_beside_the_records_may_be_damaged(tmp_path, file, text):
    new, old = (write_dump(tmp_path / side, scale=s) for side, s in (("new", 1.5), ("old", 1.0)))
    path = new / "step0/rank0" / file
    path.write_text(text)
    result = compare_dumps(new, old)
    assert result.summary["counts"]["differs"] > 0
    is_damaged = file != "account.json" or text != '{"0": 5}'
    notes = [note for note in result.summary["notes"] if str(path) in note]
    assert [note.partition(f"{path}: ")[0] for note in notes] == (
        ["the target is compared without "] if is_damaged else []
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_calls_that_enclose_each_other_are_compared(tmp_path, length):
    new, old = (write_dump(tmp_path / side, scale=s) for side, s in (("new", 1.5), ("old", 1.0)))
    names = [*json.loads((new / "step0/rank0/dump.json").read_text())["data"]]
    around = names[:length]
    circle = dict(zip(around, [*around[1:], around[0]], strict=True))
    path = new / "step0/rank0/construct.json"
    path.write_text(json.dumps(dict.fromkeys(names, around[0]) | circle))
    assert compare_dumps(new, old).summary["counts"]["differs"] > 0


def test_a_data_name_cannot_lead_out_of_the_dump(tmp_path):
    new, old = (write_dump(tmp_path / side, "tensor") for side in ("new", "old"))
    secret = tmp_path / "secret.npy"
    np.save(secret, np.zeros((4, 8), np.float32))
    tensors = new / "step0/rank0/dump_tensor_data"
    path = new / "step0/rank0/dump.json"
    tree = json.loads(path.read_text())
    linked = tensors / "Functional.linear.0.forward.output.0.npy"
    linked.unlink()
    linked.symlink_to(secret)
    tree["data"][FAULT]["output"][0]["data_name"] = "../../../../secret.npy"
    path.write_text(json.dumps(tree))
    frame = compare_dumps(new, old).frame
    for name in (f"{FAULT}.output.0", "Functional.linear.0.forward.output.0"):
        row = frame.row(by_predicate=pl.col("name") == name, named=True)
        assert row["count"] is None, name
        assert "folder" in row["reason"], name


def test_linked_values_are_read_once(tmp_path):
    paths = [write_dump(tmp_path / side, "tensor") for side in ("new", "old")]
    before = compare_dumps(*paths).summary["bytes_read"]
    for path in paths:
        tensors = path / "step0/rank0/dump_tensor_data"
        for layer in (0, 1):
            source = tensors / f"Functional.linear.{layer}.forward.output.0.npy"
            for same in (
                f"Module.fc{layer}.Linear.forward.0.output.0.npy",
                f"Functional.linear.{layer + 1}.forward.input.0.npy",
            ):
                (tensors / same).unlink()
                (tensors / same).hardlink_to(source)
    after = compare_dumps(*paths)
    assert after.is_equal
    assert after.summary["bytes_read"] == before - 2 * 4 * (4 * 8 * 4)


def test_different_levels_are_noted(tmp_path):
    new = write_dump(tmp_path / "new", level="mix")
    old = write_dump(tmp_path / "old", level="L1")
    notes = compare_dumps(new, old).summary["notes"]
    assert any("different levels: target mix, reference L1" in note for note in notes)


def test_values_of_save(tmp_path):
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    new = write_debug_dump(tmp_path / "new", {"loss": a, "hidden": a * 1.5})
    old = write_debug_dump(tmp_path / "old", {"loss": a, "hidden": a})
    result = compare_dumps(new, old, output=tmp_path / "out")
    assert result.frame.select("name", "target_name", "reference_name", "status").rows() == [
        ("loss.0.debug", "loss.0.debug", "loss.0.debug", "equal"),
        ("hidden.0.debug", "hidden.0.debug", "hidden.0.debug", "differs"),
    ]
    assert result.frame["kind"].to_list() == ["saved", "saved"]
    assert [path.name for path in (tmp_path / "out").glob("debug_compare_result_*.xlsx")]


@pytest.mark.parametrize("half", ["graph", "pynative"])
def test_halves_of_a_dump_with_jitted_cells(tmp_path, half):
    for side, scale in (("new", 1.5), ("old", 1.0)):
        for mode in ("graph", "pynative"):
            folder = tmp_path / side / mode
            write_dump(folder, scale=scale if mode == half else 1.0, framework="mindspore")
    result = compare_dumps(tmp_path / "new", tmp_path / "old", output=tmp_path / "out")
    differing = result.frame.filter(pl.col("status") == "differs")["rank"].unique().to_list()
    assert differing == [f"{half}/rank0"]
    for mode in ("graph", "pynative"):
        assert list((tmp_path / "out" / mode / "step0").glob("compare_result_rank0_*.xlsx"))


def test_a_killed_capture_is_compared_from_its_journal(tmp_path):
    old = write_dump(tmp_path / "old")
    new = write_dump(tmp_path / "new", scale=1.5)
    folder = new / "step0/rank0"
    records = json.loads((folder / "dump.json").read_text())
    data = records.pop("data")
    lines = [["head", {"version": 1, **records}]]
    lines += [["r", n, name, record] for n, (name, record) in enumerate(data.items())]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text)
    (folder / "dump.json").unlink()
    result = compare_dumps(new, old)
    assert result.summary["introduced"][0]["name"] == FAULT
    assert any("may lack records" in note for note in result.summary["notes"])


def test_formats_and_the_report(tmp_path, pair):
    for kind in ("xlsx", "csv", "parquet"):
        out = tmp_path / kind
        result = compare_dumps(*pair, output=out, table=kind, html=kind == "csv")
        assert len(list(out.glob(f"compare_result_*.{kind}"))) == 1
        assert json.loads((out / "summary.json").read_text())["equal"] is False
    native = pl.read_parquet(next((tmp_path / "parquet").glob("*.parquet")))
    assert native.equals(result.frame)
    page = next((tmp_path / "csv").glob("compare_report_*.html")).read_text()
    assert FAULT in page


def test_an_output_folder_that_cannot_be_made_is_an_error(tmp_path, pair):
    (tmp_path / "taken").write_text("")
    with pytest.raises(msprobe.errors.ReportWriteError, match="taken"):
        compare_dumps(*pair, output=tmp_path / "taken" / "out")


def test_release_keeps_the_table_and_ends_writing(pair, tmp_path):
    result = compare_dumps(*pair)
    whole = compare_dumps(*pair).frame
    result.release()
    assert result.frame.equals(whole)
    with pytest.raises(UsageError, match="before release"):
        result.write(tmp_path / "out")


def test_shown_in_a_notebook(pair):
    result = compare_dumps(*pair)
    assert FAULT in repr(result)
    html = result._repr_html_()
    assert "linear" in html
    assert "<script" not in html


def test_summary_is_json_that_every_parser_takes(tmp_path):
    new, old = (write_dump(tmp_path / side) for side in ("new", "old"))
    path = new / "step0/rank0/dump.json"
    text = path.read_text()
    value = json.dumps(json.loads(text)["data"][FAULT]["output"][0]["Max"])
    path.write_text(text.replace(f'"Max": {value}', '"Max": NaN'))
    result = compare_dumps(new, old, output=tmp_path / "out")
    assert result.summary["counts"]["nonfinite"]

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=refuse)


def test_a_fault_that_moves_nothing_leaves_the_collector_as_it_was(pair):
    import gc

    gc.disable()
    try:
        compare_dumps(*pair)
        assert not gc.isenabled()
    finally:
        gc.enable()
    compare_dumps(*pair)
    assert gc.isenabled()


def test_damaged_files_are_named(tmp_path):
    new, old = (write_dump(tmp_path / side) for side in ("new", "old"))
    path = old / "step0/rank0/dump.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(DumpFormatError, match=str(path)):
        compare_dumps(new, old)
    shutil.rmtree(old)
    with pytest.raises(DumpFormatError, match="old"):
        compare_dumps(new, old)


def test_an_interrupted_comparison_goes_on_where_it_ended(tmp_path, caplog):
    for side, scale in (("new", 1.5), ("old", 1.0)):
        write_dump(tmp_path / side, "tensor", ranks=("rank0", "rank1"), scale=scale)
    late = tmp_path / "new/step0/rank1/dump.json"
    text = late.read_text()
    late.write_text(text[:-30])
    out = tmp_path / "out"
    with pytest.raises(DumpFormatError):
        compare_dumps(tmp_path / "new", tmp_path / "old", output=out)
    assert [path.name for path in out.iterdir()] == [".msprobe_unfinished_comparison"]
    late.write_text(text)
    with caplog.at_level("INFO", logger="msprobe"):
        result = compare_dumps(tmp_path / "new", tmp_path / "old", output=out)
    assert "are taken over" in caplog.text
    assert not (out / ".msprobe_unfinished_comparison").exists()
    fresh = compare_dumps(tmp_path / "new", tmp_path / "old")
    assert result.frame.equals(fresh.frame)
    assert result.summary["bytes_read"] == fresh.summary["bytes_read"]


@pytest.mark.parametrize("task", ["tensor"], indirect=True)
def test_work_on_a_cluster_gives_the_same(pair):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
    ) as cluster:
        there = compare_dumps(*pair, scheduler=cluster.scheduler_address)
    assert there.frame.equals(compare_dumps(*pair).frame)


_VALUES = re.compile(rb'(?<=: )("[^"]*"|[-0-9.e]+|true|false|null|\[\]|\{\})')
_OTHERS = [b"null", b"NaN", b"-1", b"1e999", b'"x"', b"[]", b"{}", b"true", b'{"type": "int"}']


def damaged(text, chance):
    """Return a file's bytes with some exchanged, some values replaced, or a piece cut out."""
    data = bytearray(text)
    kind = chance.randrange(3)
    if kind == 0:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 1:
        places = list(_VALUES.finditer(text))
        chosen = chance.sample(places, min(2, len(places)))
        for found in sorted(chosen, key=lambda found: -found.start()):
            data[found.start() : found.end()] = chance.choice(_OTHERS)
    else:
        start = chance.randrange(len(data))
        del data[start : start + chance.randint(1, 200)]
    return bytes(data)


@pytest.mark.parametrize("name", ["dump.json", "construct.json", "stack.json"])
def test_damage_ends_in_a_result_or_an_error_of_ours(pair, name):
    path = pair[0] / "step0/rank0" / name
    text = path.read_bytes()
    chance = random.Random(name)
    for _ in range(25):
        path.write_bytes(damaged(text, chance))
        for sides in (pair, pair[::-1]):
            with suppress(MsprobeError):
                result = compare_dumps(*sides)
                assert result.frame.height == result.summary["rows"]


def test_the_table_goes_to_pandas_without_pyarrow(tmp_path):
    pandas = pytest.importorskip("pandas")
    result = compare_dumps(
        write_dump(tmp_path / "new", "statistics", scale=1.5),
        write_dump(tmp_path / "old", "statistics"),
    )
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == result.frame.columns
    assert table["name"].tolist() == result.frame["name"].to_list()
