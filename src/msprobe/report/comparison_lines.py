# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison for the terminal: the answer on one screen, or everything.

`summary` is the content of ``summary.json``, `frame` the table with one row per pair of values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from msprobe.plain_text import count_text, place_text, plain, size_text
from msprobe.report.comparison_answer import (
    TIMES,
    Answer,
    CulpritGroup,
    Outcome,
    Tree,
    answer_of,
    argument_of,
    counts_text,
    culprit_groups,
    error_text,
    group_label,
    source_text,
)
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
)
from msprobe.report.fact_lines import COMMAND, LABEL_WIDTH, fact_lines, list_lines, title_lines
from msprobe.report.grid import Cell, columns_of, fitted, heading, row
from msprobe.report.value_text import number_text

if TYPE_CHECKING:
    import polars as pl

SCREEN: Final = 25
"""Lines of the short form at most."""

_DEFAULT_LIMIT: Final = 40
_MAX_CULPRITS: Final = 10
_MAX_SENTENCE: Final = 3
_MAX_EVIDENCE: Final = 4
_MAX_STEPS: Final = 3
_MAX_NOTES: Final = 3
_MAX_FEW: Final = 2
_WIDE_FROM: Final = 110
_OUTCOME_STYLES: Final = {
    Outcome.EQUAL: "bold green",
    Outcome.EQUAL_BUT: "bold yellow",
    Outcome.EQUAL_RESULTS: "bold green",
    Outcome.DIFFERENT: "bold red",
    Outcome.UNREAD: "bold yellow",
    Outcome.NOTHING: "bold yellow",
}


def short_lines(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame | None = None,
    *,
    width: int,
    unicode: bool = True,
    files: Sequence[Path] = (),
) -> Iterator[Text]:
    """Yield the answer of a comparison in `SCREEN` lines at most, at 80 columns or more.

    Args:
        summary: content of ``summary.json``.
        frame: the table; only needed for values that could not be read.
        width: of the terminal, in columns.
        unicode: whether other characters than ASCII may be used.
        files: the written files.
    """
    return _in_charset(_short(summary, frame, width, files), unicode=unicode)


def comparison_lines(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame,
    *,
    width: int,
    unicode: bool = True,
    limit: int = _DEFAULT_LIMIT,
    files: Sequence[Path] = (),
) -> Iterator[Text]:
    """Yield everything a terminal shows of a comparison, line by line.

    Args:
        summary: content of ``summary.json``.
        frame: the table.
        width: of the terminal, in columns.
        unicode: whether line-drawing characters may be used.
        limit: lines of the tree of modules; 0 shows all.
        files: the written files, listed at the end.
    """
    lines = _lines(summary, frame, width, unicode=unicode, limit=limit, files=files)
    return _in_charset(lines, unicode=unicode)


def quiet_line(summary: Tree) -> str:
    """Return the answer in one line: the outcome and the sentence."""
    answer = answer_of(summary)
    if answer.outcome is Outcome.NOTHING:
        return str(answer.outcome)
    return f"{answer.outcome}: {plain(answer.sentence)}"


def _in_charset(lines: Iterable[Text], *, unicode: bool) -> Iterator[Text]:
    for line in lines:
        if not unicode:
            # One for one: styles keep their places.
            line.plain = line.plain.replace("…", "~").replace(TIMES, "x")
        yield line


# The short form


@dataclass(slots=True)
class _Part:
    """Lines of the short form, and those that are left of them where room is scarce."""

    lines: list[Text]
    least: list[Text]


def _short(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame | None,
    width: int,
    files: Sequence[Path],
) -> Iterator[Text]:
    answer = answer_of(summary)
    named, hidden = _named_files(files, width)
    head = [*_headline(answer, width, most=_MAX_SENTENCE), *_facts(summary, answer, width)]
    first = _Part([*_unpaired(summary, width), *_first_fact(summary, width)], [])
    evidence = _Part(*([*_evidence(answer, width, most=n)] for n in (_MAX_EVIDENCE, 1)))
    unread = _Part(*([*_unread(summary, frame, width, most=n)] for n in (_MAX_FEW, 1)))
    replicas = _Part([*replica_lines(summary, width, most=_MAX_FEW)], [])
    steps = _Part(*([*_steps(answer, width, most=n)] for n in (_MAX_STEPS, 1)))
    written = _Part(named, [])
    culprits = _culprits(summary, width, room=0)
    parts = (first, evidence, unread, replicas, steps, written)
    room = SCREEN - 1 - len(head) - len(culprits)  # the last line says what else there is
    for part in (first, written, replicas, steps, evidence, unread):
        if sum(len(each.lines) for each in parts) > room:
            part.lines = part.least
    room += len(culprits) - sum(len(each.lines) for each in parts)
    culprits = _culprits(summary, width, room)
    notes, untold = _fitting_notes(summary, width, room - len(culprits))
    above = (head, first.lines, evidence.lines, unread.lines, replicas.lines)
    for lines in (*above, culprits, notes, steps.lines, written.lines):
        yield from lines
    parts_left = [
        "the modules" if count_different(summary["counts"]) else "",
        "ranks that disagree" if summary.get("replicas") and not replicas.lines else "",
        count_text(untold, "note") if untold else "",
        _files_left(len(files), hidden if written.lines else len(files)),
    ]
    yield from _more([part for part in parts_left if part])


def _unread(
    summary: Tree, frame: pl.DataFrame | pl.LazyFrame | None, width: int, most: int
) -> Iterator[Text]:
    return iter(()) if frame is None else unread_lines(summary, frame, width, most=most)


def _headline(answer: Answer, width: int, most: int | None = None) -> Iterator[Text]:
    """Yield the outcome and the sentence, whose lines are below each other."""
    word = answer.outcome.upper()
    room = max(width - len(word) - 2, 30)
    lines = textwrap.wrap(
        plain(answer.sentence), room, break_on_hyphens=False, max_lines=most, placeholder=" …"
    )
    for place, line in enumerate(lines):
        start = "" if place else word
        yield Text.assemble(
            (start.ljust(len(word) + 2), _OUTCOME_STYLES[answer.outcome]), (line, "bold")
        )


def _facts(summary: Tree, answer: Answer, width: int) -> Iterator[Text]:
    for side in ("target", "reference"):
        yield from fact_lines(side, summary[side], width)
    yield from fact_lines("judged by", f"{_judged(summary)}; {_cost(summary)}", width)
    if answer.kind and answer.outcome is not Outcome.EQUAL:  # else the sentence has the counts
        yield from fact_lines("values", counts_text(summary), width)


def _unpaired(summary: Tree, width: int) -> Iterator[Text]:
    unmatched = summary["unmatched"]
    alone = [
        f"{count_text(unmatched[side], 'call')} only in the {side}"
        for side in ("target", "reference")
        if unmatched[side]
    ]
    if alone:
        yield from fact_lines("unpaired", ", ".join(alone), width)


def _first_fact(summary: Tree, width: int) -> Iterator[Text]:
    """Say where the first difference is, unless the first culprit says it."""
    first, culprits = summary["first_difference"], summary["introduced"]
    if first is None or (culprits and culprits[0].get("row") == first["name"]):
        return
    places = [first["module"] or "outside of modules", source_text(first)]
    if len(summary["comparisons"]) > 1:
        places.append(place_text(first["step"], first["rank"]))
    where = ", ".join(place for place in places if place)
    yield from fact_lines("first", f"{first['name']} ({where}): {_verdict(first)}", width)


def _verdict(place: Tree) -> str:
    words = [place["status"], place.get("origin"), place["error"] and error_text(place)]
    return ", ".join(str(word) for word in words if word)


def _evidence(answer: Answer, width: int, most: int | None = None) -> Iterator[Text]:
    if not answer.evidence:
        return
    more = 0 if most is None else max(len(answer.evidence) - most, 0)
    words = [answer.confidence, f"{more:,} more with -v" if more else ""]
    told = ", ".join(word for word in words if word)
    yield from title_lines(f"Evidence ({told})" if told else "Evidence", width)
    yield from list_lines(answer.evidence[:most], width, most=None if most is None else 2)


def _steps(answer: Answer, width: int, most: int | None = None) -> Iterator[Text]:
    if answer.steps:
        yield from title_lines("Next", width)
        # A command says more than the words around it.
        steps = sorted(answer.steps, key=_is_no_command) if most == 1 else answer.steps
        yield from list_lines(steps[:most], width, most=None if most is None else 2)


def _is_no_command(step: str) -> bool:
    return not step.startswith(COMMAND)


def _named_files(files: Sequence[Path], width: int) -> tuple[list[Text], int]:
    """Return the files to open first, the page and the summary, and how many others there are."""
    named = {"report": ".html", "summary": ".json"}
    found = {
        label: path for path in files for label, suffix in named.items() if path.suffix == suffix
    }
    lines = [line for label in found for line in fact_lines(label, str(found[label]), width)]
    return ([Text(), *lines] if lines else []), len(files) - len(found)


def _fitting_notes(summary: Tree, width: int, room: int) -> tuple[list[Text], int]:
    """Return the notes that fit into a number of lines, and how many do not."""
    notes: Sequence[str] = summary["notes"]
    for count in range(min(len(notes), _MAX_NOTES), 0, -1):
        lines = [*title_lines("Notes", width), *list_lines(notes[:count], width)]
        if len(lines) <= room:
            return lines, len(notes) - count
    return [], len(notes)


def _files_left(total: int, hidden: int) -> str:
    noun = "file" if hidden == total else "more file"
    return count_text(hidden, noun) if hidden else ""


def _more(parts: Sequence[str]) -> Iterator[Text]:
    """Say in one line what the long form has besides."""
    if parts:
        *first, last = parts
        yield Text(f"  -v shows {', '.join(first)}{' and ' if first else ''}{last}", "dim")


# The long form


def _lines(
    summary: Tree,
    frame: pl.DataFrame | pl.LazyFrame,
    width: int,
    *,
    unicode: bool,
    limit: int,
    files: Sequence[Path],
) -> Iterator[Text]:
    answer = answer_of(summary)
    yield from _headline(answer, width)
    yield from _facts(summary, answer, width)
    yield from _counts("statuses", summary["counts"], STATUSES, STATUS_STYLES, width)
    yield from _counts("origins", summary["origins"], ORIGINS, ORIGIN_STYLES, width)
    yield from _unpaired(summary, width)
    if answer.where:
        yield from fact_lines("cause at", answer.where, width)
    yield from _evidence(answer, width)
    if count_different(summary["counts"]):
        yield from _first_difference(summary, frame, width)
        yield from _culprits(summary, width)
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
    yield from _steps(answer, width)
    if summary["notes"]:
        yield from title_lines("Notes", width)
        yield from list_lines(summary["notes"], width)
    if files:
        yield from title_lines("Written", width)
        yield from (Text(f"  {plain(str(path))}") for path in files)


# Parts of both


def _culprits(summary: Tree, width: int, room: int | None = None) -> list[Text]:
    """Return the groups of culprits that fit into a number of lines, at least the first."""
    groups = culprit_groups(summary)
    for most in range(min(len(groups), _MAX_CULPRITS), 0, -1):
        lines = list(_culprit_lines(summary, groups, most, width, is_short=room is not None))
        if room is None or len(lines) <= room or most == 1:
            return lines
    return []


def _culprit_lines(
    summary: Tree, groups: Sequence[CulpritGroup], most: int, width: int, *, is_short: bool
) -> Iterator[Text]:
    many = f"{most:,}" if most == len(groups) else f"{most:,} of {len(groups):,} groups"
    total = summary["introduced_total"]
    many += "" if total == len(groups) else f", {count_text(total, 'value')} in all"
    yield from title_lines(f"Culprits, best first: {many}", width)
    several = len(summary["comparisons"])
    shown = groups[:most]
    lines = [_culprit(place, group, several) for place, group in enumerate(shown, 1)]
    left_out = set() if width >= _WIDE_FROM else {"module"}
    if several < 2:
        left_out.add("seen in")
    titles = [title for title in lines[0] if title not in left_out]
    cells = [[line[title] for title in titles] for line in lines]
    columns = columns_of(titles, cells, right=("#", "error"))
    columns = fitted(columns, width, 2, shrink=("operation", "module", "source"), least=10)
    room = columns[1].width
    yield heading(columns)
    for group, line in zip(shown, lines, strict=True):
        if line["operation"].width > room:
            whole = line["operation"]
            line["operation"] = whole._replace(text=group_label(group, is_short=True))
        yield row(columns, [line[title] for title in titles])
        yield from _reason(group.reason, width, most=1 if is_short else None)


def _culprit(place: int, group: CulpritGroup, several: int) -> dict[str, Cell]:
    first, argument = group.first, argument_of(group.first)
    error, status = first["error"], first["status"]
    return {
        "#": Cell(str(place), "dim", lead="  "),
        "operation": Cell(
            group_label(group), "bold", tail=f" {plain(argument)}" if argument else ""
        ),
        "kind": Cell(first["kind"].replace("_", " ")),
        "module": Cell(plain(first["module"])),
        "status": Cell(status, STATUS_STYLES.get(status, "")),
        "error": Cell("-" if error is None else number_text(error)),
        "seen in": Cell(f"{group.places} of {several}"),
        "source": Cell(plain(source_text(first)), "dim"),
    }


def _reason(reason: str, width: int, most: int | None) -> Iterator[Text]:
    indent = " " * 5
    room = max(width - len(indent), 20)
    for line in textwrap.wrap(plain(reason), room, max_lines=most, placeholder=" …"):
        yield Text(indent + line, "dim")


def _judged(summary: Tree) -> str:
    mode = str(summary["mode"])
    words = MODE_MEANINGS.get(mode, mode)
    noise = summary.get("noise")  # summaries of replicas have none
    if noise is None:
        return words
    return f"{words}; rounding measured in {noise['recordings']} recordings"


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
    places = [plain(first["module"] or "outside of modules"), plain(source_text(first))]
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
