# SPDX-License-Identifier: Apache-2.0
"""Paths that hold something else than a command compares: which command to type instead."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msprobe.errors import MsprobeError, UsageError

_DEPTH: Final = 4
_MOST_FOLDERS: Final = 2_000
_MOST_LISTED: Final = 8


def advise_compare(target: Path, reference: Path) -> None:
    """Say what to type where `msprobe compare` found no dump; do nothing if there is no telling.

    Raises:
        UsageError: a path has several dumps below it, or both are checkpoints.
    """
    paths = target, reference
    below = [[] if is_dump(path) else dumps_below(path) for path in paths]
    if any(below):
        texts = [_listed(path, dumps) for path, dumps in zip(paths, below, strict=True) if dumps]
        typed = _command("compare", *_pair(paths, below))
        raise UsageError(f"{'; '.join(texts)}. Name one on each side, for example: {typed}")
    if not any(map(is_dump, paths)) and all(map(_is_checkpoint, paths)):
        typed = _command("compare-ckpt", target, reference)
        raise UsageError(f"{target} and {reference} are checkpoints, not dumps; type: {typed}")


def refuse_dumps(target: Path, reference: Path) -> None:
    """Make sure that no path given to `msprobe compare-ckpt` is a dump.

    Raises:
        UsageError: one is.
    """
    dumps = [path for path in (target, reference) if is_dump(path)]
    if len(dumps) == 2:
        typed = _command("compare", target, reference)
        raise UsageError(f"{target} and {reference} are dumps, not checkpoints; type: {typed}")
    if dumps:
        raise UsageError(
            f"{dumps[0]} is a dump and not a checkpoint; a dump is compared with another dump: "
            f"{_command('compare', dumps[0], Path('OTHER_DUMP'))}"
        )


def is_dump(path: Path) -> bool:
    """Return whether a path is a dump, a part of one, or its file of records."""
    from msprobe.dump import layout
    from msprobe.dump.reader import open_dump

    if not path.is_dir() and path.name not in (layout.DUMP_JSON, layout.DEBUG_JSON, layout.JOURNAL):
        return False
    try:
        open_dump(path)
    except MsprobeError:
        return False
    return True


def dumps_below(path: Path) -> list[Path]:
    """Return the dumps in the folders below a folder; a few levels and folders deep."""
    found: list[Path] = []
    level, seen = [path], 0
    for _ in range(_DEPTH):
        below: list[Path] = []
        for child in (child for folder in level for child in _children(folder)):
            seen += 1
            if seen > _MOST_FOLDERS:
                return found
            (found if is_dump(child) else below).append(child)
        level = below
    return found


def _children(folder: Path) -> list[Path]:
    try:
        # A link may lead round in a circle.
        return sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())
    except OSError:
        return []


def _is_checkpoint(path: Path) -> bool:
    from msprobe.checkpoints.opening import open_checkpoint

    try:
        open_checkpoint(path)
    except MsprobeError:
        return False
    return True


def _listed(path: Path, dumps: Sequence[Path]) -> str:
    from msprobe.plain_text import few_text

    names = few_text([*map(str, dumps)], _MOST_LISTED)
    noun = "a dump" if len(dumps) == 1 else f"{len(dumps)} dumps"
    return f"{path} is no dump but has {noun} below it: {names}"


def _pair(paths: Sequence[Path], below: Sequence[Sequence[Path]]) -> tuple[Path, Path]:
    """Return two dumps to compare: of the same name below both, if there are such."""
    target, reference = below
    if target and reference and paths[0] != paths[1]:
        others = {dump.relative_to(paths[1]): dump for dump in reference}
        for dump in target:
            if dump.relative_to(paths[0]) in others:
                return dump, others[dump.relative_to(paths[0])]
    if target and reference and len(target) > 1 and paths[0] == paths[1]:
        return target[0], target[1]
    return (target or paths[:1])[0], (reference or paths[1:])[0]


def _command(verb: str, target: Path, reference: Path) -> str:
    return shlex.join(["msprobe", verb, str(target), str(reference)])
