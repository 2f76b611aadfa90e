# SPDX-License-Identifier: Apache-2.0
"""The tables of many ranks as one file with a sheet for each metric: `merge_results`.

Reads the tables that msprobe and mindstudio-probe write, of both generations, as xlsx or csv:

    compare_result_rank0_20260101120000.xlsx
    compare_result_rank1-rank1_20260101120000_part_1.csv
"""

from __future__ import annotations

import csv
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.compare.legacy.cells import NAN, NOTHING, UNSUPPORTED
from msprobe.compare.legacy.columns import (
    CHECKSUMS,
    CONSISTENT,
    METRICS,
    OWN,
    REACHED,
    RESULT,
    STATISTICS,
    documented_title,
)
from msprobe.compare.model import Mode
from msprobe.errors import DumpFormatError, ReportWriteError, UsageError
from msprobe.files import reading
from msprobe.plain_text import reason
from msprobe.report.spreadsheet import MAX_ROWS, write_sheets
from msprobe.report.tables import Cell, Table
from msprobe.yaml_nodes import Node, read_yaml

NAME: Final = "NPU Name"

_FILE: Final = re.compile(
    r"(?:debug_)?compare_result_(?P<rank>rank\d+)(?P<table>(?:-rank\d+)?_\d{14})"
    r"(?:_part_(?P<part>\d+))?(?P<kind>\.xlsx|\.csv)"
)
_LONGEST_CELL: Final = 1 << 30
# Where the metric says nothing, the values themselves are shown.
_SAYS_NOTHING: Final = (NOTHING, UNSUPPORTED, NAN)
_NPU_MAX, _BENCH_MAX = STATISTICS[0], STATISTICS[4]
_VERDICTS: Final = (RESULT, REACHED, *OWN)
# Titles that the documents give columns, where tables have another one.
_FORMER_TITLES: Final = {"Norm diff": "L2norm diff"}
_NUMBER: Final = re.compile(r" ?-?(?:\d+\.?\d*(?:[eE][-+]?\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeChoices:
    """The ranks, rows and metrics to merge.

    Attributes:
        apis: beginnings of row names, whole parts: ``Functional``, ``Torch.add.0``.
        metrics: columns, by their titles or those that the documents use; empty for all metrics.
    """

    apis: tuple[str, ...]
    metrics: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        """Return whether a row is to be merged."""
        return any(name == api or name.startswith(f"{api}.") for api in self.apis)


@dataclass(slots=True, kw_only=True)
class _RankTable:
    """The content of one rank's files.

    Attributes:
        rank: title of its column.
        files: its files, in order.
        mode: the data by which its values were judged.
        columns: all columns.
        rows: the wanted rows by name.
    """

    rank: str
    files: list[Path]
    mode: Mode
    columns: tuple[str, ...]
    rows: dict[str, dict[str, Cell]]


def merge_results(
    input_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    config_path: str | os.PathLike[str],
) -> Path:
    """Merge the tables of all ranks in a folder; return the file ``multi_ranks_compare_merge_…``.

    Each metric has a sheet, with a row for each value and a column for each rank. A cell is blank
    where a rank does not have the value.

    Args:
        input_dir: the folder of the tables; other files in it are left alone.
        output_dir: where to; made if missing.
        config_path: YAML file with ``api``, a list of beginnings of names, and optionally
            ``compare_index``, a list of columns; without it every metric has a sheet.

    Raises:
        ConfigError: the YAML file cannot be used.
        UsageError: there are fewer than two ranks, several tables of one rank, tables that cannot
            be merged, or nothing is left of them.
        DumpFormatError: a table cannot be read.
        ReportWriteError: the result cannot be written.
    """
    choices = read_merge_config(Path(config_path))
    ranks = [
        _read_rank(rank, files, choices) for rank, files in _rank_files(Path(input_dir)).items()
    ]
    metrics = _metrics(ranks, choices, Path(config_path))
    if not any(table.rows for table in ranks):
        wanted = ", ".join(choices.apis)
        raise UsageError(f"{input_dir}: no table has rows whose names begin with {wanted}")
    path = Path(output_dir) / f"multi_ranks_compare_merge_{time.strftime('%Y%m%d%H%M%S')}.xlsx"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sheets(_sheets(ranks, metrics), path)
    except OSError as exc:
        raise ReportWriteError(path, f"cannot be written: {reason(exc)}") from exc
    return path


def read_merge_config(path: Path) -> MergeChoices:
    """Read the YAML file.

    Raises:
        ConfigFileError: it cannot be read or is no YAML.
        ConfigError: a key is unknown or missing, or a value is of a wrong type.
    """
    top = read_yaml(path)
    found: dict[str, tuple[str, ...]] = {}
    for key, place, node in top.items("a mapping with the keys api and compare_index"):
        if key not in ("api", "compare_index"):
            place.refuse(key, ("api", "compare_index"))
        found[key] = _texts(key, node)
    if not found.get("api"):
        top.refuse(None, "api: a list of beginnings of names, such as Functional.linear")
    return MergeChoices(apis=found["api"], metrics=found.get("compare_index", ()))


def _texts(key: str, node: Node) -> tuple[str, ...]:
    if node.kind == "null":
        return ()
    what = "a beginning of names" if key == "api" else "the title of a column"
    return tuple(each.text(what).rstrip(".") for each in node.elements(f"a list, each {what}"))


def _rank_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each rank, ranks in order of their numbers.

    Raises:
        UsageError: fewer than two ranks, or two tables of one.
    """
    found: dict[str, dict[str, list[tuple[int, Path]]]] = {}
    try:
        paths = sorted(folder.iterdir())
    except OSError as exc:
        raise UsageError(f"{folder}: cannot be read: {reason(exc)}") from exc
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match and path.is_file():
            table = match["table"] + match["kind"]
            parts = found.setdefault(match["rank"], {}).setdefault(table, [])
            parts.append((int(match["part"] or 0), path))
    for rank, tables in found.items():
        if len(tables) > 1:
            names = ", ".join(parts[0][1].name for parts in tables.values())
            raise UsageError(f"{folder}: several tables of {rank}: {names}; keep one")
    if len(found) < 2:
        raise UsageError(
            f"{folder}: tables of {len(found)} ranks; at least two are needed, named "
            "compare_result_rank0_20260101120000.xlsx or .csv"
        )
    ranks = sorted(found, key=lambda rank: int(rank.removeprefix("rank")))
    return {rank: [path for _, path in sorted(*found[rank].values())] for rank in ranks}


def _read_rank(rank: str, files: list[Path], choices: MergeChoices) -> _RankTable:
    table: _RankTable | None = None
    for path in files:
        for titles, rows in _pieces(path):
            columns = tuple(map(documented_title, titles))
            if table is None:
                mode = _mode_of(columns, path)
                table = _RankTable(rank=rank, files=files, mode=mode, columns=columns, rows={})
            elif columns != table.columns:
                raise DumpFormatError(path, "has other columns than the first part of its table")
            _collect(table, rows, choices)
    assert table is not None  # a table has at least one file, and a file one piece
    return table


def _pieces(path: Path) -> Iterator[tuple[tuple[str, ...], Iterable[Sequence[Any]]]]:
    """Yield titles and rows of a file, once for each of its sheets.

    Raises:
        DumpFormatError: it cannot be read.
    """
    if path.suffix == ".csv":
        with (
            reading(path, DumpFormatError, csv.Error),
            _long_cells(),
            path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file,
        ):
            reader = csv.reader(file)
            yield tuple(next(reader, ())), reader
        return
    import python_calamine

    with reading(path, DumpFormatError, python_calamine.CalamineError):
        workbook = python_calamine.CalamineWorkbook.from_path(path)
        sheets = [workbook.get_sheet_by_name(name).to_python() for name in workbook.sheet_names]
    for sheet in sheets:
        titles = sheet[0] if sheet else []
        yield tuple(map(str, titles)), sheet[1:]


@contextmanager
def _long_cells() -> Iterator[None]:
    """Let call stacks and messages be longer than the csv module expects."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _mode_of(columns: tuple[str, ...], path: Path) -> Mode:
    """Return the mode that a table was judged by.

    Raises:
        DumpFormatError: it is no table of a comparison.
    """
    if columns[:1] == (NAME,) and CONSISTENT in columns:
        for mode, metrics in METRICS.items():
            if set(metrics) <= set(columns):
                return mode
    shown = ", ".join(columns[:10]) or "no titles"
    raise DumpFormatError(path, f"is no table of a comparison; it has {shown}")


def _collect(table: _RankTable, rows: Iterable[Sequence[Any]], choices: MergeChoices) -> None:
    for cells in rows:
        name = str(cells[0]) if cells else ""
        if name != NOTHING and choices.wants(name):
            table.rows[name] = dict(zip(table.columns, map(_typed, cells), strict=False))


def _typed(cell: Any) -> Cell:
    """Return a cell of either kind of file: numbers as numbers."""
    if not isinstance(cell, str):
        return cell if isinstance(cell, (int, float, bool)) else str(cell)
    if _NUMBER.fullmatch(cell):
        return float(cell)
    return cell


def _metrics(ranks: list[_RankTable], choices: MergeChoices, config: Path) -> tuple[str, ...]:
    """Return the metrics to show.

    Raises:
        UsageError: the ranks were compared in different ways, or lack a metric.
    """
    modes = {table.mode for table in ranks}
    if len(modes) > 1:
        shown = "; ".join(f"{table.files[0].name}: {table.mode}" for table in ranks)
        raise UsageError(f"tables of different kinds cannot be merged: {shown}")
    mode = modes.pop()
    usual = (RESULT, *CHECKSUMS) if mode is Mode.MD5 else METRICS[mode]
    # Columns that all ranks have; users may have added metrics of their own.
    common = [name for name in ranks[0].columns if all(name in table.columns for table in ranks)]
    allowed = [name for name in common if name in (*usual, CONSISTENT, *_VERDICTS)]
    for metric in choices.metrics:
        if _FORMER_TITLES.get(metric, metric) not in allowed:
            raise UsageError(
                f'{config}: "compare_index" names {metric!r}; these tables have '
                f"{', '.join(allowed)}"
            )
    return choices.metrics or usual


def _sheets(ranks: list[_RankTable], metrics: Sequence[str]) -> dict[str, Table]:
    # In the order of execution, as far as the ranks agree on it.
    names = list(dict.fromkeys(name for table in ranks for name in table.rows))
    columns = (NAME, *(table.rank for table in ranks))
    sheets = {}
    for metric in metrics:
        for start in range(0, max(len(names), 1), MAX_ROWS):
            part = names[start : start + MAX_ROWS]
            title = metric if len(names) <= MAX_ROWS else f"{metric}_part_{start // MAX_ROWS}"
            rows = [[name, *(_cell(table, name, metric) for table in ranks)] for name in part]
            sheets[title] = Table.of(columns, rows)
    return sheets


def _cell(table: _RankTable, name: str, metric: str) -> Cell:
    row = table.rows.get(name)
    if row is None:
        return None
    cell = row.get(_FORMER_TITLES.get(metric, metric))
    if cell in _SAYS_NOTHING and _NPU_MAX in row:
        return f"NPU:{row[_NPU_MAX]}  Bench:{row[_BENCH_MAX]}"
    return cell
