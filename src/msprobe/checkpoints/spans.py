# SPDX-License-Identifier: Apache-2.0
"""Spans: the position of a parameter's elements in files, and reading some of them.

A span hands out any range of elements in row-major order, so two parameters can be compared piece
by piece from any format.
"""

from __future__ import annotations

import math
import zipfile
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.checkpoints.open_files import read_elements
from msprobe.dump.formats.zip import ZIP_ERRORS
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading


class Span(Protocol):
    """Elements of one type, numbered in row-major order."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the elements from `start` up to `stop`, flat.

        Raises:
            CheckpointFormatError: the file cannot be read (any more).
        """


class FileSpan(msgspec.Struct, frozen=True, gc=False):
    """Elements that lie one after another in a file.

    Read rather than mapped: a mapped file that is cut short meanwhile kills the process.

    Attributes:
        path: the file.
        offset: where they begin, in bytes.
        dtype: their type as NumPy stores it.
    """

    path: Path
    offset: int
    dtype: np.dtype[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements, from the file."""
        begin = self.offset + start * self.dtype.itemsize
        return read_elements(self.path, begin, self.dtype, stop - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class StridedSpan:
    """Elements that lie in a file in another order, as those of a transposed tensor do.

    Attributes:
        path: the file.
        offset: where the storage begins, in bytes.
        count: number of elements of the storage.
        dtype: their type as NumPy stores it.
        first: number of the first element within the storage.
        shape: the tensor's shape.
        stride: how many elements lie between neighbours, by dimension.
    """

    path: Path
    offset: int
    count: int
    dtype: np.dtype[Any]
    first: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements, picked from the mapped file."""
        if start == stop:
            return np.empty(0, self.dtype)
        with reading(self.path, CheckpointFormatError, ValueError):
            storage = np.memmap(
                self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=(self.count,)
            )
        # One flat index after another, computed from the coordinates of the elements wanted.
        places = np.full(stop - start, self.first, dtype=np.int64)
        rest = np.arange(start, stop, dtype=np.int64)
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            rest, coordinate = np.divmod(rest, size)
            places += coordinate * step
        return np.asarray(storage[places])


@dataclass(frozen=True, slots=True)
class MemorySpan:
    """Elements of an array that a pickle holds by itself; flat."""

    array: NDArray[Any]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements."""
        return self.array[start:stop]


@dataclass(frozen=True, slots=True)
class MappedSpan:
    """Elements of another span after a function, as of a tensor that is stored conjugated."""

    inner: Span
    function: Callable[[NDArray[Any]], NDArray[Any]]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements."""
        return self.function(self.inner.read(start, stop))


class CompressedSpan:
    """Elements in a compressed member of a zip archive; cheap when read from front to back."""

    def __init__(self, path: Path, member: str, offset: int, dtype: np.dtype[Any]) -> None:
        """Remember the place; `offset` is that of the first element within the member."""
        self._path = path
        self._member = member
        self._offset = offset
        self._dtype = dtype
        self._open: tuple[zipfile.ZipFile, zipfile.ZipExtFile] | None = None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements, decompressed."""
        begin = self._offset + start * self._dtype.itemsize
        length = (stop - start) * self._dtype.itemsize
        try:
            file = self._file()
            if file.tell() != begin:
                file.seek(begin)
            data = file.read(length)
        except ZIP_ERRORS as exc:
            raise CheckpointFormatError(self._path, f"{self._member}: {exc}") from exc
        if len(data) < length:
            raise CheckpointFormatError(self._path, f"{self._member}: ends too early")
        return np.frombuffer(data, dtype=self._dtype)

    def _file(self) -> zipfile.ZipExtFile:
        if self._open is None:
            archive = zipfile.ZipFile(self._path)
            file = archive.open(self._member)
            assert isinstance(file, zipfile.ZipExtFile)
            self._open = archive, file
        return self._open[1]

    def __del__(self) -> None:
        """Close the archive."""
        if self._open is not None:
            self._open[1].close()
            self._open[0].close()


def by_columns(inner: FileSpan, shape: tuple[int, ...]) -> StridedSpan:
    """Return the elements of an array that a file holds in column-major order, by rows."""
    return StridedSpan(
        path=inner.path,
        offset=inner.offset,
        count=math.prod(shape),
        dtype=inner.dtype,
        first=0,
        shape=shape,
        stride=tuple(accumulate((1, *shape[:-1]), lambda step, size: step * size)),
    )


@dataclass(frozen=True, slots=True)
class PartSpan:
    """A span from one of its elements on."""

    inner: Span
    first: int

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements of the inner span."""
        return self.inner.read(start + self.first, stop + self.first)


class JoinedSpan:
    """Spans one after another: a tensor that was cut along its first dimension, or in slices."""

    def __init__(self, parts: list[tuple[Span, int]]) -> None:
        """Join spans, each given with its number of elements."""
        self._parts = parts
        self._starts = [0, *accumulate(count for _, count in parts)]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements, from as many spans as they lie in."""
        found: list[NDArray[Any]] = []
        number = max(bisect_right(self._starts, start) - 1, 0)
        while start < stop and number < len(self._parts):
            begin, end = self._starts[number], self._starts[number + 1]
            upto = min(stop, end)
            if upto > start:
                found.append(self._parts[number][0].read(start - begin, upto - begin))
                start = upto
            number += 1
        if not found:
            return self._parts[0][0].read(0, 0)
        return found[0] if len(found) == 1 else np.concatenate(found)


class ColumnsSpan:
    """Spans side by side: a matrix that was cut along its second dimension.

    Reads whole rows, so a piece costs at least one row of memory.
    """

    def __init__(self, parts: list[tuple[Span, int]]) -> None:
        """Join spans, each given with the number of its columns."""
        self._parts = parts
        self._width = sum(width for _, width in parts)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return some elements, out of the rows they lie in."""
        if start == stop or not self._width:
            return self._parts[0][0].read(0, 0)
        first, last = start // self._width, -(-stop // self._width)
        rows = [
            span.read(first * width, last * width).reshape(last - first, width)
            for span, width in self._parts
        ]
        flat: NDArray[Any] = np.concatenate(rows, axis=1).reshape(-1)
        return flat[start - first * self._width : stop - first * self._width]


def file_size(path: Path) -> int:
    """Return the size of a plain file in bytes.

    Raises:
        CheckpointFormatError: it is none, or cannot be reached.
    """
    with reading(path, CheckpointFormatError):
        if not path.is_file():
            raise CheckpointFormatError(
                path, "is not a plain file" if path.exists() else "is missing"
            )
        return path.stat().st_size
