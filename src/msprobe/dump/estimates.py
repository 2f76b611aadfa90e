# SPDX-License-Identifier: Apache-2.0
"""Cost of recording one step, read from a recorded one, and the memory of a process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from msprobe.dump import layout

ESTIMATED_LEVELS = ("L0", "L1", "mix")
"""Levels whose cost is measured if no others are asked for."""

ESTIMATED_TASKS = ("statistics", "tensor")
"""Tasks whose cost is measured if no others are asked for."""

MOST_MEASURED: Final = 12
"""Steps that are measured at most."""

# A median of fewer says little; the wait and the bytes bound the cost where steps are large.
_FEWEST_MEASURED: Final = 5
_LONGEST_S: Final = 20.0
_MOST_BYTES: Final = 2 << 30
_ERROR: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Cost of recording one step.

    Attributes:
        level: the level of the recording.
        task: its task.
        records: number of records.
        capture_s: time that recording adds to the step.
        size_bytes: size of its files; what two names share counts once.
        memory_bytes: largest memory of the process so far; None where the system does not tell.
    """

    level: str
    task: str
    records: int
    capture_s: float
    size_bytes: int
    memory_bytes: int | None

    def is_for(self, level: str, task: str) -> bool:
        """Return whether it is the cost of this level and task."""
        return (self.level, self.task) == (level, task)


class _Account(msgspec.Struct):
    records: int
    capture_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """The cost of a step that was recorded.

    Attributes:
        records: number of records.
        capture_s: time of the training thread that recording took.
        size_bytes: size of its files; what two names share counts once.
    """

    records: int
    capture_s: float
    size_bytes: int


@dataclass(slots=True)
class Measurement:
    """The recorded steps of a temporary dump, read until their median time is known.

    The first step also warms up: stacks, names and memory are new to it. It counts if it is alone.

    Attributes:
        dump_path: the folder of the dump.
        until_s: the `time.monotonic` at which two steps are enough.
        steps: those that were read, in order.
    """

    dump_path: Path
    until_s: float = math.inf
    steps: list[RecordedStep] = field(default_factory=list)

    def is_enough(self) -> bool:
        """Read the steps that have ended since the last call; return whether to stop now."""
        while (step := recorded_step(self.dump_path, len(self.steps))) is not None:
            self.steps.append(step)
            if len(self.steps) == 1:
                self.until_s = min(self.until_s, time.monotonic() + _LONGEST_S)
        measured = self.steps[1:]
        if not measured:
            return False
        is_late = time.monotonic() > self.until_s
        is_large = sum(each.size_bytes for each in self.steps) > _MOST_BYTES
        if is_late or is_large or len(measured) >= MOST_MEASURED:
            return True
        times_s = [each.capture_s for each in measured]
        return len(measured) >= _FEWEST_MEASURED and is_known(times_s, _ERROR)

    def cost(self, level: str, task: str, memory_bytes: int | None) -> Estimate | None:
        """Return the cost of one step; None if none was recorded.

        Args:
            level: the level of the recording.
            task: its task.
            memory_bytes: the largest memory of its process.
        """
        self.is_enough()
        if not self.steps:
            return None
        return Estimate(
            level=level,
            task=task,
            records=self.steps[-1].records,
            capture_s=statistics.median(each.capture_s for each in self.steps[1:] or self.steps),
            size_bytes=self.steps[-1].size_bytes,
            memory_bytes=memory_bytes,
        )


def is_known(times_s: Sequence[float], error: float) -> bool:
    """Return whether the median of some times has a relative standard error of at most `error`.

    That of n normal values is 1.25 sd / sqrt(n), and 1.35 sd lie between their quartiles.
    """
    low, median, high = statistics.quantiles(times_s, n=4)
    return bool(1.25 / 1.35 * (high - low) / len(times_s) ** 0.5 <= error * median)


def recorded_step(dump_path: Path, step: int) -> RecordedStep | None:
    """Return the cost of a recorded step, of one of its ranks; None if it is not there."""
    for path in _accounts(dump_path, step):
        try:
            account = msgspec.json.decode(path.read_bytes(), type=_Account)
        except (OSError, msgspec.MsgspecError):
            return None
        return RecordedStep(
            records=account.records,
            capture_s=account.capture_ms / 1e3,
            size_bytes=_size(path.parent),
        )
    return None


def _accounts(dump_path: Path, step: int) -> list[Path]:
    return sorted((dump_path / layout.step_folder(step)).glob(f"*/{layout.ACCOUNT_JSON}"))


def _size(folder: Path) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in files}.values())


def peak_memory(process: int | str) -> int | None:
    """Return the largest memory of a process so far, on Linux.

    Args:
        process: its number, or ``self``.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(sizes[0]) << 10 if sizes else None


def forget_peak_memory() -> None:
    """Count the largest memory of this process from now on, where the system can do that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
