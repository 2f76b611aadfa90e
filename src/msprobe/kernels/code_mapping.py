# SPDX-License-Identifier: Apache-2.0
"""Kernel dumps joined to the lines of the program, as tables beside the data."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from msprobe.dump.kernel_code import CodeMap, CodePlace
from msprobe.dump.kernel_files import MAPPING_CSV, STATISTIC_CSV, read_mapping
from msprobe.dump.kernel_ir import read_ir
from msprobe.dump.kernel_names import OVERFLOW_TYPE, parse_kernel_file_name
from msprobe.errors import DumpFormatError, ReportWriteError
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Cell, Table

COLUMNS: Final = ("File Path", "Code Stack", "Scope Name")

_PARAMETER: Final = "Parameter"
_NAME_COLUMN: Final = "opname"
_TYPE_COLUMN: Final = "optype"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMapping:
    """What was mapped and written.

    Attributes:
        written: the tables.
        values: number of files of values, and rows of statistics.
        mapped: how many of them have a place in the program.
        unmapped: names of the first kernels and parameters that have none.
    """

    written: list[Path]
    values: int
    mapped: int
    unmapped: list[str]


def map_code(ir: Path, data: Path, output: Path, *, now: datetime | None = None) -> CodeMapping:
    """Write for each value of a kernel dump which line of the program it comes from.

    Values become the rows of ``code_mapping_{time}.csv`` in `output`. Each ``statistic.csv`` gets a
    copy beside it with two further columns, ``statistic_code_mapping_{time}.csv``.

    Args:
        ir: a graph in text form, or a folder of graphs of one program.
        data: a file of values, a ``statistic.csv``, or a folder with such files at any depth.
        output: folder of the table.
        now: the time in the names of the files.

    Raises:
        DumpFormatError: there is no graph or no kernel dump, or one is damaged.
        ReportWriteError: a table cannot be written.
    """
    code = CodeMap([read_ir(path) for path in _graph_files(ir)])
    values, tables = _find(data)
    if not values and not tables:
        raise DumpFormatError(data, f"holds no values of kernels and no {STATISTIC_CSV}")
    time = (now or datetime.now()).strftime("%Y%m%d%H%M%S")
    tally = _Tally()
    written: list[Path] = []
    try:
        if values:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"code_mapping_{time}.csv"
            written += write_csv(Table.of(COLUMNS, list(_value_rows(values, code, tally))), path)
        for path in tables:
            written += _write_beside(path, f"statistic_code_mapping_{time}.csv", code, tally)
    except OSError as exc:
        raise ReportWriteError(exc.filename or output, f"cannot be written: {exc}") from exc
    unmapped = list(tally.unmapped)
    return CodeMapping(written=written, values=tally.values, mapped=tally.mapped, unmapped=unmapped)


class _Tally:
    """Counts what was mapped."""

    def __init__(self) -> None:
        self.values = 0
        self.mapped = 0
        self.unmapped: dict[str, None] = {}

    def note(self, name: str, place: CodePlace | None) -> None:
        self.values += 1
        if place is None:
            self.unmapped[name] = None
        else:
            self.mapped += 1


def _graph_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.ir"))
    if not found:
        raise DumpFormatError(path, "holds no graph in text form (*.ir)")
    return found


def _find(data: Path) -> tuple[list[tuple[Path, str]], list[Path]]:
    """Return the files of values with the names that were meant, and the tables of statistics."""
    if data.is_file():
        if data.name == STATISTIC_CSV:
            return [], [data]
        return list(_values_in(data.parent, [data.name])), []
    if not data.is_dir():
        raise DumpFormatError(data, "does not exist")
    values: list[tuple[Path, str]] = []
    tables: list[Path] = []
    for directory, folders, names in os.walk(data):
        folders.sort()
        values += _values_in(Path(directory), sorted(names))
        tables += [Path(directory) / STATISTIC_CSV] if STATISTIC_CSV in names else []
    return values, tables


def _values_in(directory: Path, names: Sequence[str]) -> Iterator[tuple[Path, str]]:
    real_names = read_mapping(directory) if (directory / MAPPING_CSV).is_file() else {}
    for name in names:
        real = real_names.get(name, name)
        found = parse_kernel_file_name(real)
        if found is not None and found.op_type != OVERFLOW_TYPE:
            yield directory / name, real


def _value_rows(
    values: Sequence[tuple[Path, str]], code: CodeMap, tally: _Tally
) -> Iterator[Sequence[Cell]]:
    for path, name in values:
        found = parse_kernel_file_name(name)
        if found is not None:
            yield str(path), *_cells(code, found.op_type, found.op_name, tally)


def _cells(code: CodeMap, op_type: str, op_name: str, tally: _Tally) -> tuple[str, str]:
    """Return the stack, innermost call first and one a paragraph, and the scope."""
    place = code.parameter(op_name) if op_type == _PARAMETER else code.kernel(op_name)
    tally.note(f"{op_type}.{op_name}", place)
    if place is None:
        return "", ""
    return "\n".join(map(str, place.frames)), place.scope


def _write_beside(path: Path, name: str, code: CodeMap, tally: _Tally) -> list[Path]:
    """Write a copy of a table of statistics with the code; the table itself stays as it is."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file, skipinitialspace=True) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise DumpFormatError(path, f"cannot be read: {exc}") from exc
    flat = [title.replace(" ", "").replace("_", "").lower() for title in header]
    if _NAME_COLUMN not in flat:
        raise DumpFormatError(path, "its header has no column Op Name")
    name_at = flat.index(_NAME_COLUMN)
    type_at = flat.index(_TYPE_COLUMN) if _TYPE_COLUMN in flat else None
    lines: list[Sequence[Cell]] = []
    for row in rows:
        # A row may end in a comma that the header lacks, or be cut off.
        cells = (row + [""] * len(header))[: len(header)]
        op_type = "" if type_at is None else cells[type_at].strip()
        lines.append([*cells, *_cells(code, op_type, cells[name_at].strip(), tally)])
    return write_csv(Table.of([*header, *COLUMNS[1:]], lines), path.with_name(name))
