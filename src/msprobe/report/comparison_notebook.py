# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison as a few lines of HTML for a notebook cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msprobe.plain_text import html_small, html_table, html_text, place_text, plain
from msprobe.report.comparison_answer import (
    CulpritGroup,
    Outcome,
    answer_of,
    culprit_groups,
    error_text,
    group_label,
    source_text,
)
from msprobe.report.comparison_facts import operations, ranked
from msprobe.report.comparison_words import (
    ORIGIN_MEANINGS,
    STATUS_MEANINGS,
    STATUSES,
    TELLING,
    operation_label,
)
from msprobe.report.value_text import number_text

if TYPE_CHECKING:
    import polars as pl

_MAX_OPERATIONS: Final = 10
_TITLES: Final = ("step", "operation", "module", "origin", "status", "error", "source", "why")
# Notebooks bring their own light or dark colours: only accents are set here. `#c2510c` and
# `#0f8a6d` can be read on white and on black.
_DIFFERENT: Final = "#c2510c"
_EQUAL: Final = "#0f8a6d"


def notebook_html(summary: Mapping[str, Any], frame: pl.DataFrame) -> str:
    """Return the verdict, its evidence, counts by status and the culprits in groups.

    Without culprits the worst operations are listed.

    Args:
        summary: content of ``summary.json``.
        frame: the table with one row per pair of values.
    """
    return "".join(_parts(summary, frame))


def _parts(summary: Mapping[str, Any], frame: pl.DataFrame) -> Iterator[str]:
    answer = answer_of(summary)
    colour = _EQUAL if answer.outcome is Outcome.EQUAL else _DIFFERENT
    word, sentence = html_text(answer.outcome), html_text(answer.sentence)
    yield f'<div><b style="color:{colour}">{word}</b>: {sentence}</div>'
    if answer.evidence:
        shown = "".join(f"<li>{html_text(each)}</li>" for each in answer.evidence)
        yield html_small(f"{html_text(answer.confidence)}<ul>{shown}</ul>")
    yield html_small(html_text(f"{summary['target']} against {summary['reference']}"))
    yield html_small(_counts(summary["counts"]))
    if groups := culprit_groups(summary):
        rows = [_culprit(group, summary) for group in groups[:_MAX_OPERATIONS]]
        yield html_table(_TITLES, rows)
        yield from _more(len(groups) - len(rows), "groups of culprits")
    elif summary["first_difference"]:
        yield from _worst(frame)
    if answer.steps:
        shown = "".join(f"<li>{html_text(each)}</li>" for each in answer.steps)
        yield html_small(f"next<ul>{shown}</ul>")


def _counts(counts: Mapping[str, int]) -> str:
    shown = (
        f'<span title="{html_text(STATUS_MEANINGS[word])}">{counts[word]:,} {word}</span>'
        for word in STATUSES
        if counts.get(word)
    )
    return " · ".join(shown)


def _culprit(group: CulpritGroup, summary: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return text and explanation of each cell of a group."""
    first, several = group.first, len(summary["comparisons"])
    seen = f"in {group.places} of {several} steps and ranks" if several > 1 else ""
    return (
        (place_text(first["step"], first["rank"]).removeprefix("step "), seen),
        (group_label(group), first["name"]),
        (first["module"] or "", ""),
        ("introduced", ORIGIN_MEANINGS["introduced"]),
        (first["status"], STATUS_MEANINGS[first["status"]]),
        ("" if first["error"] is None else error_text(first), ""),
        (source_text(first), ""),
        (group.reason, ""),
    )


def _worst(frame: pl.DataFrame) -> Iterator[str]:
    import polars as pl

    worst = ranked(operations(frame).filter(pl.col("differ") > 0))
    telling = worst.filter(pl.col("origin").is_in(TELLING) | (pl.col("status") != "differs"))
    shown = (telling if telling.height else worst).head(_MAX_OPERATIONS)
    yield html_table(_TITLES, [_operation(each) for each in shown.iter_rows(named=True)])
    yield from _more(worst.height - shown.height, "operations that differ")


def _operation(each: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    label, origin, error = operation_label(each["operation"]), each["origin"] or "", each["error"]
    return (
        (place_text(each["step"], each["rank"]).removeprefix("step "), ""),
        (label.text + label.tail, each["operation"]),
        (each["module"] or "", ""),
        (origin, ORIGIN_MEANINGS.get(origin, "")),
        (each["status"], STATUS_MEANINGS[each["status"]]),
        ("" if error is None else number_text(error), ""),
        (each["source"] or "", ""),
        (each["reason"] or "", ""),
    )


def _more(count: int, noun: str) -> Iterator[str]:
    if count > 0:
        yield html_small(f"and {count:,} more {plain(noun)}")
