# SPDX-License-Identifier: Apache-2.0
"""The columns that compare statistics: differences and relative differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msprobe.compare.legacy.cells import NAN, NOTHING
from msprobe.compare.legacy.columns import Generation
from msprobe.report.tables import Cell

_DEVICES: Final = ("npu", "cpu", "cuda")
DIFFERENT: Final = "Diff"
_EIGHT_TIMES_NOTHING: Final[list[Cell]] = [NOTHING] * 8
_EQUAL: Final[list[Cell]] = [0] * 8


def statistic_cells(
    target: Sequence[Cell], reference: Sequence[Cell], generation: Generation
) -> Sequence[Cell]:
    """Return four differences and four relative differences, of max, min, mean and norm.

    Args:
        target: the four cells of the target.
        reference: the four cells of the reference.
        generation: whose spelling of special cases.
    """
    if generation is Generation.V8_3_3:
        pairs = [_old_pair(*pair) for pair in zip(target, reference, strict=True)]
    elif target == reference:
        return _EIGHT_TIMES_NOTHING if target[0] == NOTHING else _EQUAL
    else:
        pairs = [_pair(*pair) for pair in zip(target, reference, strict=True)]
    return [cell for cells in zip(*pairs, strict=True) for cell in cells]


def _pair(target: Cell, reference: Cell) -> tuple[Cell, Cell]:
    if type(target) is type(reference) is float and reference:
        difference = target - reference
        if difference - difference == 0:  # the usual case by itself: nothing is infinite
            return (difference, f"{abs(difference / reference) * 100}%") if difference else (0, 0)
    if target == NOTHING or reference == NOTHING:
        return NOTHING, NOTHING
    if target == reference:
        return 0, 0
    if _is_number(target) and _is_number(reference) and NAN in (target, reference):
        return NAN, NAN
    if isinstance(target, str) or isinstance(reference, str):
        # The same run on two kinds of device is no finding.
        both = _names_device(target) and _names_device(reference)
        return (NOTHING, NOTHING) if both else (DIFFERENT, DIFFERENT)
    assert target is not None
    assert reference is not None
    if math.isinf(target) or math.isinf(reference):
        # What is infinite decides, and the reference's infinity counts against it.
        word = str(float(target if math.isinf(target) else -reference))
        return word, word
    difference = target - reference
    if reference == 0:
        return difference, "inf"
    return difference, f"{abs(difference / reference) * 100}%"


def _old_pair(target: Cell, reference: Cell) -> tuple[Cell, Cell]:
    if not _is_number(target) or not _is_number(reference):
        return NOTHING, NOTHING
    if NAN in (target, reference):
        return NAN, NAN
    one, other = float(target), float(reference)  # type: ignore[arg-type]  # both are numbers
    difference = one - other
    if math.isnan(difference):
        return NAN, NAN
    if other == 0:
        return difference, NOTHING
    return difference, f"{abs(difference / other) * 100}%"


def _is_number(cell: Cell) -> bool:
    """Return whether a cell holds a number, NaN among them."""
    return cell == NAN or (isinstance(cell, (int, float)) and not isinstance(cell, bool))


def _names_device(cell: Cell) -> bool:
    return isinstance(cell, str) and any(device in cell for device in _DEVICES)
