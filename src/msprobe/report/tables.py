# SPDX-License-Identifier: Apache-2.0
"""A table as files are made of it: titles, rows of cells, and a colour for some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

Cell = str | int | float | bool | None


class Colour(StrEnum):
    """The background of a row, as spreadsheets write it."""

    RED = "FF0000"
    YELLOW = "FFFF00"


TableRow = tuple[Sequence[Cell], Colour | None]
"""The cells of a row, as many as there are columns, and its colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that is made row by row while it is written, so that it need not fit in memory.

    Attributes:
        columns: the titles.
        count: number of rows.
        rows: starts an iteration over the rows; may be called several times.
    """

    columns: tuple[str, ...]
    count: int
    rows: Callable[[], Iterator[TableRow]]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
        """Return a table of rows that exist, without colours."""
        return cls(
            columns=tuple(columns),
            count=len(rows),
            rows=lambda: ((cells, None) for cells in rows),
        )

    @classmethod
    def of_frame(cls, frame: pl.DataFrame) -> Table:
        """Return the table that a frame of scalars is."""

        def rows() -> Iterator[TableRow]:
            cells: tuple[Any, ...]
            for cells in frame.iter_rows():
                yield cells, None

        return cls(columns=tuple(frame.columns), count=frame.height, rows=rows)
