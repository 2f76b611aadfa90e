# SPDX-License-Identifier: Apache-2.0
"""Cost of recording one step, read from a recorded one, and the memory of a process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from msprobe.dump import layout

ESTIMATED_LEVELS = ("L0", "L1", "mix")
"""Levels whose cost is measured if no others are asked for."""

ESTIMATED_TASKS = ("statistics", "tensor")
"""Tasks whose cost is measured if no others are asked for."""


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


def has_ended(dump_path: Path, step: int) -> bool:
    """Return whether a step is recorded to its end."""
    return any(_accounts(dump_path, step))


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
