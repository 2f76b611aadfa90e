# SPDX-License-Identifier: Apache-2.0
"""Terminal lines: which calls of a dump are wrong, by how much, and what was not judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msprobe.checks.judging import Verdict
from msprobe.checks.verify_dump import VerifiedCall, VerifiedDump
from msprobe.plain_text import count_text, place_text, plain

if TYPE_CHECKING:
    from rich.text import Text

MOST_LISTED: Final = 20
_STYLES: Final = {Verdict.WRONG: "bold red", Verdict.SUSPICIOUS: "yellow"}


def sentence(found: VerifiedDump) -> str:
    """Return the answer in one sentence."""
    wrong, suspicious = (
        found.with_verdict(verdict) for verdict in (Verdict.WRONG, Verdict.SUSPICIOUS)
    )
    faults = wrong or suspicious
    if not found.judged:
        return f"none of {count_text(len(found.calls), 'call')} could be judged"
    if not faults:
        return f"no call is wrong: {count_text(found.judged, 'call')} judged against float64"
    word = Verdict.WRONG if wrong else Verdict.SUSPICIOUS
    are = "is" if len(faults) == 1 else "are"
    of = count_text(found.judged, "call")
    text = f"{len(faults):,} of {of} {are} {word}; first: {_place(faults[0])}"
    if wrong and suspicious:
        text += f"; {len(suspicious):,} more {'is' if len(suspicious) == 1 else 'are'} suspicious"
    return text


def _place(call: VerifiedCall) -> str:
    row = next(
        row
        for row in call.report.rows
        if row.judgement is not None and row.judgement.verdict is call.report.verdict
    )
    assert row.judgement is not None
    parts = [f"`{plain(row.record)}`", row.judgement.remark or f"{_number(row.judgement.ulps)} ulp"]
    return ", ".join(parts + ([plain(call.source)] if call.source else []))


def answer_lines(found: VerifiedDump) -> Iterator[Text]:
    """Yield the whole answer: the sentence, the worst calls, what was not judged."""
    from rich.text import Text

    has_fault = any(call.is_fault for call in found.calls)
    yield Text(sentence(found), "bold red" if has_fault else "bold")
    worst = [call for call in found.worst if call.is_fault]
    shown = worst[:MOST_LISTED] or found.worst[:3]
    if shown:
        yield Text()
        if not worst:
            yield Text("  nearest to their allowed error:", "dim")
        yield from _table(shown, len({(call.step, call.rank) for call in found.calls}) > 1)
    if len(worst) > MOST_LISTED:
        yield Text(f"  … {len(worst) - MOST_LISTED:,} more; verify.json has all", "dim")
    generated = sum(call.report.generated for call in found.calls if call.report.is_judged)
    if generated:
        yield Text()
        yield Text(
            f"  generated data: {count_text(generated, 'call')} without recorded elements; "
            "arguments were made from statistics, "
            "and the results judged are those of a new run here",
            "yellow",
        )
    yield Text()
    yield Text(closing(found))
    for note in found.notes:
        yield Text(f"  note: {plain(note)}", "yellow")


def closing(found: VerifiedDump) -> str:
    """Return how many calls were judged, and why others were not."""
    text = f"{found.judged:,} of {count_text(len(found.calls), 'call')} judged"
    reasons = found.not_judged
    if reasons:
        parts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        text += f", {reasons.total():,} not: {parts}"
    return text


def _table(calls: Sequence[VerifiedCall], has_several: bool) -> Iterator[Text]:
    from msprobe.report.grid import Cell, columns_of, heading, row

    titles = ["verdict", "over budget", "ulp", "relative", "record", "result", "type", "source"]
    lines = []
    for call, told in [(each, told) for each in calls for told in each.told]:
        judgement = told.judgement
        assert judgement is not None
        where = f"{place_text(call.step, call.rank)} " if has_several else ""
        lines.append(
            [
                Cell(judgement.verdict, _STYLES.get(judgement.verdict, "")),
                Cell(f"{_number(judgement.ratio)}x"),
                Cell(_number(judgement.ulps)),
                Cell(_number(judgement.relative)),
                Cell(plain(f"{where}{told.record}")),
                Cell(told.slot),
                Cell(told.dtype + (" (generated)" if call.report.generated else "")),
                Cell(plain(call.source or "")),
            ]
        )
    columns = columns_of(titles, lines, right=("over budget", "ulp", "relative"))
    yield _indented(heading(columns))
    for line in lines:
        yield _indented(row(columns, line))


def _indented(line: Text) -> Text:
    from rich.text import Text

    return Text("  ").append_text(line)


def _number(value: float) -> str:
    if math.isinf(value):
        return "inf"
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.1e}"
