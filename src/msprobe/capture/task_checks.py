# SPDX-License-Identifier: Apache-2.0
"""`TaskChecks`: tasks that judge the records of a step, and the recording that each task makes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msprobe.capture.diff_check import DiffRecording, Judge
from msprobe.capture.facts import FactSink
from msprobe.capture.nan_check import NanCheck
from msprobe.capture.overflow import OverflowCheck
from msprobe.capture.recording import Recording, RecordingContext, TensorRecording
from msprobe.capture.signature import StepSignatures
from msprobe.capture.watch_recording import WatchRecording
from msprobe.config import (
    Config,
    Level,
    NanCheckSection,
    NoiseFloorSection,
    OverflowCheckSection,
    StatisticsSection,
    Task,
)

Attempt = Callable[..., Any]
"""``attempt(where, action, *args)`` returns ``action(*args)``; notes an exception, returns None."""


class TaskFiles(Protocol):
    """Files of a task, kept up to date at the end of each step."""

    def begin(self, dump_path: Path, rank_name: str) -> FactSink | None:
        """Begin a step; return what takes its facts, None where the task keeps none.

        Args:
            dump_path: the dump path of the run.
            rank_name: name of the rank folder.
        """

    def continue_at(self, step: int) -> None:
        """Note that the run begins with this step; one that has begun is dropped."""

    def write(self) -> None:
        """Write what is known when a step ends; nothing if none has begun."""

    def close(self) -> None:
        """Finish the files at the end of the run."""


class TaskChecks:
    """Judges the records of a task that keeps few of them.

    Attributes:
        check: looks for NaN and Inf, in the tasks `overflow_check` and `nan_check`; else None.
        judge: compares records with another run, in the task `diff_check`; else None.
        files: of a task that writes no dump, but files of its own; else None.
    """

    def __init__(self, config: Config, judge: Judge | None, attempt: Attempt) -> None:
        """Create the checks of a task.

        Args:
            config: the settings.
            judge: of the task `diff_check`.
            attempt: runs parts of the user's `step`, and notes their exceptions.
        """
        self.check = _check_of(config)
        self.judge = judge
        self.files: TaskFiles | None = None
        if config.task is Task.SIGNATURE:
            self.files = StepSignatures()
        self._config = config
        self._attempt = attempt

    def recording(self, around: RecordingContext) -> Recording:
        """Return the sink that does the task."""
        section, config = self._config.section, self._config
        if self.judge is not None:
            return DiffRecording(around, self.judge)
        if self.check is not None:
            is_nan_check = isinstance(section, NanCheckSection)
            share = section.near_overflow if isinstance(section, NanCheckSection) else 0.0
            return WatchRecording(
                around,
                self.check,
                around.adapter.value_watch(share=share, parameters=not is_nan_check),
                sees_writes=config.level is not Level.L0,
                saves=not is_nan_check,
            )
        if config.task is Task.TENSOR:
            return TensorRecording(around)
        if isinstance(section, StatisticsSection) and section.tensor_list:
            return TensorRecording(around, section.tensor_list)
        return Recording(around)

    @property
    def finished(self) -> bool:
        """Whether as much was found as was asked for."""
        return any(each is not None and each.finished for each in (self.check, self.judge))

    def begin_step(self, step: int, rank: int | None, results: Path, folder: Path) -> None:
        """Begin a step.

        Args:
            step: its number.
            rank: of this process; None without a process group.
            results: path of the task's own results, without a suffix.
            folder: the rank's folder of the step.
        """
        if self.check is not None:
            self.check.begin_step(step, results)
        if self.judge is not None:
            self.judge.begin_step(step, rank, folder)

    def end_step(self) -> dict[str, Any]:
        """Return what was found, for the account of the step."""
        found: dict[str, Any] = {}
        if self.check is not None:
            found |= self._attempt("check", self.check.end_step) or {}
        if self.judge is not None:
            found |= self.judge.counts()
        return found

    def tell(self) -> None:
        """Tell the user's callback what the step that ended has shown; its errors pass."""
        if isinstance(self.check, NanCheck):
            self.check.tell()


def _check_of(config: Config) -> OverflowCheck | NanCheck | None:
    match config.section:
        case OverflowCheckSection() as section:
            return OverflowCheck(section.overflow_nums)
        case NanCheckSection() as section:
            return NanCheck(section)
    return None


def noise_seed(config: Config) -> int | None:
    """Return the seed of the moves of operators; None where the task makes none.

    All ranks have the same one: replicas that run the same operators stay replicas.
    """
    section = config.section
    if not isinstance(section, NoiseFloorSection):
        return None
    return zlib.crc32(os.fsencode(config.dump_path)) if section.seed is None else section.seed
