# SPDX-License-Identifier: Apache-2.0
"""`Table`: nodes or edges by column, as arrays that are searched and stored whole.

Texts are places in one list that all tables of a file share. Of a million nodes a column is read
from its file in milliseconds, and only when it is asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msprobe.graph.page_json import NUMBERS, TEXTS, number
from msprobe.graph.text_block import TextBlock

_NOTHING: Final = -np.finfo(np.float64).max
"""In columns of numbers, where there is none; all numbers of graphs are larger."""
_KINDS: Final = ("int8", "int16", "int32", "int64", "float64")

Column = NDArray[Any]


class StoredColumn(NamedTuple):
    """One column as a file has it.

    Attributes:
        name: its name.
        kind: type of its numbers.
        content: the compressed numbers.
    """

    name: str
    kind: str
    content: bytes


class Table:
    """Rows by column.

    Attributes:
        count: number of rows.
        texts: all texts, by place.
    """

    def __init__(
        self, count: int, texts: TextBlock, columns: Mapping[str, Callable[[], Column]]
    ) -> None:
        self.count, self.texts = count, texts
        self._makers, self._columns = columns, dict[str, Column]()

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], count: int, texts: TextBlock) -> Table:
        """Return a table of columns as `page_json` makes them: one with one entry is uniform."""

        def maker(name: str, cells: Sequence[Any]) -> Callable[[], Column]:
            column = _array(name, cells)
            return lambda: column

        return cls(count, texts, {name: maker(name, cells) for name, cells in columns.items()})

    @classmethod
    def stored(cls, count: int, texts: TextBlock, columns: Sequence[StoredColumn]) -> Table:
        """Return a table of columns in a file, which are read when they are asked for.

        Raises:
            ValueError: a column does not have the rows of the table; then, or when it is read.
        """

        def maker(kind: str, content: bytes, limit: int) -> Callable[[], Column]:
            return lambda: _unpacked(kind, content, count, limit)

        makers = {
            name: maker(kind, content, len(texts) if name in TEXTS else 0)
            for name, kind, content in columns
        }
        return cls(count, texts, makers)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a column of a name."""
        return name in self._makers

    def column(self, name: str) -> Column:
        """Return the numbers of a column: one for each row, or one for all."""
        if name not in self._columns:
            self._columns[name] = self._makers[name]()
        return self._columns[name]

    def full(self, name: str) -> Column:
        """Return the numbers of a column, one for each row."""
        return np.broadcast_to(self.column(name), self.count)

    def rows(self, places: slice | Sequence[int]) -> dict[str, list[Any]]:
        """Return some rows by column, ready for JSON; one of equal entries has one."""
        found = {}
        for name in self._makers:
            column = self.column(name)
            cells = (column if len(column) == 1 else column[places]).tolist()
            if name in TEXTS:
                cells = [self.texts[place] for place in cells]
            elif name in NUMBERS:
                cells = [None if cell == _NOTHING else number(cell) for cell in cells]
            found[name] = cells
        return found

    def to_store(self) -> Iterator[StoredColumn]:
        """Yield the columns as a file has them."""
        for name in self._makers:
            column = self.column(name)
            yield StoredColumn(name, column.dtype.name, zlib.compress(column.tobytes(), 1))


def _array(name: str, cells: Sequence[Any]) -> Column:
    if name in NUMBERS:
        return np.array([_NOTHING if cell is None else float(cell) for cell in cells], np.float64)
    column = np.array(cells, np.int64)
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    small = next(
        kind for kind in _KINDS if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
    )
    return column.astype(small)


def _unpacked(kind: str, content: bytes, count: int, limit: int) -> Column:
    """Return a stored column; with a limit, of places that must be below it."""
    if kind not in _KINDS:
        raise ValueError(f"a column of type {kind}")
    data = unpacked(content, count * np.dtype(kind).itemsize)
    column = np.frombuffer(data, kind)
    if len(column) not in (1, count):
        raise ValueError(f"a column of {len(column)} rows in a table of {count}")
    if limit and len(column) and not 0 <= int(column.min()) <= int(column.max()) < limit:
        raise ValueError("a text that is not there")
    return column


def unpacked(content: bytes, most: int) -> bytes:
    """Return what was compressed.

    Raises:
        ValueError: it is damaged, or longer than `most` bytes.
    """
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(content, max(most, 1))
    except zlib.error as exc:
        raise ValueError(str(exc)) from exc
    if not decoder.eof:
        raise ValueError(f"more than {most} bytes")
    return data
