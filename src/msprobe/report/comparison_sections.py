# SPDX-License-Identifier: Apache-2.0
"""Sections below the answer of a comparison: unmatched and guessed operations, ranks, replicas."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from msprobe.plain_text import count_text, place_text, plain
from msprobe.report.comparison_facts import OPERATION
from msprobe.report.comparison_words import STATUS_STYLES, count_different
from msprobe.report.fact_lines import list_lines, title_lines
from msprobe.report.grid import Cell, Column, columns_of, fitted, heading, row
from msprobe.report.value_text import number_text

if TYPE_CHECKING:
    import polars as pl

_MAX_UNREAD: Final = 5
_MAX_UNMATCHED: Final = 5
_MAX_GUESSED: Final = 5
_MAX_RANKS: Final = 16
_MAX_REPLICAS: Final = 8
# A renamed call of the same operation is no guess.
_CERTAIN: Final = 0.9


def unread_lines(
    summary: Mapping[str, Any],
    frame: pl.DataFrame | pl.LazyFrame,
    width: int,
    *,
    most: int = _MAX_UNREAD,
) -> Iterator[Text]:
    """Yield the values that could not be read, `most` of them, and why."""
    import polars as pl

    count = summary["counts"].get("unread", 0)
    if not count:
        return
    yield from title_lines(f"Could not be read: {count_text(count, 'value')}", width)
    unread = frame.lazy().filter(pl.col("status") == "unread").select("name", "reason")
    rows = unread.head(most).collect()
    for name, reason in rows.iter_rows():
        yield Text.assemble("  ", (plain(name), STATUS_STYLES["unread"]))
        yield from list_lines([reason], width)
    if (more := count - rows.height) > 0:
        yield Text(f"  and {more:,} more", "dim")


def unmatched_lines(summary: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Yield the operations that only one side has, a few of each."""
    unmatched = summary["unmatched"]
    sides = (("added", "target"), ("missing", "reference"))
    if not any(unmatched[side] for _, side in sides):
        return
    counts = ", ".join(
        f"{unmatched[side]:,} only in the {side}" for _, side in sides if unmatched[side]
    )
    yield from title_lines(f"Operations without a partner: {counts}", width)
    for word, side in sides:
        names = unmatched["operations"].get(word, [])
        shown = list(dict.fromkeys(names))[:_MAX_UNMATCHED]  # steps and ranks repeat them
        for name in shown:
            yield Text.assemble((f"  {word:<9}", STATUS_STYLES[word]), plain(name))
        if (more := unmatched[side] - sum(map(names.count, shown))) > 0:
            yield Text(f"  {'':9}and {more:,} more {word}", "dim")


def match_lines(frame: pl.DataFrame | pl.LazyFrame, width: int) -> Iterator[Text]:
    """Yield how operations of different names were paired, least certain first."""
    import polars as pl

    pairs = (
        frame.lazy()
        .filter(~pl.col("match").is_in(("exact", "unmatched")))
        .unique(OPERATION, keep="first", maintain_order=True)
        .select("match", "confidence", "operation", "slot", "reference_name")
        .sort("confidence", maintain_order=True)
        .collect()
    )
    if pairs.is_empty():
        return
    counts = Counter(pairs["match"].to_list()).most_common()
    said = ", ".join(f"{count:,} {word}" for word, count in counts)
    low, high = (f"{pairs['confidence'][place]:.2g}" for place in (0, -1))
    sure = low if low == high else f"{low} to {high}"
    yield from title_lines("Operations paired by more than their names", width)
    yield Text(f"  {said}; confidence {sure}")
    unsure = pairs.filter(pl.col("confidence") < _CERTAIN)
    guesses = unsure.unique(("operation", "reference_name"), maintain_order=True).head(_MAX_GUESSED)
    if guesses.is_empty():
        return
    cells = [
        [
            Cell(f"{each['confidence']:.2f}"),
            Cell(each["match"]),
            Cell(plain(each["operation"])),
            Cell(_partner(each)),
        ]
        for each in guesses.iter_rows(named=True)
    ]
    columns = columns_of(["confidence", "pairing", "target", "reference"], cells)
    columns[0] = Column(title="  confidence", width=12, right=True)
    columns = fitted(columns, width, 2, shrink=("target", "reference"))
    yield heading(columns)
    yield from (row(columns, line) for line in cells)


def _partner(pair: Mapping[str, Any]) -> str:
    name = pair["reference_name"] or ""
    name = name.removesuffix(f".{pair['slot']}")
    return "same name" if name == pair["operation"] else plain(name)


def rank_lines(summary: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Yield the steps and ranks that differ, if there are several of any kind."""
    comparisons: Sequence[Mapping[str, Any]] = summary["comparisons"]
    if len(comparisons) < 2:
        return
    yield from title_lines("Steps and ranks", width)
    counted = [(count_different(each["counts"]), each) for each in comparisons]
    different = [pair for pair in counted if pair[0]]
    cells = [_rank(differ, each) for differ, each in different[:_MAX_RANKS]]
    if cells:
        columns = columns_of(["  where", "differ", "first difference", "status"], cells)
        columns = fitted(columns, width, 2, shrink=("first difference",))
        yield heading(columns)
        yield from (row(columns, line) for line in cells)
    if (more := len(different) - len(cells)) > 0:
        yield Text(f"  {more:,} more differ", "dim")
    unread = sum(1 for differ, each in counted if not differ and each["counts"].get("unread"))
    if unread:
        yield Text(f"  {unread:,} of {len(comparisons):,} could not be read in full", "bold yellow")
    if agree := len(comparisons) - len(different) - unread:
        words = "agrees" if agree == 1 else "agree"
        yield Text(f"  {agree:,} of {len(comparisons):,} {words}", "green")


def _rank(differ: int, each: Mapping[str, Any]) -> list[Cell]:
    first = each["first_difference"] or {}
    total = sum(each["counts"].values())
    status = first.get("status", "")
    return [
        Cell(place_text(each["step"], each["rank"]), lead="  "),
        Cell(f"{differ:,} of {total:,}"),
        Cell(plain(first.get("name", "-"))),
        Cell(status, STATUS_STYLES.get(status, "")),
    ]


def replica_lines(
    summary: Mapping[str, Any], width: int, *, most: int = _MAX_REPLICAS
) -> Iterator[Text]:
    """Yield the differences between ranks that should agree, `most` of them."""
    replicas: Sequence[Mapping[str, Any]] | None = summary.get("replicas")
    if replicas is None:
        return
    if not replicas:
        yield from title_lines("Ranks that should agree do", width)
        return
    found = count_text(len(replicas), "value")
    yield from title_lines(f"Ranks that should agree differ: {found}", width)
    for each in replicas[:most]:
        error, source = each.get("error"), each.get("source")
        number = "" if error is None else f"  {number_text(error)}"
        where = f"  {plain(source)}" if source else ""
        name = plain(str(each.get("row") or each["name"]))
        yield Text.assemble("  ", (name, "bold"), number, (where, "dim"), end="")
        if reason := each.get("reason"):
            room = max(width - 6, 20)
            yield from (Text(f"      {line}", "dim") for line in textwrap.wrap(plain(reason), room))
    if (more := len(replicas) - most) > 0:
        yield Text(f"  {more:,} more", "dim")
