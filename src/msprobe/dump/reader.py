# SPDX-License-Identifier: Apache-2.0
"""`open_dump`: from any path of a dump to its steps, ranks and records.

Understood are dumps of msprobe and of mindstudio-probe (all documented generations, PyTorch and
MindSpore), with and without step folders, rank folders ``rank{r}``, ``rank`` and ``proc{pid}``,
and the ``graph/`` and ``pynative/`` halves of MindSpore dumps with jitted cells; and the kernel
dumps that MindSpore writes by itself.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msprobe.dump import layout
from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.dump.kernel_files import STATISTIC_CSV
from msprobe.dump.rank_view import RankView, find_records_file
from msprobe.errors import DumpFormatError
from msprobe.files import reading

logger = logging.getLogger(__name__)

_MODES: Final = ("graph", "pynative")
_RECORD_FILES: Final = (layout.DUMP_JSON, layout.DEBUG_JSON, layout.JOURNAL)
_NO_DUMP: Final = (
    f"holds no dump (no {_RECORD_FILES[0]}, {_RECORD_FILES[1]} or {_RECORD_FILES[2]}); "
    "name the dump_path of a recording"
)
_SIDE_FILES: Final = (
    layout.STACK_JSON,
    layout.CONSTRUCT_JSON,
    layout.FACTS_JSON,
    layout.ACCOUNT_JSON,
)


def open_dump(path: str | os.PathLike[str]) -> Dump:
    """Open a dump for reading. Costs a look at the folders; files are read when asked for.

    Args:
        path: a dump path, a step folder, a rank folder, a ``dump.json`` or ``debug.json``; for a
            kernel dump, any folder of it or a ``statistic.csv``.

    Returns:
        The dump; with a step folder, rank folder or file, one that holds just that.

    Raises:
        DumpFormatError: there is no dump at that path.
    """
    path = Path(path)
    if path.name == STATISTIC_CSV and (kernels := _kernel_dump(path)) is not None:
        return kernels
    views = [
        RankView(found.directory, records_file=found.records_file, step=found.step, mode=found.mode)
        for found in find_rank_folders(path)
        if found.records_file is not None or _holds_records(found.directory)
    ]
    if not views and (kernels := _kernel_dump(path)) is not None:
        return kernels
    if not views:
        raise DumpFormatError(path, _NO_DUMP)
    steps: dict[int, dict[RankKey, RankView]] = {}
    for view in sorted(views, key=_view_order):
        steps.setdefault(view.step or 0, {})[_rank_key(view)] = view
    return Dump(path, {number: DumpStep(number, ranks) for number, ranks in steps.items()})


def _kernel_dump(path: Path) -> Dump | None:
    """Open what MindSpore's own Dump wrote; None if that is not there."""
    from msprobe.dump.kernel_views import open_kernel_dump  # which builds on this module

    return open_kernel_dump(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFolder:
    """A rank folder on disk.

    Attributes:
        directory: the folder.
        step: number of the step, None where the path does not tell.
        mode: ``graph``, ``pynative`` or None.
        records_file: the file of records, if one was asked for by name.
    """

    directory: Path
    step: int | None
    mode: str | None = None
    records_file: str | None = None


def find_rank_folders(path: Path) -> list[RankFolder]:
    """Return every rank folder at a path of a dump, whether or not it holds records.

    Raises:
        DumpFormatError: the path does not exist or cannot be read.
    """
    with reading(path, DumpFormatError, ValueError):
        if path.is_dir():
            # "." has no name of its own, and names tell step and rank.
            path = path.resolve() if path.name in ("", "..") else path
            return _folders_in(path, step=_step_of(path.resolve()), mode=None)
        if not path.exists():
            raise DumpFormatError(path, "does not exist; check the path")
        if not path.is_file():
            raise DumpFormatError(path, "is neither a folder nor a plain file")
        directory = path.resolve().parent
        wanted = None if path.name in _SIDE_FILES else path.name
        return [RankFolder(directory=directory, step=_step_of(directory), records_file=wanted)]


def _folders_in(folder: Path, *, step: int | None, mode: str | None) -> list[RankFolder]:
    """Return a rank folder itself, or those in the step and mode folders inside a folder."""
    if _holds_records(folder):
        _mention_second_file(folder)
        return [RankFolder(directory=folder, step=step, mode=mode)]
    found: list[RankFolder] = []
    for child in _subfolders(folder):
        if number := layout.STEP_FOLDER.fullmatch(child.name):
            found += _ranks_in(child, step=int(number[1]), mode=mode)
        elif child.name in _MODES and mode is None:
            found += _folders_in(child, step=step, mode=child.name)
    found += _ranks_in(folder, step=step, mode=mode)
    if not found and layout.RANK_FOLDER.fullmatch(folder.name):
        return [RankFolder(directory=folder, step=step, mode=mode)]
    return found


def _ranks_in(folder: Path, *, step: int | None, mode: str | None) -> list[RankFolder]:
    return [
        RankFolder(directory=child, step=step, mode=mode)
        for child in _subfolders(folder)
        if layout.RANK_FOLDER.fullmatch(child.name)
    ]


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir())


def _holds_records(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RECORD_FILES)


def _step_of(path: Path) -> int | None:
    for name in (path.name, path.parent.name):
        if found := layout.STEP_FOLDER.fullmatch(name):
            return int(found[1])
    return None


def _mention_second_file(folder: Path) -> None:
    both = (folder / layout.DUMP_JSON).is_file() and (folder / layout.DEBUG_JSON).is_file()
    if both and find_records_file(folder) == layout.DUMP_JSON:
        logger.info("%s also holds debug.json; open that file to read it", folder)


def _rank_key(view: RankView) -> RankKey:
    if view.mode is not None:
        return f"{view.mode}/{view.name}"
    return view.name if view.rank is None else view.rank


def _view_order(view: RankView) -> tuple[int, str, bool, int, str]:
    rank = view.rank
    return (view.step or 0, view.mode or "", rank is None, rank or 0, view.name)
