# SPDX-License-Identifier: Apache-2.0
"""The three lines of advice that release 8.3.3 gives on the first bad row of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.compare.legacy.columns import REACHED, RESULT
from msprobe.compare.legacy.reached import BAD, UNMATCHED
from msprobe.compare.model import Row
from msprobe.dump.record_names import RecordKind, parse_record_name
from msprobe.dump.values import Role
from msprobe.files import write_report
from msprobe.operators.lookup import operator_of
from msprobe.report.tables import Table

_BAD_RESULTS: Final = (*BAD, UNMATCHED, "error", "warning")

_UPSTREAM: Final = (
    "The value was already different when it came in. Look at what computes it; check whether an "
    "in-place operation overwrites it before or while it is read, and whether memory is corrupted."
)
_FORWARD: Final = (
    "The inputs of this call should be compared first; where they agree, its own computation is at "
    "fault: check the implementation of the operation."
)
_GRADIENT_IN: Final = (
    "The gradient was already different when it came in. Differences of the forward pass, or of "
    "later calls' backward, may be the cause: check those first."
)
_GRADIENT_OUT: Final = (
    "The gradient was computed here: check the implementation of this operation's backward."
)
_PARAMETER: Final = (
    "The parameter itself differs: check initialisation, loading of the checkpoint, and what the "
    "optimizer has done in earlier steps."
)
_STEADY: Final = (
    "This operation may give other results in every run. Compare again with deterministic "
    "computation and fixed seeds on both sides (seed_all with mode=True)."
)
_BATCH_NORM: Final = (
    "Statistics of a batch depend on every element. Compare again with batch_norm in evaluation "
    "mode, without affine parameters, or with deterministic computation."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on the first bad row.

    Attributes:
        line: the row's place in the table, from 0; None when no row is bad.
        name: the row's name, ``NA`` when no row is bad.
        text: the advice.
    """

    line: int | None
    name: str
    text: str

    def lines(self) -> list[str]:
        """Return the three lines of the file."""
        line = "NA" if self.line is None else str(self.line)
        return [f"Line: {line}", f"Suspect Nodes: {self.name}", f"Expert Advice: {self.text}"]


def advise(table: Table, rows: Iterable[Row]) -> Advice:
    """Return advice on the first bad row of a table of either generation.

    Args:
        table: the table that is written.
        rows: the rows of its lines, in their order.
    """
    verdict = table.columns.index(REACHED if REACHED in table.columns else RESULT)
    for line, ((cells, _), row) in enumerate(zip(table.rows(), rows, strict=True)):
        if cells[verdict] in _BAD_RESULTS:
            return Advice(line=line, name=row.name, text=_advice_on(row))
    return Advice(line=None, name="NA", text="No value differs beyond what is allowed.")


def write_advice(table: Table, rows: Iterable[Row], path: Path) -> Path:
    """Write the advice on a table into a text file; return the file.

    Args:
        table: see `advise`.
        rows: see `advise`.
        path: the file.

    Raises:
        ReportWriteError: it cannot be written.
    """
    return write_report(path, "\n".join(advise(table, rows).lines()) + "\n")


def _advice_on(row: Row) -> str:
    name, value = parse_record_name(row.pair.name), row.value
    operator = operator_of(name.prefix, name.path)
    is_forward = name.kind is RecordKind.FORWARD
    if operator.name == "batch_norm" and is_forward and value.slot == "input.1":
        return _BATCH_NORM
    if operator.may_vary:
        return _STEADY
    if value.role in (Role.PARAMETER, Role.PARAMETER_GRAD):
        return _PARAMETER
    is_output = value.role is Role.OUTPUT
    if name.kind is RecordKind.BACKWARD:
        return _GRADIENT_OUT if is_output else _GRADIENT_IN
    return _FORWARD if is_output else _UPSTREAM
