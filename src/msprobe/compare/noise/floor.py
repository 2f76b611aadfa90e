# SPDX-License-Identifier: Apache-2.0
"""`NoiseFloor`: how far rounding moves the values of a reference, and what that explains.

A difference is measured as that of the samples was: by elements (relative L2 norm, and the largest
single error) where all recordings kept tensors, else by statistics. It lies within the noise if it
is at most `spread.allowed_multiple` times as large as the spread of the samples, or one unit in the
last place where no sample saw noise: chance may have spared a value in each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Mode, Row, Status
from msprobe.compare.noise.spread import allowed_multiple, spread_of
from msprobe.compare.rank_comparison import NoiseJudgement, RankComparison
from msprobe.compare.ranks import ViewPair, pair_views
from msprobe.compare.sides import NOISE_FLOOR
from msprobe.compare.verdicts.statistics_error import statistics_error
from msprobe.dump.dump_steps import Dump
from msprobe.dump.rank_view import RankView
from msprobe.errors import UsageError
from msprobe.numerics.number_types import epsilon_of
from msprobe.numerics.tolerances import RowTolerance
from msprobe.plain_text import place_text

_LEAST_RECORDINGS: Final = 2
_ANY: Final = RowTolerance(rtol=0.0)

Measure = Callable[[ViewPair], RankComparison]
"""Pairs the values of a recording with noise and of its reference, and measures their errors."""


class Sample(NamedTuple):
    """How far a recording with noise is from its reference, in one value.

    Attributes:
        error: relative; infinite where they differ otherwise, as in NaN.
        largest: largest error of an element; None where elements were not measured.
    """

    error: float
    largest: float | None


@dataclass(frozen=True, slots=True)
class StepNoise:
    """Samples of one step and rank of a reference.

    Attributes:
        mode: how the samples were measured.
        samples: by the name of the reference's value; one for each recording that has it.
    """

    mode: Mode
    samples: dict[str, list[Sample]]


class NoiseFloor:
    """Noise of a reference, as two or more recordings of it show.

    Attributes:
        dumps: the recordings.
    """

    def __init__(self, dumps: Sequence[Dump], reference: Dump, measure: Measure) -> None:
        """Pair the recordings with the reference; nothing is measured yet.

        Args:
            dumps: recordings of the reference program with task ``noise_floor``.
            reference: the ordinary recording of it.
            measure: see `Measure`.

        Raises:
            UsageError: there are too few recordings, or one is not what it should be.
        """
        check_recordings(dumps)
        self.dumps = dumps
        self._measure = measure
        self._views: dict[int, list[ViewPair]] = {}
        for dump in dumps:
            for pair in pair_views(dump, reference).pairs:
                _refuse_other_modules(dump, pair)
                self._views.setdefault(id(pair.reference), []).append(pair)

    def judge(self, comparison: RankComparison) -> str | None:
        """Call the rows of a comparison close or different by the measured noise.

        Args:
            comparison: judged by tolerances; its `noise` is filled in.

        Returns:
            A note where too few recordings have the step; rounding is then estimated.
        """
        noise = self._noise_of(comparison.reference.view)
        if noise is None:
            return (
                f"{place_text(comparison.step, comparison.rank)}: rounding was estimated, because "
                f"fewer than {_LEAST_RECORDINGS} recordings with noise have it"
            )
        by_elements = noise.mode is Mode.TENSOR is comparison.mode
        within = beyond = loose = 0
        scale = 1.0
        for row in comparison.rows:
            if not isinstance(row, Matched) or not row.holds_tensor:
                continue
            # What comes behind a value of a coarser type carries the noise of that type.
            scale = max(scale, _coarsening(row))
            samples = noise.samples.get(row.reference_name or "", ())
            if row.status not in (Status.CLOSE, Status.DIFFERS) or not samples:
                continue
            if row.cause is Cause.LONE_PRECISION:
                continue  # no noise makes one side compute in another type
            times = _times_allowed(row, samples, scale, by_elements=by_elements)
            if times is None:
                continue
            if times <= 1:
                within += 1
                loose += row.status is Status.DIFFERS
                row.status, row.cause, row.finding = Status.CLOSE, Cause.MEASURED_NOISE, ""
            else:
                beyond += 1
                row.status = Status.DIFFERS
                row.finding = f"{times:.3g} times what the measured noise allows"
        comparison.noise = NoiseJudgement(len(self.dumps), within, loose, beyond)
        return None

    def _noise_of(self, view: RankView) -> StepNoise | None:
        pairs = self._views.get(id(view), [])
        if len(pairs) < _LEAST_RECORDINGS:
            return None
        samples: dict[str, list[Sample]] = {}
        modes = set()
        for pair in pairs:
            measured = self._measure(pair)
            modes.add(measured.mode)
            for row in measured.rows:
                sample = _sample_of(row)
                if sample is not None:
                    samples.setdefault(row.reference_name or "", []).append(sample)
            pair.target.unload()
        mode = Mode.TENSOR if modes == {Mode.TENSOR} else Mode.STATISTICS
        return StepNoise(mode, samples)


def _refuse_other_modules(dump: Dump, pair: ViewPair) -> None:
    if pair.target.facts is None or pair.reference.facts is None:
        return
    own, others = pair.target.facts.settings, pair.reference.facts.settings
    for name, value in own.items():
        if name.startswith("module.") and others.get(name, value) != value:
            raise UsageError(
                f"{dump.path}: records another program than the reference: {name} is {value}, "
                f"{others[name]} in the reference; record noise with the reference's program"
            )


def check_recordings(dumps: Sequence[Dump]) -> None:
    """Refuse recordings that say nothing about noise.

    Raises:
        UsageError: fewer than two, of another task, or with the same moves.
    """
    if len(dumps) < _LEAST_RECORDINGS:
        raise UsageError(f"noise is measured by two or more recordings; {len(dumps)} given")
    seeds: dict[int | None, Dump] = {}
    for dump in dumps:
        head = next(iter(next(iter(dump.steps.values())).ranks.values())).head
        if head.task != NOISE_FLOOR:
            raise UsageError(
                f'{dump.path}: recorded with task "{head.task}"; noise is recorded with task '
                f'"{NOISE_FLOOR}"'
            )
        other = seeds.setdefault(head.noise_seed, dump)
        if other is not dump:
            raise UsageError(
                f"{other.path} and {dump.path}: the same seed, {head.noise_seed}, so the same "
                "noise; record each into a folder of its own, or with a seed of its own"
            )


def _sample_of(row: Row) -> Sample | None:
    """Return how far a recording with noise is off in a value; None for what is no tensor."""
    if not isinstance(row, Matched) or not row.holds_tensor:
        return None
    if row.status is Status.EQUAL:
        return Sample(0.0, 0.0)
    if row.status not in (Status.CLOSE, Status.DIFFERS) or row.error is None:
        return Sample(math.inf, math.inf)
    largest = None if row.metrics is None else row.metrics.max_abs_err
    return Sample(row.error, None if largest is None else float(abs(largest)))


def _times_allowed(
    row: Matched, samples: Sequence[Sample], scale: float, *, by_elements: bool
) -> float | None:
    """Return a difference as a multiple of the allowed one; None where nothing can be said."""
    spread = spread_of([sample.error for sample in samples])
    epsilon = scale * epsilon_of(row.reference.dtype)
    error = _error_of(row, by_elements=by_elements)
    if error is None or math.isinf(spread) or not (epsilon or spread):
        return None
    multiple = scale * allowed_multiple(len(samples), max(math.prod(row.reference.shape or ()), 1))
    times = error / max(multiple * spread, epsilon)
    if not by_elements or row.metrics is None or row.metrics.max_abs_err is None:
        return times
    peak = max((abs(float(end)) for end in row.reference.finite_ends if end is not None), default=0)
    largest = spread_of([sample.largest or 0.0 for sample in samples])
    allowed = max(multiple * largest, epsilon * peak)
    return max(times, float(abs(row.metrics.max_abs_err)) / allowed) if allowed else times


def _error_of(row: Matched, *, by_elements: bool) -> float | None:
    """Return the relative error of a row, measured as its samples were; None if they cannot tell.

    Without projections, statistics miss another order of the elements, which elements show.
    """
    if by_elements or row.metrics is None:
        return row.error
    if row.target.pairs_with(row.reference) is None:
        return None
    return statistics_error(row.target, row.reference, _ANY).relative


def _coarsening(row: Matched) -> float:
    """Return how many times coarser the target's type is than the reference's."""
    target, reference = epsilon_of(row.target.dtype), epsilon_of(row.reference.dtype)
    return target / reference if reference else 1.0
