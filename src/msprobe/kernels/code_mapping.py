# SPDX-License-Identifier: Apache-2.0
"""Map the kernels of a dump to source lines, as tables beside the data."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from msprobe.dump.kernel_code import CodeMap, CodePlace, flat_name, kernel_kind
from msprobe.dump.kernel_files import MAPPING_CSV, STATISTIC_CSV, read_mapping
from msprobe.dump.kernel_ir import read_ir
from msprobe.dump.kernel_names import OVERFLOW_TYPE, parse_kernel_file_name
from msprobe.errors import DumpFormatError, ReportWriteError
from msprobe.plain_text import reason
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Cell, Table

COLUMNS: Final = ("File Path", "Code Stack", "Scope Name")

_PARAMETER: Final = "Parameter"
_NAME_COLUMN: Final = "opname"
_TYPE_COLUMN: Final = "optype"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeMapping:
    """Result of a mapping: counts and written files.

    Attributes:
        written: the tables.
        values: number of files of values, and rows of statistics.
        mapped: how many of them have a place in the program.
        unmapped: names of the kernels and parameters that have none.
        renumbered: names of kernels that the graph has under another number, and the names there.
    """

    written: list[Path]
    values: int
    mapped: int
    unmapped: list[str]
    renumbered: dict[str, str]


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
    statistics = [_read_statistics(path) for path in tables]
    names = [value.op_name for value in values]
    names += [row[table.name_at].strip() for table in statistics for row in table.rows]
    places = _Places(code, names)
    written: list[Path] = []
    try:
        if values:
            output.mkdir(parents=True, exist_ok=True)
            path = output / f"code_mapping_{time}.csv"
            rows = [(str(each.path), *places.cells(each.op_type, each.op_name)) for each in values]
            written += write_csv(Table.of(COLUMNS, rows), path)
        for table in statistics:
            written += _write_beside(table, f"statistic_code_mapping_{time}.csv", places)
    except OSError as exc:
        raise ReportWriteError(exc.filename or output, f"cannot be written: {reason(exc)}") from exc
    return CodeMapping(
        written=written,
        values=places.count,
        mapped=places.found,
        unmapped=list(places.missed),
        renumbered=places.renumbered,
    )


class _Value(NamedTuple):
    """A file of values, and its parsed name (the original one if it was shortened)."""

    path: Path
    op_type: str
    op_name: str


class _Statistics(NamedTuple):
    """A table of statistics; `type_at` is None where it has no such column."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    name_at: int
    type_at: int | None


class _Places:
    """Finds where kernels and parameters come from, and counts.

    Args:
        code: operators and parameters of the graphs.
        names: all full names in the dump.
    """

    def __init__(self, code: CodeMap, names: Iterable[str]) -> None:
        self._code = code
        # A number may differ only where the dump, too, has one kernel alone of a scope and type.
        self._kinds = Counter(map(kernel_kind, set(map(flat_name, names))))
        self.count = 0
        self.found = 0
        self.missed: dict[str, None] = {}
        self.renumbered: dict[str, str] = {}

    def cells(self, op_type: str, op_name: str) -> tuple[str, str]:
        """Return the stack, innermost call first and one a paragraph, and the scope."""
        place = self._find(op_type, op_name)
        self.count += 1
        if place is None:
            self.missed[f"{op_type}.{op_name}"] = None
            return "", ""
        self.found += 1
        return "\n".join(map(str, place.frames)), place.scope

    def _find(self, op_type: str, op_name: str) -> CodePlace | None:
        if op_type == _PARAMETER:
            return self._code.parameter(op_name)
        place = self._code.kernel(op_name)
        if place is None and self._kinds[kernel_kind(op_name)] == 1:
            place = self._code.only_kernel_like(op_name)
            if place is not None:
                self.renumbered[f"{op_type}.{op_name}"] = place.scope
        return place


def _graph_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.ir"))
    if not found:
        advice = "MindSpore writes it with save_graphs"
        raise DumpFormatError(path, f"holds no graph in text form (*.ir); {advice}")
    return found


def _find(data: Path) -> tuple[list[_Value], list[Path]]:
    """Return the files of values, and the tables of statistics."""
    if data.is_file():
        if data.name == STATISTIC_CSV:
            return [], [data]
        return list(_values_in(data.parent, [data.name])), []
    if not data.is_dir():
        raise DumpFormatError(data, "does not exist; check the path")
    values: list[_Value] = []
    tables: list[Path] = []
    for directory, folders, names in os.walk(data):
        folders.sort()
        values += _values_in(Path(directory), sorted(names))
        tables += [Path(directory) / STATISTIC_CSV] if STATISTIC_CSV in names else []
    return values, tables


def _values_in(directory: Path, names: Sequence[str]) -> Iterator[_Value]:
    real_names = read_mapping(directory) if (directory / MAPPING_CSV).is_file() else {}
    for name in names:
        found = parse_kernel_file_name(real_names.get(name, name))
        if found is not None and found.op_type != OVERFLOW_TYPE:
            yield _Value(directory / name, found.op_type, found.op_name)


def _read_statistics(path: Path) -> _Statistics:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *rows = [row for row in csv.reader(file, skipinitialspace=True) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise DumpFormatError(path, f"cannot be read: {reason(exc)}") from exc
    flat = [title.replace(" ", "").replace("_", "").lower() for title in header]
    if _NAME_COLUMN not in flat:
        raise DumpFormatError(path, "its header has no column Op Name")
    # A row may end in a comma that the header lacks, or be cut off.
    whole = [(row + [""] * len(header))[: len(header)] for row in rows]
    type_at = flat.index(_TYPE_COLUMN) if _TYPE_COLUMN in flat else None
    return _Statistics(path, header, whole, flat.index(_NAME_COLUMN), type_at)


def _write_beside(table: _Statistics, name: str, places: _Places) -> list[Path]:
    """Write a copy of a table of statistics with the code; the table itself stays as it is."""
    lines: list[Sequence[Cell]] = []
    for row in table.rows:
        op_type = "" if table.type_at is None else row[table.type_at].strip()
        lines.append([*row, *places.cells(op_type, row[table.name_at].strip())])
    return write_csv(Table.of([*table.header, *COLUMNS[1:]], lines), table.path.with_name(name))
