# SPDX-License-Identifier: Apache-2.0
"""Write the tensor files of one rank folder: atomically, and equal values only once."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from msprobe.dump.layout import marked_file_name, safe_file_name
from msprobe.files import remove_quietly, replacing, temporary_name

# ext4 allows 65,000 names for one inode, others more; where one allows fewer, EMLINK tells.
MAX_LINKS: Final = 60_000

_NO_LINKS_HERE: Final = (
    errno.EPERM,
    errno.EACCES,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EINVAL,
)


class TensorPayload(Protocol):
    """A value that can write itself to a file.

    Attributes:
        size_bytes: memory that it holds until it is written.
    """

    size_bytes: int

    def write(self, path: Path) -> None:
        """Serialise to `path`, a temporary name with the extension of the final one."""


class _FreshCopy(NamedTuple):
    """A copy that took over further links to a file, valid while neither was replaced."""

    source_inode: int
    name: str
    copy_inode: int


class TensorStore:
    """The folder ``dump_tensor_data``. Used by one thread at a time.

    Args:
        folder: the folder; made with the first file.
        max_links: names for one inode at which a fresh copy starts.
        ignores_case: whether the file system takes ``T.pt`` and ``t.pt`` for one file; None to ask
            it, which is possible once the folder's parent exists.
    """

    def __init__(
        self, folder: Path, *, max_links: int = MAX_LINKS, ignores_case: bool | None = None
    ) -> None:
        self.folder = folder
        self._max_links = max_links
        self._ignores_case = ignores_case
        self._names: dict[str, str] = {}
        self._links_work = True
        self._fresh: dict[str, _FreshCopy] = {}

    def make_folder(self) -> None:
        """Make the folder. Its parent must exist: a vanished dump is not brought back.

        Raises:
            OSError: it cannot be made.
        """
        self.folder.mkdir(exist_ok=True)

    def file_name(self, wanted: str) -> str:
        """Return the name of the file for a wanted name, `layout.safe_file_name` as a rule.

        Where the file system ignores case, a name that differs from an earlier one in case alone
        (``Tensor.T``, ``Tensor.t``) has a hash.
        """
        name = safe_file_name(wanted)
        if self._ignores_case is None:
            self._ignores_case = _ignores_case(self.folder.parent)
        if not self._ignores_case or self._names.setdefault(name.casefold(), name) == name:
            return name
        return marked_file_name(wanted, name)

    def write(self, name: str, payload: TensorPayload) -> int:
        """Write a file, replacing one of that name; return its size.

        Raises:
            OSError: the disk refused.
            Exception: any error of the payload.
        """
        temporary = self._temporary(name)
        try:
            payload.write(temporary)
            # Text, not Path: half of the Python time that a file takes.
            source = str(temporary)
            size = os.stat(source).st_size  # noqa: PTH116
            os.replace(source, f"{self.folder}/{name}")  # noqa: PTH105
        except BaseException:
            remove_quietly(temporary)
            raise
        self._fresh.pop(name, None)
        return size

    def link(self, name: str, existing: str) -> int:
        """Give an existing file a second name; return the bytes copied (0 for a true link).

        Where the file system has no links, or allows no more of them for this file, it is copied.

        Raises:
            OSError: `existing` is not there, or the disk refused.
        """
        if name == existing:
            (self.folder / existing).stat()
            return 0
        source = self._newest_copy(existing)
        if not self._links_work or source.stat().st_nlink >= self._max_links:
            return self._copy(existing, name)
        try:
            self._link(source, self.folder / name)
        except OSError as exc:
            if exc.errno == errno.EMLINK:
                return self._copy(existing, name)
            if exc.errno in _NO_LINKS_HERE:
                self._links_work = False
                return self._copy(existing, name)
            raise
        return 0

    def _link(self, source: Path, target: Path) -> None:
        try:
            target.hardlink_to(source)
        except FileExistsError:
            if target.samefile(source):
                return
            # A rename onto another name of the same inode would do nothing and leave the
            # temporary name behind; the line above has excluded it.
            temporary = self._temporary(target.name)
            temporary.hardlink_to(source)
            temporary.replace(target)

    def _copy(self, existing: str, name: str) -> int:
        source, target = self.folder / existing, self.folder / name
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)
        copied = target.stat()
        self._fresh[existing] = _FreshCopy(source.stat().st_ino, name, copied.st_ino)
        return copied.st_size

    def _newest_copy(self, existing: str) -> Path:
        source = self.folder / existing
        fresh = self._fresh.get(existing)
        if fresh is None:
            return source
        copy = self.folder / fresh.name
        if _inode(source) == fresh.source_inode and _inode(copy) == fresh.copy_inode:
            return copy
        return source

    def _temporary(self, name: str) -> Path:
        return self.folder / temporary_name(os.path.splitext(name)[1][:16])  # noqa: PTH122


def _ignores_case(folder: Path) -> bool:
    # Not `samefile`: FUSE gives the two names two inodes.
    return folder.with_name(folder.name.swapcase()).exists()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
