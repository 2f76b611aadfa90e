# SPDX-License-Identifier: Apache-2.0
"""`CompareResult`: what a comparison found, as a table, a summary and files."""

from __future__ import annotations

import html as html_text
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from msprobe.errors import ReportWriteError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from msprobe.compare.model import RankComparison

TableFormat = Literal["xlsx", "csv", "parquet"]

_STAMP: Final = "%Y%m%d%H%M%S"
_SHOWN_CULPRITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyChoices:
    """What mindstudio-probe's users choose of its files.

    Attributes:
        generation: whose columns and verdicts the tables have: ``8.3.3`` or ``26.2.0``.
        highlight: for 8.3.3, whether rows are coloured; those of 26.2.0 always are.
        advisor: whether the advice of 8.3.3 is written.
        first_difference: whether the files of the first-difference search are written.
    """

    generation: Literal["8.3.3", "26.2.0"] = "26.2.0"
    highlight: bool = False
    advisor: bool = False
    first_difference: bool = False


class CompareResult:
    """What a comparison found. Shows itself in a notebook.

    Attributes:
        summary: what ``summary.json`` holds: whether the dumps are equal, counts by status, the
            first difference, the calls that introduced one, what has no partner …
    """

    def __init__(
        self, *, comparisons: Sequence[RankComparison], summary: Mapping[str, Any]
    ) -> None:
        self._comparisons = comparisons
        self._frame: pl.DataFrame | None = None
        self._has_rows = True
        self.summary = summary

    @property
    def frame(self) -> pl.DataFrame:
        """The table: one row for each pair of values, in order of execution."""
        from msprobe.compare.native_table import make_table

        if self._frame is None:
            self._frame = make_table(self._comparisons)
        return self._frame

    @property
    def is_equal(self) -> bool:
        """Whether no value differs beyond its tolerance."""
        return bool(self.summary["equal"])

    def worst_ranks(self) -> pl.DataFrame:
        """Return one row for each value of each step, with the rank where it is worst."""
        from msprobe.compare.ranks import worst_ranks

        return worst_ranks(self.frame)

    def release(self) -> None:
        """Make the table and let go of what it was made of, which takes as much memory again.

        Tables of mindstudio-probe's form can then no longer be written.
        """
        from msprobe.compare.native_table import make_table

        if self._frame is None:
            self._frame = make_table(self._comparisons, keep_rows=False)
        self._comparisons = ()
        self._has_rows = False

    def write(
        self,
        directory: str | os.PathLike[str],
        *,
        table: TableFormat = "xlsx",
        html: bool = False,
        legacy: LegacyChoices | None = None,
    ) -> list[Path]:
        """Write the tables and ``summary.json`` into a folder; return the files.

        Args:
            directory: the folder; made if missing.
            table: format of the tables.
            html: whether to write a report to click through, too.
            legacy: what mindstudio-probe's users choose of its files.

        Raises:
            ReportWriteError: a file cannot be written.
            UsageError: `release` has been called.
        """
        if not self._has_rows:
            raise UsageError("write() must come before release()")
        folder = Path(directory)
        stamp = time.strftime(_STAMP)
        from msprobe.compare.result_files import write_summary

        files = self._write_tables(folder, stamp, table, legacy or LegacyChoices())
        if html:
            from msprobe.report.comparison_page import write_comparison_page

            page = folder / f"compare_report_{stamp}.html"
            try:
                write_comparison_page(page, self.summary, self.frame)
            except OSError as exc:
                raise ReportWriteError(page, f"cannot be written: {exc.strerror or exc}") from exc
            files.append(page)
        files.append(write_summary(self.summary, folder))
        return files

    def _write_tables(
        self, folder: Path, stamp: str, table: TableFormat, legacy: LegacyChoices
    ) -> list[Path]:
        from msprobe.compare.legacy.tables import legacy_table
        from msprobe.compare.native_table import make_table
        from msprobe.compare.result_files import table_names
        from msprobe.report.table_files import write_table

        files: list[Path] = []
        names = table_names(self._comparisons, stamp)
        for comparison, name in zip(self._comparisons, names, strict=True):
            if table == "parquet":
                # Typed columns are what that format is for; the legacy ones mix words and numbers.
                files += write_table(make_table([comparison]), folder / name, table)
            else:
                made = legacy_table(comparison, legacy.generation, highlight=legacy.highlight)
                files += write_table(made, folder / name, table)
        if len(names) > 1:
            files += write_table(self.worst_ranks(), folder / f"worst_ranks_{stamp}", "csv")
        return files

    def __repr__(self) -> str:
        """Return the answer in one line."""
        return f"CompareResult({_headline(self.summary)})"

    def _repr_html_(self) -> str:
        """Return the answer and the culprits, for notebooks."""
        rows = "".join(
            f"<tr><td>{_escape(each['name'])}</td><td>{_escape(each['module'])}</td>"
            f"<td>{_escape(each['status'])}</td><td>{_escape(_short(each['error']))}</td>"
            f"<td>{_escape(each['source'] or '')}</td></tr>"
            for each in self.summary["introduced"][:_SHOWN_CULPRITS]
        )
        table = (
            "<table><tr><th>introduced by</th><th>module</th><th>status</th><th>error</th>"
            f"<th>called at</th></tr>{rows}</table>"
            if rows
            else ""
        )
        return f"<p><b>{_escape(_headline(self.summary))}</b></p>{table}"


def _headline(summary: Mapping[str, Any]) -> str:
    counts = summary["counts"]
    shown = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    first = summary["first_difference"]
    where = "" if first is None else f"; first: {first['name']}"
    return f"{'equal' if summary['equal'] else 'different'}: {shown or 'no values'}{where}"


def _escape(text: object) -> str:
    return html_text.escape(str(text))


def _short(error: float | None) -> str:
    return "" if error is None else f"{error:.3g}"
