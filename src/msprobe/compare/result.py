# SPDX-License-Identifier: Apache-2.0
"""`CompareResult`: the result of a comparison, as a table, a summary and files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any, Literal

from msprobe.compare.model import Status
from msprobe.compare.set_aside import is_large
from msprobe.errors import UsageError
from msprobe.files import TEMPORARY_PREFIX, report_file

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from msprobe.compare.rank_comparison import RankComparison
    from msprobe.compare.set_aside import SetAside
    from msprobe.report.tables import Table

TableFormat = Literal["xlsx", "csv", "parquet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyChoices:
    """Options for the files of mindstudio-probe.

    Attributes:
        columns: the titles of the tables: ``documented``, or ``neutral``: target and reference.
        generation: whose columns and verdicts the tables have: ``8.3.3`` or ``26.2.0``.
        highlight: whether rows of spreadsheets are coloured.
        stack: whether tables have a column with call stacks, where the target has any.
        rank_pairs: whether tables of ranks are named after the ranks of both sides,
            ``compare_result_rank0-rank0_…``, as 8.3.3 has it for folders.
        advisor: whether the advice of 8.3.3 is written.
        first_difference: whether the files of the first-difference search are written.
    """

    columns: Literal["documented", "neutral"] = "neutral"
    generation: Literal["8.3.3", "26.2.0"] = "26.2.0"
    highlight: bool = True
    stack: bool = True
    rank_pairs: bool = False
    advisor: bool = False
    first_difference: bool = False


class CompareResult:
    """Result of a comparison. Shows itself in a notebook.

    Attributes:
        summary: content of ``summary.json``: whether the dumps are equal, counts by status, the
            first difference, the calls that introduced one, calls without a partner …
    """

    def __init__(
        self,
        *,
        comparisons: Sequence[RankComparison],
        summary: Mapping[str, Any],
        has_layer_mapping: bool = False,
        changes_tensors: bool = False,
        set_aside: SetAside | None = None,
    ) -> None:
        self._comparisons = comparisons
        self._has_layer_mapping = has_layer_mapping
        # Tensors were multiplied with matrices first: their files do not show what was compared.
        self._changes_tensors = changes_tensors
        self._frame: pl.DataFrame | None = None
        self._has_rows = True
        self.summary = summary
        self._elapsed_s: float = summary["elapsed_s"]
        self._set_aside = set_aside

    @property
    def comparisons(self) -> Sequence[RankComparison]:
        """The compared ranks, in order of steps; without rows where these were set aside."""
        return self._comparisons

    @property
    def frame(self) -> pl.DataFrame:
        """The table: one row for each pair of values, in order of execution."""
        from msprobe.compare.native_table import make_table

        if self._frame is None:
            is_here = not self._is_set_aside
            self._frame = make_table(self._comparisons) if is_here else self._scan().collect()
        return self._frame

    def to_pandas(self) -> pd.DataFrame:
        """Return the table for pandas; needs no pyarrow, unlike ``frame.to_pandas()``."""
        import pandas as pd

        return pd.DataFrame(self.frame.to_dict(as_series=False))

    @property
    def is_equal(self) -> bool:
        """Whether all values were read and none differs beyond its tolerance."""
        return bool(self.summary["equal"])

    @property
    def differs(self) -> bool:
        """Whether any value is known to differ; neither this nor `is_equal` if files were lost."""
        return any(self.summary["counts"][status] for status in Status if status.is_difference)

    @property
    def has_unread(self) -> bool:
        """Whether any value could not be read."""
        return bool(self.summary["counts"][Status.UNREAD])

    def worst_ranks(self) -> pl.DataFrame:
        """Return one row for each value of each step, with the rank where it is worst."""
        import polars as pl

        from msprobe.compare.ranks import worst_ranks

        if not self._is_set_aside:
            return worst_ranks(self.frame)
        # One step at a time: sorting takes several times the memory of the table.
        steps = groupby(self._comparisons, key=lambda comparison: comparison.step)
        return pl.concat([worst_ranks(_scan(ranks)) for _, ranks in steps])

    @property
    def _is_set_aside(self) -> bool:
        return any(comparison.table is not None for comparison in self._comparisons)

    def _scan(self) -> pl.LazyFrame:
        """Return the table as a lazy frame: of tables in files only the requested part is read."""
        if self._frame is not None or not self._is_set_aside:
            return self.frame.lazy()
        return _scan(self._comparisons)

    def release(self) -> pl.LazyFrame:
        """Return the table and release its sources, which take as much memory again.

        Tables can then no longer be written.
        """
        from msprobe.compare.native_table import make_table

        if self._frame is None and not self._is_set_aside:
            self._frame = make_table(self._comparisons, keep_rows=False)
        found = self._scan()
        self._comparisons = ()
        self._has_rows = False
        return found

    def write(
        self,
        directory: str | os.PathLike[str],
        *,
        table: TableFormat | None = None,
        html: bool = False,
        legacy: LegacyChoices | None = None,
        page_parts: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {},
    ) -> list[Path]:
        """Write the tables and ``summary.json`` into a folder; return the files.

        The time in the summary becomes that of the comparison and the writing.

        Args:
            directory: the folder; made if missing.
            table: format of the tables; None for xlsx, or parquet if there are more than 200,000
                rows, or more than 100 tables.
            html: whether to write a report to click through, too.
            legacy: options for the files of mindstudio-probe.
            page_parts: takes the sections of the report, and returns those to add.

        Raises:
            ReportWriteError: a file cannot be written.
            UsageError: `release` has been called, or the rows were set aside, of which only
                parquet files can be made.
        """
        if not self._has_rows:
            raise UsageError("write() must come before release()")
        began = time.perf_counter()
        rows, tables = self.summary["rows"], len(self._comparisons)
        if table is None and is_large(rows, tables):
            table = "parquet"
            self._note(
                f"the tables are parquet files because there are {rows:,} rows in {tables:,} "
                "tables; --format xlsx or csv makes spreadsheets"
            )
        table = table or "xlsx"
        if self._is_set_aside and table != "parquet":
            raise UsageError(f"the rows were set aside: tables can be parquet, not {table}")
        folder = Path(directory)
        from msprobe.compare.result_files import own_stamp, write_summary

        with own_stamp(folder) as stamp:
            files = self._write_tables(folder, stamp, table, legacy or LegacyChoices())
            self._elapsed_s += time.perf_counter() - began
            self.summary = {**self.summary, "elapsed_s": round(self._elapsed_s, 3)}
            if html:
                from msprobe.report.comparison_page import write_comparison_page

                sections = self.page_sections()
                path = folder / f"compare_report_{stamp}.html"
                files.append(write_comparison_page(path, {**sections, **page_parts(sections)}))
        files.append(write_summary(self.summary, folder))
        return files

    def _write_tables(
        self, folder: Path, stamp: str, table: TableFormat, legacy: LegacyChoices
    ) -> list[Path]:
        from msprobe.compare.result_files import name_beside, table_names, write_data_mapping
        from msprobe.report.table_files import write_table

        files: list[Path] = []
        names = table_names(self._comparisons, stamp, rank_pairs=legacy.rank_pairs)
        for comparison, name in zip(self._comparisons, names, strict=True):
            if table == "parquet":
                files.append(_write_parquet(comparison, folder / f"{name}.parquet"))
            else:
                files += write_table(_table(comparison, legacy), folder / name, table)
            if legacy.advisor:
                from msprobe.compare.legacy.advisor import write_advice
                from msprobe.compare.legacy.tables import rows_in_order

                made = _legacy_table(comparison, legacy)
                path = folder / name_beside(name, "advisor", ".txt")
                files.append(write_advice(made, rows_in_order(comparison), path))
            if self._has_layer_mapping:
                path = folder / name_beside(name, "data_mapping", ".yaml")
                files.append(write_data_mapping(comparison, path))
        if len({comparison.rank for comparison in self._comparisons}) > 1:
            worst = "parquet" if table == "parquet" else "csv"
            files += write_table(self.worst_ranks(), folder / f"worst_ranks_{stamp}", worst)
        if legacy.first_difference:
            from msprobe.compare.legacy.first_difference import write_first_differences

            files += write_first_differences(self._comparisons, folder, stamp)
        if self._set_aside is not None:
            self._set_aside.close()
        return files

    def page_sections(self) -> dict[str, Any]:
        """Return what the report shows, by section, as strict JSON."""
        from msprobe.compare.fact_lanes import make_lanes
        from msprobe.compare.tensors.pictures import make_pictures
        from msprobe.report.comparison_page import DEFAULT_LIMIT, page_data

        comparisons = () if self._changes_tensors else self._comparisons
        more = {
            "pictures": make_pictures(self.frame, self.summary, comparisons),
            "lanes": make_lanes(self._comparisons),
        }
        present = {name: part for name, part in more.items() if part}
        return page_data(self.summary, self.frame, limit=DEFAULT_LIMIT) | present

    def _note(self, note: str) -> None:
        if note not in self.summary["notes"]:
            self.summary = {**self.summary, "notes": [*self.summary["notes"], note]}

    def __repr__(self) -> str:
        """Return the answer in one line."""
        from msprobe.report.comparison_lines import quiet_line

        return f"CompareResult({quiet_line(self.summary)})"

    def _repr_html_(self) -> str:
        """Return the answer and the most telling operations, for notebooks."""
        from msprobe.report.comparison_notebook import notebook_html

        return notebook_html(self.summary, self.frame)


def _table(comparison: RankComparison, legacy: LegacyChoices) -> Table:
    from msprobe.compare.legacy.tables import documented_table, neutral_table

    made = _legacy_table(comparison, legacy)
    return neutral_table(made) if legacy.columns == "neutral" else documented_table(made)


def _legacy_table(comparison: RankComparison, legacy: LegacyChoices) -> Table:
    from msprobe.compare.legacy.tables import legacy_table

    return legacy_table(
        comparison, legacy.generation, highlight=legacy.highlight, stack=legacy.stack
    )


def _write_parquet(comparison: RankComparison, path: Path) -> Path:
    """Write our own table: its columns are typed, mindstudio-probe's mix words and numbers."""
    from msprobe.compare.native_table import make_table
    from msprobe.report.parquet_file import write_parquet

    if comparison.table is None:
        write_parquet(make_table([comparison]), path)
    else:
        is_temporary = comparison.table.parent.name.startswith(TEMPORARY_PREFIX)
        with report_file(path) as temporary:
            (os.replace if is_temporary else copyfile)(comparison.table, temporary)
        comparison.table = path
    return path


def _scan(comparisons: Iterable[RankComparison]) -> pl.LazyFrame:
    """Return the table of comparisons whose rows were set aside, as a lazy frame."""
    import polars as pl

    return pl.concat([pl.scan_parquet(each.table) for each in comparisons if each.table])
