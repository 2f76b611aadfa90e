# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison as a few lines of HTML for a notebook cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from msprobe.report.comparison_facts import culprits_first, operations, ranked
from msprobe.report.comparison_lines import quiet_line
from msprobe.report.comparison_words import (
    ORIGIN_MEANINGS,
    STATUS_MEANINGS,
    STATUSES,
    TELLING,
    operation_label,
)
from msprobe.report.value_text import number_text, plain

if TYPE_CHECKING:
    import polars as pl

_MAX_OPERATIONS: Final = 10
# Notebooks bring their own light or dark colours: only accents are set here. `#c2510c` and
# `#0f8a6d` can be read on white and on black.
_DIFFERENT: Final = "#c2510c"
_EQUAL: Final = "#0f8a6d"
_SMALL: Final = "font-size:90%;opacity:.75"


def notebook_html(summary: Mapping[str, Any], frame: pl.DataFrame) -> str:
    """Return the answer, counts by status and the most telling operations.

    Args:
        summary: content of ``summary.json``.
        frame: the table with one row per pair of values.
    """
    return "".join(_parts(summary, frame))


def _parts(summary: Mapping[str, Any], frame: pl.DataFrame) -> Iterator[str]:
    colour = _EQUAL if summary["equal"] else _DIFFERENT
    word, _, rest = quiet_line(summary).partition(":")
    yield f'<div><b style="color:{colour}">{escape(word)}</b>{escape(rest and f":{rest}")}</div>'
    sides = f"{plain(summary['target'])} against {plain(summary['reference'])}"
    yield f'<div style="{_SMALL}">{escape(sides)}</div>'
    yield f'<div style="{_SMALL}">{_counts(summary["counts"])}</div>'
    if summary["introduced"] or summary["first_difference"]:
        yield _table(summary, frame)


def _counts(counts: Mapping[str, int]) -> str:
    shown = (
        f'<span title="{escape(STATUS_MEANINGS[word])}">{counts[word]:,} {word}</span>'
        for word in STATUSES
        if counts.get(word)
    )
    return " · ".join(shown)


def _table(summary: Mapping[str, Any], frame: pl.DataFrame) -> str:
    import polars as pl

    different = operations(frame).filter(pl.col("differ") > 0)
    worst = culprits_first(ranked(different), summary)
    telling = worst.filter(pl.col("origin").is_null() | pl.col("origin").is_in(TELLING))
    shown = (telling if telling.height else worst).head(_MAX_OPERATIONS)
    titles = ("operation", "module", "origin", "status", "error", "source")
    body = "".join(_row(_cells(each)) for each in shown.iter_rows(named=True))
    more = worst.height - shown.height
    below = (
        f'<div style="{_SMALL}">and {more:,} more operations that differ</div>' if more > 0 else ""
    )
    heads = "".join(f'<th style="text-align:left">{title}</th>' for title in titles)
    head = f"<thead><tr>{heads}</tr></thead>"
    return f'<table style="color:inherit">{head}<tbody>{body}</tbody></table>{below}'


def _cells(each: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return text and explanation of each cell of an operation."""
    label, origin, error = operation_label(each["operation"]), each["origin"] or "", each["error"]
    return (
        (label.text + label.tail, plain(each["operation"])),
        (plain(each["module"] or ""), ""),
        (origin, ORIGIN_MEANINGS.get(origin, "")),
        (each["status"], STATUS_MEANINGS[each["status"]]),
        ("" if error is None else number_text(error), ""),
        (plain(each["source"] or ""), plain(each["reason"] or "")),
    )


def _row(cells: Sequence[tuple[str, str]]) -> str:
    return f"<tr>{''.join(_cell(text, meaning) for text, meaning in cells)}</tr>"


def _cell(text: str, meaning: str) -> str:
    title = f' title="{escape(meaning)}"' if meaning else ""
    return f'<td style="text-align:left"{title}>{escape(text)}</td>'
