# SPDX-License-Identifier: Apache-2.0
"""Measure what recording a script costs: its first steps are run once for each level and task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import msgspec

from msprobe.dump import layout
from msprobe.errors import UsageError
from msprobe.launch.child import last_words, run_child

# The first step of a program also warms up; the second one is like those that follow.
_STEPS: Final = "0-1"
_MEASURED: Final = 1


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


class _Account(msgspec.Struct):
    records: int
    capture_ms: float


def estimate(
    words: Sequence[str], *, is_module: bool, level: str, task: str, timeout_s: float
) -> Estimate:
    """Run a script up to the end of its second step, and return what recording that step cost.

    The script is stopped then; a script of one step is measured by that.

    Args:
        words: the script or module, and its arguments.
        is_module: whether the first word names a module.
        level: the level to record at.
        task: the task to record.
        timeout_s: how long to wait for the step.

    Raises:
        UsageError: the script ended or failed before a step was recorded, or takes too long.
    """
    with TemporaryDirectory(prefix="msprobe-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = ["--level", level, "--task", task, "--step", _STEPS, "--output", name]
        command = [sys.executable, "-m", "msprobe", "run", *options, *["-m"][: int(is_module)]]
        with TemporaryFile() as output:
            child = run_child(
                [*command, *words],
                output,
                is_done=lambda: _account(folder, _MEASURED) is not None,
                timeout_s=timeout_s,
            )
            found = _last_step(folder)
            if found is None:
                raise UsageError(f"{words[0]}: no step was recorded; {last_words(output)}")
        step, account = found
        return Estimate(
            level=level,
            task=task,
            records=account.records,
            capture_s=account.capture_ms / 1e3,
            size_bytes=_size(step),
            memory_bytes=child.memory_bytes,
        )


def _last_step(folder: Path) -> tuple[Path, _Account] | None:
    return _account(folder, _MEASURED) or _account(folder, 0)


def _account(folder: Path, step: int) -> tuple[Path, _Account] | None:
    for path in (folder / layout.step_folder(step)).glob(f"*/{layout.ACCOUNT_JSON}"):
        try:
            return path.parent, msgspec.json.decode(path.read_bytes(), type=_Account)
        except (OSError, msgspec.MsgspecError):
            return None
    return None


def _size(folder: Path) -> int:
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({(each.st_dev, each.st_ino): each.st_size for each in files}.values())
