# SPDX-License-Identifier: Apache-2.0
"""The journal: what a reader gets out of it, whole or cut off at any byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe import open_dump
from msprobe.dump.journal import read_journal
from msprobe.dump.json_files import build_from_journal
from msprobe.dump.lines import Call
from msprobe.dump.writer import DumpHead, DumpWriter
from msprobe.errors import DumpFormatError

HEAD = DumpHead("statistics", "mix", "pytorch")
HEAD_LINE = '["head",{"version":1,"task":"statistics","level":"mix","framework":"pytorch"}]\n'


@pytest.fixture
def writer():
    writer = DumpWriter()
    yield writer
    writer.close()


def fill(dump) -> None:
    for number in range(30):
        name = f'Functional."op"\\.{number % 20}.forward'  # ten names come twice
        data = {"output": [float(number), [None, {"k": "v" * number}]]}
        if number == 7:
            data["output"][0] = float("nan")
        dump.put_record(name, 100 - number, data, nonfinite=number == 7)
        dump.put_call(name, number, "Module.ä" if number % 2 else None, number % 3)
    for stack in range(3):
        dump.put_frames(stack, [f"File x.py, line {stack}, in f, \n call()"])


JSON_FILES = ("dump.json", "stack.json", "construct.json")


def test_the_journal_alone_gives_the_same_json_files(writer, tmp_path):
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    fill(dump)
    dump.build_json()
    contents = read_journal(tmp_path / "step0" / "rank" / "journal.jsonl")
    assert not contents.is_torn
    assert contents.damaged_lines == 0
    assert contents.index.head == HEAD

    again = tmp_path / "again"
    again.mkdir()
    size = build_from_journal(contents, again)
    assert size == sum((again / name).stat().st_size for name in JSON_FILES)
    for name in JSON_FILES:
        assert (again / name).read_bytes() == (tmp_path / "step0" / "rank" / name).read_bytes()
    assert len(json.loads((again / "dump.json").read_text())["data"]) == 20


def test_a_step_that_ends_once_its_journal_was_found_is_read(writer, tmp_path):
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    fill(dump)
    dump.build_json()
    view = open_dump(tmp_path).step(0).rank()
    assert view.records_path.name == "journal.jsonl"
    dump.close()
    writer.close()
    assert not view.records_path.exists()
    assert len(view.records) == 20
    assert view.head == HEAD


def test_index_points_at_the_values(writer, tmp_path):
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    fill(dump)
    dump.build_json()
    contents = read_journal(tmp_path / "step0" / "rank" / "journal.jsonl")
    name = 'Functional."op"\\.19.forward'
    span = contents.index.records[name]
    assert span.order == 81
    value = contents.path.read_bytes()[span.offset : span.offset + span.length]
    assert json.loads(value)["output"][0] == 19.0
    assert contents.index.calls[name] == Call(19, "Module.ä", 1)
    span = contents.index.stacks[2]
    frames = json.loads(contents.path.read_bytes()[span.offset : span.offset + span.length])
    assert frames == ["File x.py, line 2, in f, \n call()"]


def test_values_larger_than_any_buffer_are_copied_whole(writer, tmp_path):
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    texts = {
        f"r{n}": chr(ord("a") + n) * size for n, size in enumerate((1, 70_000, 300_000, 65_536))
    }
    for order, (name, text) in enumerate(texts.items()):
        dump.put_record(name, -order, {"output": [text]})
    dump.close()
    data = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"]
    assert list(data) == list(reversed(texts))
    assert {name: record["output"][0] for name, record in data.items()} == texts


def test_records_far_from_the_order_of_writing_are_copied_right(writer, tmp_path):
    dump = writer.open(tmp_path / "step0" / "rank", HEAD)
    for number in range(5000):
        dump.put_record(f"r{number}", number * 1009 % 5000, {"output": [number, "x" * 400]})
    dump.close()
    data = json.loads((tmp_path / "step0" / "rank" / "dump.json").read_text())["data"]
    orders = [int(name[1:]) * 1009 % 5000 for name in data]
    assert orders == list(range(5000))
    assert all(record["output"][0] == int(name[1:]) for name, record in data.items())


@pytest.fixture(scope="module")
def whole_journal(tmp_path_factory) -> bytes:
    directory = tmp_path_factory.mktemp("whole") / "step0" / "rank"
    writer = DumpWriter()
    dump = writer.open(directory, HEAD)
    fill(dump)
    dump.flush()
    text = (directory / "journal.jsonl").read_bytes()
    writer.close()
    return text


def test_cut_at_any_byte_everything_before_the_last_line_survives(whole_journal, tmp_path):
    path = tmp_path / "journal.jsonl"
    first_line = whole_journal.index(b"\n") + 1
    lines = whole_journal.splitlines(keepends=True)
    for cut in range(first_line, len(whole_journal) + 1):
        path.write_bytes(whole_journal[:cut])
        contents = read_journal(path)
        complete = whole_journal[:cut].count(b"\n")
        expected = {
            entry[2]: entry[1] for entry in map(json.loads, lines[1:complete]) if entry[0] == "r"
        }
        assert {name: span.order for name, span in contents.index.records.items()} == expected
        assert contents.damaged_lines == 0
        assert contents.is_torn == (not whole_journal[:cut].endswith(b"\n"))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_in_the_middle_is_counted_and_never_breaks_the_files(whole_journal, tmp_path, data):
    lines = whole_journal.splitlines(keepends=True)
    at = data.draw(st.integers(1, len(lines) - 1), label="line")
    junk = data.draw(
        st.one_of(
            st.binary(max_size=80).map(lambda text: text.replace(b"\n", b" ")),
            st.integers(0, len(lines[at]) - 2).map(lambda end: lines[at][:end]),
            st.sampled_from(
                [
                    b'["r",1,"x",{"a":}]',
                    b'["r",1,"x",{"a":1}',
                    b'["r",1,"x",1],"y"]',
                    b'["r",1,"x",{"a":"\xff"}]',
                    b'["r",1.5,"x",{}]',
                    b'["c",1,"x"]',
                    b'["s",1,["f",2]]',
                    b'["z"]',
                    b'["head",7]',
                    b'["head",{"version":"one"}]',
                    b"[" * 100_000,
                ]
            ),
        ),
        label="junk",
    )
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(lines[:at]) + junk + b"\n" + b"".join(lines[at:]))
    contents = read_journal(path)
    assert contents.damaged_lines <= 1
    build_from_journal(contents, tmp_path)
    for name in JSON_FILES:
        json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert len(contents.index.records) >= 20
    shutil.rmtree(tmp_path / "dump_tensor_data", ignore_errors=True)


def test_damage_is_counted(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(HEAD_LINE.encode() + b'garbage\n["r",0,"a",{}]\n["r",1,"b",{"x":}]\n["r",2')
    contents = read_journal(path)
    assert list(contents.index.records) == ["a"]
    assert contents.damaged_lines == 2
    assert contents.is_torn


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "no head"),
        (b'["head",{"version":1', "no head"),
        (b'["r",0,"a",{}]\n', "no head"),
        (HEAD_LINE.replace('"version":1', '"version":9').encode(), "version 9"),
    ],
)
def test_a_journal_that_cannot_be_used_is_refused(tmp_path: Path, text: bytes, problem: str):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(text)
    with pytest.raises(DumpFormatError, match=problem):
        read_journal(path)
