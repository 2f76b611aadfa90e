# SPDX-License-Identifier: Apache-2.0
"""`Dump`: a dump by step and rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msprobe.dump.rank_view import RankView
from msprobe.errors import RecordNotFoundError, UsageError

if TYPE_CHECKING:
    import polars as pl

RankKey = int | str
"""A rank's number; the folder's name where it has none; ``graph/rank0`` for MindSpore halves."""


@dataclass(frozen=True, slots=True)
class DumpStep:
    """One step of a dump.

    Attributes:
        number: the step's number; 0 where the dump has no step folders.
        ranks: its ranks, by number where they have one, else by folder name.
    """

    number: int
    ranks: Mapping[RankKey, RankView]

    def rank(self, key: RankKey | None = None) -> RankView:
        """Return one rank; without `key`, the only one.

        A single process without a number also answers to 0.

        Raises:
            RecordNotFoundError: there is none such, or a key is needed.
        """
        if key is None and len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        if key is not None and key in self.ranks:
            return self.ranks[key]
        if key == 0 and len(self.ranks) == 1 and "rank" in self.ranks:
            return self.ranks["rank"]
        is_single = list(self.ranks) == ["rank"]
        known = ", ".join(map(str, self.ranks))
        there = "there is one process, without a number" if is_single else f"there are: {known}"
        wanted = "several ranks" if key is None else f"no rank {key}"
        raise RecordNotFoundError(f"step {self.number}", f"{wanted}; {there}")


@dataclass(frozen=True, slots=True)
class Dump:
    """A dump on disk.

    Attributes:
        path: the path that was opened.
        steps: its steps by number, ascending.
    """

    path: Path
    steps: Mapping[int, DumpStep]

    def step(self, number: int | None = None) -> DumpStep:
        """Return one step; without `number`, the first.

        Raises:
            RecordNotFoundError: there is none of that number.
        """
        if number is None:
            return next(iter(self.steps.values()))
        if number in self.steps:
            return self.steps[number]
        known = ", ".join(map(str, self.steps))
        raise RecordNotFoundError(self.path, f"holds no step {number}; there are: {known}")

    def rank_views(self) -> Iterator[RankView]:
        """Yield every rank of every step."""
        for step in self.steps.values():
            yield from step.ranks.values()

    def frame(self) -> pl.DataFrame:
        """Return a polars table of all steps and ranks, with a row for each value of each record.

        Columns: ``step``, ``rank``, and those of `RankView.frame`.

        Raises:
            DumpFormatError: a file of records is damaged.
        """
        import polars as pl

        return pl.concat(
            view.frame().select(
                pl.lit(number, pl.Int64).alias("step"),
                pl.lit(str(rank)).alias("rank"),
                pl.all(),
            )
            for number, step in self.steps.items()
            for rank, view in step.ranks.items()
        )

    def sql(self, query: str) -> pl.DataFrame:
        """Return the result of an SQL query over all values; the table is called ``records``.

            open_dump("dump").sql("select step, record, norm from records where norm > 1e3")

        Args:
            query: SQL as polars has it, over the columns of `frame`.

        Raises:
            UsageError: the query cannot be run.
            DumpFormatError: a file of records is damaged.
        """
        import polars as pl

        context = pl.SQLContext(records=self.frame(), eager=True)
        try:
            found: pl.DataFrame = context.execute(query)
        except pl.exceptions.PolarsError as error:
            text = str(error).splitlines()[0].partition("; valid columns")[0]
            raise UsageError(
                f"the query cannot be run: {text}; the table is records, with the columns "
                f"{', '.join(self.frame().columns)}"
            ) from error
        return found

    def _repr_html_(self) -> str:
        """Return an overview, for notebooks."""
        from msprobe.dump.html_forms import dump_html

        return dump_html(self)
