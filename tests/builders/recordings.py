# SPDX-License-Identifier: Apache-2.0
"""A debugger with a few settings, and its dump read with plain `json`: for tests of behaviour."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

Json = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """A debugger at work and what it has written so far.

    Attributes:
        debugger: the debugger.
        folder: its dump path.
    """

    debugger: PrecisionDebugger
    folder: Path

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
        found: Json = json.loads((self.place(step, rank) / name).read_text())
        return found

    def records(self, step: int = 0, rank: str = "rank") -> Json:
        """The records of one step."""
        data: Json = self.read("dump.json", step, rank)["data"]
        return data

    def parents(self, step: int = 0) -> Json:
        """The parent of each call of one step."""
        return self.read("construct.json", step)

    def account(self, step: int = 0) -> Json:
        """The account of one step."""
        return self.read("account.json", step)

    def steps(self) -> list[str]:
        """The names of the step folders."""
        return sorted(path.name for path in self.folder.glob("step*"))

    def names(self, part: str = "", step: int = 0) -> list[str]:
        """The names of the records that contain `part`, in their order."""
        return [name for name in self.records(step) if part in name]


@contextmanager
def recording(
    folder: Path,
    level: str = "mix",
    task: str = "statistics",
    *,
    section: Json | None = None,
    **common: Any,
) -> Iterator[Recording]:
    """A fresh debugger that dumps into `folder`/dump; gone afterwards.

    Args:
        folder: an empty folder.
        level: the level.
        task: the task.
        section: keys of the task's section.
        common: further keys at the top of config.json.
    """
    dump = folder / "dump"
    config = folder / "config.json"
    keys = {"task": task, "level": level, "dump_path": str(dump)} | common
    config.write_text(json.dumps(keys | {task: section or {}}))
    reset_session()
    try:
        yield Recording(PrecisionDebugger(config_path=str(config)), dump)
    finally:
        reset_session()
