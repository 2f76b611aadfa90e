# SPDX-License-Identifier: Apache-2.0
"""Measure what recording a script costs: its first steps are run once for each level and task."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

import msgspec

from msprobe.dump import layout
from msprobe.errors import UsageError

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0
# The first step of a program also warms up; the second one is like those that follow.
_STEPS: Final = "0-1"
_MEASURED: Final = 1
_LAST_LINES: Final = 3


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
            memory = _run([*command, *words], folder, output, timeout_s)
            found = _last_step(folder)
            if found is None:
                raise UsageError(f"{words[0]}: no step was recorded; {_told(output)}")
        step, account = found
        return Estimate(
            level=level,
            task=task,
            records=account.records,
            capture_s=account.capture_ms / 1e3,
            size_bytes=_size(step),
            memory_bytes=memory,
        )


def _run(command: list[str], folder: Path, output: IO[bytes], timeout_s: float) -> int | None:
    """Run a command until the measured step is on disk; return its largest memory."""
    memory = None
    until = time.monotonic() + timeout_s
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    ) as child:
        try:
            while child.poll() is None and _account(folder, _MEASURED) is None:
                if time.monotonic() > until:
                    raise UsageError(
                        f"no step ended within {timeout_s:.0f} s: give more time with --timeout"
                    )
                memory = _peak_memory(child.pid) or memory
                time.sleep(_POLL_S)
        finally:
            _end(child)
    return memory


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process, and its children where the system can."""
    if sys.platform == "win32":
        child.kill()
        return
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, kind)
            child.wait(_PATIENCE_S)
        except (ProcessLookupError, PermissionError):
            return
        except subprocess.TimeoutExpired:
            continue


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


def _peak_memory(process: int) -> int | None:
    """Return the largest memory of a process so far, on Linux."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(sizes[0]) << 10 if sizes else None


def _told(output: IO[bytes]) -> str:
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
    return "its last words were: " + " | ".join(lines) if lines else "it printed nothing"
