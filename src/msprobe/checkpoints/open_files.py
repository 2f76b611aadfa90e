# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of files, with few system calls for many small ranges that follow each other.

Files stay open between reads, a few in each thread, and small ranges come out of a larger one that
is kept. Before each read from the disk the file is asked whether it is still the same.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.open_file import FileIdentity
from msprobe.errors import CheckpointFormatError
from msprobe.plain_text import reason

SMALL_BYTES: Final = 64 << 10
"""Reads up to this size also read what follows, which is often asked for next."""

_SHORTER: Final = "has become shorter while it was read"
_MOST_OPEN: Final = 8
_LEAST_AHEAD_BYTES: Final = 8 << 10
_MOST_AHEAD_BYTES: Final = 512 << 10


def read_elements(path: Path, offset: int, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return elements that lie one after another in a file.

    Raises:
        CheckpointFormatError: the file cannot be read, or ends before.
    """
    size = count * dtype.itemsize
    if size <= SMALL_BYTES:
        return np.frombuffer(read_small(path, offset, size), dtype)
    found = np.empty(count, dtype)
    try:
        is_whole = _OPEN.file(path).read_into(offset, found.view(np.uint8).data)
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    if not is_whole:
        raise CheckpointFormatError(path, _SHORTER)
    return found


def read_small(path: Path, offset: int, size: int) -> bytes:
    """Return up to `SMALL_BYTES` of a file.

    Raises:
        CheckpointFormatError: the file cannot be read, or ends before.
    """
    try:
        content = _OPEN.ahead(path, offset, size) or _OPEN.file(path).small(offset, size)
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    if len(content) != size:
        raise CheckpointFormatError(path, _SHORTER)
    return content


def forget_files() -> None:
    """Close the files of this thread: they may have been written anew since they were read."""
    _OPEN.forget()


class _File:
    """An open file, and the bytes that were read ahead."""

    def __init__(self, path: Path, identity: FileIdentity) -> None:
        self.identity = identity
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._start = 0
        self._ahead = b""
        self._length = _LEAST_AHEAD_BYTES

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def ahead(self, offset: int, size: int) -> bytes:
        """Return bytes that were read before; nothing if they were not all."""
        begin = offset - self._start
        is_there = begin >= 0 and begin + size <= len(self._ahead)
        return self._ahead[begin : begin + size] if is_there else b""

    def small(self, offset: int, size: int) -> bytes:
        """Return bytes, and read further: more, the longer the reads follow each other."""
        is_before = 0 < self._start - offset <= SMALL_BYTES
        is_next = 0 <= offset - self._start - len(self._ahead) <= SMALL_BYTES
        is_near = is_before or is_next
        self._length = min(2 * self._length, _MOST_AHEAD_BYTES) if is_near else _LEAST_AHEAD_BYTES
        length = max(self._length, size)
        self._start = max(offset + size - length, 0) if is_before else offset
        self._ahead = os.pread(self._descriptor, length, self._start)
        return self.ahead(offset, size)

    def read_into(self, offset: int, view: memoryview) -> bool:
        """Fill a buffer; return whether the file had as many bytes."""
        while view:
            count = os.preadv(self._descriptor, [view], offset)
            if count == 0:
                return False
            view = view[count:]
            offset += count
        return True


class _OpenFiles(threading.local):
    """The files that a thread read last."""

    def __init__(self) -> None:
        self._files: dict[Path, _File] = {}

    def forget(self) -> None:
        self._files.clear()

    def ahead(self, path: Path, offset: int, size: int) -> bytes:
        found = self._files.get(path)
        return b"" if found is None else found.ahead(offset, size)

    def file(self, path: Path) -> _File:
        identity = FileIdentity.of(os.stat(path))  # noqa: PTH116 (twice as fast)
        found = self._files.get(path)
        if found is None or found.identity != identity:
            self._files.pop(path, None)
            while len(self._files) >= _MOST_OPEN:
                del self._files[next(iter(self._files))]
            found = self._files[path] = _File(path, identity)
        return found


_OPEN: Final = _OpenFiles()
