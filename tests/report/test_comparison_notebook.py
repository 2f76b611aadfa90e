# SPDX-License-Identifier: Apache-2.0
"""What a comparison shows in a notebook cell."""

from __future__ import annotations

from html.parser import HTMLParser

import polars as pl
from comparison_samples import DIFFERENT, Sample, equal_run, summary_of, tensor, transformer

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


def test_where_differences_begin_is_shown_and_the_rest_counted():
    frame = transformer(12).frame
    reader = Reader(notebook_html(summary_of(frame), frame))
    assert reader.open == []
    different = frame.filter(pl.col("status").is_in(DIFFERENT))["order"].n_unique()
    names = frame.filter(pl.col("origin") == "introduced")["operation"].to_list()
    assert len(names) == 3
    titles = [title for title in reader.titles if title in set(frame["operation"])]
    assert titles[:3] == [each["name"] for each in summary_of(frame)["introduced"]]
    origins = [text for text in reader.texts if text in ("introduced", "inherited")]
    assert origins == ["introduced"] * 3
    assert reader.texts[-1] == f"and {different - len(titles)} more operations that differ"


def test_the_worst_where_nothing_begins():
    sample = Sample()
    for n in range(30):
        sample.call(f"Functional.relu.{n}.forward", "act", [tensor("output.0", 0.01 * (n + 1))])
    reader = Reader(notebook_html(summary_of(sample.frame), sample.frame))
    assert "Functional.relu.29" in reader.texts
    assert "Functional.relu.19" not in reader.texts


def test_an_equal_run_has_no_table():
    frame = equal_run().frame
    reader = Reader(notebook_html(summary_of(frame), frame))
    assert "table" not in reader.seen
    assert "".join(reader.texts).startswith("equal: 24 values agree")


def test_no_name_becomes_markup():
    sample = Sample()
    values = [tensor("output.0", 0.5, origin="introduced", reason=EVIL, source=EVIL)]
    sample.call(f"Module.{EVIL}.Evil.forward.0", EVIL, values)
    text = notebook_html(summary_of(sample.frame, target=EVIL, reference=EVIL), sample.frame)
    reader = Reader(text)
    assert not {"script", "img"} & reader.seen
    assert any(EVIL in text for text in reader.texts)
    assert EVIL in reader.titles
