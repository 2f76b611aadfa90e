# SPDX-License-Identifier: Apache-2.0
"""Cells about one side of a row: type, shape, requires_grad, statistics, checksum."""

from __future__ import annotations

import math
import zlib
from typing import Any, Final, NamedTuple

from msprobe.compare.legacy.columns import Generation
from msprobe.dump.values import Value
from msprobe.report.tables import Cell

NOTHING: Final = "N/A"
NAN: Final = "Nan"
UNSUPPORTED: Final = "unsupported"
NO_FILE: Final = "-1"

# Keyword arguments that name a rank are in the table under their recorded type.
_RANK_ARGUMENTS: Final = ("src", "dst", "group_src", "group_dst")
_PROCESS_GROUPS: Final = ("torch.ProcessGroup", "mindspore.ProcessGroup")
# Types that are a value of their own rather than one of a Python type.
_OWN_TYPES: Final = ("slice", "ellipsis", *_PROCESS_GROUPS)
_MAX_VALUE_TEXT: Final = 1000
_TRUTH: Final = {None: NOTHING, True: "True", False: "False"}


class SideCells(NamedTuple):
    """The cells about one side of a row.

    Attributes:
        dtype: as the dump spells it; for a value that is no tensor its Python type.
        shape: as a list.
        requires_grad: ``True``, ``False`` or ``N/A``.
        max: largest value; the value itself where it is no tensor, as for the other three.
    """

    dtype: Cell
    shape: Cell
    requires_grad: Cell
    max: Cell
    min: Cell
    mean: Cell
    norm: Cell


MISSING_SIDE: Final = SideCells(*[NOTHING] * 7)


class CellMaker:
    """Makes the cells about one side; remembers texts that come back often."""

    def __init__(self, generation: Generation) -> None:
        word = "None" if generation is Generation.V8_3_3 else NOTHING
        self._no_value = SideCells(word, word, NOTHING, *["None"] * 4)
        self._shapes: dict[tuple[int, ...], str] = {}

    def cells(self, value: Value) -> SideCells:
        """Return the cells of a value."""
        if value.is_tensor:
            shape = self._shapes.get(value.shape or ()) or self._shape(value.shape or ())
            requires_grad = _TRUTH[value.requires_grad]
            a, b, c, d = value.max, value.min, value.mean, value.norm
            # The usual case by itself: four numbers that are none of them NaN.
            if type(a) is type(b) is type(c) is type(d) is float and (
                a == a and b == b and c == c and d == d
            ):
                return SideCells(value.raw_dtype, shape, requires_grad, a, b, c, d)
            four = map(_statistic, (a, b, c, d))
            return SideCells(value.raw_dtype, shape, requires_grad, *four)
        content = value.value
        if value.is_null:
            return self._no_value
        if value.type == "torch.Size":
            return SideCells(value.type, str(content), NOTHING, *["None"] * 4)
        if value.type == "slice":
            shape = f"({len(content)},)" if isinstance(content, list) else "[]"
            return SideCells(value.type, shape, NOTHING, *["None"] * 4)
        dtype = f"<class '{type(content).__name__}'>"
        if value.type in _OWN_TYPES or is_rank_argument(value):
            dtype = value.type
        return SideCells(dtype, "[]", NOTHING, *[_statistic(content)] * 4)

    def _shape(self, shape: tuple[int, ...]) -> str:
        text = self._shapes[shape] = str(list(shape))
        return text


def is_rank_argument(value: Value) -> bool:
    """Return whether a value is the rank that a communication sends to or receives from."""
    return not value.is_tensor and value.slot.rpartition(".")[2] in _RANK_ARGUMENTS


def checksum(value: Value | None) -> str:
    """Return the checksum of a value: that of the dump, or of the value's text."""
    if value is None or value.is_null:
        return NOTHING
    if value.is_tensor:
        return value.md5 or NOTHING
    if value.type in _PROCESS_GROUPS or is_rank_argument(value):
        return str(value.value)
    return f"{zlib.crc32(str(value.value).encode('utf-8', 'backslashreplace')):08x}"


def _statistic(value: Any) -> Cell:
    kind = type(value)
    if kind is float:
        return NAN if value != value else value
    if kind is int:
        return int(value) if abs(value) < 1 << 1000 else str(value)[:_MAX_VALUE_TEXT]
    text = value if kind is str else str(value)
    return text if len(text) <= _MAX_VALUE_TEXT else text[:_MAX_VALUE_TEXT] + "…"


def number(cell: Cell) -> float | None:
    """Return the number that a cell holds, None if it holds none; a percentage is a share."""
    if isinstance(cell, (int, float)):
        return None if isinstance(cell, bool) or math.isnan(cell) else float(cell)
    if not isinstance(cell, str):
        return None
    try:
        found = float(cell[:-1]) / 100 if cell.endswith("%") else float(cell)
    except ValueError:
        return None
    return None if math.isnan(found) else found
