# SPDX-License-Identifier: Apache-2.0
"""Runs a debugger as a user would, and reads what it wrote with plain `json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

if TYPE_CHECKING:
    from families import TrainCase

Json = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Level and task of a debugger; `task` may also be "md5" (a summary mode of statistics)."""

    level: str
    task: str

    def __str__(self) -> str:
        return f"{self.level}-{self.task}"

    def config(self, dump_path: Path, **extra: object) -> Json:
        """The content of config.json; `extra` keys go into the task's section."""
        task = "statistics" if self.task == "md5" else self.task
        section: Json = {"overflow_nums": -1} if task == "overflow_check" else {}
        if self.task == "md5":
            section["summary_mode"] = "md5"
        common = {"task": task, "level": self.level, "dump_path": str(dump_path)}
        return common | {task: section | extra}


@dataclass(frozen=True)
class Recording:
    """A debugger at work and what it has written so far.

    Attributes:
        debugger: the debugger.
        folder: its dump path.
        setting: its level and task.
    """

    debugger: PrecisionDebugger
    folder: Path
    setting: Setting

    def around(self, case: TrainCase, _step: int) -> AbstractContextManager[None]:
        """Record one training step: the `around` of `families.train`."""
        return self.step_of(case.model)

    @contextmanager
    def step_of(self, model: object = None) -> Iterator[None]:
        """Record what is done inside as one step; an exception passes."""
        self.debugger.start(model)
        try:
            yield
        finally:
            self.debugger.stop()
            self.debugger.step()

    def place(self, step: int = 0, rank: str = "rank") -> Path:
        """The folder of one step."""
        return self.folder / f"step{step}" / rank

    def read(self, name: str, step: int = 0, rank: str = "rank") -> Json:
        """One JSON file of one step."""
        return read(self.folder, step, rank, name)

    def records(self, step: int = 0, rank: str = "rank") -> Json:
        """The records of one step."""
        name = "debug.json" if self.setting.level == "debug" else "dump.json"
        data: Json = self.read(name, step, rank)["data"]
        return data

    def parents(self, step: int = 0) -> Json:
        """The parent of each call of one step."""
        return self.read("construct.json", step)

    def account(self, step: int = 0, rank: str = "rank") -> Json:
        """The account of one step."""
        return self.read("account.json", step, rank)

    def failures(self, steps: int, rank: str = "rank") -> list[str]:
        """What failed inside capture, over all steps."""
        return [
            f"step {step}: {kind}"
            for step in range(steps)
            for kind in self.account(step, rank)["errors"]
        ]

    def steps(self) -> list[str]:
        """The names of the step folders."""
        return sorted(path.name for path in self.folder.glob("step*"))

    def names(self, part: str = "", step: int = 0) -> list[str]:
        """The names of the records that contain `part`, in their order."""
        return [name for name in self.records(step) if part in name]


def read(folder: Path, step: int, rank: str, name: str) -> Json:
    """One JSON file of a dump, as Python's `json` reads it."""
    found: Json = json.loads((folder / f"step{step}" / rank / name).read_text())
    return found


def observed(
    folder: Path, setting: Setting, **section: object
) -> AbstractContextManager[Recording]:
    """A fresh debugger that dumps into `folder`; `section` holds keys of the task's section."""
    return _recording(folder, setting, setting.config(folder, **section))


def recording(
    folder: Path,
    level: str = "mix",
    task: str = "statistics",
    *,
    section: Json | None = None,
    **common: Any,
) -> AbstractContextManager[Recording]:
    """A fresh debugger that dumps into `folder`; gone afterwards.

    Args:
        folder: an empty folder.
        level: the level.
        task: the task.
        section: keys of the task's section.
        common: further keys at the top of config.json.
    """
    keys = {"task": task, "level": level, "dump_path": str(folder)} | common
    return _recording(folder, Setting(level, task), keys | {task: section or {}})


@contextmanager
def _recording(folder: Path, setting: Setting, config: Json) -> Iterator[Recording]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    reset_session()
    try:
        yield Recording(PrecisionDebugger(config_path=str(path)), folder, setting)
    finally:
        reset_session()
