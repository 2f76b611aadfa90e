# SPDX-License-Identifier: Apache-2.0
"""Choose the folder of a run: a new one, or that of the run that goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msprobe.errors import ConfigError
from msprobe.monitor.reader import files_of, newest_run
from msprobe.monitor.settings import MonitorSettings

VARIABLE: Final = "MONITOR_OUTPUT_DIR"
_DEFAULT: Final = "monitor_output"
_NUMBER: Final = "_run"


def output_root(settings: MonitorSettings) -> Path:
    """Return the folder of runs."""
    chosen = settings.keys.output_dir or os.environ.get(VARIABLE) or _DEFAULT
    return Path(os.path.abspath(Path(chosen).expanduser()))  # noqa: PTH100 (resolve() follows links)


def run_folder(
    settings: MonitorSettings,
    rank: int,
    *,
    number: int,
    resumes: bool,
    agree: Callable[[str], str],
) -> Path:
    """Return the folder that a process writes to.

    Args:
        settings: `run` names it; `append_output` says between which times the run began.
        rank: of the process.
        number: of the monitor among those that its program has at once, from 1 on.
        resumes: whether the training goes on from a later step; it continues the newest run then.
        agree: makes the name of a new run the same in all processes.

    Raises:
        ConfigError: no run began between the times of `append_output`.
    """
    mark = f"{_NUMBER}{number}" if number > 1 else ""
    root = output_root(settings)
    keys = settings.keys
    if keys.run:
        return root / keys.run
    if keys.append_output:
        first, last = map(_digits, keys.append_output)
        for folder in sorted(root.glob("*"), reverse=True):
            began = _digits(folder.name)
            is_between = first <= began[: len(first)] and began[: len(last)] <= last
            if is_between and _mark(folder) == mark and rank in files_of(folder):
                return folder
        rule = f"two times between which a run in {root} began"
        raise ConfigError("append_output", keys.append_output, rule, source=settings.source or "")
    if resumes and root.is_dir():
        newest = newest_run(root, lambda one: _mark(one) == mark)
        if newest is not None and rank in files_of(newest):
            return newest
    return root / f"{agree(new_name())}{mark}"


def _mark(folder: Path) -> str:
    """Return which of the monitors of its program wrote a run: the end of its name."""
    return "".join(folder.name.rpartition(_NUMBER)[1:]) if _NUMBER in folder.name else ""


def new_name() -> str:
    """Return the name of a run that begins now: the time, in UTC."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S.%f}"[:-3] + "Z"


def _digits(text: str) -> str:
    return re.sub(r"\D", "", text)
