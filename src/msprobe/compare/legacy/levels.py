# SPDX-License-Identifier: Apache-2.0
"""The verdicts of release 26.2.0: ``pass``, ``warning`` or ``error``, with messages.

Its rules look at one operation at a time: what changes from its inputs to its outputs. They never
say that a value simply differs. So our own status sets the least level of a row: a difference that
begins here is an error, one that was handed down a warning, and so is a value without a partner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from msprobe.api_prefixes import API_PREFIXES
from msprobe.compare.legacy.cells import NAN, SideCells, number
from msprobe.compare.model import Matched, Missing, Mode, Origin, Row, Status
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import operator_of
from msprobe.operators.operator import Flow, Operator
from msprobe.report.tables import Cell

# They say nothing of the computation.
_IGNORED: Final = ("numpy", "to", "setitem")
_NORM_GOOD: Final = 0.1
_NORM_BAD: Final = 0.5
_NORM_GROWTH: Final = 10
_SHARE_GOOD: Final = 0.9
_SHARE_BAD: Final = 0.6
_COSINE_GOOD: Final = 0.9
_COSINE_DROP: Final = 0.1
_NORM_COLUMN: Final = 7
_COSINE_COLUMN: Final = 0
_SHARE_COLUMN: Final = 4
_INHERITED: Final = (Origin.INHERITED, Origin.INPUT)


class Level(IntEnum):
    """Severity of a row."""

    PASS = 0
    WARNING = 1
    ERROR = 2


_RESULTS: Final = ("pass", "warning", "error")


@dataclass(slots=True)
class Verdict:
    """Level and messages of a row.

    Attributes:
        level: the highest level of all findings.
        messages: the findings, each with its level in front.
    """

    level: Level = Level.PASS
    messages: list[str] = field(default_factory=list)

    def add(self, level: Level, text: str) -> None:
        """Add a finding."""
        self.level = max(self.level, level)
        self.messages.append(f"{_RESULTS[level] if level else 'info'}: {text}")

    @property
    def result(self) -> str:
        """The cell ``Result``."""
        return _RESULTS[self.level]

    @property
    def err_message(self) -> str:
        """The cell ``Err_message``: the findings as a JSON list."""
        return json.dumps(self.messages, ensure_ascii=False) if self.messages else "[]"


@dataclass(slots=True)
class JudgedRow:
    """A row with its cells.

    Attributes:
        row: the row.
        target: cells about the target.
        reference: cells about the reference.
        metrics: cells that compare them.
    """

    row: Row
    target: SideCells
    reference: SideCells
    metrics: Sequence[Cell]


def judge_operation(rows: Sequence[JudgedRow], mode: Mode) -> list[Verdict]:
    """Return the verdicts of the rows of one operation."""
    verdicts = [Verdict() for _ in rows]
    operator = _operator(rows[0].row.pair.name)
    if operator.allocates or operator.name in _IGNORED or all(map(_is_plainly_equal, rows)):
        return verdicts
    looked_at = [
        (judged, verdict)
        for judged, verdict in zip(rows, verdicts, strict=True)
        if not _is_filled_later(operator, judged.row.value)
    ]
    for judged, verdict in looked_at:
        _judge_row(judged, verdict, mode)
    output = next((v for judged, v in looked_at if judged.row.value.role is Role.OUTPUT), None)
    if output is not None and mode is Mode.STATISTICS:
        _judge_norms([judged for judged, _ in looked_at], output)
    elif output is not None and mode is Mode.TENSOR:
        _judge_values([judged for judged, _ in looked_at], output)
    return verdicts


def _is_plainly_equal(judged: JudgedRow) -> bool:
    """Return whether no rule can find anything: both sides are equal in every recorded fact."""
    return judged.row.status is Status.EQUAL and judged.target == judged.reference


def _operator(name: str) -> Operator:
    """Return the operator that made a record; an unknown one for modules, saved values, others."""
    prefix, _, rest = name.partition(".")
    return operator_of(prefix, rest.partition(".")[0] if prefix in API_PREFIXES else "")


def _is_filled_later(operator: Operator, value: Value) -> bool:
    """Return whether a value is a buffer of a communication that holds nothing yet."""
    if operator.communication is None or value.role is not Role.INPUT:
        return False
    is_batch = operator.communication.flow is Flow.MESSAGES
    return is_batch or operator.fills(value.slot.split(".")[1])


def _judge_row(judged: JudgedRow, verdict: Verdict, mode: Mode) -> None:
    row = judged.row
    if _is_plainly_equal(judged):
        return
    if not isinstance(row, Matched):
        side = "NPU" if isinstance(row, Missing) else "Bench"
        verdict.add(Level.WARNING, f"there is no counterpart of this value in {side}")
        return
    target, reference = row.target, row.reference
    if mode is not Mode.MD5:
        if target.is_tensor and _is_nonfinite(judged.target) > _is_nonfinite(judged.reference):
            verdict.add(Level.ERROR, "NPU holds NaN or infinite values, Bench does not")
        if is_gradient_inconsistent(row):
            verdict.add(Level.ERROR, "requires_grad differs between NPU and Bench")
    if target.is_tensor and reference.is_tensor:
        _note_forms(row, verdict, mode)
    _raise_to_status(row, verdict, mode)


def is_gradient_inconsistent(row: Row) -> bool:
    """Return whether requires_grad is known on both sides and differs."""
    return {value.requires_grad for value in row.values} == {True, False}


def _note_forms(row: Matched, verdict: Verdict, mode: Mode) -> None:
    """Note differences in type, shape or requires_grad of two tensors whose values may agree."""
    target, reference = row.target, row.reference
    if target.dtype != reference.dtype and row.status is not Status.DTYPE:
        verdict.add(Level.PASS, f"dtypes differ: {target.dtype} and {reference.dtype}")
    if mode is not Mode.MD5 and target.shape != reference.shape and row.status is not Status.SHAPE:
        verdict.add(Level.PASS, f"shapes differ: {target.shape} and {reference.shape}")


_WORDS: Final = {
    Status.DIFFERS: "the values differ",
    Status.SHAPE: "the shapes of NPU and Bench differ",
    Status.DTYPE: "the dtypes of NPU and Bench differ",
    Status.NONFINITE: "NaN or infinite values differ between NPU and Bench",
    Status.UNREAD: "the values could not be read",
}


def _raise_to_status(row: Row, verdict: Verdict, mode: Mode) -> None:
    if row.status not in _WORDS:
        return
    # Another checksum or argument is an error at any place.
    may_inherit = mode is not Mode.MD5 and row.value.is_tensor
    is_mild = row.status is Status.UNREAD or (may_inherit and row.origin in _INHERITED)
    level = Level.WARNING if is_mild else Level.ERROR
    verdict.add(level, row.reason or _WORDS[row.status])


def _is_nonfinite(side: SideCells) -> bool:
    return _is_odd(side.max) or _is_odd(side.min)


def _is_odd(cell: Cell) -> bool:
    return cell - cell != 0 if type(cell) is float else cell == NAN


def _judge_norms(rows: Sequence[JudgedRow], output: Verdict) -> None:
    before = _extreme(max, _numbers(rows, _NORM_COLUMN, is_output=False), 0.0)
    after = _extreme(max, _numbers(rows, _NORM_COLUMN, is_output=True), 0.0)
    if before < _NORM_GOOD and after > _NORM_BAD:
        output.add(Level.ERROR, f"the norm of an output is off by {after:.0%}, no input's is")
    if math.isfinite(after) and after > (before * _NORM_GROWTH if before else _NORM_GOOD):
        output.add(
            Level.WARNING, f"the norms are off by {before:.2%} in the inputs, {after:.2%} after"
        )


def _judge_values(rows: Sequence[JudgedRow], output: Verdict) -> None:
    before = _extreme(min, _numbers(rows, _SHARE_COLUMN, is_output=False), 1.0)
    after = _extreme(min, _numbers(rows, _SHARE_COLUMN, is_output=True), 1.0)
    if before > _SHARE_GOOD and after < _SHARE_BAD:
        output.add(
            Level.ERROR,
            f"{before:.0%} of the elements agree to 0.1 % in the inputs, {after:.0%} after",
        )
    before = _extreme(min, _numbers(rows, _COSINE_COLUMN, is_output=False), 1.0)
    after = _extreme(min, _numbers(rows, _COSINE_COLUMN, is_output=True), 1.0)
    if before > _COSINE_GOOD and before - after > _COSINE_DROP:
        output.add(Level.WARNING, f"the cosine drops from {before:.3f} to {after:.3f}")


def _numbers(rows: Sequence[JudgedRow], column: int, *, is_output: bool) -> list[float]:
    found = []
    for judged in rows:
        if (judged.row.value.role is Role.OUTPUT) is is_output:
            cell = judged.metrics[column]
            value = cell if cell == 0 else number(cell)
            if isinstance(value, (int, float)):
                # Where the norm is off by minus infinity it is off by infinity.
                found.append(abs(value) if column == _NORM_COLUMN else value)
    return found


def _extreme(
    choose: Callable[[Iterable[float]], float], values: Sequence[float], default: float
) -> float:
    return choose(values) if values else default
