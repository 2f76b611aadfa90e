# SPDX-License-Identifier: Apache-2.0
"""Record a script twice, in two processes that are started in the same way."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from msprobe.config.numbers import parse_number_list
from msprobe.dump import layout
from msprobe.errors import UsageError
from msprobe.launch.child import Child, last_words, run_child

FOLDERS = ("first", "second")
"""Names of the folders of both recordings."""

_HASH_SEEDS = ("1", "2")
"""``PYTHONHASHSEED`` of each run where the user fixes none. Python would draw one for each run;
two that are fixed and differ find an order of sets that matters each time or never, and not
by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that can be recorded, and how.

    Attributes:
        words: the script or module, and its arguments.
        is_module: whether the first word names a module.
        level: the level to record at.
        step: numbers and ranges of steps, or ``all``.
        step_function: the function whose calls are steps; None for the usual rules.
        timeout_s: how long to wait for the last of these steps.
    """

    words: Sequence[str]
    is_module: bool
    level: str
    step: str
    step_function: str | None
    timeout_s: float

    @property
    def last_step(self) -> int | None:
        """Number of the last step to record; None for all."""
        return None if self.step == "all" else parse_number_list(self.step.split(","), "step")[-1]


def record_twice(
    script: Script,
    folder: Path,
    *,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[Path, Path]:
    """Run a script two times, one after the other, and return both dump paths.

    Records have checksums. The script is stopped when its last wanted step is recorded. Where
    the user fixes no ``PYTHONHASHSEED``, the runs get two that differ.

    Args:
        script: the script.
        folder: gets both recordings.
        options: further options of `msprobe run`.
        environment: variables to set beside those of this process.

    Raises:
        UsageError: a run recorded no step, or takes too long.
    """
    settings = folder / "config.json"
    settings.write_text(json.dumps({"statistics": {"summary_mode": "md5"}}))
    given = {**os.environ, **(environment or {})}
    is_hash_drawn = given.get("PYTHONHASHSEED", "random") == "random"
    first, second = (folder / name for name in FOLDERS)
    for dump, hash_seed in zip((first, second), _HASH_SEEDS, strict=True):
        own = dict(environment or {})
        if is_hash_drawn:
            own["PYTHONHASHSEED"] = hash_seed
        words = ["--config", str(settings), "--level", script.level, "--task", "statistics"]
        words += ["--step", script.step, "--output", str(dump), *options]
        words += ["--random-log", str(dump / layout.RANDOM_LOGS)]
        if script.step_function is not None:
            words += ["--step-function", script.step_function]
        command = [sys.executable, "-m", "msprobe", "run", *words, *["-m"] * script.is_module]
        _record([*command, *script.words], script, dump, own)
    return first, second


def _record(
    command: Sequence[str], script: Script, dump: Path, environment: Mapping[str, str] | None
) -> Child:
    last = script.last_step
    pattern = None if last is None else f"{layout.step_folder(last)}/*/{layout.ACCOUNT_JSON}"
    with TemporaryFile() as output:
        child = run_child(
            command,
            output,
            is_done=lambda: pattern is not None and any(dump.glob(pattern)),
            timeout_s=script.timeout_s,
            environment=environment,
        )
        if not any(dump.glob(f"*/*/{layout.ACCOUNT_JSON}")):
            raise UsageError(f"{script.words[0]}: no step was recorded; {last_words(output)}")
    return child
