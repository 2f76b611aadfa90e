# SPDX-License-Identifier: Apache-2.0
"""Locks: one process per rank folder, for as long as that process lives.

Two processes without a process group would both write to ``rank``. The lock is `flock` on a hidden
file in the dump path: the kernel drops it when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from msprobe.dump.layout import rank_folder

try:
    import fcntl
except ImportError:  # Windows: claims are then not exclusive, as on file systems without flock
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_HELD_BY_ANOTHER: Final = (errno.EWOULDBLOCK, errno.EACCES)


class RankClaim:
    """The right to write under one rank folder name of a dump path, until `release`.

    Attributes:
        dump_path: the folder that holds the steps.
        name: the rank folder's name: ``rank``, ``rank{r}`` or ``proc{pid}``.
        is_locked: whether other processes are really kept out.
    """

    def __init__(self, dump_path: Path, name: str, descriptor: int | None) -> None:
        self.dump_path = dump_path
        self.name = name
        self._descriptor = descriptor
        self._holders = 1
        _CLAIMS.add(self)

    @property
    def is_locked(self) -> bool:
        """Whether a lock is held at this moment."""
        return self._descriptor is not None

    def share(self) -> RankClaim:
        """Return this claim for a second holder in the same process; each must release it."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Give the name back. Further calls do nothing."""
        self._holders = max(self._holders - 1, 0)
        if self._holders or self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        # While the lock is still held: a process that opened this file before it went notices, in
        # _is_current, that the name now leads elsewhere.
        with contextlib.suppress(OSError):
            _lock_path(self.dump_path, self.name).unlink()
        os.close(descriptor)

    def abandon(self) -> None:
        """Close the lock without giving it up for the parent: for a forked child.

        A child that outlives its parent would otherwise keep the name taken.
        """
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._holders = 0


# Needed after fork, and to recognise a second claim of the same process.
_CLAIMS: Final[weakref.WeakSet[RankClaim]] = weakref.WeakSet()


def _abandon_all() -> None:
    for claim in list(_CLAIMS):
        claim.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def claim_rank_directory(dump_path: Path, rank: int | None) -> RankClaim:
    """Choose the rank folder's name for this process and keep other processes out of it.

    With a rank it is ``rank{rank}``, without one ``rank``. If another living process holds that
    name, it is ``proc{pid}``, with a warning. Never raises for disk problems: where no lock can be
    taken, the claim is returned unlocked, and the writer reports what is wrong with the folder.

    Args:
        dump_path: the folder that holds the steps; made if missing.
        rank: the process's rank, or None without a process group.
    """
    dump_path = Path(os.path.abspath(dump_path))  # noqa: PTH100 (resolve() follows links)
    wanted = rank_folder(rank)
    for claim in list(_CLAIMS):
        if claim.is_locked and claim.dump_path == dump_path and claim.name == wanted:
            return claim.share()
    for name in _candidate_names(wanted):
        try:
            descriptor = _lock(dump_path, name)
        except OSError as exc:
            logger.debug("no lock for %s in %s: %s", name, dump_path, exc)
            return RankClaim(dump_path, name, None)
        if descriptor is not None:
            if name != wanted:
                logger.warning(
                    "another process writes to %s in %s; this one writes to %s",
                    wanted,
                    dump_path,
                    name,
                )
            return RankClaim(dump_path, name, descriptor)
    raise AssertionError("unreachable: candidate names never end")


def is_claimed(rank_directory: Path) -> bool:
    """Return whether a living process holds the name of a rank folder.

    Args:
        rank_directory: ``{dump_path}/step{n}/{rank folder}``.
    """
    path = _lock_path(rank_directory.resolve().parent.parent, rank_directory.name)
    if os.name != "posix":
        return False
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # never claimed, or in a folder that we may not write to
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as exc:
        return exc.errno in _HELD_BY_ANOTHER
    finally:
        os.close(descriptor)
    return False


def _candidate_names(wanted: str) -> Iterator[str]:
    yield wanted
    yield f"proc{os.getpid()}"
    # Two containers on one file system may hold the same process id.
    for number in count(1):
        yield f"proc{os.getpid()}{number:03d}"


def _lock_path(dump_path: Path, name: str) -> Path:
    return dump_path / f".msprobe.{name}.lock"


def _lock(dump_path: Path, name: str) -> int | None:
    """Return the descriptor of the locked file, or None if another process holds it.

    Raises:
        OSError: the folder cannot be written, or its file system has no locks.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, "no flock on this system")
    path = _lock_path(dump_path, name)
    while True:
        dump_path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(descriptor)
            if exc.errno in _HELD_BY_ANOTHER:
                return None
            raise
        if _is_current(descriptor, path):
            return descriptor
        os.close(descriptor)  # its former holder removed the file between our open and flock


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
