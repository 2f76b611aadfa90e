# SPDX-License-Identifier: Apache-2.0
"""Large comparisons: their rows become tables in files before the next step is compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msprobe.compare.rank_comparison import RankComparison
from msprobe.files import TEMPORARY_PREFIX

LARGE_ROWS: Final = 200_000
"""More rows than these are written as parquet unless the user says otherwise: a spreadsheet of that
size opens slowly, and the rows of a few such steps do not fit into memory.
"""


class SetAside:
    """Tables of comparisons in a temporary folder, which goes when this object does.

    Args:
        folder: where the temporary folder is made; on the same disk, files can be moved there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary: TemporaryDirectory[str] | None = None
        self._count = 0

    def look_at(self, comparisons: Iterable[RankComparison]) -> None:
        """Set the rows of all comparisons aside if there are many."""
        waiting = [comparison for comparison in comparisons if comparison.table is None]
        if self._count or sum(len(comparison.rows) for comparison in waiting) > LARGE_ROWS:
            for comparison in waiting:
                self._set_aside(comparison)

    def _set_aside(self, comparison: RankComparison) -> None:
        from msprobe.compare.native_table import make_table
        from msprobe.report.parquet_file import write_parquet

        if self._temporary is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._temporary = TemporaryDirectory(prefix=TEMPORARY_PREFIX, dir=self._folder)
        path = Path(self._temporary.name) / f"{self._count}.parquet"
        self._count += 1
        write_parquet(make_table([comparison]), path)
        comparison.set_aside(path)
