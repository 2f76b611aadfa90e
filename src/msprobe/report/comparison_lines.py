# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison for the terminal: the answer first, then where to look.

`summary` is the content of ``summary.json``, `frame` the table with one row per pair of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from msprobe.report.comparison_sections import (
    match_lines,
    rank_lines,
    replica_lines,
    unmatched_lines,
    unread_lines,
)
from msprobe.report.comparison_tree import comparison_tree_lines
from msprobe.report.comparison_words import (
    MODE_MEANINGS,
    ORIGIN_STYLES,
    ORIGINS,
    STATUS_STYLES,
    STATUSES,
    count_different,
    operation_label,
    place_text,
)
from msprobe.report.fact_lines import LABEL_WIDTH, fact_lines, list_lines, title_lines
from msprobe.report.grid import Cell, columns_of, fitted, heading, row
from msprobe.report.value_text import count_text, number_text, plain, size_text

if TYPE_CHECKING:
    import polars as pl

_DEFAULT_LIMIT: Final = 40
_MAX_CULPRITS: Final = 10
_WIDE_FROM: Final = 110

Tree = Mapping[str, Any]  # JSON of a summary, whose schema docs/tasks/compare.md describes


def comparison_lines(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    width: int,
    unicode: bool = True,
    limit: int = _DEFAULT_LIMIT,
    files: Sequence[Path] = (),
) -> Iterator[Text]:
    """Yield the answer of a comparison, line by line.

    Args:
        summary: content of ``summary.json``.
        frame: the table.
        width: of the terminal, in columns.
        unicode: whether line-drawing characters may be used.
        limit: lines of the tree of modules; 0 shows all.
        files: the written files, listed at the end.
    """
    lines = _lines(summary, frame, width, unicode=unicode, limit=limit, files=files)
    for line in lines:
        if not unicode:
            line.plain = line.plain.replace("…", "~")  # one for one: styles keep their places
        yield line


def _lines(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame,
    width: int,
    *,
    unicode: bool,
    limit: int,
    files: Sequence[Path],
) -> Iterator[Text]:
    yield from _answer(summary, width)
    if count_different(summary["counts"]):
        yield from _first_difference(summary, frame, width)
        yield from _introduced(summary, width, limit)
        yield from title_lines("By module", width)
        first = summary["first_difference"]
        best = [*([first] if first else []), *summary["introduced"]]
        modules = list(dict.fromkeys(each["module"] or "" for each in best))[:_MAX_CULPRITS]
        yield from comparison_tree_lines(
            frame, best=modules, width=width, unicode=unicode, limit=limit
        )
    yield from unread_lines(summary, frame, width)
    yield from unmatched_lines(summary, width)
    yield from match_lines(frame, width)
    yield from rank_lines(summary, width)
    yield from replica_lines(summary, width)
    for name, key in (("Next", "next_steps"), ("Notes", "notes")):
        if summary[key]:
            yield from title_lines(name, width)
            yield from list_lines(summary[key], width)
    if files:
        yield from title_lines("Written", width)
        yield from (Text(f"  {plain(str(path))}") for path in files)


def quiet_line(summary: Tree) -> str:
    """Return the answer in one line."""
    rows, different = summary["rows"], count_different(summary["counts"])
    if not rows:
        return "nothing to compare"
    if summary["equal"]:
        return f"equal: {count_text(rows, 'value')} agree"
    if not different:
        return f"unread: {_unread_text(summary)}"
    text = f"different: {different:,} of {count_text(rows, 'value')}"
    if culprits := summary["introduced"]:
        first = culprits[0]
        return text + f"; introduced by {plain(first['name'])}{_at(first.get('source'))}"
    first = summary["first_difference"]
    return text + (f"; first in {plain(first['name'])}{_at(first.get('source'))}" if first else "")


def _at(source: str | None) -> str:
    return f" ({plain(source)})" if source else ""


def _unread_text(summary: Tree) -> str:
    unread, rows = summary["counts"]["unread"], summary["rows"]
    return f"{unread:,} of {count_text(rows, 'value')} could not be read, the others agree"


def _answer(summary: Tree, width: int) -> Iterator[Text]:
    rows, unread = summary["rows"], summary["counts"].get("unread")
    different = count_different(summary["counts"])
    if not rows:
        yield Text("NOTHING TO COMPARE  the two have no value in common or apart", "bold yellow")
    elif summary["equal"]:
        text = f"  all {count_text(rows, 'value')} agree"
        yield Text.assemble(("EQUAL", "bold green"), (text, "bold"))
    elif not different:
        yield Text.assemble(("UNREAD", "bold yellow"), (f"  {_unread_text(summary)}", "bold"))
    else:
        text = f"  {different:,} of {count_text(rows, 'value')} differ"
        text += f", {unread:,} could not be read" if unread else ""
        yield Text.assemble(("DIFFERENT", "bold red"), (text, "bold"))
    for side in ("target", "reference"):
        yield from fact_lines(side, summary[side], width)
    yield from fact_lines("judged by", f"{_judged(summary)}; {_cost(summary)}", width)
    yield from _counts("values", summary["counts"], STATUSES, STATUS_STYLES, width)
    yield from _counts("origins", summary["origins"], ORIGINS, ORIGIN_STYLES, width)


def _judged(summary: Tree) -> str:
    mode = str(summary["mode"])
    return MODE_MEANINGS.get(mode, mode)


def _cost(summary: Tree) -> str:
    read = summary["bytes_read"]
    size = f"{size_text(read)} read in " if read else ""
    elapsed_s = summary["elapsed_s"]
    return f"{size}{elapsed_s:.1f} s" if elapsed_s >= 1 else f"{size}{elapsed_s:.2f} s"


def _counts(
    label: str,
    counts: Mapping[str, int],
    words: Sequence[str],
    styles: Mapping[str, str],
    width: int,
) -> Iterator[Text]:
    """Yield one or more lines of counts, without the words that count nothing."""
    parts = [(f"{counts[word]:,} {word}", styles[word]) for word in words if counts.get(word)]
    if not parts:
        return
    line = Text.assemble((f"  {label}".ljust(LABEL_WIDTH), "dim"))
    used = LABEL_WIDTH
    for place, (text, style) in enumerate(parts):
        if place and used + len(text) + 3 > width:
            yield line
            line, used = Text(" " * LABEL_WIDTH, end=""), LABEL_WIDTH
        elif place:
            line.append("   ")
            used += 3
        line.append(text, style)
        used += len(text)
    yield line


def _first_difference(
    summary: Tree, frame: pl.DataFrame | pl.LazyFrame, width: int
) -> Iterator[Text]:
    first = summary["first_difference"]
    if first is None:
        return
    yield from title_lines("First difference", width)
    yield Text(f"  {plain(first['name'])}", "bold")
    places = [plain(first["module"] or "outside of modules"), plain(first.get("source") or "")]
    if len(summary["comparisons"]) > 1:
        places.append(place_text(first["step"], first["rank"]))
    yield from fact_lines("where", ", ".join(place for place in places if place), width)
    status, origin = first["status"], first["origin"]
    line = Text.assemble(("  status".ljust(LABEL_WIDTH), "dim"))
    line.append(status, STATUS_STYLES.get(status, ""))
    if origin:
        line.append(", ").append(origin, ORIGIN_STYLES.get(origin, ""))
    yield line
    found = _row_of(frame, first)
    yield from _errors(first, found, width)
    if first["reason"]:
        yield from fact_lines("why", first["reason"], width)


def _row_of(frame: pl.DataFrame | pl.LazyFrame, place: Tree) -> dict[str, Any]:
    import polars as pl

    here = (
        (pl.col("name") == place["name"])
        & (pl.col("step") == place["step"])
        & (pl.col("rank") == str(place["rank"]))
    )
    found = frame.lazy().filter(here).head(1).collect()
    return found.row(0, named=True) if found.height else {}


def _errors(first: Tree, found: dict[str, Any], width: int) -> Iterator[Text]:
    """Say how far apart the values are, in up to three lines."""
    said = []
    if first["error"] is not None:
        said.append(f"{number_text(first['error'])} relative")
    if found.get("mismatches") and found["count"]:
        share = found["mismatches"] / found["count"]
        of = count_text(found["count"], "element")
        said.append(f"{number_text(100 * share)} % of {of} out of tolerance")
    if said:
        yield from fact_lines("error", "; ".join(said), width)
    if found.get("max_abs_err"):
        where = f" at {found['max_abs_index']}" if found["max_abs_index"] else ""
        values = (
            f"{_value(found['max_abs_target'])}, reference {_value(found['max_abs_reference'])}"
        )
        yield from fact_lines(
            "largest", f"{number_text(found['max_abs_err'])}{where}: {values}", width
        )
    for status, key in (("shape", "shape"), ("dtype", "dtype")):
        if found.get("status") == status:
            both = f"{found[f'target_{key}']}, reference {found[f'reference_{key}']}"
            yield from fact_lines(key, both, width)


def _value(value: float | None) -> str:
    return "?" if value is None else f"{value:.6g}"


def _introduced(summary: Tree, width: int, limit: int) -> Iterator[Text]:
    culprits = summary["introduced"]
    if not culprits:
        return
    total = summary["introduced_total"]
    places = _same_culprits(culprits)
    shown = list(places)[:_MAX_CULPRITS] if limit else list(places)
    is_whole = total == len(culprits) and len(shown) == len(places)
    many = f"{len(shown):,}" if is_whole else f"{len(shown):,} of them, {total:,} values in all"
    yield from title_lines(f"Introduced here, best culprit first: {many}", width)
    several = len(summary["comparisons"])
    lines = [
        _culprit(place, places[key][0], f"{len(places[key])} of {several}")
        for place, key in enumerate(shown, 1)
    ]
    left_out = set() if width >= _WIDE_FROM else {"module"}
    if several < 2:
        left_out.add("seen in")
    titles = [title for title in lines[0] if title not in left_out]
    cells = [[line[title] for title in titles] for line in lines]
    columns = columns_of(titles, cells, right=("#", "error"))
    columns = fitted(columns, width, 2, shrink=("operation", "module", "source"), least=10)
    room = columns[1].width
    yield heading(columns)
    for key, line in zip(shown, lines, strict=True):
        if line["operation"].width > room:
            line["operation"] = Cell(operation_label(key[0]).without_prefix, "bold")
        yield row(columns, [line[title] for title in titles])


def _same_culprits(culprits: Sequence[Tree]) -> dict[tuple[str, str], list[Tree]]:
    """Return (name, kind) → its finding in each step and rank, in the order of the culprits."""
    places: dict[tuple[str, str], dict[tuple[int, str], Tree]] = {}
    for each in culprits:
        found = places.setdefault((each["name"], each["kind"]), {})
        found.setdefault((each["step"], str(each["rank"])), each)
    return {key: list(found.values()) for key, found in places.items()}


def _culprit(place: int, each: Tree, seen_in: str) -> dict[str, Cell]:
    error, status = each["error"], each["status"]
    label = operation_label(each["name"])
    return {
        "#": Cell(str(place), "dim", lead="  "),
        "operation": Cell(label.text, "bold"),
        "kind": Cell(each["kind"].replace("_", " ")),
        "module": Cell(plain(each["module"])),
        "status": Cell(status, STATUS_STYLES.get(status, "")),
        "error": Cell("-" if error is None else number_text(error)),
        "seen in": Cell(seen_in),
        "source": Cell(plain(each.get("source") or ""), "dim"),
    }
