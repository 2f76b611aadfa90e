# SPDX-License-Identifier: Apache-2.0
"""What the writer leaves on disk as JSON."""

from __future__ import annotations

import json
import math
import os
import re
import time
from pathlib import Path

import pytest

from msprobe.dump.records import TensorRecord
from msprobe.dump.writer import DumpHead, DumpWriter
from msprobe.errors import UsageError

HEAD = DumpHead("statistics", "mix", "pytorch")


@pytest.fixture
def writer():
    writer = DumpWriter(flush_interval_s=0.05)
    yield writer
    writer.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run" / "step0" / "rank"


def tensor(**fields: object) -> TensorRecord:
    return TensorRecord("torch.Tensor", "torch.float32", (2, 3), **fields)


def written_bytes() -> int:
    """Return how many bytes this process has written so far."""
    return int(re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())[1])


def load(directory: Path, name: str = "dump.json") -> dict:
    return json.loads((directory / name).read_text())


def test_records_stand_in_their_order_one_a_line(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("Functional.relu.0.forward", 5, {"input_args": [tensor(max=1.5)]})
    dump.put_record("Module.a.Linear.forward.0", 2, {"output": [None]})
    dump.put_record("Torch.add.0.forward", 7, {"input_args": [{"type": "int", "value": 3}]})
    account = dump.close()

    text = (directory / "dump.json").read_text()
    found = json.loads(text)
    assert list(found) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert found["dump_data_dir"] is None
    assert list(found["data"]) == [
        "Module.a.Linear.forward.0",
        "Functional.relu.0.forward",
        "Torch.add.0.forward",
    ]
    assert found["data"]["Functional.relu.0.forward"]["input_args"][0] == {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2, 3],
        "Max": 1.5,
        "Min": None,
        "Mean": None,
        "Norm": None,
    }
    lines = text.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith('"Functional.relu.0.forward": {')
    assert account.records == 3
    assert account.complete
    assert account.errors == []
    assert account.bytes_written == sum(f.stat().st_size for f in directory.glob("*.json"))


def test_a_later_record_of_the_same_name_replaces_the_earlier(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 1, {"output": [tensor(max=1.0)]})
    dump.put_record("b", 2, {})
    dump.build_json()
    dump.put_record("a", 3, {"output": [tensor(max=2.0)]})
    assert dump.close().records == 2
    data = load(directory)["data"]
    assert list(data) == ["b", "a"]
    assert data["a"]["output"][0]["Max"] == 2.0


def test_nan_and_infinity_are_written_bare(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 0, {"output": [tensor(max=math.inf, mean=math.nan)]}, nonfinite=True)
    dump.close()
    assert '"Max":Infinity' in (directory / "dump.json").read_text()
    output = load(directory)["data"]["a"]["output"][0]
    assert output["Max"] == math.inf
    assert math.isnan(output["Mean"])


@pytest.mark.parametrize(
    "name", ['quo"te', "back\\slash", "line\nbreak", "ünïcødé ☃", "\ud800 surrogate", "", '","r",1']
)
def test_any_name_comes_back(writer, directory, name):
    dump = writer.open(directory, HEAD)
    dump.put_record(name, 0, {"output": [None]})
    dump.put_call(name, 0, name, 0)
    dump.put_frames(0, [name])
    dump.close()
    assert load(directory)["data"] == {name: {"output": [None]}}
    assert load(directory, "construct.json") == {name: name}
    assert load(directory, "stack.json") == {"0": [[name], [name]]}


def test_values_without_a_json_form_lose_only_themselves(writer, directory):
    class Foreign:
        pass

    dump = writer.open(directory, HEAD)
    bad = {"input_args": [Foreign(), tensor(max=math.nan)], "input_kwargs": {(1, 2): "\ud800"}}
    dump.put_record("bad", 0, bad)
    dump.put_record("good", 1, {"output": [1]})
    dump.close()
    data = load(directory)["data"]
    assert data["bad"]["input_args"][0] == {"type": "Foreign", "value": None}
    assert math.isnan(data["bad"]["input_args"][1]["Max"])
    assert data["bad"]["input_kwargs"] == {"(1, 2)": "\ud800"}
    assert data["good"] == {"output": [1]}
    assert "bad holds something" in (directory / "dump_error_info.log").read_text()


def test_stacks_list_their_records_and_construct_their_parents(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_call("outer", 0, None, 0)
    dump.put_call("inner", 1, "outer", 1)
    dump.put_call("again", 2, "outer", 1)
    dump.put_call("outer.backward", 3, None, None)
    dump.put_frames(0, ["File a.py, line 1, in f, \n x"])
    dump.put_frames(1, ["File b.py, line 2, in g, \n y", "File a.py, line 1, in f, \n x"])
    dump.close()
    construct = load(directory, "construct.json")
    assert list(construct.items()) == [
        ("outer", None),
        ("inner", "outer"),
        ("again", "outer"),
        ("outer.backward", None),
    ]
    assert load(directory, "stack.json") == {
        "0": [["outer"], ["File a.py, line 1, in f, \n x"]],
        "1": [
            ["inner", "again"],
            ["File b.py, line 2, in g, \n y", "File a.py, line 1, in f, \n x"],
        ],
    }
    assert load(directory)["data"] == {}


def test_without_extra_info_only_the_records_are_written(writer, directory):
    dump = writer.open(directory, HEAD, extra_info=False)
    dump.put_record("a", 0, {})
    dump.put_call("a", 0, None, 0)
    dump.put_frames(0, ["f"])
    dump.close()
    assert [path.name for path in directory.iterdir()] == ["dump.json"]


def test_level_debug_writes_debug_json(writer, directory):
    dump = writer.open(directory, DumpHead("statistics", "debug", "pytorch"), extra_info=False)
    dump.put_record("x.0.debug", 0, tensor(max=1.0))
    dump.put_record("x_grad.0.debug", 1, None)
    dump.close()
    assert [path.name for path in directory.iterdir()] == ["debug.json"]
    assert load(directory, "debug.json")["data"]["x_grad.0.debug"] is None


def test_an_empty_dump_is_valid(writer, directory):
    writer.open(directory, HEAD).close()
    assert load(directory)["data"] == {}
    assert load(directory, "stack.json") == load(directory, "construct.json") == {}


def test_build_json_shows_what_was_put_so_far_and_keeps_the_journal(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 0, {})
    dump.build_json()
    assert list(load(directory)["data"]) == ["a"]
    assert (directory / "journal.jsonl").exists()
    dump.put_record("b", 1, {})
    dump.build_json()
    assert list(load(directory)["data"]) == ["a", "b"]
    dump.close()
    assert not (directory / "journal.jsonl").exists()
    assert not list(directory.glob(".*"))


def test_build_json_without_news_leaves_the_files_alone(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 0, {})
    dump.build_json()
    before = (directory / "dump.json").stat().st_ino
    for _ in range(1000):
        dump.build_json()
    dump.close()
    assert (directory / "dump.json").stat().st_ino == before


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_a_thousand_builds_of_a_growing_dump_stay_linear(writer, directory):
    """Rebuilding everything each time would write 500 times the last file here.

    How often it is built depends on the speed of the machine; 5 times is usual.
    """
    before = written_bytes()
    dump = writer.open(directory, HEAD)
    data = {"input_args": [tensor(max=1.0, min=2.0, mean=3.0, norm=4.0)] * 3}
    for step in range(1000):
        for number in range(20):
            dump.put_record(f"Functional.linear.{step}.{number}.forward", step, data)
        dump.build_json()
    dump.close()
    assert len(load(directory)["data"]) == 20_000
    assert written_bytes() - before < 40 * (directory / "dump.json").stat().st_size


def test_a_postponed_build_happens_by_itself(writer, directory):
    dump = writer.open(directory, HEAD)
    data = {"input_args": [tensor(max=1.0)] * 8}
    for number in range(20_000):
        dump.put_record(f"a.{number}", number, data)
    dump.build_json()
    dump.put_record("late", 10**6, {})
    dump.build_json()
    assert "late" not in load(directory)["data"]
    deadline = time.monotonic() + 30
    while "late" not in load(directory)["data"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "late" in load(directory)["data"]
    dump.close()


def test_a_closed_dump_refuses_records_but_takes_its_account(writer, directory):
    dump = writer.open(directory, HEAD)
    account = dump.close()
    for put in (
        lambda: dump.put_record("a", 0, {}),
        lambda: dump.put_call("a", 0, None, None),
        lambda: dump.put_frames(0, []),
        lambda: dump.link_tensor("a.pt", "b.pt"),
        dump.build_json,
    ):
        with pytest.raises(UsageError, match="closed"):
            put()
    assert dump.close() is account
    dump.write_account({"records": 0, "complete": True})
    assert load(directory, "account.json") == {"records": 0, "complete": True}


def test_the_error_log_has_one_entry_a_kind(writer, directory):
    dump = writer.open(directory, HEAD)
    for number in range(3):
        dump.log_error("sparse statistics", f"Functional.mm.{number}: no strides")
    dump.log_error("hook", "lost")
    dump.close()
    lines = (directory / "dump_error_info.log").read_text().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[20")
    assert lines[0].endswith("sparse statistics: Functional.mm.0: no strides")


def test_what_is_open_is_written_when_the_writer_closes(directory):
    writer = DumpWriter()
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 0, {})
    writer.close()
    writer.close()
    assert list(load(directory)["data"]) == ["a"]
    with pytest.raises(UsageError):
        writer.open(directory, HEAD)


def test_a_dump_opened_again_starts_afresh(writer, directory):
    first = writer.open(directory, HEAD)
    first.put_record("old", 0, {})
    second = writer.open(directory, HEAD)
    second.put_record("new", 0, {})
    second.close()
    assert first.is_closed
    assert list(load(directory)["data"]) == ["new"]


def test_records_may_come_from_many_threads(writer, directory):
    from concurrent.futures import ThreadPoolExecutor

    dump = writer.open(directory, HEAD)

    def put(thread: int) -> None:
        for number in range(500):
            dump.put_record(f"{thread}.{number}", thread * 500 + number, {"output": [number]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(8)))
    dump.close()
    data = load(directory)["data"]
    assert len(data) == 4000
    assert all(record["output"] == [int(name.split(".")[1])] for name, record in data.items())


def test_tasks_run_in_order_and_may_close_the_dump(writer, directory):
    dump = writer.open(directory, HEAD)
    seen: list[int] = []
    for number in range(100):
        writer.submit(lambda number=number: seen.append(number))
    writer.submit(lambda: dump.put_record("from the thread", 0, {}))
    accounts: list[object] = []
    writer.submit(lambda: accounts.append(dump.close()))
    writer.close()
    assert seen == list(range(100))
    assert accounts[0].records == 1
    assert list(load(directory)["data"]) == ["from the thread"]


def test_a_failing_task_is_logged_and_the_next_ones_run(writer, directory, caplog):
    dump = writer.open(directory, HEAD)
    writer.submit(lambda: 1 // 0)
    writer.submit(lambda: dump.put_record("a", 0, {}))
    dump.build_json()
    assert list(load(directory)["data"]) == ["a"]
    assert "ZeroDivisionError" in caplog.text


def test_the_journal_reaches_the_disk_while_the_training_thread_computes(writer, directory):
    dump = writer.open(directory, HEAD)
    dump.put_record("a", 0, {"output": [None]})
    # One thread busy with byte code all the time. A second of its own time, not of the clock: on a
    # loaded machine both threads wait.
    deadline = time.thread_time() + 1.0
    total = 0
    while time.thread_time() < deadline:
        total += sum(range(1000))
    journal = os.open(directory / "journal.jsonl", os.O_RDONLY)
    text = os.read(journal, 10_000)
    os.close(journal)
    assert text.endswith(b'["r",0,"a",{"output":[null]}]\n')


@pytest.mark.parametrize("stride", [1, 7_919])
def test_records_of_many_chunks_come_in_their_order_wherever_they_lie(writer, directory, stride):
    """The journal is read in pieces; with a stride the records of a piece lie all over it."""
    count, filler = 12_000, "x" * 800
    dump = writer.open(directory, HEAD)
    for place in range(count):
        order = place * stride % count
        name = f"Torch.näme.{order}.forward" if order % 1_000 == 0 else f"Torch.add.{order}.forward"
        dump.put_record(name, order, {"output": [order, filler]})
    dump.close()

    data = load(directory)["data"]
    assert [parts["output"] for parts in data.values()] == [[n, filler] for n in range(count)]
    assert [int(name.split(".")[2]) for name in data] == list(range(count))
    assert list(data)[1_000] == "Torch.näme.1000.forward"
