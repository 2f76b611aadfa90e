# SPDX-License-Identifier: Apache-2.0
"""Robust histories of many series at once: how far is a value from what its series did before?

Values are logarithms of magnitudes, so that twice and half are equally far. The level is the median
of the last `WINDOW` values, the spread their median absolute deviation, or what nine of ten keep
to. A value must be far from the median of the last few as well: a series that drifts is not
alarming. On demand the spread is that around the last few, if this is smaller: a loss that falls
by itself would hide what jumps. Values under suspicion are held back from the history, so that an
incident cannot become the norm by itself; when they last, the series has a new level and is
learned anew.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

WINDOW: Final = 32
WARM_UP: Final = 20
"""Values of a series before it is judged."""
_RECENT: Final = 5
_MAD_TO_DEVIATION: Final = 1.4826
# The deviation that nine of ten values keep to; a normal distribution has 1.645 of its own.
_MOST: Final = 0.9
_MOST_TO_DEVIATION: Final = 1 / 1.645
_HOLD_Z: Final = 6.0
_HOLD_DECADES: Final = 0.3
_HOLD_STEPS: Final = 8
# What was normal once stays in memory for some hundred steps.
RECORD_DECAY: Final = 0.997


class Baselines:
    """Levels and spreads of series by number."""

    def __init__(self, least_spread: float = 0.02) -> None:
        """Begin without series.

        Args:
            least_spread: in decades; a smaller spread is taken for this one, or series that hardly
                move would alarm at nothing.
        """
        self._least_spread = least_spread
        self._follows = np.zeros(0, np.bool_)
        self._history = np.full((0, WINDOW), np.nan)
        self._moves = np.full((0, WINDOW), np.nan)
        self._count = np.zeros(0, np.int64)
        self._level = np.zeros(0)
        self._recent = np.zeros(0)
        self._spread = np.zeros(0)
        self._record = np.zeros(0)
        self._held = np.zeros(0, np.int64)

    def grow(self, size: int) -> None:
        """Make room for series up to this number."""
        more = size - len(self._count)
        if more <= 0:
            return
        blank = np.full((more, WINDOW), np.nan)
        self._history = np.vstack([self._history, blank])
        self._moves = np.vstack([self._moves, blank])
        self._follows = np.append(self._follows, np.zeros(more, np.bool_))
        self._count = np.append(self._count, np.zeros(more, np.int64))
        self._held = np.append(self._held, np.zeros(more, np.int64))
        for name in ("_level", "_recent", "_spread", "_record"):
            setattr(self, name, np.append(getattr(self, name), np.zeros(more)))

    def follow(self, series: Integers) -> None:
        """From now on, take the spread of these around the median of their last few values.

        Only where it is smaller than that around their level.
        """
        self._follows[series] = True

    def is_warm(self, series: Integers) -> NDArray[np.bool_]:
        """Return which series have enough history."""
        return self._count[series] >= WARM_UP

    def judge(self, series: Integers, values: Floats) -> tuple[Floats, Floats]:
        """Return how far values are from their histories: in deviations, and in decades.

        Both have the sign of the change; 0 where the series is not warm.
        """
        far = values - self._level[series]
        near = values - self._recent[series]
        decades = np.where(np.abs(far) < np.abs(near), far, near)
        decades[(np.sign(far) != np.sign(near)) | ~self.is_warm(series)] = 0.0
        return decades / np.maximum(self._spread[series], self._least_spread), decades

    def from_level(self, series: Integers, values: Floats) -> Floats:
        """Return how many deviations values are above their levels, whatever the last few were."""
        spread = np.maximum(self._spread[series], self._least_spread)
        return (values - self._level[series]) / spread

    def record(self, series: Integers) -> Floats:
        """Return the largest deviation that was normal for each series."""
        return self._record[series]

    def expected(self, series: Integers) -> Floats:
        """Return the level of each series."""
        return self._level[series]

    def learn(self, series: Integers, values: Floats, z: Floats, decades: Floats) -> None:
        """Take values into the histories, except those under suspicion.

        Args:
            series: numbers, each once.
            values: as for `judge`.
            z: deviations, as `judge` returned them.
            decades: distances, as `judge` returned them.
        """
        suspicious = (np.abs(z) > _HOLD_Z) & (np.abs(decades) > _HOLD_DECADES)
        held = series[suspicious]
        self._held[held] += 1
        anew = held[self._held[held] > _HOLD_STEPS]
        self._forget(anew)
        keep = ~suspicious
        self._held[series[keep]] = 0
        self._record[series[keep]] = np.maximum(
            self._record[series[keep]] * RECORD_DECAY, np.abs(z[keep])
        )
        self._append(series[keep], values[keep])

    def _forget(self, series: Integers) -> None:
        self._history[series] = np.nan
        self._moves[series] = np.nan
        self._count[series] = 0
        self._held[series] = 0

    def _append(self, series: Integers, values: Floats) -> None:
        if not len(series):
            return
        place = self._count[series] % WINDOW
        self._history[series, place] = values
        self._count[series] += 1
        history = self._history[series]
        full = np.sort(history, axis=1)  # NaN, the empty places, come last
        filled = np.minimum(self._count[series], WINDOW)
        level = _middle(full, filled)
        spread = _spread(np.abs(history - level[:, None]), filled)
        own = np.flatnonzero(self._follows[series])
        if len(own):
            moved = np.abs(values[own] - self._recent[series[own]])
            moved[self._count[series[own]] == 1] = 0.0
            self._moves[series[own], place[own]] = moved
            near = _spread(self._moves[series[own]], filled[own])
            spread[own] = np.minimum(spread[own], near)
        self._level[series], self._spread[series] = level, spread
        back = self._count[series][:, None] - 1 - np.arange(_RECENT)
        latest = np.take_along_axis(history, np.maximum(back, 0) % WINDOW, axis=1)
        self._recent[series] = np.sort(latest, axis=1)[:, _RECENT // 2]


def _middle(ordered: Floats, filled: Integers) -> Floats:
    rows = np.arange(len(ordered))
    return (ordered[rows, (filled - 1) // 2] + ordered[rows, filled // 2]) / 2


def _spread(deviations: Floats, filled: Integers) -> Floats:
    """Return the standard deviation that distances tell, of which so many are filled in."""
    ordered = np.sort(deviations, axis=1)
    most = ordered[np.arange(len(ordered)), (_MOST * (filled - 1)).astype(np.int64)]
    return np.maximum(_MAD_TO_DEVIATION * _middle(ordered, filled), _MOST_TO_DEVIATION * most)


class Rarity:
    """Events that a series has seldom or never: how many in a row are more than chance?

    The share of steps with the event is learned for each series. A run of events is alarming when
    its chance, were they independent, is below `_CHANCE`.
    """

    _CHANCE: Final = 1e-6
    # What lasts longer is the new state of the series, and no longer alarming.
    _LASTS: Final = 30

    def __init__(self) -> None:
        self._trials = np.zeros(0, np.int64)
        self._hits = np.zeros(0, np.int64)
        self._run = np.zeros(0, np.int64)

    def grow(self, size: int) -> None:
        """Make room for series up to this number."""
        more = size - len(self._trials)
        if more > 0:
            blank = np.zeros(more, np.int64)
            self._trials = np.append(self._trials, blank)
            self._hits = np.append(self._hits, blank)
            self._run = np.append(self._run, blank)

    def take(self, series: Integers, events: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Take one step of each series; return which of them are alarming now."""
        hit, missed = series[events], series[~events]
        self._run[hit] += 1
        ended = self._run[missed]
        self._hits[missed] += ended
        self._trials[missed] += ended + 1
        self._run[missed] = 0
        share = (self._hits[hit] + 1) / (self._trials[hit] + 2)
        run = self._run[hit]
        alarming = (run * np.log(share) < np.log(self._CHANCE)) & (run <= self._LASTS)
        result = np.zeros(len(series), np.bool_)
        result[events] = alarming & (self._trials[hit] >= WARM_UP)
        return result

    def run(self, series: Integers) -> Integers:
        """Return how many events in a row each series has."""
        return self._run[series]
