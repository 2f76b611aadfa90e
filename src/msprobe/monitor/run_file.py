# SPDX-License-Identifier: Apache-2.0
"""The files of one rank: blocks, which are only ever appended, and an index of them.

    rank{R}.rows    a head of 16 bytes, then blocks without gaps
    rank{R}.index   a head of 16 bytes, then an `ENTRY` of 64 bytes for each block

A block is written before its entry. So an entry whose block is not whole cannot be, and what a
killed process leaves behind the last entry is cut off when another one continues. Kinds of blocks:

    HEAD    JSON: configuration, versions, process groups; one for each process that wrote
    LAYOUT  JSON, perhaps compressed: streams, operations and names of rows
    VALUES  float64, operations by rows
"""

from __future__ import annotations

import mmap
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.crc import crc32
from msprobe.errors import MonitorFormatError
from msprobe.plain_text import reason

ROWS_SUFFIX: Final = ".rows"
INDEX_SUFFIX: Final = ".index"
FILE_HEAD: Final = b"msprobe rows v1\n"
INDEX_HEAD: Final = b"msprobe index 1\n"

ENTRY: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u8"),
        ("step", "<i8"),
        ("time", "<f8"),
        ("layout", "<i4"),
        ("micro_step", "<i4"),
        ("rows", "<i4"),
        ("ops", "<i4"),
        ("kind", "<u4"),
        ("crc", "<u4"),
        ("spare", "<u4"),
        ("check", "<u4"),
    ]
)
"""One block: its place, its content, the checksum of its bytes; `check` is that of the entry."""

_CHECK_SEED: Final = 0x6D736D6F
_READERS: Final = 16
_AT_ONCE: Final = 16
"""Numbers that one of the threads reads, one after the other."""


class Kind(IntEnum):
    """Kinds of blocks."""

    HEAD = 1
    LAYOUT = 2
    VALUES = 3


def check_of(entries: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the checksums of entries."""
    words = np.ascontiguousarray(entries).view("<u4").reshape(len(entries), -1)
    rotated = [
        (words[:, column] << np.uint32(column)) | (words[:, column] >> np.uint32(32 - column))
        for column in range(1, words.shape[1] - 1)
    ]
    folded: NDArray[np.uint32] = np.bitwise_xor.reduce([words[:, 0], *rotated])
    return folded ^ np.uint32(_CHECK_SEED)


class RunFile:
    """Reads the files of one rank, also while a process appends to them.

    Args:
        path: ``rank{R}.rows``.

    Attributes:
        path: as given.
        entries: one `ENTRY` for each block.

    Raises:
        MonitorFormatError: they are no such files, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: NDArray[Any] = np.zeros(0, ENTRY)
        self._map: mmap.mmap | None = None
        self._mapped = 0
        opened: list[int] = []
        # Runs are opened in notebooks, and left to the garbage collector.
        self._close = weakref.finalize(self, _close_all, opened)
        try:
            for one in (path, path.with_suffix(INDEX_SUFFIX), path):
                opened.append(os.open(one, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self.close()
            problem = f"cannot be read: {reason(error)} ({error.filename})"
            raise MonitorFormatError(path, problem) from error
        self._file, self._index, self._scattered = opened
        if hasattr(os, "posix_fadvise"):
            # Without it the system reads 128 KiB for each number.
            os.posix_fadvise(self._scattered, 0, 0, os.POSIX_FADV_RANDOM)
        heads = (
            os.pread(self._file, len(FILE_HEAD), 0),
            os.pread(self._index, len(INDEX_HEAD), 0),
        )
        if heads not in ((FILE_HEAD, INDEX_HEAD), (FILE_HEAD, b""), (b"", b"")):
            self.close()
            raise MonitorFormatError(path, "is no file of msprobe's monitor")
        self.refresh()

    def __enter__(self) -> RunFile:
        """Return the file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the files; entries and copies of blocks stay."""
        self._close()

    @property
    def end(self) -> int:
        """Where the last whole block ends."""
        if not len(self.entries):
            return len(FILE_HEAD)
        return int(self.entries["offset"][-1] + self.entries["length"][-1])

    def refresh(self) -> bool:
        """Read the entries that were added; return whether there were any."""
        begin = len(INDEX_HEAD) + self.entries.nbytes
        added = _read_from(self._index, begin)
        new = np.frombuffer(added, ENTRY, len(added) // ENTRY.itemsize)
        if not len(new):
            return False
        size = os.fstat(self._file).st_size
        ends = new["offset"] + new["length"]
        starts = np.concatenate([[self.end], ends[:-1]]).astype("<u8")
        is_whole = (check_of(new) == new["check"]) & (new["offset"] == starts) & (ends <= size)
        if not is_whole.all():
            first = int(np.argmin(is_whole))
            raise MonitorFormatError(self.path, f"is damaged: entry {first + len(self.entries)}")
        self.entries = np.concatenate([self.entries, new])
        return True

    def block(self, place: int, *, checked: bool = True) -> memoryview:
        """Return the bytes of a block.

        Args:
            place: of its entry.
            checked: whether to compute its checksum, which reads all of it.

        Raises:
            MonitorFormatError: it is damaged.
        """
        entry = self.entries[place]
        start, length = int(entry["offset"]), int(entry["length"])
        if start + length > self._mapped:
            self._mapped = os.fstat(self._file).st_size
            # An older map stays alive for as long as arrays show parts of it.
            self._map = mmap.mmap(self._file, self._mapped, access=mmap.ACCESS_READ)
        assert self._map is not None
        found = memoryview(self._map)[start : start + length]
        if checked and crc32(found) != entry["crc"]:
            raise MonitorFormatError(self.path, f"is damaged at byte {start}")
        return found

    def values(self, place: int, *, checked: bool = True) -> NDArray[np.float64]:
        """Return the values of a block, shape (operations, rows); see `block`."""
        entry = self.entries[place]
        shape = (int(entry["ops"]), int(entry["rows"]))
        if shape[0] * shape[1] * 8 != entry["length"]:
            raise MonitorFormatError(self.path, f"is damaged: entry {place}")
        return np.frombuffer(self.block(place, checked=checked), "<f8").reshape(shape)

    def numbers(self, places: NDArray[np.int64], spots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return one value of each of some blocks; see `runs`."""
        return self.runs(places, spots, 1)[:, 0]

    def runs(
        self, places: NDArray[np.int64], spots: NDArray[np.int64], length: int
    ) -> NDArray[np.float64]:
        """Return some values of each of some blocks, unchecked; no more than these are read.

        Args:
            places: of the entries.
            spots: of the first value in each, counted through operations and rows.
            length: how many values that follow one another.
        """
        entries = self.entries[places]
        counts = entries["ops"].astype(np.int64) * entries["rows"]
        wrong = (counts * 8 != entries["length"]) | (spots + length > counts)
        if wrong.any():
            raise MonitorFormatError(self.path, f"is damaged: entry {places[wrong.argmax()]}")
        offsets = (entries["offset"].astype(np.int64) + 8 * spots).tolist()
        pieces = [offsets[first : first + _AT_ONCE] for first in range(0, len(offsets), _AT_ONCE)]

        def read(of: list[int]) -> bytes:
            return b"".join([os.pread(self._scattered, 8 * length, offset) for offset in of])

        if len(pieces) < 2:
            found = b"".join(map(read, pieces))
        else:
            with ThreadPoolExecutor(
                min(_READERS, len(pieces))
            ) as readers:  # they wait for the disk
                found = b"".join(readers.map(read, pieces))
        return np.frombuffer(found, "<f8").reshape(-1, length)


def _read_from(descriptor: int, begin: int) -> bytes:
    size = max(os.fstat(descriptor).st_size - begin, 0)
    pieces = []
    while size > 0 and (piece := os.pread(descriptor, size, begin)):
        pieces.append(piece)
        begin, size = begin + len(piece), size - len(piece)
    return b"".join(pieces)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
