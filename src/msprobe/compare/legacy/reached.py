# SPDX-License-Identifier: Apache-2.0
"""The verdicts of release 8.3.3: ``Yes``/``No``, ``Warning``, ``Different``, with messages.

Where a rule would call a row good that our own status calls different, the status decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msprobe.compare.legacy.cells import NOTHING, UNSUPPORTED, number
from msprobe.compare.legacy.levels import JudgedRow, is_gradient_inconsistent
from msprobe.compare.legacy.real_data import SHAPE_UNMATCHED
from msprobe.compare.model import Match, Matched, Missing, Mode, Row
from msprobe.report.tables import Cell

YES: Final = "Yes"
NO: Final = "No"
NONE: Final = "None"
UNMATCHED: Final = "Unmatched"
WARNING: Final = "Warning"
DIFFERENT: Final = "Different"
PASS: Final = "pass"
BAD: Final = (NO, WARNING, DIFFERENT)

_COSINE_GOOD: Final = 0.99
_COSINE_BAD: Final = 0.9
_ERROR_GOOD: Final = 0.001
_ERROR_BAD: Final = 1.0
_STATISTIC_BAD: Final = 0.5
_TINY: Final = 1e-10
_COSINE_COLUMN: Final = 0
_ERROR_COLUMN: Final = 2


def old_verdict(judged: JudgedRow, mode: Mode) -> tuple[str, str]:
    """Return verdict and message of one row."""
    row = judged.row
    is_off = mode is Mode.STATISTICS and _any_statistic_off(judged)
    if mode is Mode.TENSOR:
        verdict = _reached(judged.metrics)
        if row.status.is_difference and verdict in (YES, NONE) and isinstance(row, Matched):
            verdict = NO
    elif not isinstance(row, Matched):
        verdict = NOTHING
    elif mode is Mode.MD5:
        verdict = DIFFERENT if row.status.is_difference else PASS
    else:
        verdict = WARNING if is_off or row.status.is_difference else ""
    is_bad = verdict in (*BAD, UNMATCHED)
    return verdict, " ".join(_sentences(row, mode, is_bad=is_bad, is_off=is_off))


def _reached(metrics: Sequence[Cell]) -> str:
    cosine, error = metrics[_COSINE_COLUMN], metrics[_ERROR_COLUMN]
    if cosine == SHAPE_UNMATCHED:
        return UNMATCHED
    if UNSUPPORTED in (cosine, error):
        return NONE
    if NOTHING in (cosine, error):
        return NO
    angle, largest = number(cosine), number(error)
    is_bad = (
        (angle is not None and angle < _COSINE_BAD)
        or (largest is not None and largest > _ERROR_BAD)
        or (
            angle is not None
            and largest is not None
            and angle < _COSINE_GOOD
            and largest > _ERROR_GOOD
        )
    )
    return NO if is_bad else YES


def _any_statistic_off(judged: JudgedRow) -> bool:
    for target, reference in zip(judged.target[3:], judged.reference[3:], strict=True):
        one, other = number(target), number(reference)
        if one is None or other is None:
            continue
        if abs(one - other) / (abs(max(one, other)) + _TINY) > _STATISTIC_BAD:
            return True
    return False


def _sentences(row: Row, mode: Mode, *, is_bad: bool, is_off: bool) -> Iterator[str]:
    if not isinstance(row, Matched):
        yield f"No counterpart in {'NPU' if isinstance(row, Missing) else 'Bench'}."
        return
    target, reference = row.target, row.reference
    if is_off:
        yield "Check this value: a statistic is off by more than half."
    if is_bad and row.reason:
        yield row.reason
    if row.problem:
        yield row.problem
    if row.pair.match is Match.ALIGNED:
        yield "Paired by order and likeness instead of names: these may be two different calls."
    if is_gradient_inconsistent(row):
        yield "requires_grad differs."
    if target.is_tensor and target.dtype != reference.dtype:
        yield "The dtypes of NPU and Bench differ."
    if mode is Mode.TENSOR and target.is_tensor:
        yield from _about_elements(row)


def _about_elements(row: Matched) -> Iterator[str]:
    """Return why elements, or some of their metrics, could not be compared."""
    target, reference = row.target, row.reference
    if target.shape is not None and 0 in target.shape:
        yield "The tensor is empty: there is nothing to compare."
        return
    for side, value in (("NPU", target), ("Bench", reference)):
        if not value.data_name:
            yield f"{side} has no file of the values."
    if not target.has_shape_of(reference):
        yield "The shapes of NPU and Bench differ: elements were not compared."
    elif target.shape == ():
        yield "A tensor without dimensions has no cosine, distance or shares of good elements."
    if row.metrics is not None and row.metrics.first_nonfinite_mismatch is not None:
        yield "NaN or infinite values of NPU and Bench differ in place or sign."
