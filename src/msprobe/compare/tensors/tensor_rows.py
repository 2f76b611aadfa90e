# SPDX-License-Identifier: Apache-2.0
"""Measure the elements of all rows whose values both sides kept."""

from __future__ import annotations

import math
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from msprobe.compare.model import Matched, Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.tensors.finished_pairs import FinishedPairs
from msprobe.compare.tensors.processing import Processing, read_processing
from msprobe.compare.tensors.schedule import files_size, measure_all
from msprobe.compare.tensors.tensor_pairs import TensorJob
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.numerics.elementwise import Tolerance
from msprobe.numerics.tolerances import Tolerances
from msprobe.plain_text import place_text
from msprobe.report.progress_bar import byte_progress


class TensorWork:
    """The measuring of tensors of one call of the program; a context manager around all of it.

    Args:
        options: the user's options.
        output: folder for the outcomes of an interrupted comparison; None for none.
    """

    def __init__(self, options: CompareOptions, output: Path | None) -> None:
        self._options = options
        self._output = output
        self._stack = ExitStack()
        self._finished: FinishedPairs | None = None
        self._processing = Processing()
        self.bytes_read = 0

    def __enter__(self) -> Self:
        """Read the matrices, and the outcomes of an earlier comparison.

        Raises:
            ConfigError: the file of matrices has a fault.
        """
        if self._options.processing is not None:
            self._processing = read_processing(self._options.processing)
        if self._output is not None:
            with suppress(OSError):  # whether it can be written is said when it must be
                self._output.mkdir(parents=True, exist_ok=True)
            self._finished = self._stack.enter_context(FinishedPairs(self._output))
        return self

    def __exit__(self, *exc: Any) -> None:
        """Keep the outcomes so far if an exception ends it, else clean up."""
        self._stack.__exit__(*exc)

    def measure(self, comparison: RankComparison, tolerances: Tolerances) -> None:
        """Give every row whose two files can be read its element metrics, others a `problem`.

        A value that a dump holds under many names is one file with many links: it is read once.

        Args:
            comparison: its rows are changed.
            tolerances: decide which elements count as mismatches.
        """
        jobs, members = self._jobs(comparison, tolerances)
        label = place_text(comparison.step, comparison.rank)
        shown = self._options.show_progress
        size = files_size(jobs) if shown else 0
        with byte_progress(size, label, enabled=shown) as progress:
            outcomes = measure_all(
                jobs,
                workers=self._options.workers,
                scheduler=self._options.scheduler,
                progress=progress,
                resume=self._finished,
            )
        for outcome in outcomes:
            self.bytes_read += outcome.bytes_read
            for row in members[outcome.index]:
                row.metrics, row.problem = outcome.metrics, outcome.problem

    def _jobs(
        self, comparison: RankComparison, tolerances: Tolerances
    ) -> tuple[list[TensorJob], list[list[Row]]]:
        """Return the jobs, and for each the rows that it is for."""
        folders = _TensorFolder(comparison.target), _TensorFolder(comparison.reference)
        jobs: dict[object, TensorJob] = {}
        members: list[list[Row]] = []
        for row in comparison.rows:
            names = self._file_names(row) if isinstance(row, Matched) else None
            if names is None:
                continue
            try:
                target, reference = (
                    folder.find(name) for folder, name in zip(folders, names, strict=True)
                )
            except (DumpFormatError, OSError) as exc:
                row.problem = str(exc)
                continue
            tolerance = element_tolerance(row, tolerances)
            products = (
                self._processing.target.get(names[0]),
                self._processing.reference.get(names[1]),
            )
            key = (target.inode, reference.inode, tolerance, products)
            job = jobs.get(key)
            if job is None:
                jobs[key] = TensorJob(
                    len(jobs),
                    target.path,
                    reference.path,
                    tolerance,
                    *products,
                    size=target.size + reference.size,
                )
                members.append([row])
            else:
                members[job.index].append(row)
        return list(jobs.values()), members

    def _file_names(self, row: Matched) -> tuple[str, str] | None:
        """Return the names of a row's files; None where there are not two to compare."""
        target, reference = row.target.data_name, row.reference.data_name
        if target is None or reference is None:
            return None
        is_processed = target in self._processing.target or reference in self._processing.reference
        if not is_processed and not row.target.has_shape_of(row.reference):
            return None
        return target, reference


class _File(NamedTuple):
    path: str
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
        return _File(path, (found.st_dev, found.st_ino), found.st_size)

    def _find_slowly(self, data_name: str) -> _File:
        path = self._side.tensor_path(data_name)
        found = path.stat()
        return _File(str(path), (found.st_dev, found.st_ino), found.st_size)


def element_tolerance(row: Row, tolerances: Tolerances) -> Tolerance:
    """Return the tolerance of a row's elements; its scale is from the reference's statistics."""
    target, reference = row.target or row.value, row.reference or row.value
    size = _root_mean_square(reference)
    return tolerances.for_elements(row.name, target.dtype, reference.dtype, size)


def _root_mean_square(value: Value) -> float | None:
    """Return the size of a tensor's finite elements by its statistics; None where unknown."""
    norm = value.norm
    if isinstance(norm, (int, float)) and math.isfinite(norm) and value.shape is not None:
        return float(norm) / math.sqrt(max(math.prod(value.shape), 1))
    ends = [abs(float(end)) for end in value.finite_ends if end is not None]
    return max(ends, default=None)
