# SPDX-License-Identifier: Apache-2.0
"""Tables as xlsx files: a frozen header, filters, coloured rows; written row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from msprobe.files import PatientFile, report_file
from msprobe.report.tables import Cell, Colour, Table, TableRow

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

MAX_ROWS: Final = 1_048_500
"""Rows of one sheet, without the titles; the format's own limit is 1,048,576."""

_MAX_TEXT: Final = 32_767
_MAX_EXACT: Final = 1 << 53
MAX_ORDINARY_CELLS: Final = 10_000_000
"""Cells of a sheet whose XML may well take 2 GiB: two hundred bytes each."""
_MIN_WIDTH: Final = 8
_MAX_WIDTH: Final = 48
_ROWS_FOR_WIDTH: Final = 200


def write_xlsx(table: Table, path: Path) -> list[Path]:
    """Write a table; return its file.

    NaN and infinities are text, since the format has no such numbers; so are integers that its
    numbers cannot hold exactly. Numbers have 16 significant digits; csv and parquet hold all 17.

    Raises:
        OSError: the file cannot be written.
    """
    parts = max(1, math.ceil(table.count / MAX_ROWS))
    names = ["Sheet1"] if parts == 1 else [f"part_{part}" for part in range(parts)]

    def write(writer: _SheetWriter) -> None:
        rows, left = table.rows(), table.count
        for name in names:
            count = min(MAX_ROWS, left)
            writer.write(name, table.columns, islice(rows, count), count)
            left -= count

    return _write_file(path, write, _cells(table))


def write_sheets(tables: Mapping[str, Table], path: Path) -> list[Path]:
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

    def write(writer: _SheetWriter) -> None:
        for name, table in tables.items():
            writer.write(name, table.columns, table.rows(), table.count)

    return _write_file(path, write, max(map(_cells, tables.values()), default=0))


def _cells(table: Table) -> int:
    return table.count * len(table.columns)


def _write_file(path: Path, write: Callable[[_SheetWriter], None], largest: int) -> list[Path]:
    """Let `write` fill the file, whose largest sheet has so many cells."""
    import xlsxwriter
    from xlsxwriter.exceptions import FileCreateError

    with (
        report_file(path) as temporary,
        TemporaryDirectory(dir=path.parent) as parts,
        PatientFile(temporary) as file,
    ):
        # Rows go to disk as they come.
        workbook = xlsxwriter.Workbook(file, {"constant_memory": True, "tmpdir": parts})
        if (
            largest > MAX_ORDINARY_CELLS
        ):  # Excel offers to repair such a file first, so only where it must be
            workbook.use_zip64()
        try:
            write(_SheetWriter(workbook))
        finally:
            try:
                workbook.close()  # also after an error: its files must be closed
            except FileCreateError as exc:
                raise exc.args[0] from None  # the error of the disk
    return [path]


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
        self, name: str, columns: Sequence[str], rows: Iterator[TableRow], count: int
    ) -> None:
        """Write one sheet of `count` rows."""
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

    def _write_rows(self, sheet: Worksheet, start: int, rows: Iterable[TableRow]) -> None:
        fills = self._fills
        string, number = sheet.write_string, sheet.write_number
        for row, (cells, colour) in enumerate(rows, start):
            fill = fills[colour]
            for column, cell in enumerate(cells):
                kind = type(cell)
                if kind is str:
                    string(row, column, _text(cell), fill)  # type: ignore[arg-type]
                elif cell is None:
                    if fill is not None:
                        sheet.write_blank(row, column, None, fill)
                elif kind is bool:
                    sheet.write_boolean(row, column, cell, fill)
                elif isinstance(cell, int | float) and _is_number(cell):
                    number(row, column, cell, fill)
                else:  # a large integer, NaN, or a member of an enumeration of texts
                    string(row, column, _text(str(cell)), fill)


def _is_number(cell: float) -> bool:
    """Return whether the format's numbers hold this one exactly."""
    return abs(cell) <= _MAX_EXACT if isinstance(cell, int) else math.isfinite(cell)


def _text(text: str) -> str:
    """Return text that a cell can hold: not too long, and without half characters."""
    if not text.isascii():  # a hostile dump may hold them
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text[:_MAX_TEXT]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    widths = [len(title) + 2 for title in columns]
    for cells in rows:
        for number, cell in enumerate(cells):
            length = len(str(cell))
            if length > widths[number]:
                widths[number] = length
    return [min(max(width, _MIN_WIDTH), _MAX_WIDTH) for width in widths]
