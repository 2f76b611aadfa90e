# SPDX-License-Identifier: Apache-2.0
"""What dumps, ranks and records show in a notebook cell."""

from __future__ import annotations

from html.parser import HTMLParser

import msprobe
from builders.dumps import DumpBuilder, value
from builders.networks import write_dump

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def shown(thing) -> list[str]:
    reader = Reader(thing._repr_html_())
    assert reader.open == []
    assert not {"script", "img"} & reader.seen
    return reader.texts


def test_a_dump_lists_its_steps_and_ranks(tmp_path):
    dump = msprobe.open_dump(write_dump(tmp_path, steps=range(30), ranks=("rank0", "rank1")))
    texts = shown(dump)
    assert texts[0] == f"dump {tmp_path}"
    assert "pytorch, task statistics, level mix" in texts
    assert texts.count("0, 1") == 20
    assert texts[-1] == "and 10 more steps"


def test_a_rank_lists_its_records(tmp_path):
    view = msprobe.open_dump(write_dump(tmp_path)).step(0).rank()
    texts = shown(view)
    assert texts[0] == f"step 0, {view.directory}"
    assert any(text.startswith(f"{len(view.records)} records: ") for text in texts)
    assert "Functional.linear.1.forward" in texts


def test_a_record_lists_its_values(tmp_path):
    view = msprobe.open_dump(write_dump(tmp_path)).step(0).rank()
    record = view.records["Functional.linear.1.forward"]
    texts = shown(record)
    assert texts[0] == "Functional.linear.1.forward"
    output = record.values("output")[0]
    assert {"output.0", output.raw_dtype, f"{output.max:.6g}"} <= set(texts)


def test_hostile_names_stay_text(tmp_path):
    builder = DumpBuilder(tmp_path / EVIL.replace("/", "-"))
    builder.call(EVIL, [value([1.0])], [value([2.0])])
    view = msprobe.open_dump(builder.write()).step(0).rank()
    dump = msprobe.open_dump(view.directory)
    for thing in (dump, view, view.records[EVIL]):
        texts = "".join(shown(thing))
        assert "<img src=x onerror=alert(2)>" in texts
        assert "\u202e" not in texts


def test_damage_is_said_and_raises_nothing(tmp_path):
    path = write_dump(tmp_path)
    (path / "step0" / "rank0" / "dump.json").write_text('{"task": 3, "data": {}}')
    dump = msprobe.open_dump(path)
    for thing in (dump, dump.step(0).rank()):
        assert any('"task" is not a string' in text for text in shown(thing))
