# SPDX-License-Identifier: Apache-2.0
"""What a comparison shows in a notebook cell."""

from __future__ import annotations

from html.parser import HTMLParser

import polars as pl
from comparison_samples import Sample, equal_run, joined, summary_of, tensor, transformer

from msprobe.report.comparison_answer import TIMES
from msprobe.report.comparison_notebook import notebook_html

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []
        self.titles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_cell(golden):
    frame = transformer(4).frame
    golden("comparison_notebook.html", notebook_html(summary_of(frame), frame) + "\n")


def test_where_differences_begin_is_shown_with_reasons():
    frame = transformer(12).frame
    reader = Reader(notebook_html(summary_of(frame), frame))
    assert reader.open == []
    names = frame.filter(pl.col("origin") == "introduced")["operation"].to_list()
    assert len(names) == 3
    titles = [title for title in reader.titles if title in set(frame["operation"])]
    assert titles == [each["name"] for each in summary_of(frame)["introduced"]]
    origins = [text for text in reader.texts if text in ("introduced", "inherited")]
    assert origins == ["introduced"] * 3
    assert "without scale=0.125" in "".join(reader.texts)  # reasons are in the table


def test_the_verdict_comes_first_and_culprits_are_grouped():
    frame = joined(transformer(3), transformer(3, step=1))
    summary = summary_of(frame)
    first = summary["introduced"][0]
    group = {"count": 22, "kind": "parameter", "reason": "0.9998 instead of 0.9999"}
    verdict = {
        "class": "optimizer_setting",
        "sentence": "optimizer setting: beta2 is 0.99",
        "confidence": "proved",
        "evidence": ["all gradients agree"],
        "next": ["msprobe show runs/new"],
    }
    said = {**summary, "verdict": verdict, "culprit_groups": [{**group, "first": first}]}
    texts = Reader(notebook_html(said, frame)).texts
    assert texts[:2] == ["different", ": optimizer setting: beta2 is 0.99"]
    assert texts.index("all gradients agree") < texts.index("step") < texts.index("next")
    assert {f"22 {TIMES} Linear", "0.9998 instead of 0.9999", "0, rank 0"} <= set(texts)
    assert "msprobe show runs/new" in texts


def test_a_step_has_its_number():
    sample = Sample(step=7)
    sample.call("Functional.relu.0.forward", "act", [tensor("output.0", 0.1)])
    assert "7, rank 0" in Reader(notebook_html(summary_of(sample.frame), sample.frame)).texts


def test_the_worst_where_nothing_begins():
    sample = Sample()
    for n in range(30):
        sample.call(f"Functional.relu.{n}.forward", "act", [tensor("output.0", 0.01 * (n + 1))])
    reader = Reader(notebook_html(summary_of(sample.frame), sample.frame))
    assert "Functional.relu.29" in reader.texts
    assert "Functional.relu.19" not in reader.texts


def test_what_has_no_consequence_does_not_come_first():
    sample = Sample()
    sample.call("Tensor.mul.0.forward", "", [tensor("output.0", 0.5, origin=None)])
    sample.call("Tensor.add.0.forward", "", [tensor("output.0", 0.01)])
    frame = sample.frame
    text = notebook_html(summary_of(frame), frame)

    assert text.rindex("Tensor.add.0") < text.rindex("Tensor.mul.0")


def test_an_equal_run_has_no_table():
    frame = equal_run().frame
    reader = Reader(notebook_html(summary_of(frame), frame))
    assert "table" not in reader.seen
    assert "".join(reader.texts).startswith("equal: all 24 values agree")


def test_no_name_becomes_markup():
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced", reason=EVIL, source=EVIL)]
    sample.call(f"Module.{EVIL}.Evil.forward.0", EVIL, values)
    text = notebook_html(summary_of(sample.frame, target=EVIL, reference=EVIL), sample.frame)
    reader = Reader(text)
    assert not {"script", "img"} & reader.seen
    assert any(EVIL in text for text in reader.texts)
    assert any(EVIL in title for title in reader.titles)
