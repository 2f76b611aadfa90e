# SPDX-License-Identifier: Apache-2.0
"""Tables as csv files, written row by row."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

from msprobe.files import write_report
from msprobe.report.tables import Cell, Table

MAX_ROWS: Final = 1_000_000
"""Rows of one file, without the titles: as many as spreadsheets can open."""

# Spreadsheets take text that begins like this for a formula. A sign may begin a number as well.
_FORMULA_STARTS: Final = frozenset("=@\t\r+-")
_SIGNS: Final = ("+", "-")
_NEEDS_QUOTES: Final = re.compile('[,"\r\n]')
_TEXTS_TO_REMEMBER: Final = 20_000
_LONGEST_TO_REMEMBER: Final = 200


def write_csv(table: Table, path: Path, *, warns: bool = True) -> list[Path]:
    """Write a table as one csv file, or as several where it has too many rows.

    Infinite numbers get a leading space: without it, spreadsheets show ``-inf`` as an error.

    Args:
        table: the table.
        path: the file; several are called ``{stem}_part_1.csv`` and so on.
        warns: whether to say so if there is a file of that name.

    Returns:
        The files.

    Raises:
        ReportWriteError: a file cannot be written.
    """
    parts = max(1, math.ceil(table.count / MAX_ROWS))
    rows = table.rows()
    paths = []
    for number in range(1, parts + 1):
        target = path if parts == 1 else path.with_name(f"{path.stem}_part_{number}{path.suffix}")
        line = _Lines().line
        cells_of_rows = (cells for cells, _ in islice(rows, MAX_ROWS))
        paths.append(
            write_report(target, map(line, chain([table.columns], cells_of_rows)), warns=warns)
        )
    return paths


class _Lines:
    """Makes lines of text; twice as fast as the csv module, because texts come back often."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {"": ""}

    def line(self, cells: Sequence[Cell]) -> str:
        """Return a row with its line break."""
        parts: list[str] = []
        add, known = parts.append, self._texts
        for cell in cells:
            kind = type(cell)
            if kind is str:
                text = known.get(cell)  # type: ignore[arg-type]  # it is a str
                add(self._text(cell) if text is None else text)  # type: ignore[arg-type]
            elif kind is float:
                # An infinite number minus itself is no number.
                add(repr(cell) if cell - cell == 0 else _nonfinite(cell))  # type: ignore
            elif cell is None:
                add("")
            else:
                add(str(cell))
        return ",".join(parts) + "\n"

    def _text(self, text: str) -> str:
        shown = text
        if text[0] in _FORMULA_STARTS and not (text[0] in _SIGNS and _is_number(text)):
            shown = f"'{text}"
        if _NEEDS_QUOTES.search(shown):
            shown = '"' + shown.replace('"', '""') + '"'
        if len(self._texts) < _TEXTS_TO_REMEMBER and len(text) <= _LONGEST_TO_REMEMBER:
            self._texts[text] = shown
        return shown


def _nonfinite(number: float) -> str:
    return "nan" if number != number else f" {number}"


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True
