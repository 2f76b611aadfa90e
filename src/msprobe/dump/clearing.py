# SPDX-License-Identifier: Apache-2.0
"""Remove the files of an earlier run from a dump path: only those that msprobe itself wrote."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msprobe.dump import layout
from msprobe.files import TEMPORARY_PREFIX

logger = logging.getLogger(__name__)

OWN_FILES: Final = frozenset(
    (
        layout.DUMP_JSON,
        layout.DEBUG_JSON,
        layout.STACK_JSON,
        layout.CONSTRUCT_JSON,
        layout.FACTS_JSON,
        layout.ACCOUNT_JSON,
        layout.ERROR_LOG,
        layout.JOURNAL,
    )
)


def clear_run(dump_path: Path, rank_name: str) -> int:
    """Remove the old files of one rank folder in every step of a dump path.

    The user's own files stay, and so does each folder that holds one. Links to folders are not
    followed.

    Args:
        dump_path: the folder that holds ``step{n}``.
        rank_name: name of the rank folder.

    Returns:
        The number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = 0
    for step in _folders(dump_path):
        if not layout.STEP_FOLDER.fullmatch(step.name):
            continue
        directory = step / rank_name
        if directory.is_symlink() or not directory.is_dir():
            continue
        removed += drop_rank(directory)
    if removed:
        logger.info("removed %d files of an earlier run from %s", removed, dump_path)
    return removed


def drop_rank(directory: Path) -> int:
    """Remove a rank folder with msprobe's files, and the step's folder if it was the only one.

    Returns:
        The number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = clear_directory(directory)
    _drop_if_empty(directory)
    _drop_if_empty(directory.parent)
    return removed


def clear_directory(directory: Path) -> int:
    """Remove msprobe's files from one rank folder, which itself stays.

    Returns:
        The number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = _remove(directory, _is_own)
    tensors = directory / layout.TENSOR_FOLDER
    if tensors.is_dir() and not tensors.is_symlink():
        removed += _remove(tensors, _is_own_tensor)
        _drop_if_empty(tensors)
    return removed


def _is_own(name: str) -> bool:
    return name in OWN_FILES or name.startswith(TEMPORARY_PREFIX)


def _is_own_tensor(name: str) -> bool:
    return name.endswith(layout.TENSOR_SUFFIXES) or name.startswith(TEMPORARY_PREFIX)


def _remove(folder: Path, is_ours: Callable[[str], bool]) -> int:
    removed = 0
    with os.scandir(folder) as entries:
        paths = [
            entry.path
            for entry in entries
            if is_ours(entry.name) and not entry.is_dir(follow_symlinks=False)
        ]
    for path in paths:
        Path(path).unlink(missing_ok=True)
        removed += 1
    return removed


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    yield from map(Path, found)


def _drop_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # not empty: something of the user's, or another rank, lies there
