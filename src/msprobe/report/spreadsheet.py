# SPDX-License-Identifier: Apache-2.0
"""Tables as xlsx files: a frozen header, filters, coloured rows; written row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msprobe.report.table_files import replacing
from msprobe.report.tables import Cell, Colour, Table, TableRow

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

MAX_ROWS: Final = 1_048_500
"""Rows of one sheet, without the titles; the format's own limit is 1,048,576."""

_MIN_WIDTH: Final = 8
_MAX_WIDTH: Final = 48
_ROWS_FOR_WIDTH: Final = 200


def write_xlsx(table: Table, path: Path) -> list[Path]:
    """Write a table; return its file.

    NaN and infinities are text, since the format has no such numbers.

    Raises:
        OSError: the file cannot be written.
    """
    sheets = {
        "Sheet" if table.count <= MAX_ROWS else f"part_{part}": min(
            MAX_ROWS, table.count - part * MAX_ROWS
        )
        for part in range(max(1, math.ceil(table.count / MAX_ROWS)))
    }
    rows = table.rows()
    with replacing(path) as temporary:
        writer = _SheetWriter(_workbook(temporary))
        for name, count in sheets.items():
            writer.write(name, table.columns, islice(rows, count), count)
        writer.close()
    return [path]


def write_sheets(tables: dict[str, Table], path: Path) -> list[Path]:
    """Write several tables as the sheets of one file; return the file.

    Args:
        tables: the tables by the names of their sheets.
        path: the file.

    Raises:
        OSError: the file cannot be written.
        ValueError: a table has more rows than a sheet.
    """
    for name, table in tables.items():
        if table.count > MAX_ROWS:
            raise ValueError(f"sheet {name!r} has {table.count} rows, more than {MAX_ROWS}")
    with replacing(path) as temporary:
        writer = _SheetWriter(_workbook(temporary))
        for name, table in tables.items():
            writer.write(name, table.columns, table.rows(), table.count)
        writer.close()
    return [path]


def _workbook(path: Path) -> Workbook:
    import xlsxwriter

    # Rows go to disk as they come. Every cell is written by its type, so text is never guessed at.
    options = {"constant_memory": True, "tmpdir": str(path.parent)}
    return xlsxwriter.Workbook(str(path), options)


class _SheetWriter:
    """Writes sheets into one workbook."""

    def __init__(self, workbook: Workbook) -> None:
        self._workbook = workbook
        self._header = workbook.add_format({"bold": True})
        self._fills: dict[Colour | None, Format | None] = {
            colour: workbook.add_format({"bg_color": f"#{colour}"}) for colour in Colour
        }
        self._fills[None] = None

    def write(
        self, name: str, columns: Sequence[str], rows: Any, count: int
    ) -> None:  # rows: iterator of TableRow
        """Write one sheet."""
        sheet = self._workbook.add_worksheet(name)
        sheet.freeze_panes(1, 1)
        sheet.autofilter(0, 0, max(count, 1), len(columns) - 1)
        first: list[TableRow] = list(islice(rows, _ROWS_FOR_WIDTH))
        # In this mode a column's width has to be known before the first row is written.
        for number, width in enumerate(_widths(columns, [cells for cells, _ in first])):
            sheet.set_column(number, number, width)
        for number, title in enumerate(columns):
            sheet.write_string(0, number, title, self._header)
        self._write_rows(sheet, 1, first)
        self._write_rows(sheet, 1 + len(first), rows)

    def close(self) -> None:
        """Finish the file."""
        self._workbook.close()

    def _write_rows(self, sheet: Worksheet, start: int, rows: Any) -> None:
        fills = self._fills
        # The checked entry points cost more than the cells themselves; all is checked here.
        string, number, boolean = sheet.write_string, sheet.write_number, sheet.write_boolean
        for row, (cells, colour) in enumerate(rows, start):
            fill = fills[colour]
            for column, cell in enumerate(cells):
                kind = type(cell)
                if kind is str:
                    string(row, column, cell if cell.isascii() else _encodable(cell), fill)
                elif kind is float and not math.isfinite(cell):
                    string(row, column, "NaN" if cell != cell else str(cell), fill)
                elif kind is bool:
                    boolean(row, column, cell, fill)
                elif cell is None:
                    if fill is not None:
                        sheet.write_blank(row, column, None, fill)
                else:
                    number(row, column, cell, fill)


def _encodable(text: str) -> str:
    """Return text without half characters, which a hostile dump may hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    widths = [len(title) + 2 for title in columns]
    for cells in rows:
        for number, cell in enumerate(cells):
            length = len(str(cell))
            if length > widths[number]:
                widths[number] = length
    return [min(max(width, _MIN_WIDTH), _MAX_WIDTH) for width in widths]
