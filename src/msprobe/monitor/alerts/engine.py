# SPDX-License-Identifier: Apache-2.0
"""`Alerts`: blocks of rows in, incidents out; for a run that trains as for one that is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from msprobe.monitor.alerts.baselines import Floats, Integers
from msprobe.monitor.alerts.incidents import Incident, Incidents
from msprobe.monitor.alerts.ranks import RankRules
from msprobe.monitor.alerts.rules import Rules
from msprobe.monitor.alerts.series import SeriesTable
from msprobe.monitor.rows import Layout, Rows, is_missing

Action = Callable[[Incident], None]
"""Called with an incident when it opens, when its cause or lead changes, and when it closes."""


class Alerts:
    """Judges all series of a run with the default rules; a listener of the monitor's rows.

    Blocks of one step may come from one rank or from all. Of several micro steps the largest value
    of each series counts.

    Attributes:
        incidents: those found so far.
    """

    def __init__(self, actions: Sequence[Action] = ()) -> None:
        """Begin without history.

        Args:
            actions: called with each incident, in this order.
        """
        self._table = SeriesTable()
        self._rules = Rules(self._table)
        self._ranks = RankRules(self._table)
        self._found = Incidents()
        self._actions = tuple(actions)
        self._plans: WeakKeyDictionary[Layout, dict[int, tuple[Integers, Integers]]]
        self._plans = WeakKeyDictionary()
        self._pending: list[tuple[Integers, Floats]] = []
        self._fresh: list[tuple[Integers, list[str]]] = []

    @property
    def incidents(self) -> list[Incident]:
        """The incidents found so far."""
        return self._found.all

    def take(self, rows: Rows) -> None:
        """Take a block of the step that is being collected."""
        series, places = self._plan(rows)
        values = rows.values.reshape(-1)[places]
        present = ~is_missing(values)
        self._pending.append((series[present], values[present]))

    def end_step(self, step: int, time: float = 0.0) -> None:
        """Judge the step, whose blocks have all been taken.

        Args:
            step: its number.
            time: accepted as listeners are given it; rules use steps only.
        """
        if not self._pending:
            return
        series, values = _largest(self._pending, len(self._table))
        self._pending.clear()
        signals = self._rules.observe(step, series, values)
        signals += self._ranks.observe(step, series, values, self._rules.logarithms)
        for fresh, dtypes in self._fresh:  # after the settings of the optimizer are known
            signals += self._rules.precision(step, fresh, dtypes)
        self._fresh.clear()
        self._act(self._found.take(step, signals))

    def close(self) -> None:
        """End the run, and the incident that is still open."""
        self._act(self._found.close())

    def _act(self, changed: list[Incident]) -> None:
        for incident in changed:
            for action in self._actions:
                action(incident)

    def _plan(self, rows: Rows) -> tuple[Integers, Integers]:
        by_rank = self._plans.setdefault(rows.layout, {})
        if rows.rank not in by_rank:
            plan = by_rank[rows.rank] = self._table.add(rows.layout, rows.rank)
            wide = len(rows.layout.names)
            dtypes = [rows.layout.dtypes[place % wide] for place in plan[1].tolist()]
            self._fresh.append((plan[0], dtypes))
        return by_rank[rows.rank]


def _largest(blocks: list[tuple[Integers, Floats]], size: int) -> tuple[Integers, Floats]:
    """Return the series of all blocks, each once with its largest value; NaN wins."""
    series = np.concatenate([one for one, _ in blocks])
    values = np.concatenate([one for _, one in blocks])
    result = np.full(size, -np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(result, series, values)
    present = np.zeros(size, np.bool_)
    present[series] = True
    chosen = np.flatnonzero(present)
    return chosen, result[chosen]
