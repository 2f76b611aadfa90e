# SPDX-License-Identifier: Apache-2.0
"""`ReplicaWatch`: compares the data-parallel ranks of a run with one another while it goes.

Every rank records its steps with checksums. The first rank compares a step when all ranks have
written it, which needs no communication: the dump path is shared. Results are in
``diff_check_replicas.csv`` and ``.json`` in the dump path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.compare.replicas import ReplicaCheck
from msprobe.dump import layout
from msprobe.dump.reader import open_dump
from msprobe.errors import MsprobeError
from msprobe.files import write_report
from msprobe.json_text import strict_json
from msprobe.numerics.tolerances import Tolerances
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Table

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
_STEM: Final = "diff_check_replicas"
_POLL_S: Final = 0.05
_PATIENCE_S: Final = 20.0
_COLUMNS: Final = ("step", "api_name", "kind", "module", "source", "value", "ranks", "difference")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A step that not all ranks have written.

    Attributes:
        number: of the step.
        folder: its folder.
        began: when this rank began it, by the clock of the file system.
    """

    number: int
    folder: Path
    began: float

    def is_written(self, ranks: int) -> bool:
        """Return whether all ranks have written it in this run."""
        accounts = self.folder.glob(f"*/{layout.ACCOUNT_JSON}")
        return sum(path.stat().st_mtime >= self.began for path in accounts) >= ranks


class ReplicaWatch:
    """Compares the ranks of a run, on the first of them."""

    def __init__(self, limit: int, *, ranks: int) -> None:
        """Begin.

        Args:
            limit: stop after this many values on which ranks disagree; -1 never stops.
            ranks: how many there are.
        """
        self._limit = limit
        self._ranks = ranks
        self._check = ReplicaCheck(Tolerances.load())
        self._waiting: list[_Waiting] = []
        self._found: list[Mapping[str, Any]] = []
        self._compared: list[int] = []

    def begin(self, step: int, directory: Path) -> None:
        """Note that a step begins.

        Args:
            step: its number.
            directory: folder of this rank.
        """
        self._waiting.append(_Waiting(step, directory.parent, directory.stat().st_mtime))

    def step_over(self) -> None:
        """Compare the steps that all ranks have written."""
        while self._waiting and not self._is_finished:
            if not self._waiting[0].is_written(self._ranks):
                return
            self._compare(self._waiting.pop(0))

    def close(self) -> None:
        """Wait for the last steps of the other ranks, and compare them."""
        until = time.monotonic() + _PATIENCE_S
        self.step_over()
        while self._waiting and not self._is_finished and time.monotonic() < until:
            time.sleep(_POLL_S)
            self.step_over()
        if self._waiting and not self._is_finished:
            numbers = ", ".join(str(each.number) for each in self._waiting)
            logger.warning(
                "diff_check: not all of %d ranks have written step %s: not compared",
                self._ranks,
                numbers,
            )
        if self._compared and not self._found:
            logger.info("diff_check: %d ranks agree in %d steps", self._ranks, len(self._compared))

    @property
    def _is_finished(self) -> bool:
        return len(self._found) == self._limit

    def _compare(self, waiting: _Waiting) -> None:
        try:
            step = open_dump(waiting.folder).steps[waiting.number]
            for found in self._check.findings(step):
                if not self._is_finished:
                    self._found.append(found)
                    _say(found)
        except MsprobeError as error:
            logger.warning("diff_check: step %d is not compared: %s", waiting.number, error)
            return
        self._compared.append(waiting.number)
        self._write(waiting.folder.parent)

    def _write(self, folder: Path) -> None:
        rows = [
            [
                each["step"],
                each["name"],
                each["kind"],
                each["module"],
                each["source"] or "",
                each["row"],
                " ".join(map(str, each["differing"])),
                each["reason"],
            ]
            for each in self._found
        ]
        tree = {
            "schema_version": SCHEMA_VERSION,
            "ranks": self._ranks,
            "steps": self._compared,
            "equal": not self._found,
            "findings": self._found,
        }
        write_csv(Table.of(_COLUMNS, rows), folder / f"{_STEM}.csv", warns=False)
        write_report(folder / f"{_STEM}.json", strict_json(tree), warns=False)


def _say(found: Mapping[str, Any]) -> None:
    source = f" ({found['source']})" if found["source"] else ""
    logger.warning(
        "diff_check: step %d: replicas part at %s%s: %s",
        found["step"],
        found["row"],
        source,
        found["reason"],
    )
