# SPDX-License-Identifier: Apache-2.0
"""Colours of rows in the tables of release 8.3.3, with their reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from msprobe.compare.legacy.cells import NAN, number
from msprobe.compare.legacy.levels import JudgedRow, is_gradient_inconsistent
from msprobe.compare.model import Matched, Mode, Status
from msprobe.dump.values import Role
from msprobe.report.tables import Cell, Colour

_HUGE: Final = 1e10
_SHARE_GOOD: Final = 0.9
_SHARE_BAD: Final = 0.6
_SHARE_DROP: Final = 0.1
_RELATIVE_BAD: Final = 0.5
_RELATIVE_NOTABLE: Final = 0.1
_RELATIVE_GOOD: Final = 0.01
_NOTABLE_ERROR: Final = 1.0
_GROWTH: Final = 10.0
_COSINE_DROP: Final = 0.1


class _Measures(NamedTuple):
    """The numbers of a row that the rules look at; None where there is none.

    Rows of statistics have a relative error, rows of values a share and a cosine.
    """

    error: float | None
    relative: float | None
    share: float | None
    cosine: float | None


class _Inputs(NamedTuple):
    """Extremes among the inputs and parameters of an operation."""

    least_notable_error: float | None
    least_relative: float | None
    greatest_share: float | None
    greatest_cosine: float | None


def highlight_operation(
    rows: Sequence[JudgedRow], mode: Mode
) -> list[tuple[Colour | None, list[str]]]:
    """Return colour and reasons of each row of one operation.

    An output is compared with every input and parameter; because each rule asks for one input
    beyond a bound, the most extreme input of each kind decides.
    """
    measures = [_measures(judged, mode) for judged in rows]
    inputs = [
        found
        for judged, found in zip(rows, measures, strict=True)
        if judged.row.value.role is not Role.OUTPUT and found is not None
    ]
    before = _summary(inputs)
    result: list[tuple[Colour | None, list[str]]] = []
    for judged, found in zip(rows, measures, strict=True):
        red, yellow = _own_reasons(judged)
        if judged.row.value.role is Role.OUTPUT and found is not None and inputs:
            more_red, more_yellow = _change_reasons(before, found)
            red += more_red
            yellow += more_yellow
        colour = Colour.RED if red else Colour.YELLOW if yellow else None
        result.append((colour, red + yellow))
    return result


def _measures(judged: JudgedRow, mode: Mode) -> _Measures | None:
    """Return the numbers of a row, None where either side or the difference is no number."""
    metrics = judged.metrics
    error = number(metrics[0] if mode is Mode.STATISTICS else metrics[2])
    if None in (number(judged.target.max), number(judged.reference.max), error):
        return None
    if mode is Mode.STATISTICS:
        return _Measures(error, number(metrics[4]), None, None)
    return _Measures(error, None, number(metrics[4]), number(metrics[0]))


def _summary(inputs: Sequence[_Measures]) -> _Inputs:
    errors = [one.error for one in inputs if one.error is not None and one.error > _NOTABLE_ERROR]
    return _Inputs(
        min(errors, default=None),
        min((one.relative for one in inputs if one.relative is not None), default=None),
        max((one.share for one in inputs if one.share is not None), default=None),
        max((one.cosine for one in inputs if one.cosine is not None), default=None),
    )


def _own_reasons(judged: JudgedRow) -> tuple[list[str], list[str]]:
    red, yellow = [], []
    if _is_nonfinite(judged.target.max) or _is_nonfinite(judged.target.min):
        red.append("the largest or smallest value is NaN or infinite")
    # The first metric of statistics, the third of values.
    error = number(judged.metrics[0 if len(judged.metrics) == 8 else 2])
    if error is not None and abs(error) > _HUGE:
        red.append(f"the error is above {_HUGE:.0e}")
    if is_gradient_inconsistent(judged.row):
        yellow.append("requires_grad differs")
    if not isinstance(judged.row, Matched):
        yellow.append("there is no counterpart")
    if judged.row.status is Status.SHAPE:
        yellow.append("the shapes differ")
    return red, yellow


def _is_nonfinite(cell: Cell) -> bool:
    return cell == NAN or (isinstance(cell, float) and not math.isfinite(cell))


def _change_reasons(before: _Inputs, after: _Measures) -> tuple[list[str], list[str]]:
    red, yellow = [], []
    if after.relative is not None and after.relative > _RELATIVE_BAD:
        red.append(f"the relative error of the largest value is above {_RELATIVE_BAD}")
    if _is_above(before.greatest_share, _SHARE_GOOD) and _is_below(after.share, _SHARE_BAD):
        red.append(
            f"more than {_SHARE_GOOD:.0%} of an input agree to 0.1 %, "
            f"less than {_SHARE_BAD:.0%} of the output"
        )
    if (
        before.least_notable_error is not None
        and after.error is not None
        and after.error >= _GROWTH * before.least_notable_error
    ):
        yellow.append("the error has grown tenfold from an input to the output")
    if _falls(before.greatest_share, after.share, _SHARE_DROP):
        yellow.append(f"the share of good elements drops by more than {_SHARE_DROP}")
    if _is_above(after.relative, _RELATIVE_NOTABLE) and _is_below(
        before.least_relative, _RELATIVE_GOOD
    ):
        yellow.append(
            f"the relative error is above {_RELATIVE_NOTABLE}, that of an input below "
            f"{_RELATIVE_GOOD}"
        )
    if _falls(before.greatest_cosine, after.cosine, _COSINE_DROP):
        yellow.append(f"the cosine drops by more than {_COSINE_DROP}")
    return red, yellow


def _is_above(value: float | None, bound: float) -> bool:
    return value is not None and value > bound


def _is_below(value: float | None, bound: float) -> bool:
    return value is not None and value < bound


def _falls(before: float | None, after: float | None, bound: float) -> bool:
    return before is not None and after is not None and before - after > bound
