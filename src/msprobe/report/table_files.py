# SPDX-License-Identifier: Apache-2.0
"""Tables as files: csv, xlsx and parquet.

Files appear under their names when they are complete; until then they have a temporary one
beside it. A file of the same name is replaced. Text that a spreadsheet would take for a formula
stays text.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.report.tables import Table

if TYPE_CHECKING:
    import polars as pl


class TableFormat(StrEnum):
    """Kinds of files; the value is the suffix."""

    CSV = "csv"
    XLSX = "xlsx"
    PARQUET = "parquet"


def write_table(
    table: Table | pl.DataFrame, path: Path, kind: TableFormat | str = TableFormat.XLSX
) -> list[Path]:
    """Write a table; return the files, in order.

    A spreadsheet of more rows than a sheet holds gets several sheets, ``part_0`` and so on. A csv
    of more than a million rows becomes several files, ``{name}_part_1.csv`` and so on.

    Args:
        table: the table, or a polars frame of scalars.
        path: where to; its suffix is replaced by that of `kind`. Folders are created.
        kind: the format.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    kind = TableFormat(kind)
    path = path.with_name(f"{path.name.removesuffix('.' + kind)}.{kind}")
    if kind is TableFormat.XLSX:
        from msprobe.report.spreadsheet import write_xlsx

        return write_xlsx(_as_table(table), path)
    if kind is TableFormat.CSV:
        from msprobe.report.csv_files import write_csv

        return write_csv(_as_table(table), path)
    from msprobe.report.parquet_file import write_parquet

    return write_parquet(table, path)


def _as_table(table: Table | pl.DataFrame) -> Table:
    return table if isinstance(table, Table) else Table.of_frame(table)
