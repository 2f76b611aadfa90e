# SPDX-License-Identifier: Apache-2.0
"""A file open for reading at any place, with as few system calls as small tensor files need.

A small file is read whole at once; of a large one the ends are, because that is where archives
keep their descriptions. Files are read, not mapped: a mapped file that is cut short meanwhile
meanwhile would kill the process.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from msprobe.errors import DumpFormatError, RecordNotFoundError
from msprobe.plain_text import reason

SMALL_BYTES: Final = 128 << 10
"""Files up to this size are held in memory as a whole while they are open."""
_END_BYTES: Final = 4096
_NEAR_BYTES: Final = 8192


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

    __slots__ = ("_descriptor", "_head", "_near", "_near_start", "_tail", "_tail_start", "content",
                 "identity", "is_npy", "name", "size")  # fmt: skip

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
            raise DumpFormatError(path, f"cannot be opened: {reason(exc)}") from exc
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
        self._near, self._near_start = b"", 0
        try:
            if size <= SMALL_BYTES:
                self._head = self.content = os.pread(self._descriptor, size, 0)
            else:
                self._head = os.pread(self._descriptor, _END_BYTES, 0)
                self._tail_start = size - _END_BYTES
                self._tail = os.pread(self._descriptor, _END_BYTES, self._tail_start)
        except OSError as exc:
            raise DumpFormatError(self.name, f"cannot be read: {reason(exc)}") from exc

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

    def stream(self) -> IO[bytes]:
        """Return the file as a stream of its own, to be closed by the caller."""
        return self.path.open("rb")

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
        if length <= _NEAR_BYTES // 8:
            return self._read_near(offset, length)
        try:
            content = os.pread(self._descriptor, length, offset)
        except OSError as exc:
            raise DumpFormatError(self.name, f"cannot be read: {reason(exc)}") from exc
        if len(content) < length:  # as from 2 GiB on: the system reads less at once
            rest = bytearray(length - len(content))
            self.read_into(offset + len(content), rest)
            content += rest
        return content

    def _read_near(self, offset: int, length: int) -> bytes:
        """Return few bytes out of a larger range that is kept: others near by often follow."""
        begin = offset - self._near_start
        if begin < 0 or begin + length > len(self._near):
            content = bytearray(min(_NEAR_BYTES, self.size - offset))
            self.read_into(offset, content)
            self._near, self._near_start, begin = bytes(content), offset, 0
        return self._near[begin : begin + length]

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
                raise DumpFormatError(self.name, f"cannot be read: {reason(exc)}") from exc
            if count == 0:
                raise DumpFormatError(self.name, "became shorter while it was read")
            view = view[count:]
            offset += count


class FileWindow:
    """A range of an open file, read as if it were a file of its own.

    Attributes:
        name: path of the file.
        size: bytes of the range.
    """

    __slots__ = ("_begin", "_file", "name", "size")

    def __init__(self, file: OpenFile, begin: int, size: int) -> None:
        """Take the range from `begin` on; the file remains the caller's."""
        self._file = file
        self._begin = begin
        self.name = file.name
        self.size = size

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on.

        Raises:
            DumpFormatError: the range ends before, or the file cannot be read.
        """
        if offset + length > self.size:
            problem = f"ends at byte {self.size} of a part, before byte {offset + length}"
            raise DumpFormatError(self.name, problem)
        return self._file.read(self._begin + offset, length)

    def stream(self) -> IO[bytes]:
        """Return the range as a stream."""
        return io.BufferedReader(_WindowStream(self))


class _WindowStream(io.RawIOBase):
    def __init__(self, window: FileWindow) -> None:
        self._window = window
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._window.size}[whence]
        if base + offset < 0:
            raise ValueError("negative position")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = max(min(len(buffer), self._window.size - self._at), 0)
        buffer[:length] = self._window.read(self._at, length)
        self._at += length
        return length
