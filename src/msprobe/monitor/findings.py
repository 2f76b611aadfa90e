# SPDX-License-Identifier: Apache-2.0
"""Incidents of a run, and where another one parts from it: of stored runs, which may grow."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from msprobe.monitor.alerts.actions import read_incidents
from msprobe.monitor.alerts.engine import Alerts
from msprobe.monitor.alerts.incidents import WORDS
from msprobe.monitor.comparing import compare_runs
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.rows import Rows

# Values of a stored run that are judged anew; of a larger one the written incidents are taken.
_MOST_JUDGED: Final = 20_000_000


class Judging:
    """The default rules over all ranks of a run, which no process could apply while it trained.

    Of a run of more than twenty million values, the incidents that its processes wrote are
    returned.
    """

    def __init__(self, run: MonitorRun) -> None:
        """Begin at the first step."""
        self._run = run
        self._alerts = Alerts()
        self._taken: Counter[int] = Counter()
        self._heads: list[int] = []
        self._judged = -1
        self._pending: Rows | None = None

    def incidents(self, *, has_ended: bool) -> list[dict[str, Any]]:
        """Judge the steps that came since; return all incidents, as JSON.

        Args:
            has_ended: whether no rank adds to a step that has rows already. Otherwise the last step
                of the slowest rank waits.
        """
        if not may_be_judged(self._run):
            return read_incidents(self._run.path)
        steps = {rank: self._run.steps_of_blocks(rank) for rank in self._run.ranks}
        heads = [len(self._run.heads(rank)) for rank in self._run.ranks]
        is_late = any(np.any(steps[rank][self._taken[rank] :] <= self._judged) for rank in steps)
        if is_late or heads != self._heads:  # a resumed run has other steps from there on
            self._alerts = Alerts()
            self._taken.clear()
            self._heads, self._judged = heads, -1
        latest = [int(one.max(initial=-1)) for one in steps.values()]
        last = max(latest, default=-1) if has_ended else min(latest, default=0) - 1
        for rows in self._blocks(last):
            if self._pending is not None and rows.step != self._pending.step:
                self._end_step(self._pending)
            self._pending = rows
            self._alerts.take(rows)
        if self._pending is not None:
            self._end_step(self._pending)
        return [one.as_json() for one in self._alerts.incidents]

    def _end_step(self, rows: Rows) -> None:
        self._alerts.end_step(rows.step, rows.time)
        self._judged, self._pending = rows.step, None

    def _blocks(self, last: int) -> Iterator[Rows]:
        """Yield the blocks of all ranks up to a step, ordered by step."""
        return heapq.merge(
            *(self._of_rank(rank, last) for rank in self._run.ranks), key=lambda rows: rows.step
        )

    def _of_rank(self, rank: int, last: int) -> Iterator[Rows]:
        for rows in self._run.blocks(rank, begin=self._taken[rank]):
            if rows.step > last:
                return
            self._taken[rank] += 1
            yield rows


class Findings:
    """Findings about one run, or about two, that take a while to compute.

    It reads with readers of its own, so that it may work on another thread.
    """

    def __init__(self, runs: Sequence[MonitorRun]) -> None:
        """Open the runs a second time."""
        self._runs = [run.again() for run in runs]
        self._judging = Judging(self._runs[0])
        self._found: dict[str, Any] = {}
        self._is_whole = False

    def find(self) -> dict[str, Any]:
        """Return the incidents, and where two runs part, with all that has been written.

        Of a run that has grown since, the last step waits for the next time: it may grow further.
        """
        has_grown = True in [run.refresh() for run in self._runs]
        if has_grown or not self._is_whole:
            self._is_whole = not has_grown
            found = self._judging.incidents(has_ended=self._is_whole)
            self._found = {
                "incidents": [{**one, "words": WORDS[one["cause"]]} for one in found],
                "parting": self._parting() if len(self._runs) > 1 else None,
            }
        return self._found

    def _parting(self) -> dict[str, Any]:
        found = compare_runs(self._runs[0], self._runs[1])
        different, apart = found.first_different, found.first_apart
        return {
            "equal": found.is_equal,
            "first_different": None if different is None else different.as_json(),
            "first_apart": None if apart is None else apart.as_json(),
            "series": [
                one.as_json() for one in found.series[:50] if one.first_different is not None
            ],
        }


def may_be_judged(run: MonitorRun) -> bool:
    """Return whether a run has few enough values to judge all of them anew."""
    series = sum(len(run.names(stream)) * len(run.ops(stream)) for stream in run.streams)
    return series * len(run.steps()) * len(run.ranks) <= _MOST_JUDGED
