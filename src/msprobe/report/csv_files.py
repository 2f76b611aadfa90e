# SPDX-License-Identifier: Apache-2.0
"""Tables as csv files, written row by row."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from msprobe.report.table_files import replacing
from msprobe.report.tables import Cell, Table, TableRow

MAX_ROWS: Final = 1_000_000
"""Rows of one file, without the titles: as many as spreadsheets can open."""

# Spreadsheets take text that begins like this for a formula. A sign may begin a number as well.
_FORMULA_STARTS: Final = frozenset("=@\t\r+-")
_SIGNS: Final = ("+", "-")
_INFINITIES: Final = (math.inf, -math.inf)


def write_csv(table: Table, path: Path) -> list[Path]:
    """Write a table as one csv file, or as several where it has too many rows.

    Infinite numbers get a leading space: without it, spreadsheets show ``-inf`` as an error.

    Args:
        table: the table.
        path: the file; several are called ``{stem}_part_1.csv`` and so on.

    Returns:
        The files.

    Raises:
        OSError: a file cannot be written.
    """
    parts = max(1, math.ceil(table.count / MAX_ROWS))
    rows = table.rows()
    paths = []
    for number in range(1, parts + 1):
        target = path if parts == 1 else path.with_name(f"{path.stem}_part_{number}{path.suffix}")
        with (
            replacing(target) as temporary,
            # Names in a hostile dump may hold half characters, which no encoding knows.
            temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.columns)
            writer.writerows(_safe_rows(islice(rows, MAX_ROWS)))
        paths.append(target)
    return paths


def _safe_rows(rows: Iterator[TableRow]) -> Iterator[Sequence[Cell]]:
    starts = _FORMULA_STARTS
    for cells, _ in rows:
        for cell in cells:
            kind = type(cell)
            if (kind is str and cell and cell[0] in starts) or (
                kind is float and cell in _INFINITIES
            ):
                yield [_safe(cell) for cell in cells]
                break
        else:
            yield cells


def _safe(cell: Cell) -> Cell:
    if isinstance(cell, float):
        return f" {cell}" if cell in _INFINITIES else cell
    if not isinstance(cell, str) or not cell or cell[0] not in _FORMULA_STARTS:
        return cell
    return cell if cell[0] in _SIGNS and _is_number(cell) else f"'{cell}"


def _is_number(text: str) -> bool:
    try:
        float(text.removesuffix("%"))
    except ValueError:
        return False
    return True
