# SPDX-License-Identifier: Apache-2.0
"""A file open for reading at any place, with as few system calls as small tensor files need.

A small file is read whole at once; of a large one the ends are, because that is where archives
keep their descriptions. Files are read, not mapped: a mapped file that is cut short meanwhile
meanwhile would kill the process.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from msprobe.errors import DumpFormatError, RecordNotFoundError

SMALL_BYTES: Final = 128 << 10
"""Files up to this size are held in memory as a whole while they are open."""
_END_BYTES: Final = 4096


class FileIdentity(NamedTuple):
    """Identity of a file and of its present content."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """Return the identity that a system call reported."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class OpenFile:
    """A plain file, open for reading; a context manager.

    Attributes:
        name: path of the file.
        size: its bytes.
        is_npy: whether its name says that it is NumPy's.
        identity: tells whether two paths are one file.
        content: all of it, if it is small; None else.
    """

    __slots__ = ("_descriptor", "_head", "_tail", "_tail_start", "content", "identity", "is_npy",
                 "name", "size")  # fmt: skip

    def __init__(self, path: str | Path) -> None:
        """Open a file.

        Raises:
            RecordNotFoundError: there is no such file.
            DumpFormatError: it cannot be opened, or is no plain file.
        """
        self.name = name = os.fspath(path)
        self.is_npy = name.endswith(".npy")
        try:
            # Without O_NONBLOCK, opening a pipe would wait for a writer.
            self._descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as exc:
            raise RecordNotFoundError(path, "there is no such tensor file") from exc
        except (OSError, ValueError) as exc:
            raise DumpFormatError(path, f"cannot be opened: {exc}") from exc
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def _look(self) -> None:
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DumpFormatError(self.name, "is not a plain file")
        self.identity = FileIdentity.of(status)
        self.size = size = status.st_size
        self._tail_start = 0
        self._tail = self.content = None
        try:
            if size <= SMALL_BYTES:
                self._head = self.content = os.pread(self._descriptor, size, 0)
            else:
                self._head = os.pread(self._descriptor, _END_BYTES, 0)
                self._tail_start = size - _END_BYTES
                self._tail = os.pread(self._descriptor, _END_BYTES, self._tail_start)
        except OSError as exc:
            raise DumpFormatError(self.name, f"cannot be read: {exc}") from exc

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.name)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on.

        Raises:
            DumpFormatError: the file ends before, or cannot be read.
        """
        end = offset + length
        if end <= len(self._head):
            return self._head[offset:end]
        if self._tail is not None and offset >= self._tail_start and end <= self.size:
            return self._tail[offset - self._tail_start : end - self._tail_start]
        if end > self.size:
            raise DumpFormatError(self.name, f"ends at byte {self.size}, before byte {end}")
        content = bytearray(length)
        self.read_into(offset, content)
        return bytes(content)

    def read_into(self, offset: int, buffer: Any) -> None:
        """Read the bytes from `offset` on into a buffer (an array, a bytearray …).

        Raises:
            DumpFormatError: the file ends before, or cannot be read.
        """
        view = memoryview(buffer)
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as exc:
                raise DumpFormatError(self.name, f"cannot be read: {exc}") from exc
            if count == 0:
                raise DumpFormatError(self.name, "became shorter while it was read")
            view = view[count:]
            offset += count
