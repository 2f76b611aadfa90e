# SPDX-License-Identifier: Apache-2.0
"""Tables as parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

from msprobe.files import PatientFile, report_file
from msprobe.report.tables import Cell, Table, TableRow

if TYPE_CHECKING:
    import polars as pl

_BATCH_ROWS: Final = 50_000


def write_parquet(table: Table | pl.DataFrame, path: Path) -> list[Path]:
    """Write a table; return its file.

    Columns that hold nothing but numbers become numbers; all others become text.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    frame = _frame(table) if isinstance(table, Table) else table
    with report_file(path) as temporary, PatientFile(temporary) as file:
        frame.write_parquet(cast("IO[bytes]", file))
    return [path]


def _frame(table: Table) -> pl.DataFrame:
    import polars as pl

    rows = table.rows()
    numeric = dict.fromkeys(table.columns, True)
    schema = dict.fromkeys(table.columns, pl.String)
    frames = [pl.DataFrame(schema=schema)]
    while batch := list(islice(rows, _BATCH_ROWS)):
        frames.append(_text_frame(table.columns, batch, numeric))
    frame = pl.concat(frames)
    numbers = [name for name in table.columns if numeric[name] and table.count]
    return frame.with_columns(pl.col(name).cast(pl.Float64) for name in numbers)


def _text_frame(
    columns: tuple[str, ...], batch: list[TableRow], numeric: dict[str, bool]
) -> pl.DataFrame:
    import polars as pl

    cells: Iterator[tuple[Cell, ...]] = zip(*(cells for cells, _ in batch), strict=True)
    series = []
    for name, column in zip(columns, cells, strict=True):
        if numeric[name] and any(map(_is_no_number, column)):
            numeric[name] = False
        texts = [cell if cell is None or isinstance(cell, str) else str(cell) for cell in column]
        series.append(pl.Series(name, texts, dtype=pl.String))
    return pl.DataFrame(series)


def _is_no_number(cell: Cell) -> bool:
    return cell is not None and type(cell) not in (int, float)
