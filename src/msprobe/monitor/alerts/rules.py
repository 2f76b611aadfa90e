# SPDX-License-Identifier: Apache-2.0
"""The default rules: one step of all series in, signals out.

Each rule judges all series of its kind at once, as arrays. `docs/tasks/monitor-alerts.md` explains
the rules for users; `benchmarks/monitor_alerts.py` scores them.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from msprobe.monitor.alerts.baselines import (
    RECORD_DECAY,
    WARM_UP,
    Baselines,
    Floats,
    Integers,
    Rarity,
)
from msprobe.monitor.alerts.series import Kind, SeriesTable
from msprobe.monitor.alerts.signals import Sign, Signal
from msprobe.monitor.rows import Stream

# Deviations and decades of a value that takes part in a broad movement of its stream.
WEAK_Z: Final = 6.0
_WEAK_DECADES: Final = 0.3
# … that shows when a movement began,
_ONSET_Z: Final = 4.0
_ONSET_DECADES: Final = 0.15
# … that alarms by itself when it lasts for two of three steps,
_STRONG_Z: Final = 10.0
_STRONG_DECADES: Final = 0.6
# … and that alarms at once.
_SEVERE_Z: Final = 25.0
_SEVERE_DECADES: Final = 1.5
# A series must go beyond what it did before by this factor.
_BEYOND_RECORD: Final = 1.6
# … and a series that alarms by itself, beyond what any other of its stream did by this one.
_BEYOND_CROWD: Final = 1.6
_CROWD_STEPS: Final = 5
_BROAD_SHARE: Final = 0.3
_BROAD_LEAST: Final = 4
_LOSS_WEAK_Z: Final = 8.0
_LOSS_WEAK_DECADES: Final = 0.15
_LOSS_STRONG_Z: Final = 10.0
_LOSS_STRONG_DECADES: Final = 0.2
# … and with less where it stays up: labels that are wrong from some step on.
_LOSS_HELD_Z: Final = 3.5
_DEAD_SHARE: Final = 0.99
# A rate alarms that is so far above the highest until some steps before: it may rise in a few.
_RATE_JUMP: Final = 2.5
_RATE_STEPS: Final = 5
_RATE_GONE: Final = 0.02
# With a smaller share of the highest rate, updates may be lost in the rounding of parameters.
_RATE_TINY: Final = 0.01
_MOVED: Final = frozenset({Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED, Stream.UPDATE})
_UPDATES: Final = frozenset({Stream.UPDATE})
# Means of gradients: those of a few elements pass zero in a healthy run.
_SIGNED: Final = frozenset({Stream.EXP_AVG, Stream.UPDATE})
_SCALE_STEPS: Final = 8
_SCALE_HALVINGS: Final = 3
# A half-precision second moment loses updates that are smaller than half a unit of its last place.
_HALF_ULPS: Final = {"bfloat16": 2.0**-8, "float16": 1.0}
_STATES: Final = frozenset({Stream.EXP_AVG, Stream.EXP_AVG_SQ, Stream.STATE})

_GRADIENTS: Final = frozenset({Stream.GRAD_UNREDUCED, Stream.GRAD_REDUCED})
# A gradient that is so far below the others of its stream is rounding.
_NOISE_DECADES: Final = -3.5
# Losses are compared after adding this share of the first one: of a loss near zero, the noise is
# large in proportion.
_LOSS_SHARE: Final = 0.1
# A loss alarms when it rises by this share of its level and by this share of the first one.
_LOSS_RISE: Final = 0.5
_LOSS_RISE_OF_FIRST: Final = 0.2
# Streams that a step which a loss scaler skips leaves as they are.
_LEFT: Final = frozenset(
    {
        *(Stream.EXP_AVG, Stream.EXP_AVG_SQ, Stream.STATE),
        *(Stream.PARAM_ORIGIN, Stream.PARAM_UPDATED, Stream.UPDATE),
    }
)


class Rules:
    """The default rules over the series of one run.

    Attributes:
        table: all series.
        levels: histories of magnitudes and losses.
        logarithms: of the values of the last step, as the rules compare them; NaN where absent.
    """

    def __init__(self, table: SeriesTable) -> None:
        self.table = table
        self.levels = Baselines()
        self.logarithms = np.zeros(0)
        self._losses = _Losses()
        self._crowd = _Crowd()
        self._zero, self._absent, self._stuck, self._dead, self._high = (Rarity() for _ in range(5))
        self._last = np.zeros(0)
        self._seen = np.zeros(0, np.int64)
        self._strong = np.zeros((0, 3), np.bool_)
        self._onset = np.full(0, -1)
        self._reported: set[int] = set()
        self._rates = _Rates()
        self._scales: dict[int, list[tuple[int, float]]] = {}
        self._changes: dict[int, int] = {}
        self._skipped = False
        self._grown_for = 0
        self._gradient_of = np.zeros(0, np.int64)
        self._gradient_groups: list[Integers] = []

    def observe(self, step: int, series: Integers, values: Floats) -> list[Signal]:
        """Judge one step of all series.

        Args:
            step: its number.
            series: numbers of the series that have a value, each once.
            values: their values.
        """
        self._grow(len(self.table))
        kinds = self.table.kind[series]
        self._skipped = bool(np.any((kinds == Kind.SKIPPED) & (values > 0)))
        found = self._not_finite(step, series, values, kinds)
        for kind, rule in (
            (Kind.LEARNING_RATE, self._learning_rate),
            (Kind.SETTING, self._setting),
            (Kind.LOSS_SCALE, self._loss_scale),
        ):
            for place in np.flatnonzero(kinds == kind):
                found += rule(step, int(series[place]), float(values[place]))
        with np.errstate(divide="ignore", invalid="ignore"):
            found += self._moved(step, series, values, kinds)
        found += self._missing(step, series)
        chosen = kinds == Kind.ZERO_SHARE
        found += self._dead_units(step, series[chosen], values[chosen])
        self._last[series] = values
        self._seen[series] += 1
        return found

    def _grow(self, size: int) -> None:
        for part in (self.levels, self._zero, self._absent, self._stuck, self._dead, self._high):
            part.grow(size)
        more = size - len(self._last)
        if more > 0:
            self.levels.follow(np.flatnonzero(self.table.kind[:size] == Kind.LOSS))
            self._last = np.append(self._last, np.full(more, np.nan))
            self._seen = np.append(self._seen, np.zeros(more, np.int64))
            self._onset = np.append(self._onset, np.full(more, -1))
            self._strong = np.vstack([self._strong, np.zeros((more, 3), np.bool_)])

    def _signal(
        self,
        sign: Sign,
        series: int,
        step: int,
        value: float | None,
        *,
        onset: int | None = None,
        expected: float | None = None,
        z: float = 0.0,
        detail: str = "",
    ) -> Signal:
        table = self.table
        return Signal(
            sign,
            table.keys[series],
            step,
            step if onset is None else onset,
            int(table.place[series]),
            value,
            expected,
            z,
            detail,
        )

    def _not_finite(
        self, step: int, series: Integers, values: Floats, kinds: NDArray[np.int8]
    ) -> list[Signal]:
        counts = kinds == Kind.BAD_COUNT
        bad = np.where(counts, values > 0, ~np.isfinite(values))
        if not bad.any() or self._is_excused(series[bad], values, kinds):
            return []
        return [
            self._signal(Sign.NOT_FINITE, int(one), step, float(value))
            for one, value in zip(series[bad], values[bad], strict=True)
        ]

    def _is_excused(self, bad: Integers, values: Floats, kinds: NDArray[np.int8]) -> bool:
        """Return whether only gradients overflowed, in a step that a loss scaler skipped.

        The forward pass has no such excuse, and neither have gradients of a scale of one.
        """
        if not self._skipped or not np.all(values[kinds == Kind.LOSS_SCALE] > 1):
            return False
        streams = {self.table.keys[one].stream for one in bad}
        return Stream.ACTV not in streams and not np.any(self.table.kind[bad] == Kind.LOSS)

    def _moved(
        self, step: int, series: Integers, values: Floats, kinds: NDArray[np.int8]
    ) -> list[Signal]:
        sized = ((kinds == Kind.MAGNITUDE) | (kinds == Kind.LOSS)) & np.isfinite(values)
        series, values, kinds = series[sized], values[sized], kinds[sized]
        noise = self._negligible(series)
        still = self._stays(series) | noise
        if self._rates.are_tiny:
            still |= self.table.are_of(series, _MOVED)
        found = self._zeros(step, series[~still], values[~still])
        # Optimizers that go by signs make steps of the same length.
        still |= self.table.are_of(series, _UPDATES)
        found += self._unchanged(step, series[~still], values[~still])
        judged = (values != 0) & ~noise
        series, values, kinds = series[judged], values[judged], kinds[judged]
        is_loss = kinds == Kind.LOSS
        offset = self._losses.offsets(series, values, is_loss)
        share = self._rate_share(series)
        x = np.log10(np.abs(values) + offset) - share
        self.logarithms = np.full(len(self.table), np.nan)
        self.logarithms[series] = x
        z, decades = self.levels.judge(series, x)
        expected = 10.0 ** (self.levels.expected(series) + share) - offset
        weak = _weak(z, decades, is_loss) & (
            np.abs(z) > _BEYOND_RECORD * self.levels.record(series)
        )
        rises = np.zeros(len(series), np.bool_)
        rises[is_loss] = self._losses.rises(series[is_loss], values[is_loss], expected[is_loss])
        weak &= rises | ~is_loss
        high = rises & self.levels.is_warm(series)
        high &= self.levels.from_level(series, x) > _LOSS_HELD_Z
        held = is_loss.copy()
        held[is_loss] = self._high.take(series[is_loss], high[is_loss])
        begun = weak | high | ((np.abs(z) > _ONSET_Z) & (np.abs(decades) > _ONSET_DECADES))
        self._onset[series[~begun]] = -1
        self._onset[series[begun & (self._onset[series] < 0)]] = step
        groups = self.table.group[series]
        alone = self._alone(series, z, decades, is_loss, weak)
        alone &= is_loss | self._crowd.is_exceeded(groups, z)
        alarming = held | (weak & (alone | self._broad(series, z, decades, weak)))
        self._crowd.learn(groups, np.where(alarming | is_loss, 0.0, z))
        for place in np.flatnonzero(alarming):
            one = int(series[place])
            found.append(
                self._signal(
                    Sign.ROSE if z[place] > 0 else Sign.FELL,
                    one,
                    step,
                    float(values[place]),
                    onset=int(self._onset[one]),
                    expected=float(expected[place]),
                    z=float(z[place]),
                )
            )
        self.levels.learn(series, x, z, decades)
        return found

    def _stays(self, series: Integers) -> NDArray[np.bool_]:
        """Return which series a skipped step leaves as they are."""
        if not self._skipped:
            return np.zeros(len(series), np.bool_)
        return self.table.are_of(series, _LEFT)

    def _negligible(self, series: Integers) -> NDArray[np.bool_]:
        """Return which series are of tensors whose gradient has always been noise.

        The bias of a convolution before a normalisation is one: its true gradient is zero.
        """
        if self._grown_for != len(self.table):
            self._find_gradients()
        level = self.levels.expected(np.arange(len(self.table)))
        warm = self.levels.is_warm(np.arange(len(self.table)))
        noise = np.zeros(len(self.table) + 1, np.bool_)
        for group in self._gradient_groups:
            judged = group[warm[group]]
            if len(judged):
                noise[judged] = level[judged] < np.median(level[judged]) + _NOISE_DECADES
        return noise[self._gradient_of[series]]

    def _find_gradients(self) -> None:
        """Find the gradient of the tensor that each series is about, by its name."""
        self._grown_for = len(self.table)
        gradients = {
            (key.rank, key.chunk, key.name): number
            for number, key in enumerate(self.table.keys)
            if key.stream in _GRADIENTS and self.table.kind[number] == Kind.MAGNITUDE
        }
        none = len(self.table)
        self._gradient_of = np.array(
            [
                gradients.get((key.rank, key.chunk, key.name.partition(":")[0]), none)
                for key in self.table.keys
            ],
            np.int64,
        )
        numbers = np.array(sorted(gradients.values()), np.int64)
        groups = self.table.group[numbers]
        self._gradient_groups = [numbers[groups == group] for group in np.unique(groups)]

    def _rate_share(self, series: Integers) -> Floats:
        """Return the decades of updates that the learning rate explains."""
        is_update = self.table.are_of(series, _UPDATES)
        return np.where(is_update, self._rates.decades(), 0.0)

    def _alone(
        self,
        series: Integers,
        z: Floats,
        decades: Floats,
        is_loss: NDArray[np.bool_],
        weak: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which series alarm by themselves."""
        size, reach = np.abs(z), np.abs(decades)
        strong = (size > _STRONG_Z) & (reach > _STRONG_DECADES)
        strong = weak & (strong | is_loss)
        self._strong[series] = np.roll(self._strong[series], 1, axis=1)
        self._strong[series, 0] = strong
        lasting = strong & (self._strong[series].sum(axis=1) >= 2)
        severe = (size > _SEVERE_Z) & (reach > _SEVERE_DECADES)
        loss = is_loss & (size > _LOSS_STRONG_Z) & (reach > _LOSS_STRONG_DECADES)
        passes_zero = (z < 0) & self.table.are_of(series, _SIGNED)
        return np.asarray((lasting | severe | loss) & ~passes_zero)

    def _broad(
        self, series: Integers, z: Floats, decades: Floats, weak: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which series belong to a stream that moves in many places at once."""
        group = self.table.group[series]
        warm = self.levels.is_warm(series)
        size = int(group.max(initial=-1)) + 1
        result = np.zeros(len(series), np.bool_)
        judged = np.bincount(group[warm], minlength=size)
        for direction in (1, -1):
            moving = weak & (np.sign(z) == direction)
            strong = moving & (np.abs(z) > _STRONG_Z) & (np.abs(decades) > _STRONG_DECADES)
            count = np.bincount(group[moving], minlength=size)
            broad = (count >= _BROAD_LEAST) & (count >= _BROAD_SHARE * judged)
            broad &= np.bincount(group[strong], minlength=size) >= _BROAD_LEAST / 2
            result |= moving & broad[group]
        return result

    def _zeros(self, step: int, series: Integers, values: Floats) -> list[Signal]:
        alarming = self._zero.take(series, values == 0)
        return self._lasting(Sign.ZERO, step, series[alarming], self._zero)

    def _unchanged(self, step: int, series: Integers, values: Floats) -> list[Signal]:
        compared = (self._seen[series] > 0) & (values != 0)
        series, values = series[compared], values[compared]
        alarming = self._stuck.take(series, values == self._last[series])
        return self._lasting(Sign.STUCK, step, series[alarming], self._stuck)

    def _lasting(self, sign: Sign, step: int, series: Integers, rarity: Rarity) -> list[Signal]:
        """Return signals that began with the run of events."""
        if not len(series):
            return []
        began = step - rarity.run(series) + 1
        now = self._last[series] if sign is Sign.STUCK else np.zeros(len(series))
        expected = 10.0 ** (self.levels.expected(series) + self._rate_share(series))
        return [
            self._signal(
                sign,
                int(one),
                step,
                None if sign is Sign.ABSENT else float(value),
                onset=int(onset),
                expected=float(level),
            )
            for one, onset, value, level in zip(series, began, now, expected, strict=True)
        ]

    def _missing(self, step: int, series: Integers) -> list[Signal]:
        """Find series that their stream has no row of any more."""
        present = np.zeros(len(self.table), np.bool_)
        present[series] = True
        groups = np.zeros(int(self.table.group.max(initial=-1)) + 1, np.bool_)
        groups[self.table.group[series]] = True
        known = np.flatnonzero(
            groups[self.table.group]
            & (self._seen > 0)
            & ((self.table.kind == Kind.MAGNITUDE) | (self.table.kind == Kind.LOSS))
        )
        alarming = self._absent.take(known, ~present[known])
        return self._lasting(Sign.ABSENT, step, known[alarming], self._absent)

    def _dead_units(self, step: int, series: Integers, values: Floats) -> list[Signal]:
        alarming = self._dead.take(series, values >= _DEAD_SHARE)
        return self._lasting(Sign.DEAD_UNITS, step, series[alarming], self._dead)

    def _learning_rate(self, step: int, series: int, value: float) -> list[Signal]:
        before, highest, highest_before = self._rates.take(series, value)
        if self._seen[series] < WARM_UP or not np.isfinite(value):
            return []
        if value > _RATE_JUMP * highest_before:
            return [self._signal(Sign.RATE_ROSE, series, step, value, expected=before)]
        if value == 0 and before > _RATE_GONE * highest:
            return [self._signal(Sign.RATE_ZERO, series, step, value, expected=before)]
        return []

    def _setting(self, step: int, series: int, value: float) -> list[Signal]:
        before = float(self._last[series])
        if self._seen[series] == 0 or value == before:
            return []
        self._changes[series] = self._changes.get(series, 0) + 1
        if self._seen[series] < WARM_UP or self._changes[series] > 1:
            return []
        return [self._signal(Sign.SETTING_CHANGED, series, step, value, expected=before)]

    def _loss_scale(self, step: int, series: int, value: float) -> list[Signal]:
        recent = self._scales.setdefault(series, [])
        recent.append((step, value))
        del recent[: -_SCALE_STEPS - 1]
        highest = max(scale for _, scale in recent)
        collapsed = self._seen[series] >= WARM_UP and value <= highest * 0.5**_SCALE_HALVINGS
        if value >= 1 and not collapsed:
            return []
        onset = next((number for number, scale in recent if scale < highest), step)
        return [
            self._signal(Sign.SCALE_COLLAPSED, series, step, value, onset=onset, expected=highest)
        ]

    def precision(self, step: int, series: Integers, dtypes: list[str]) -> list[Signal]:
        """Judge the data types of series whose block is new, or has changed.

        Args:
            step: its number.
            series: numbers of the block's series.
            dtypes: their data types now.
        """
        self._grow(len(self.table))
        found = []
        lost_share = 1 - self._second_beta()
        for one, dtype in zip(series.tolist(), dtypes, strict=True):
            key, before = self.table.keys[one], self.table.dtypes[one]
            if self.table.kind[one] != Kind.MAGNITUDE:
                continue
            self.table.dtypes[one] = dtype
            if key.stream in _STATES and _lost_share(dtype) > _lost_share(before):
                detail = f"{before} -> {dtype}"
                found.append(self._signal(Sign.DTYPE_CHANGED, one, step, None, detail=detail))
            share = _lost_share(dtype)
            is_lossy = key.stream == Stream.EXP_AVG_SQ and lost_share < share
            if is_lossy and one not in self._reported:
                self._reported.add(one)
                found.append(self._signal(Sign.LOW_PRECISION, one, step, None, detail=dtype))
        return found

    def _second_beta(self) -> float:
        """Return the largest second beta of Adam that is known; its usual value otherwise."""
        known = [
            float(self._last[number])
            for number, key in enumerate(self.table.keys)
            if key.stream == Stream.RUN and _is_second_beta(key.name)
        ]
        return max(known, default=0.999)


def _lost_share(dtype: str) -> float:
    return _HALF_ULPS.get(dtype.rpartition(".")[2], 0.0)


def _is_second_beta(name: str) -> bool:
    return name.startswith(("betas.1.", "beta2.")) or name.endswith("betas.1")


def _weak(z: Floats, decades: Floats, is_loss: NDArray[np.bool_]) -> NDArray[np.bool_]:
    loss = (z > _LOSS_WEAK_Z) & (decades > _LOSS_WEAK_DECADES)
    other = (np.abs(z) > WEAK_Z) & (np.abs(decades) > _WEAK_DECADES)
    return np.where(is_loss, loss, other)


class _Crowd:
    """The largest deviation that some series of a stream had, while none alarmed.

    Of thousands of series one is always far away. What any of them did before is normal for each:
    so the number of series, and the tails of their distribution, do not decide how many alarm.
    """

    def __init__(self) -> None:
        self._record = np.zeros(0)
        self._steps = np.zeros(0, np.int64)
        self._recent: deque[Floats] = deque(maxlen=_CROWD_STEPS)

    def is_exceeded(self, groups: Integers, z: Floats) -> NDArray[np.bool_]:
        """Return which deviations are beyond what their stream did until some steps before."""
        self._grow(int(groups.max(initial=-1)) + 1)
        factor = _BEYOND_CROWD * (1 + WARM_UP / np.maximum(self._steps[groups], 1))
        return np.asarray((np.abs(z) > factor * self._record[groups]) & (self._steps[groups] > 0))

    def learn(self, groups: Integers, z: Floats) -> None:
        """Take the deviations of a step; those that alarm as 0."""
        if len(self._recent) == _CROWD_STEPS:
            old = self._recent[0]
            self._record[: len(old)] = np.maximum(self._record[: len(old)] * RECORD_DECAY, old)
            self._steps[: len(old)] += old > 0
        now = np.zeros(len(self._record))
        np.maximum.at(now, groups, np.abs(z))
        self._recent.append(now)

    def _grow(self, size: int) -> None:
        more = size - len(self._record)
        if more > 0:
            self._record = np.append(self._record, np.zeros(more))
            self._steps = np.append(self._steps, np.zeros(more, np.int64))


class _Rates:
    """Learning rates: the last and the highest of each group."""

    def __init__(self) -> None:
        self._last: dict[int, float] = {}
        self._highest: dict[int, deque[float]] = {}
        self._used = 1.0

    def take(self, series: int, value: float) -> tuple[float, float, float]:
        """Take a value; return the one before, the highest before, and the highest long before."""
        highest = self._highest.setdefault(series, deque([0.0], maxlen=_RATE_STEPS))
        before = self._last.get(series, 0.0), highest[-1], highest[0]
        self._last[series] = value
        highest.append(max(before[1], value))
        return before

    @property
    def are_tiny(self) -> bool:
        """Whether all rates are far below what they were, and not zero."""
        ever = max((one[-1] for one in self._highest.values()), default=0.0)
        return 0 < max(self._last.values(), default=0.0) < _RATE_TINY * ever

    def decades(self) -> float:
        """Return the logarithm of the highest rate now, or before all became zero.

        It is 0 where no rate is known.
        """
        self._used = max(self._last.values(), default=1.0) or self._used
        return float(np.log10(self._used))


class _Losses:
    """The first value of each loss, which says what is small."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}

    def offsets(self, series: Integers, values: Floats, is_loss: NDArray[np.bool_]) -> Floats:
        """Return the share of the first loss that is added to each value; 0 for others."""
        result = np.zeros(len(series))
        for place in np.flatnonzero(is_loss):
            first = self._first.setdefault(int(series[place]), abs(float(values[place])))
            result[place] = _LOSS_SHARE * first
        return result

    def rises(self, series: Integers, values: Floats, expected: Floats) -> NDArray[np.bool_]:
        """Return which losses have risen by more than a hard batch explains, near zero as well."""
        first = np.array([self._first.get(one, 0.0) for one in series.tolist()])
        least = np.maximum(_LOSS_RISE * expected, _LOSS_RISE_OF_FIRST * first)
        return np.asarray(values - expected > least)
