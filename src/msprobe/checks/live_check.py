# SPDX-License-Identifier: Apache-2.0
"""`LiveCheck`: the part of `live_compare` that both frameworks share.

It chooses calls, keeps judgements, saves the tensors of faults, and keeps the files up to date.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from msprobe.checks.accuracy_call import save_tensors
from msprobe.checks.live_results import JudgedCall, LiveResults
from msprobe.checks.verify_call import CallReport, ResultRow, Seen
from msprobe.dump.layout import safe_file_name
from msprobe.dump.record_names import call_name
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import MsprobeError, ReportWriteError, UsageError
from msprobe.log import warn_once
from msprobe.replay.recorded_calls import RecordedCall
from msprobe.replay.tensors import CallTensors

logger = logging.getLogger(__name__)


class LeftOut(StrEnum):
    """Why an operator, or one of its calls, is not judged."""

    VIEW = "returns a view"
    FACTORY = "takes no tensor's values"
    NO_RESULT = "returns no tensor"
    COMMUNICATION = "communication between ranks"
    RANDOM = "drew random numbers"
    TENSORS = "tensors without plain memory"
    TOO_LARGE = "above the memory cap"
    SAMPLING = "not in the sample"
    FILTER = "not asked for"
    NOT_JUDGED = "cannot be run again"
    FAILED = "an error of msprobe"


class Place(NamedTuple):
    """Where an operator was called.

    Attributes:
        module: path of the innermost module, such as ``blocks.0.attn``; empty outside of modules.
        source: line of the user's code; None if unknown.
        is_backward: it ran in the backward pass of that call.
    """

    module: str
    source: str | None
    is_backward: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChoice:
    """Which calls are judged.

    Attributes:
        operators: patterns of names, such as ``mm`` or ``*softmax*``; empty for all.
        modules: patterns of module paths; empty for all.
        device: type of the device whose operators are judged; None for all.
        every_n: one in so many calls of each operator.
        max_calls: most calls of each operator; None for no limit.
        max_bytes: most memory for one judgement.
    """

    operators: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    device: str | None = None
    every_n: int = 1
    max_calls: int | None = None
    max_bytes: int = 4 << 30

    @classmethod
    def checked(
        cls,
        *,
        operators: Sequence[str],
        modules: Sequence[str],
        every_n: int,
        max_calls: int | None,
        max_bytes: int,
        device: str | None = None,
    ) -> LiveChoice:
        """Return the choice of the user's arguments.

        Raises:
            UsageError: one of them cannot be used.
        """
        if every_n < 1 or (max_calls is not None and max_calls < 1):
            raise UsageError("live_compare: every_n and max_calls are numbers from 1 on")
        for name, value in (("operators", operators), ("modules", modules)):
            if isinstance(value, str):
                raise UsageError(f"live_compare: {name} is a list of patterns, not a text")
        return cls(
            operators=tuple(operators),
            modules=tuple(modules),
            device=device,
            every_n=every_n,
            max_calls=max_calls,
            max_bytes=max_bytes,
        )


def matches(patterns: Sequence[str], *names: str) -> bool:
    """Return whether a pattern matches one of the names, or there are no patterns."""
    return not patterns or any(fnmatchcase(one, pattern) for one in names for pattern in patterns)


class Samples:
    """The calls of each operator that are judged: one in each block of ``every_n``."""

    def __init__(self, choice: LiveChoice) -> None:
        """Begin to count the calls of each operator."""
        self._choice = choice
        self._samples: dict[str, _Sample] = {}

    def takes_next(self, operator: str) -> bool:
        """Return whether the next call of an operator is one of the sample."""
        sample = self._samples.get(operator)
        if sample is None:
            sample = self._samples[operator] = _Sample(self._choice.every_n, operator)
        if not sample.takes_next():
            return False
        sample.judged += 1
        most = self._choice.max_calls
        return most is None or sample.judged <= most

    def number_of(self, operator: str) -> int:
        """Return the number of the running call among those of its operator."""
        return self._samples[operator].seen - 1


class _Sample:
    __slots__ = ("_chosen", "_every_n", "_random", "judged", "seen")

    def __init__(self, every_n: int, seed: str) -> None:
        self._every_n = every_n
        # Models repeat themselves: always the same place in a block may mean always one layer.
        self._random = random.Random(seed)
        self._chosen = 0
        self.seen = 0
        self.judged = 0

    def takes_next(self) -> bool:
        place = self.seen % self._every_n
        if place == 0 and self.seen:
            self._chosen = self._random.randrange(self._every_n)
        self.seen += 1
        return place == self._chosen


class LiveCheck:
    """Findings of a live comparison, and its files.

    Attributes:
        results: findings so far.
        folder: where the files are.
    """

    def __init__(self, folder: Path, rank: Callable[[], int], *, save: bool) -> None:
        """Create it; no file is touched.

        Args:
            folder: for the files.
            rank: returns the rank of this process.
            save: whether arguments and results are saved where a place has its first fault.
        """
        self.results = LiveResults()
        self.folder = folder
        self._rank = rank
        self._saves = save

    @property
    def table_path(self) -> Path:
        """The table of this rank."""
        return self.folder / f"live_compare_rank{self._rank()}.csv"

    def summary(self) -> str:
        """Return the answer in plain text: one sentence, then the worst places."""
        return "\n".join(self.results.lines())

    def end_step(self) -> None:
        """End a step: write the table; the answer is logged when the program ends."""
        if self.results.steps == 0:
            atexit.register(self._at_exit, os.getpid())
        self.results.steps += 1
        self._write()

    def judge(
        self,
        operator: str,
        place: Place,
        call: RecordedCall,
        tensors: CallTensors,
        report: Callable[[Seen], CallReport],
    ) -> None:
        """Judge a call, and keep what is found.

        Args:
            operator: its name in the table.
            place: where it was called.
            call: the call.
            tensors: its tensors.
            report: judges it; is given what takes each result and its reference.
        """
        seen: dict[str, tuple[StoredTensor, StoredTensor]] = {}

        def keep(row: ResultRow, found: StoredTensor, reference: StoredTensor) -> None:
            assert row.judgement is not None
            if row.judgement.verdict.is_fault:
                seen[f"{row.record}.{row.slot}"] = (found, reference)

        judged = JudgedCall(
            operator=operator,
            is_backward=place.is_backward,
            module=place.module,
            source=place.source,
            step=self.results.steps,
            report=report(keep),
        )
        new = self.results.add(judged)
        if not new:
            return
        name = safe_file_name(call_name(call.name))
        saved = Path(f"rank{self._rank()}") / f"step{judged.step}" / name
        if self._saves and self._save(self.folder / saved, call, tensors, seen):
            for row in new:
                row.saved = str(saved)
        self._write()

    def _save(
        self,
        folder: Path,
        call: RecordedCall,
        tensors: CallTensors,
        seen: dict[str, tuple[StoredTensor, StoredTensor]],
    ) -> bool:
        try:
            save_tensors(folder, call, tensors, seen)
        except MsprobeError as exc:
            warn_once(logger, type(exc).__name__, "live_compare: no tensors saved: %s", exc)
            return False
        return True

    def _write(self) -> None:
        try:
            self.results.write(self.table_path.with_suffix(""))
        except ReportWriteError as exc:
            warn_once(logger, str(exc.path), "live_compare: %s", exc)

    def _at_exit(self, process: int) -> None:
        if os.getpid() == process:
            logger.info("live_compare: %s\n  table: %s", self.summary(), self.table_path)
