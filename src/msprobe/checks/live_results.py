# SPDX-License-Identifier: Apache-2.0
"""Judgements of operators of a running training: kept by place, as a table, ranked, in words.

A training calls the same operators at the same places in every step. There is one row for each
result of an operator at a place, with the worst of its judgements, so that rows do not grow with
the number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from msprobe.checks.accuracy_call import own_words
from msprobe.checks.judging import Judgement, Verdict
from msprobe.checks.verify_call import CallReport, ResultRow
from msprobe.files import write_report
from msprobe.json_text import strict, strict_json
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Cell, Table

_COLUMNS: Final = (
    *("operator", "direction", "module", "source", "result", "verdict", "ratio", "ulps", "error"),
    *("relative", "allowed", "element", "found", "expected", "dtype", "shape", "reference"),
    *("judged", "faults", "step", "call", "reason", "remark", "saved"),
)
MOST_LISTED: Final = 10


class PlaceKey(NamedTuple):
    """Key of a row: the result of an operator at a place.

    Attributes:
        operator: ``aten.mm.default``.
        is_backward: it ran in a backward pass.
        module: path of the module around it.
        source: line of the user's code.
        slot: ``output.0``.
        dtype: of the result.
    """

    operator: str
    is_backward: bool
    module: str
    source: str | None
    slot: str
    dtype: str


@dataclass(slots=True)
class PlaceRow:
    """All judgements at one place, and the worst of them.

    Attributes:
        worst: the row of the worst call.
        by: what computed its reference.
        step: of the worst call.
        call: its name.
        judged: number of judgements.
        faults: how many of them are suspicious or wrong.
        saved: folder of its tensors, relative to the table's; empty for none.
    """

    worst: ResultRow
    by: str
    step: int
    call: str
    judged: int = 0
    faults: int = 0
    saved: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict; None if none was possible."""
        return None if self.worst.judgement is None else self.worst.judgement.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCall:
    """One call with its judgements and its place.

    Attributes:
        operator: ``aten.mm.default``.
        is_backward: it ran in a backward pass.
        module: path of the module around it.
        source: line of the user's code.
        step: number of the step.
        report: the judgements.
    """

    operator: str
    is_backward: bool
    module: str
    source: str | None
    step: int
    report: CallReport


@dataclass(slots=True)
class LiveResults:
    """Findings of a run so far.

    Attributes:
        rows: by place, in order of their first call.
        judged: number of calls judged.
        faults: how many of them are suspicious or wrong.
        left_out: calls that were not judged, by reason.
        steps: number of steps seen.
        first: the first fault; None for none.
    """

    rows: dict[PlaceKey, PlaceRow] = field(default_factory=dict)
    judged: int = 0
    faults: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    first: JudgedCall | None = None

    def add(self, call: JudgedCall) -> list[PlaceRow]:
        """Add a call; return the rows of which it is the first fault."""
        report = call.report
        if report.is_judged:
            self.judged += 1
        elif report.reason is not None:
            self.left_out[report.reason] += 1
        if call.report.is_fault:
            self.faults += 1
            self.first = self.first or call
        rows = report.rows or (ResultRow(record="", slot="", dtype="", shape=()),)
        new = []
        for plain in rows:
            row = _with_reason(plain, report)
            key = PlaceKey(
                call.operator, call.is_backward, call.module, call.source, row.slot, row.dtype
            )
            known = self.rows.get(key)
            if known is None:
                known = self.rows[key] = PlaceRow(row, report.by, call.step, report.name)
            if row.judgement is None:
                continue
            known.judged += 1
            is_fault = row.judgement.verdict.is_fault
            known.faults += is_fault
            if is_fault and known.faults == 1:
                new.append(known)
            if _badness(row.judgement) > _badness(known.worst.judgement):
                known.worst, known.by = row, report.by
                known.step, known.call = call.step, report.name
        return new

    @property
    def ranked(self) -> list[tuple[PlaceKey, PlaceRow]]:
        """The rows with a suspicious or wrong result, the worst first."""
        found = [(key, row) for key, row in self.rows.items() if row.faults]
        return sorted(found, key=lambda one: _badness(one[1].worst.judgement), reverse=True)

    def table(self) -> Table:
        """Return all rows."""
        return Table.of(_COLUMNS, [_cells(key, row) for key, row in self.rows.items()])

    def write(self, stem: Path) -> list[Path]:
        """Write ``{stem}.csv`` and ``{stem}.json``; return the files.

        Raises:
            ReportWriteError: a file cannot be written.
        """
        paths = write_csv(self.table(), stem.with_suffix(".csv"), warns=False)
        text = strict_json(strict(self.as_json()))
        return [*paths, write_report(stem.with_suffix(".json"), text, warns=False)]

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON: counts, and the faults with the worst first."""
        return {
            "steps": self.steps,
            "judged": self.judged,
            "faults": self.faults,
            "left_out": dict(self.left_out.most_common()),
            "findings": [
                {**dict(zip(_COLUMNS, _cells(key, row), strict=True))} for key, row in self.ranked
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield the answer in plain text: one sentence, then the worst places."""
        calls = f"{self.judged:,} operator call{'' if self.judged == 1 else 's'} judged"
        ranked = self.ranked
        if not ranked:
            yield f"{calls}, none is wrong" if self.judged else "no operator call was judged"
        else:
            yield f"{calls}, {self.faults:,} suspicious or wrong; first: {_first(self.first)}"
        for key, row in ranked[:MOST_LISTED]:
            assert row.worst.judgement is not None
            words = own_words(row.worst.judgement, row.worst.dtype)
            yield f"  {place_words(key)}: {words} ({row.faults} of {row.judged})"
        if len(ranked) > MOST_LISTED:
            yield f"  … {len(ranked) - MOST_LISTED:,} more places in the table"
        if self.left_out:
            parts = ", ".join(f"{count:,} {why}" for why, count in self.left_out.most_common())
            yield f"  not judged: {parts}"


def place_words(key: PlaceKey) -> str:
    """Return a place in words: ``aten.mm.default output.0 (backward of up, train.py:9)``."""
    where = ", ".join(filter(None, (key.module, key.source)))
    direction = "backward" if key.is_backward else "forward"
    return f"{key.operator} {key.slot} ({direction}{' of ' if where else ''}{where})"


def _first(call: JudgedCall | None) -> str:
    assert call is not None
    key = PlaceKey(call.operator, call.is_backward, call.module, call.source, "", "")
    return place_words(key).replace("  ", " ") + f", step {call.step}"


def _with_reason(row: ResultRow, report: CallReport) -> ResultRow:
    if row.judgement is not None or row.reason is not None:
        return row
    return replace(row, reason=report.reason, detail=report.detail)


def _badness(judgement: Judgement | None) -> tuple[int, float]:
    return (-1, 0.0) if judgement is None else (judgement.verdict.severity, judgement.ratio)


def _cells(key: PlaceKey, row: PlaceRow) -> tuple[Cell, ...]:
    worst = row.worst
    found = worst.judgement
    numbers: tuple[Cell, ...] = (None,) * 9
    if found is not None:
        numbers = (
            *(found.verdict.value, found.ratio, found.ulps, found.error, found.relative),
            *(found.allowed, found.index, _number(found.found), _number(found.expected)),
        )
    return (
        key.operator,
        "backward" if key.is_backward else "forward",
        key.module,
        key.source,
        key.slot,
        *numbers,
        key.dtype,
        str(list(worst.shape)),
        row.by,
        row.judged,
        row.faults,
        row.step,
        row.call,
        None if worst.reason is None else worst.reason.value,
        found.remark if found is not None else worst.detail,
        row.saved,
    )


def _number(value: complex | None) -> Cell:
    return str(value) if isinstance(value, complex) else value
