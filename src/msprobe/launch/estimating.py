# SPDX-License-Identifier: Apache-2.0
"""Measure what recording a script costs: its first steps are run once for each level and task."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

from msprobe.dump.estimates import MOST_MEASURED, Estimate, Measurement
from msprobe.errors import UsageError
from msprobe.launch.child import last_words, run_child

_STEPS: Final = f"0-{MOST_MEASURED}"


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
    """Run a script until the cost of recording a step is known, and return it.

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
        measurement = Measurement(folder, time.monotonic() + timeout_s)
        with TemporaryFile() as output:
            child = run_child(
                [*command, *words],
                output,
                is_done=measurement.is_enough,
                timeout_s=timeout_s,
            )
            found = measurement.cost(level, task, child.memory_bytes)
            if found is None:
                raise UsageError(f"{words[0]}: no step was recorded; {last_words(output)}")
        return found
