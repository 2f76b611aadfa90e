# SPDX-License-Identifier: Apache-2.0
"""The judgements of a dump as a table: one row for each result and gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msprobe.checks.verify_call import ResultRow
from msprobe.checks.verify_dump import VerifiedCall, VerifiedDump
from msprobe.report.tables import Cell, Table

_COLUMNS: Final = (
    *("step", "rank", "position", "record", "slot", "verdict", "ratio", "ulps", "error"),
    *("relative", "allowed", "dtype", "shape", "reference", "generated", "reason", "remark"),
    "source",
)


def verify_table(found: VerifiedDump) -> Table:
    """Return the table; a call without results has a row that says why."""
    return Table.of(_COLUMNS, [row for call in found.calls for row in _rows(call)])


def _rows(call: VerifiedCall) -> Iterator[tuple[Cell, ...]]:
    report = call.report
    for row in report.rows:
        yield _row(call, row)
    if not report.rows:
        empty = ResultRow(record=report.name, slot="", dtype="", shape=())
        yield _row(call, empty)


def _row(call: VerifiedCall, row: ResultRow) -> tuple[Cell, ...]:
    report, judgement = call.report, row.judgement
    reason = row.reason or (report.reason if judgement is None else None)
    numbers: tuple[Cell, ...] = (None,) * 6
    if judgement is not None:
        numbers = (
            judgement.verdict.value,
            judgement.ratio,
            judgement.ulps,
            judgement.error,
            judgement.relative,
            judgement.allowed,
        )
    return (
        call.step,
        str(call.rank),
        call.position,
        row.record,
        row.slot,
        *numbers,
        row.dtype,
        str(list(row.shape)),
        report.by,
        report.generated,
        None if reason is None else reason.value,
        judgement.remark if judgement is not None else row.detail or report.detail,
        call.source,
    )
