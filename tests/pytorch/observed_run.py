# SPDX-License-Identifier: Apache-2.0
"""Run something under the debugger as a user would, and read what it wrote with plain `json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from families import TrainCase

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

RECORD_FILES: Final = {"debug": "debug.json"}


@dataclass(frozen=True)
class Setting:
    """What the debugger is asked to do; `task` may also be "md5" (a summary mode of statistics)."""

    level: str
    task: str

    def __str__(self) -> str:
        return f"{self.level}-{self.task}"

    def config(self, dump_path: Path, **extra: object) -> dict[str, object]:
        """The content of config.json; `extra` keys go into the task's section."""
        task = "statistics" if self.task == "md5" else self.task
        section: dict[str, object] = {"overflow_nums": -1} if task == "overflow_check" else {}
        if self.task == "md5":
            section["summary_mode"] = "md5"
        section |= extra
        common = {"task": task, "level": self.level, "dump_path": str(dump_path)}
        return common | {task: section}


@dataclass(frozen=True)
class ObservedRun:
    """A debugger at work, the `around` of `families.train`, and the records it has written.

    Attributes:
        debugger: the debugger.
        folder: its dump path.
        setting: what it was asked to do.
    """

    debugger: PrecisionDebugger
    folder: Path
    setting: Setting

    def around(self, case: TrainCase, _step: int) -> AbstractContextManager[None]:
        """Observe one training step."""
        return self.step_of(case.model)

    @contextmanager
    def step_of(self, model: object) -> Iterator[None]:
        """Observe what is done inside as one step, whatever happens there."""
        self.debugger.start(model)
        try:
            yield
        finally:
            self.debugger.stop()
            self.debugger.step()

    def records(self, step: int = 0, rank: str = "rank") -> dict[str, Any]:
        """The records of one step."""
        name = RECORD_FILES.get(self.setting.level, "dump.json")
        return read(self.folder, step, rank, name)["data"]

    def account(self, step: int = 0, rank: str = "rank") -> dict[str, Any]:
        """The account of one step."""
        return read(self.folder, step, rank, "account.json")

    def failures(self, steps: int, rank: str = "rank") -> list[str]:
        """What failed inside capture, over all steps."""
        return [
            f"step {step}: {kind}"
            for step in range(steps)
            for kind in self.account(step, rank)["errors"]
        ]


def read(folder: Path, step: int, rank: str, name: str) -> dict[str, Any]:
    """One JSON file of a dump, as Python's `json` reads it."""
    found: dict[str, Any] = json.loads((folder / f"step{step}" / rank / name).read_text())
    return found


@contextmanager
def observed(folder: Path, setting: Setting, **section: object) -> Iterator[ObservedRun]:
    """A fresh debugger that dumps into `folder`; gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps(setting.config(folder, **section)))
    reset_session()
    try:
        yield ObservedRun(PrecisionDebugger(config_path=str(config)), folder, setting)
    finally:
        reset_session()
