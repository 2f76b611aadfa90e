# SPDX-License-Identifier: Apache-2.0
"""Tables as xlsx files: a frozen header, filters, coloured rows.

The format is a zip archive of XML (ECMA-376, part 1). It is written row by row without a model of
the sheet in memory: a table of comparisons has millions of plain cells and nothing else, and a
general library needs several times as long for it.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final
from xml.sax.saxutils import quoteattr

from msprobe.report.table_files import replacing
from msprobe.report.tables import Cell, Colour, Table, TableRow

MAX_ROWS: Final = 1_048_500
"""Rows of one sheet, without the titles; the format's own limit is 1,048,576."""

_MAX_TEXT: Final = 32_767
_MAX_EXACT: Final = 1 << 53
_MIN_WIDTH: Final = 8
_MAX_WIDTH: Final = 48
_ROWS_FOR_WIDTH: Final = 200
_LINES_AT_ONCE: Final = 500
# Level 1 takes a third of the time of level 6 for a file that is a fifth larger.
_COMPRESSION: Final = 1
_LARGE: Final = 20_000_000
"""Cells of a sheet that may well take 2 GiB: a hundred bytes each."""

_HEADER_STYLE: Final = 1
_STYLES: Final[Mapping[Colour | None, str]] = {
    None: "",
    **{colour: f' s="{number}"' for number, colour in enumerate(Colour, _HEADER_STYLE + 1)},
}

# What XML cannot hold, what stands for something else in it, and what looks like an escape.
_SPECIAL: Final = re.compile(
    "[&<>\x00-\x08\x0b-\x1f\ufffe\uffff\ud800-\udfff]|_(?=x[0-9A-Fa-f]{4}_)"
)
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_TEXTS_TO_REMEMBER: Final = 20_000
_LONGEST_TO_REMEMBER: Final = 200


def write_xlsx(table: Table, path: Path) -> list[Path]:
    """Write a table; return its file.

    NaN and infinities are text, since the format has no such numbers; so are integers that its
    numbers cannot hold exactly.

    Raises:
        OSError: the file cannot be written.
    """
    if table.count <= MAX_ROWS:
        return write_sheets({"Sheet": table}, path)
    rows = table.rows()
    parts = {}
    for part in range(math.ceil(table.count / MAX_ROWS)):
        count = min(MAX_ROWS, table.count - part * MAX_ROWS)
        parts[f"part_{part}"] = _next_rows(table.columns, rows, count)
    with replacing(path) as temporary:
        _write_archive(parts, temporary, is_large=True)
    return [path]


def _next_rows(columns: tuple[str, ...], rows: Iterator[TableRow], count: int) -> Table:
    """Return the next rows of an iteration as a table; it can be read once."""
    return Table(columns=columns, count=count, rows=lambda: islice(rows, count))


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
    is_large = any(table.count * len(table.columns) > _LARGE for table in tables.values())
    with replacing(path) as temporary:
        try:
            _write_archive(tables, temporary, is_large=is_large)
        except RuntimeError:  # a sheet has become larger than 2 GiB, which the archive must know
            if is_large:
                raise
            _write_archive(tables, temporary, is_large=True)
    return [path]


def _write_archive(tables: Mapping[str, Table], path: Path, *, is_large: bool) -> None:
    """Write the archive.

    Args:
        tables: the tables by the names of their sheets.
        path: the file.
        is_large: whether to use the form for members above 2 GiB. Excel reads it, but offers to
            repair it first; so it is left alone where it is not needed.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        for name, text in _frame_of_archive(tables).items():
            archive.writestr(name, text)
        for number, table in enumerate(tables.values(), 1):
            name = f"xl/worksheets/sheet{number}.xml"
            with archive.open(name, "w", force_zip64=is_large) as sheet:
                for text in _sheet(table, is_first=number == 1):
                    sheet.write(text.encode())


def _sheet(table: Table, *, is_first: bool) -> Iterator[str]:
    """Yield the text of a sheet in pieces."""
    rows = table.rows()
    first = list(islice(rows, _ROWS_FOR_WIDTH))
    area = _area(table)
    widths = "".join(
        f'<col min="{number}" max="{number}" width="{width}" customWidth="1"/>'
        for number, width in enumerate(_widths(table.columns, [cells for cells, _ in first]), 1)
    )
    selected = ' tabSelected="1"' if is_first else ""
    yield (
        f'{_XML}<worksheet xmlns="{_MAIN}"><dimension ref="{area}"/>'
        f'<sheetViews><sheetView{selected} workbookViewId="0"><pane xSplit="1" ySplit="1" '
        'topLeftCell="B2" activePane="bottomRight" state="frozen"/></sheetView></sheetViews>'
        f'<sheetFormatPr defaultRowHeight="15"/><cols>{widths}</cols><sheetData>'
    )
    lines = _Lines(len(table.columns))
    yield lines.line(1, table.columns, f' s="{_HEADER_STYLE}"')
    for start, batch in _batches(first, rows):
        yield "".join(
            lines.line(number, cells, _STYLES[colour])
            for number, (cells, colour) in enumerate(batch, start)
        )
    yield f'</sheetData><autoFilter ref="{area}"/></worksheet>'


def _batches(
    first: list[TableRow], rows: Iterator[TableRow]
) -> Iterator[tuple[int, list[TableRow]]]:
    start = 2
    batch = first
    while batch:
        yield start, batch
        start += len(batch)
        batch = list(islice(rows, _LINES_AT_ONCE))


class _Lines:
    """Makes the XML of rows; remembers texts that come back often."""

    def __init__(self, columns: int) -> None:
        self._letters = [_letters(number) for number in range(columns)]
        self._texts: dict[str, str] = {}

    def line(self, row: int, cells: Sequence[Cell], style: str) -> str:
        """Return a row.

        Args:
            row: its number, from 1.
            cells: its cells.
            style: the style attribute of all cells.
        """
        parts = [f'<row r="{row}">']
        add, known = parts.append, self._texts
        for letters, cell in zip(self._letters, cells, strict=True):
            kind = type(cell)
            if kind is str:
                text = known.get(cell) or self._text(cell)  # type: ignore[arg-type]
                add(f'<c r="{letters}{row}"{style}{text}')
            elif kind is float:
                if cell - cell == 0:  # type: ignore[operator]  # neither NaN nor infinite
                    add(f'<c r="{letters}{row}"{style}><v>{cell!r}</v></c>')
                else:
                    add(f'<c r="{letters}{row}"{style}{self._text(str(cell))}')
            elif cell is None:
                if style:
                    add(f'<c r="{letters}{row}"{style}/>')
            elif kind is bool:
                add(f'<c r="{letters}{row}"{style} t="b"><v>{cell:d}</v></c>')
            elif isinstance(cell, int) and abs(cell) <= _MAX_EXACT:
                add(f'<c r="{letters}{row}"{style}><v>{cell}</v></c>')
            else:  # a large integer, or a member of an enumeration of texts
                add(f'<c r="{letters}{row}"{style}{self._text(str(cell))}')
        add("</row>")
        return "".join(parts)

    def _text(self, text: str) -> str:
        """Return what follows the reference and style of a cell that holds text."""
        shown = text[:_MAX_TEXT]
        if _SPECIAL.search(shown):
            shown = _SPECIAL.sub(_escape, shown)
        space = ' xml:space="preserve"' if shown != shown.strip() else ""
        xml = f' t="inlineStr"><is><t{space}>{shown}</t></is></c>'
        if len(self._texts) < _TEXTS_TO_REMEMBER and len(text) <= _LONGEST_TO_REMEMBER:
            self._texts[text] = xml
        return xml


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    # Half characters have no UTF-8; the format's own escape can name them, readers leave it as is.
    return _ENTITIES.get(character) or f"_x{ord(character):04X}_"


def _letters(column: int) -> str:
    """Return the letters of a column: A for 0, AA for 26."""
    letters = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _area(table: Table) -> str:
    return f"A1:{_letters(len(table.columns) - 1)}{table.count + 1}"


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    widths = [len(title) + 2 for title in columns]
    for cells in rows:
        for number, cell in enumerate(cells):
            widths[number] = max(widths[number], len(str(cell)))
    return [min(max(width, _MIN_WIDTH), _MAX_WIDTH) for width in widths]


_XML: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_OFFICE: Final = "http://schemas.openxmlformats.org/"
_MAIN: Final = f"{_OFFICE}spreadsheetml/2006/main"
_RELATIONS: Final = f"{_OFFICE}officeDocument/2006/relationships"
_PACKAGE: Final = f"{_OFFICE}package/2006"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def _frame_of_archive(tables: Mapping[str, Table]) -> dict[str, str]:
    """Return all files of the archive but the sheets themselves."""
    numbers = range(1, len(tables) + 1)
    sheets = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{number}" r:id="rId{number}"/>'
        for number, name in zip(numbers, tables, strict=True)
    )
    filters = "".join(
        f'<definedName name="_xlnm._FilterDatabase" localSheetId="{number}" hidden="1">'
        f"{_sheet_reference(name)}!{_absolute(_area(table))}</definedName>"
        for number, (name, table) in enumerate(tables.items())
    )
    return {
        "[Content_Types].xml": _content_types(numbers),
        "_rels/.rels": (
            f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">'
            f'<Relationship Id="rId1" Type="{_RELATIONS}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>'
        ),
        "xl/workbook.xml": (
            f'{_XML}<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>{sheets}</sheets>'
            f"<definedNames>{filters}</definedNames></workbook>"
        ),
        "xl/_rels/workbook.xml.rels": _workbook_relations(numbers),
        "xl/styles.xml": _styles(),
    }


def _sheet_reference(name: str) -> str:
    quoted = name.replace("'", "''").replace("&", "&amp;").replace("<", "&lt;")
    return f"'{quoted}'"


def _absolute(area: str) -> str:
    return re.sub(r"([A-Z]+)(\d+)", r"$\1$\2", area)


def _content_types(numbers: Iterable[int]) -> str:
    sheets = "".join(
        f'<Override PartName="/xl/worksheets/sheet{number}.xml" '
        f'ContentType="{_TYPE}.worksheet+xml"/>'
        for number in numbers
    )
    return (
        f'{_XML}<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPE}.sheet.main+xml"/>'
        f'<Override PartName="/xl/styles.xml" ContentType="{_TYPE}.styles+xml"/>'
        f"{sheets}</Types>"
    )


def _workbook_relations(numbers: Sequence[int]) -> str:
    sheets = "".join(
        f'<Relationship Id="rId{number}" Type="{_RELATIONS}/worksheet" '
        f'Target="worksheets/sheet{number}.xml"/>'
        for number in numbers
    )
    return (
        f'{_XML}<Relationships xmlns="{_PACKAGE}/relationships">{sheets}'
        f'<Relationship Id="rId{len(numbers) + 1}" Type="{_RELATIONS}/styles" '
        'Target="styles.xml"/></Relationships>'
    )


def _styles() -> str:
    """Return the styles: plain, the bold header, and one for each colour."""
    # The format reserves the first two fills.
    fills = "".join(
        f'<fill><patternFill patternType="solid"><fgColor rgb="FF{colour}"/></patternFill></fill>'
        for colour in Colour
    )
    plain = '<xf numFmtId="0" fontId="0" fillId="0" borderId="0" xfId="0"/>'
    header = '<xf numFmtId="0" fontId="1" fillId="0" borderId="0" xfId="0" applyFont="1"/>'
    coloured = "".join(
        f'<xf numFmtId="0" fontId="0" fillId="{number}" borderId="0" xfId="0" applyFill="1"/>'
        for number in range(2, 2 + len(Colour))
    )
    font = '<sz val="11"/><name val="Calibri"/><family val="2"/>'
    return (
        f'{_XML}<styleSheet xmlns="{_MAIN}">'
        f'<fonts count="2"><font>{font}</font><font><b/>{font}</font></fonts>'
        f'<fills count="{2 + len(Colour)}"><fill><patternFill patternType="none"/></fill>'
        f'<fill><patternFill patternType="gray125"/></fill>{fills}</fills>'
        '<borders count="1"><border><left/><right/><top/><bottom/><diagonal/></border></borders>'
        '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/>'
        "</cellStyleXfs>"
        f'<cellXfs count="{2 + len(Colour)}">{plain}{header}{coloured}</cellXfs>'
        '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
        "</styleSheet>"
    )
