# SPDX-License-Identifier: Apache-2.0
"""Measure what recording a script costs: its first steps are run once for each level and task."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

from msprobe.dump.estimates import Estimate, has_ended, recorded_step
from msprobe.errors import UsageError
from msprobe.launch.child import last_words, run_child

# The first step of a program also warms up; the second one is like those that follow.
_STEPS: Final = "0-1"
_MEASURED: Final = 1


def estimate(
    words: Sequence[str],
    *,
    is_module: bool,
    level: str,
    task: str,
    timeout_s: float,
    config: Path | None = None,
    step_function: str | None = None,
) -> Estimate:
    """Run a script up to the end of its second step, and return what recording that step cost.

    The script is stopped then; a script of one step is measured by that.

    Args:
        words: the script or module, and its arguments.
        is_module: whether the first word names a module.
        level: the level to record at.
        task: the task to record.
        timeout_s: how long to wait for the step.
        config: a ``config.json`` with filters and other settings.
        step_function: the function whose calls are steps; None for the usual rules.

    Raises:
        UsageError: the script ended or failed before a step was recorded, or takes too long.
    """
    with TemporaryDirectory(prefix="msprobe-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        options = ["--level", level, "--task", task, "--step", _STEPS, "--output", name]
        if config is not None:
            options += ["--config", str(config)]
        if step_function is not None:
            options += ["--step-function", step_function]
        command = [sys.executable, "-m", "msprobe", "run", *options, *["-m"][: int(is_module)]]
        with TemporaryFile() as output:
            child = run_child(
                [*command, *words],
                output,
                is_done=lambda: has_ended(folder, _MEASURED),
                timeout_s=timeout_s,
            )
            step = recorded_step(folder, _MEASURED) or recorded_step(folder, 0)
            if step is None:
                raise UsageError(f"{words[0]}: no step was recorded; {last_words(output)}")
        return Estimate(
            level=level,
            task=task,
            records=step.records,
            capture_s=step.capture_s,
            size_bytes=step.size_bytes,
            memory_bytes=child.memory_bytes,
        )
