# SPDX-License-Identifier: Apache-2.0
"""Measure the elements of all rows whose values both sides kept."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from msprobe.compare.metrics.tensor_pairs import TensorJob, TensorOutcome, measure_pair
from msprobe.compare.model import Leaf, RankComparison, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.compare.verdicts.tolerances import Tolerances
from msprobe.errors import DumpFormatError

Measure = Callable[[list[TensorJob], int], Iterable[TensorOutcome]]
"""Does jobs and returns their outcomes; the number is that of the bytes to read."""


class TensorWork:
    """How jobs are done: on threads here, or on a cluster.

    Args:
        options: what the user chose.
    """

    def __init__(self, options: CompareOptions) -> None:
        self._options = options

    def __call__(self, jobs: list[TensorJob], size: int) -> Iterable[TensorOutcome]:
        """Do jobs; see `Measure`."""
        return map(measure_pair, jobs)


class _File(NamedTuple):
    path: Path
    inode: tuple[int, int]
    size: int


class _TensorFolder:
    """The tensor files of a side, each looked up with one system call."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._base = os.path.realpath(side.tensor_directory)

    def find(self, data_name: str) -> _File:
        """Return a file.

        Raises:
            DumpFormatError: it is missing, or its name points outside the folder.
        """
        path = f"{self._base}/{data_name}"
        try:
            found = os.lstat(path)
        except (OSError, ValueError):
            return self._find_slowly(data_name)
        # A plain name of a plain file cannot lead out of the folder; the rest is looked at closely.
        if "/" in data_name or "\\" in data_name or not stat.S_ISREG(found.st_mode):
            return self._find_slowly(data_name)
        if not data_name.endswith((".npy", ".pt")):
            return self._find_slowly(data_name)
        return _File(Path(path), (found.st_dev, found.st_ino), found.st_size)

    def _find_slowly(self, data_name: str) -> _File:
        path = self._side.tensor_path(data_name)
        found = path.stat()
        return _File(path, (found.st_dev, found.st_ino), found.st_size)


def measure_rows(comparison: RankComparison, tolerances: Tolerances, measure: Measure) -> int:
    """Give every row whose two files can be read its element metrics, others a `problem`.

    A value that a dump holds under many names is one file with many links: it is read once.

    Args:
        comparison: its rows are changed.
        tolerances: decide which elements count as mismatches.
        measure: does the work.

    Returns:
        The number of bytes that were read.
    """
    target, reference = _TensorFolder(comparison.target), _TensorFolder(comparison.reference)
    jobs: dict[object, TensorJob] = {}
    members: list[list[Row]] = []
    size = 0
    for row in comparison.rows:
        pair = _files_of(row, target, reference)
        if pair is None:
            continue
        tolerance = tolerances.for_elements(row)
        key = (pair[0].inode, pair[1].inode, tolerance)
        job = jobs.get(key)
        if job is None:
            jobs[key] = TensorJob(
                index=len(jobs), target=pair[0].path, reference=pair[1].path, tolerance=tolerance
            )
            members.append([row])
            size += pair[0].size + pair[1].size
        else:
            members[job.index].append(row)
    bytes_read = 0
    for outcome in measure(list(jobs.values()), size):
        bytes_read += outcome.bytes_read
        for row in members[outcome.index]:
            row.metrics, row.problem = outcome.metrics, outcome.problem
    return bytes_read


def _files_of(
    row: Row, target: _TensorFolder, reference: _TensorFolder
) -> tuple[_File, _File] | None:
    if row.target is None or row.reference is None:
        return None
    names = row.target.data_name, row.reference.data_name
    if names[0] is None or names[1] is None or not _shapes_agree(row.target, row.reference):
        return None
    try:
        return target.find(names[0]), reference.find(names[1])
    except (DumpFormatError, OSError) as exc:
        row.problem = str(exc)
        return None


def _shapes_agree(target: Leaf, reference: Leaf) -> bool:
    """Return whether two shapes are equal up to dimensions of size 1."""
    if target.shape == reference.shape:
        return True
    shapes = [[size for size in leaf.shape or () if size != 1] for leaf in (target, reference)]
    return shapes[0] == shapes[1]
