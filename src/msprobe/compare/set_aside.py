# SPDX-License-Identifier: Apache-2.0
"""Large comparisons: their rows become tables in files before the next step is compared."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

from msprobe.compare.rank_comparison import RankComparison
from msprobe.errors import ReportWriteError
from msprobe.files import TEMPORARY_PREFIX
from msprobe.plain_text import reason

LARGE_ROWS: Final = 200_000
"""More rows than these are written as parquet unless the user says otherwise: a spreadsheet of that
size opens slowly, and the rows of a few such steps do not fit into memory.
"""
MANY_TABLES: Final = 100
"""The same for more tables than these, one for each rank and step: programs read so many files."""


def is_large(rows: int, tables: int = 1) -> bool:
    """Return whether a comparison has too many rows, or too many tables, for spreadsheets."""
    return rows > LARGE_ROWS or tables > MANY_TABLES


class SetAside:
    """Tables of comparisons in a temporary folder, which goes with this object at the latest.

    Args:
        folder: where the temporary folder is made; on the same disk, files can be moved there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary: Path | None = None
        self._count = 0
        self._remove: weakref.finalize[..., SetAside] | None = None

    def look_at(self, comparisons: Iterable[RankComparison]) -> None:
        """Set the rows of all comparisons aside if there are many."""
        waiting = [comparison for comparison in comparisons if comparison.table is None]
        if self._count or is_large(sum(len(comparison.rows) for comparison in waiting)):
            for comparison in waiting:
                self._set_aside(comparison)

    def close(self) -> None:
        """Remove the folder, with the tables that are still in it."""
        if self._remove is not None:
            self._remove()

    def _set_aside(self, comparison: RankComparison) -> None:
        from msprobe.compare.native_table import make_table
        from msprobe.report.parquet_file import write_parquet

        path = self._temporary_folder() / f"{self._count}.parquet"
        self._count += 1
        write_parquet(make_table([comparison]), path)
        comparison.set_aside(path)

    def _temporary_folder(self) -> Path:
        if self._temporary is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._temporary = Path(mkdtemp(prefix=TEMPORARY_PREFIX, dir=self._folder))
            except OSError as exc:
                problem = f"cannot be written: {reason(exc)}"
                raise ReportWriteError(self._folder, problem) from exc
            self._remove = weakref.finalize(self, rmtree, self._temporary, ignore_errors=True)
        return self._temporary
