# SPDX-License-Identifier: Apache-2.0
"""Files that appear under their names when they are complete: a temporary name first, then renamed.

A reader never meets half of one, and what was there before stays if the writing fails.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msprobe.errors import ReportWriteError

TEMPORARY_PREFIX: Final = ".msprobe.tmp."
"""How temporary names begin; `msprobe repair` removes what is left of them."""

logger = logging.getLogger(__name__)

_NUMBERS: Final = itertools.count()


def temporary_name(suffix: str) -> str:
    """Return a new name under which a file is written before it gets its own.

    The suffix stays, because some writers add one by themselves (`numpy.save`).
    """
    return f"{TEMPORARY_PREFIX}{os.getpid()}.{next(_NUMBERS)}{suffix}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path`, which becomes `path` if no exception is raised."""
    temporary = path.with_name(temporary_name(path.suffix))
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        remove_quietly(temporary)
        raise


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
        raise ReportWriteError(path, f"cannot be written: {exc.strerror or exc}") from exc


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
