# SPDX-License-Identifier: Apache-2.0
"""Atomic files: written under a temporary name, renamed when they are complete; errors of reading.

A reader never sees half a file, and the old file stays if the writing fails.
"""

from __future__ import annotations

import io
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msprobe.errors import ReportWriteError
from msprobe.plain_text import reason

TEMPORARY_PREFIX: Final = ".msprobe.tmp."
"""Prefix of temporary names; `msprobe repair` removes left-over ones."""

logger = logging.getLogger(__name__)

_NUMBERS: Final = itertools.count()


def temporary_name(suffix: str) -> str:
    """Return a new name under which a file is written before it gets its own.

    The suffix stays, because some writers add one by themselves (`numpy.save`).
    """
    return f"{TEMPORARY_PREFIX}{os.getpid()}.{next(_NUMBERS)}{suffix}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; it is renamed to `path` if no exception is raised."""
    temporary = path.with_name(temporary_name(path.suffix))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        remove_quietly(temporary)
        raise


@contextmanager
def reading(
    path: str | Path,
    kind: Callable[[str | Path, str], Exception],
    *also: type[Exception],
) -> Iterator[None]:
    """Raise `kind` with the path and the reason where a file cannot be read.

    Args:
        path: the file.
        kind: the error to raise.
        also: errors that mean this, beside those of the system.
    """
    causes: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except causes as exc:
        raise kind(path, f"cannot be read: {reason(exc)}") from exc


@contextmanager
def report_file(path: Path, *, warns: bool = True) -> Iterator[Path]:
    """Do the same as `replacing` for files that people asked for; makes missing folders.

    Args:
        path: the file.
        warns: whether to say so if there is a file of that name.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if warns and path.exists():
            logger.warning("%s exists and is replaced", path)
        with replacing(path) as temporary:
            yield temporary
    except OSError as exc:
        raise ReportWriteError(path, f"cannot be written: {reason(exc)}") from exc


def write_report(path: Path, text: str | Iterable[str], *, warns: bool = True) -> Path:
    """Write a text file and return its path; see `report_file`.

    Half characters, which no encoding knows, come from hostile dumps. They are written as
    ``\\udc80``, which in JSON means the same.
    """
    with (
        report_file(path, warns=warns) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        file.writelines([text] if isinstance(text, str) else text)
    return path


class PatientFile(io.RawIOBase):
    """A new file that tells of a full disk only when it is closed.

    For libraries that turn such an error into another one, or repeat it on stderr while they clean
    up.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=0)
        self._problem: OSError | None = None

    def writable(self) -> bool:
        """Return that it can be written."""
        return True

    def seekable(self) -> bool:
        """Return that it has positions."""
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position and return it."""
        return offset if self._file.closed else self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return 0 if self._file.closed else self._file.tell()

    def write(self, data: Any, /) -> int:
        """Write all bytes; after an error, or when closed, pretend to."""
        waiting = memoryview(data).cast("B")
        size = len(waiting)
        try:
            while waiting and self._problem is None and not self._file.closed:
                waiting = waiting[self._file.write(waiting) :]
        except OSError as exc:
            self._problem = exc
        return size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: something could not be written.
        """
        super().close()
        self._file.close()
        if self._problem is not None:
            raise self._problem


def write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a file; return its size.

    Raises:
        OSError: the file cannot be written; nothing is left behind then.
    """
    size = 0
    with replacing(path) as temporary, temporary.open("wb", buffering=0) as file:
        for chunk in chunks:
            waiting = memoryview(chunk)
            while waiting:
                waiting = waiting[file.write(waiting) :]
            size += len(chunk)
    return size


def remove_quietly(path: Path) -> None:
    """Remove a file if that is possible; its absence is all that matters."""
    try:
        path.unlink()
    except OSError:
        return
