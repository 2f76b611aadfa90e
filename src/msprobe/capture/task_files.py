# SPDX-License-Identifier: Apache-2.0
"""`TaskFiles`: what a task writes that makes no dump."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msprobe.capture.facts import FactSink


class TaskFiles(Protocol):
    """Files of a task, kept up to date at the end of each step."""

    def begin(self, dump_path: Path, rank_name: str) -> FactSink | None:
        """Begin a step; return what takes its facts, None where the task keeps none.

        Args:
            dump_path: the dump path of the run.
            rank_name: name of the rank folder.
        """

    def continue_at(self, step: int) -> None:
        """Note that the run begins with this step; one that has begun is dropped."""

    def write(self) -> None:
        """Write what is known when a step ends; nothing if none has begun."""

    def close(self) -> None:
        """Finish the files at the end of the run."""
