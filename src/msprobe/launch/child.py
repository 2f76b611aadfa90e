# SPDX-License-Identifier: Apache-2.0
"""Run a program in a process of its own, until it ends or enough of it is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from msprobe.dump.estimates import peak_memory
from msprobe.errors import UsageError

_POLL_S: Final = 0.05
_PATIENCE_S: Final = 10.0
_LAST_LINES: Final = 3


@dataclass(frozen=True, slots=True)
class Child:
    """A program that was run.

    Attributes:
        exit_code: None if it was stopped because enough was known.
        memory_bytes: its largest memory; None where the system does not tell.
    """

    exit_code: int | None
    memory_bytes: int | None


def run_child(
    command: Sequence[str],
    output: IO[bytes],
    *,
    is_done: Callable[[], bool],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Run a program until it ends, or until enough is known; then it and its children are stopped.

    Args:
        command: the program and its arguments.
        output: gets what it prints.
        is_done: whether enough is known; asked again and again.
        timeout_s: how long to wait.
        environment: variables to set beside those of this process.

    Raises:
        UsageError: it takes longer.
    """
    memory = None
    until = time.monotonic() + timeout_s
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    ) as child:
        try:
            while child.poll() is None and not is_done():
                if time.monotonic() > until:
                    raise UsageError(
                        f"no step ended within {timeout_s:.0f} s: give more time with --timeout"
                    )
                memory = peak_memory(child.pid) or memory
                time.sleep(_POLL_S)
            code = child.poll()
        finally:
            _end(child)
    return Child(code, memory)


def last_words(output: IO[bytes]) -> str:
    """Return the last lines that a program printed, as a part of a message."""
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
    return "its last words were: " + " | ".join(lines) if lines else "it printed nothing"


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
