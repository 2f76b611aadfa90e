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


def test_the_telling_operations_come_first_and_the_rest_is_counted():
    frame = transformer(12).frame
    reader = Reader(notebook_html(summary_of(frame), frame))
    assert reader.open == []
    cells = reader.texts
    operations = [text for text in cells if "attention" in text or "Linear" in text]
    assert operations[1:4] == [
        "layers.11.mlp.fc2.Linear",
        "Functional.scaled_dot_product_attention.1",
        "Functional.scaled_dot_product_attention.0 backward",
    ]
    different = frame.filter(pl.col("status").is_in(DIFFERENT))["order"].n_unique()
    assert cells[-1] == f"and {different - 10} more operations that differ"


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
