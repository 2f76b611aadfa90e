# SPDX-License-Identifier: Apache-2.0
"""Rules across ranks: values that were equal on all ranks part, or one rank leaves the others."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from msprobe.monitor.alerts.baselines import Baselines, Floats, Integers
from msprobe.monitor.alerts.series import Kind, SeriesTable
from msprobe.monitor.alerts.signals import Sign, Signal
from msprobe.monitor.rows import Stream

# Streams that data-parallel training keeps equal on all ranks.
_SHARED: Final = frozenset(
    {
        *(Stream.GRAD_REDUCED, Stream.EXP_AVG, Stream.EXP_AVG_SQ, Stream.STATE),
        *(Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED, Stream.UPDATE),
    }
)
_EQUAL: Final = 1e-4
_EQUAL_STEPS: Final = 10
_Z: Final = 7.0
_BEYOND_RECORD: Final = 1.6
_LEAST_SPREAD: Final = 0.01
_DECADES: Final = 0.1
# An activation so far away for two of three steps alarms by itself: a normalisation behind it hides
# other data from all later ones.
_SEVERE_Z: Final = 25.0
_SEVERE_DECADES: Final = 0.3
_BROAD_SHARE: Final = 0.3
_BROAD_LEAST: Final = 4


class RankRules:
    """The rules across ranks of one run; they find nothing in a run of one rank."""

    def __init__(self, table: SeriesTable) -> None:
        self._table = table
        self._known = 0
        self._groups: list[tuple[Integers, Integers]] = []
        self._levels: dict[int, Baselines] = {}
        self._agreed: dict[int, int] = {}
        self._parted: dict[int, int] = {}
        self._recent: dict[int, NDArray[np.bool_]] = {}
        self._is_forward = np.zeros(0, np.bool_)

    def observe(
        self, step: int, series: Integers, values: Floats, logarithms: Floats
    ) -> list[Signal]:
        """Judge one step of all ranks.

        Args:
            step: its number.
            series: numbers of the series that have a value, each once.
            values: their values.
            logarithms: `Rules.logarithms`.
        """
        self._learn_series()
        if not self._groups:
            return []
        now = np.full(len(self._table), np.nan)
        now[series] = values
        found: list[Signal] = []
        for place, (matrix, _) in enumerate(self._groups):
            with np.errstate(divide="ignore", invalid="ignore"):
                found += self._parting(step, matrix, now[matrix])
                found += self._leaving(step, place, logarithms[matrix], now[matrix])
        return found

    def _learn_series(self) -> None:
        """Gather the series that several ranks have, by the number of these ranks."""
        if self._known == len(self._table):
            return
        self._known = len(self._table)
        shared: dict[tuple[object, ...], list[int]] = {}
        for number, key in enumerate(self._table.keys):
            if self._table.kind[number] in (Kind.MAGNITUDE, Kind.LOSS):
                shared.setdefault(key.shared, []).append(number)
        sizes = sorted({len(numbers) for numbers in shared.values()} - {1})
        self._groups = []
        for size in sizes:
            matrix = np.array([one for one in shared.values() if len(one) == size], np.int64)
            self._groups.append((matrix, self._table.group[matrix]))
        self._levels.clear()
        self._recent.clear()
        self._is_forward = np.zeros(int(self._table.group.max(initial=-1)) + 1, np.bool_)
        forward = [key.stream == Stream.ACTV for key in self._table.keys]
        self._is_forward[self._table.group[forward]] = True

    def _parting(self, step: int, matrix: Integers, now: Floats) -> list[Signal]:
        """Find series that were equal on all ranks, and are not for the second step now."""
        high, low = now.max(axis=1), now.min(axis=1)
        differs = high - low > _EQUAL * np.abs(high)
        found = []
        for row in np.flatnonzero(np.isfinite(high)):
            first = int(matrix[row, 0])
            if self._table.keys[first].stream not in _SHARED:
                continue
            if not differs[row]:
                self._agreed[first] = self._agreed.get(first, 0) + 1
                self._parted.pop(first, None)
            elif self._agreed.get(first, 0) >= _EQUAL_STEPS:
                onset = self._parted.setdefault(first, step)
                if step > onset:
                    ends = float(high[row]), float(low[row])
                    found.append(self._parted_signal(step, onset, first, ends))
                    self._agreed[first] = 0
        return found

    def _parted_signal(
        self, step: int, onset: int, first: int, ends: tuple[float, float]
    ) -> Signal:
        key, place = self._table.keys[first], int(self._table.place[first])
        return Signal(Sign.RANKS_PART, key, step, onset, place, *ends)

    def _leaving(self, step: int, number: int, logarithms: Floats, now: Floats) -> list[Signal]:
        """Find ranks whose distance from the others is new, in many series or in the loss."""
        matrix, streams = self._groups[number]
        usable = np.isfinite(logarithms).all(axis=1)
        x = logarithms[usable]
        distance = (x - np.median(x, axis=1)[:, None]).ravel()
        levels = self._levels.setdefault(number, Baselines(least_spread=_LEAST_SPREAD))
        levels.grow(matrix.size)
        cells = np.arange(matrix.size).reshape(matrix.shape)[usable].ravel()
        z, decades = levels.judge(cells, distance)
        weak = (np.abs(z) > _Z) & (np.abs(decades) > _DECADES)
        weak &= np.abs(z) > _BEYOND_RECORD * levels.record(cells)
        weak &= self._farthest(weak, z, x.shape)
        lasting = self._lasting(number, cells, weak)
        is_loss = self._table.kind[matrix[usable]].ravel() == Kind.LOSS
        groups = streams[usable].ravel()
        forward, broad = self._is_forward[groups], self._broad(weak, groups)
        severe = forward & (np.abs(z) > _SEVERE_Z) & (np.abs(decades) > _SEVERE_DECADES)
        alarming = weak & ((lasting & (is_loss | severe | broad)) | (forward & broad))
        levels.learn(cells, distance, z, decades)
        series, value = matrix[usable].ravel(), now[usable].ravel()
        middle = np.repeat(np.median(now[usable], axis=1), matrix.shape[1])
        return [
            Signal(
                Sign.RANK_DIFFERS,
                self._table.keys[series[cell]],
                step,
                step,
                int(self._table.place[series[cell]]),
                float(value[cell]),
                float(middle[cell]),
                float(z[cell]),
            )
            for cell in np.flatnonzero(alarming)
        ]

    def _farthest(
        self, weak: NDArray[np.bool_], z: Floats, shape: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """Return, of each series, the rank that is farthest away.

        Of two ranks both are equally far from their middle: then the larger value counts.
        """
        size = np.where(weak, np.abs(z) + 1e-3 * np.sign(z), 0.0).reshape(shape)
        farthest = np.zeros(shape, np.bool_)
        if size.size:
            farthest[np.arange(len(size)), size.argmax(axis=1)] = True
        return farthest.ravel()

    def _broad(self, weak: NDArray[np.bool_], streams: Integers) -> NDArray[np.bool_]:
        """Return which series belong to a stream that moves in many places on one rank."""
        size = int(streams.max(initial=-1)) + 1
        moving = np.bincount(streams[weak], minlength=size)
        total = np.bincount(streams, minlength=size)
        broad = (moving >= _BROAD_LEAST) & (moving >= _BROAD_SHARE * total)
        return np.asarray(broad[streams])

    def _lasting(self, number: int, cells: Integers, weak: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which series have been away for two of the last three steps."""
        size = self._groups[number][0].size
        recent = self._recent.setdefault(number, np.zeros((size, 3), np.bool_))
        recent[cells] = np.roll(recent[cells], 1, axis=1)
        recent[cells, 0] = weak
        return np.asarray(recent[cells].sum(axis=1) >= 2)
