# SPDX-License-Identifier: Apache-2.0
"""Append rows to the files of one rank; `run_file.py` describes them."""

from __future__ import annotations

import os
import weakref
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from msprobe.dump.crc import crc32
from msprobe.errors import MonitorWriteError
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.run_file import (
    ENTRY,
    FILE_HEAD,
    INDEX_HEAD,
    INDEX_SUFFIX,
    ROWS_SUFFIX,
    Kind,
    RunFile,
    check_of,
)
from msprobe.plain_text import reason

try:
    import fcntl
except ImportError:  # Windows: two processes are then not kept apart
    fcntl = None  # type: ignore[assignment]

_COMPRESSED_ABOVE: Final = 1 << 10
_FLUSHED_ABOVE: Final = 64 << 20
# A hundred bytes for each of some million tensors; more is meant to fill the memory.
_LARGEST_LAYOUT: Final = 1 << 28


class RunWriter:
    """Appends to the files of one rank, which it keeps other processes out of.

    Args:
        directory: of the run; made if missing. What its files hold stays.
        rank: of this process.
        head: facts about this process and its configuration, as JSON.

    Raises:
        MonitorWriteError: another process writes there, or the files cannot be written.
        MonitorFormatError: the files are damaged, or something else.
    """

    def __init__(self, directory: Path, rank: int, head: dict[str, Any]) -> None:
        self.path = directory / f"rank{rank}{ROWS_SUFFIX}"
        self._layouts: weakref.WeakKeyDictionary[Layout, int] = weakref.WeakKeyDictionary()
        self._known: dict[bytes, int] = {}
        self._pieces: list[bytes | memoryview] = []
        self._entries: list[NDArray[Any]] = []
        self._waiting_bytes = 0
        with ExitStack() as unless_open:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                self._file = _open(self.path, unless_open)
                self._lock()
                self._index = _open(self.path.with_suffix(INDEX_SUFFIX), unless_open)
                self._continue()
                self._put(Kind.HEAD, _json(head))
                self.flush()
            except OSError as error:
                raise self._failed(error) from error
            unless_open.pop_all()
        _OPEN.add(self)

    def __enter__(self) -> RunWriter:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def append(self, rows: Rows) -> None:
        """Take a block of rows; it is on disk after `end_step`, or earlier where it is large.

        Raises:
            MonitorWriteError: the disk refuses.
        """
        values = np.ascontiguousarray(rows.values, "<f8")
        self._put(
            Kind.VALUES,
            values.tobytes(),
            layout=self._number_of(rows.layout),
            step=rows.step,
            micro_step=rows.micro_step,
            time=rows.time,
            shape=values.shape,
        )
        if self._waiting_bytes > _FLUSHED_ABOVE:
            self.flush()

    def flush(self) -> None:
        """Write everything so far; a process that is killed afterwards loses none of it.

        Raises:
            MonitorWriteError: the disk refuses. What is not in the index then is lost: the file may
                have a part of it, behind which nothing can be written.
        """
        if not self._entries:
            return
        entries, content = np.concatenate(self._entries), b"".join(self._pieces)
        entries["check"] = check_of(entries)
        self._pieces.clear()
        self._entries.clear()
        self._waiting_bytes = 0
        try:
            _write_all(self._file, content)
            _write_all(self._index, entries.tobytes())
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Write what waits and close the files; a second call does nothing."""
        if self._file < 0:
            return
        try:
            self.flush()
        finally:
            if os.name == "posix":
                # A forked child may hold the file, and with it the lock.
                fcntl.flock(self._file, fcntl.LOCK_UN)
            self.abandon()

    def abandon(self) -> None:
        """Close the files as they are, without ending the lock: for a forked child."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._index)
            self._file = self._index = -1

    # -- inside --------------------------------------------------------------------------------

    def _lock(self) -> None:
        if os.name != "posix":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            taken = 'another process writes to it; choose another "run" or "output_dir"'
            raise MonitorWriteError(self.path, taken) from error

    def _continue(self) -> None:
        """Go to the end of the last whole block; make the heads of new files."""
        with RunFile(self.path) as old:
            self._end = old.end
            index_end = len(INDEX_HEAD) + old.entries.nbytes
            self._layout_count = int((old.entries["kind"] == Kind.LAYOUT).sum())
        if self._end == len(FILE_HEAD):
            for descriptor, head in ((self._file, FILE_HEAD), (self._index, INDEX_HEAD)):
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                _write_all(descriptor, head)
        # What lies behind was being written when a process was killed.
        for descriptor, end in ((self._file, self._end), (self._index, index_end)):
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)

    def _number_of(self, layout: Layout) -> int:
        number = self._layouts.get(layout)
        if number is None:
            text = _json({name: getattr(layout, name) for name in _LAYOUT_FIELDS})
            if len(text) > _COMPRESSED_ABOVE:
                text = zlib.compress(text, 1)
            number = self._known.get(text)
            if number is None:
                number = self._known[text] = self._layout_count
                self._layout_count += 1
                self._put(Kind.LAYOUT, text, layout=number)
            self._layouts[layout] = number
        return number

    def _put(
        self,
        kind: Kind,
        content: bytes,
        *,
        layout: int = -1,
        step: int = 0,
        micro_step: int = 0,
        time: float = 0.0,
        shape: tuple[int, ...] = (0, 0),
    ) -> None:
        row = (
            *(self._end, len(content), step, time, layout, micro_step),
            *(shape[1], shape[0], kind, crc32(content), 0, 0),
        )
        self._entries.append(np.array([row], ENTRY))
        self._pieces.append(content)
        self._end += len(content)
        self._waiting_bytes += len(content)

    def _failed(self, error: OSError) -> MonitorWriteError:
        return MonitorWriteError(self.path, f"cannot be written: {reason(error)}")


_OPEN: Final[weakref.WeakSet[RunWriter]] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_OPEN):
        writer.abandon()


# A worker that outlives a killed process would keep its files locked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)

_LAYOUT_FIELDS: Final = ("stream", "ops", "names", "chunks", "calls", "shapes", "dtypes")


def read_layout(content: bytes) -> Layout:
    """Return the layout in a block.

    Raises:
        ValueError: it is none.
    """
    text = content
    if content[:1] != b"{":
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(content, _LARGEST_LAYOUT)
        except zlib.error as exc:
            raise ValueError(str(exc)) from exc
        if not inflater.eof:
            raise ValueError(f"it is cut off, or larger than {_LARGEST_LAYOUT:,} bytes")
    layout = msgspec.json.decode(text, type=Layout)
    columns = (layout.chunks, layout.calls, layout.shapes, layout.dtypes)
    if any(len(column) != len(layout.names) for column in columns):
        raise ValueError("its columns differ in length")
    return layout


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def _open(path: Path, undo: ExitStack) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    undo.callback(os.close, descriptor)
    return descriptor


def _write_all(descriptor: int, content: bytes) -> None:
    waiting = memoryview(content)
    while waiting:
        waiting = waiting[os.write(descriptor, waiting) :]
