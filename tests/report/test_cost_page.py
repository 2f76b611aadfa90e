# SPDX-License-Identifier: Apache-2.0
"""The calculator of docs/cost.md: its figures were measured, and its answer follows from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def figures() -> list[list[str]]:
    """Return the cells of the table of the page."""
    lines = re.findall(r"^\| (.*) \|$", (DOCS / "cost.md").read_text(), re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


def test_each_slow_down_is_one_that_was_measured() -> None:
    measured = (DOCS / "performance.md").read_text()
    rows = figures()
    assert len(rows) == 15
    for model, level, _, plain, slow_down, *_ in rows:
        assert f"| {model} | {level} | {plain} | {slow_down} |" in measured


def test_the_answer_follows_from_the_figures(open_file, tmp_path: Path) -> None:
    markdown = pytest.importorskip("markdown")
    body = markdown.markdown((DOCS / "cost.md").read_text(), extensions=["tables", "attr_list"])
    script = (DOCS / "assets" / "cost.js").read_text()
    page_file = tmp_path / "cost.html"
    page_file.write_text(f"<meta charset=utf-8>{body}<script>{script}</script>")
    page = open_file(page_file)
    row = next(each for each in figures() if each[:2] == ["GPT", "mix"])
    plain, slow_down, records = float(row[3]), float(row[4][:-1]), int(row[5])
    page.select_option("[name=model]", "GPT")
    page.fill("[name=plain]", str(plain))
    page.fill("[name=steps]", "10")
    page.fill("[name=records]", str(2 * records))
    text = page.text_content("#cost-answer")
    factor, seconds, size = (
        float(re.search(pattern, text)[1].replace(",", ""))
        for pattern in (r"\(([\d.]+) times", r"add ([\d.,]+) s", r"need ([\d.,]+) MB")
    )
    assert factor == pytest.approx(1 + 2 * (slow_down - 1), rel=0.05)
    assert seconds == pytest.approx(10 * 2 * plain * (slow_down - 1) / 1000, rel=0.05)
    assert size == pytest.approx(10 * 2 * float(row[6]), rel=0.05)
