# SPDX-License-Identifier: Apache-2.0
"""Where two runs of the monitor part: the first step, layer and stream, and each series' distance.

Two questions are asked of each series. Until which step is it equal, to the last bit of its
statistics? And from which step is it apart: farther from the reference than it was before, by more
than rounding? The relative distance of two values is ``|a - b| / max(|a|, |b|)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.monitor.alerts.series import kind_of, stage_of
from msprobe.monitor.reader import Matrix, MonitorRun
from msprobe.monitor.rows import Layout, Rows, is_missing

DEFAULT_RTOL: Final = 1e-3
"""Relative distance that counts as apart, if it is new for the series."""
# Times the middle of the earlier distances: noise that two runs have had all along parts none.
_BEYOND: Final = 6.0
_EARLIER_STEPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesDistance:
    """One series of both runs.

    Attributes:
        first_different: the first step with different values; None if all are equal.
        first_apart: the first step of two that are apart beyond noise; None without. Only sizes
            and scalars are judged: a mean near zero is never close.
        largest: the largest relative distance.
        at: its step.
        mean: the mean relative distance.
        values: of target and reference, at the first step apart, or else at the largest distance.
        order: place in a training step; smaller is earlier.
        is_judged: whether it can be apart: a size or a scalar.
    """

    stream: str
    name: str
    op: str
    rank: int
    steps: int
    first_different: int | None
    first_apart: int | None
    largest: float
    at: int
    mean: float
    values: tuple[float, float]
    order: tuple[int, int]
    is_judged: bool

    def as_json(self) -> dict[str, Any]:
        """Return the distance for programs."""
        return {
            "stream": self.stream,
            "name": self.name,
            "op": self.op,
            "rank": self.rank,
            "steps": self.steps,
            "first_different": self.first_different,
            "first_apart": self.first_apart,
            "largest": self.largest,
            "at": self.at,
            "mean": self.mean,
            "target": self.values[0],
            "reference": self.values[1],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs compared.

    Attributes:
        series: those that both have, the first that part at the head.
        only: series, as ``stream name op``, that one run lacks: of the target, of the reference.
        steps: number of steps that both have.
        skipped: steps that only one has.
        ranks: those that both have.
        same_values: whether all values of both are the same bits, of every micro step and call.
    """

    series: list[SeriesDistance]
    only: tuple[list[str], list[str]]
    steps: int
    skipped: int
    ranks: list[int] = field(default_factory=list)
    same_values: bool = False

    @property
    def first_different(self) -> SeriesDistance | None:
        """The series with the first different value."""
        found = [one for one in self.series if one.first_different is not None]
        return min(found, key=lambda one: (one.first_different, one.order), default=None)

    @property
    def first_apart(self) -> SeriesDistance | None:
        """The series that is apart first."""
        found = [one for one in self.series if one.first_apart is not None]
        return min(found, key=lambda one: (one.first_apart, one.order), default=None)

    @property
    def is_equal(self) -> bool:
        """Whether both runs hold the same values, and any at all."""
        return bool(self.series) and self.same_values

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for programs."""
        different, apart = self.first_different, self.first_apart
        return {
            "equal": self.is_equal,
            "steps": self.steps,
            "skipped_steps": self.skipped,
            "ranks": self.ranks,
            "first_different": None if different is None else different.as_json(),
            "first_apart": None if apart is None else apart.as_json(),
            "judged": sum(one.is_judged for one in self.series),
            "only_target": self.only[0],
            "only_reference": self.only[1],
            "series": [one.as_json() for one in self.series],
        }


def compare_runs(
    target: MonitorRun, reference: MonitorRun, *, rtol: float = DEFAULT_RTOL
) -> RunComparison:
    """Compare two runs of the monitor.

    Args:
        target: the run under test.
        reference: the trusted run.
        rtol: relative distance from which values may be apart.
    """
    ranks = [rank for rank in target.ranks if rank in reference.ranks]
    series: list[SeriesDistance] = []
    only: tuple[list[str], list[str]] = ([], [])
    for rank in ranks:
        for stream in dict.fromkeys([*target.streams, *reference.streams]):
            for op in dict.fromkeys([*target.ops(stream), *reference.ops(stream)]):
                pair = target.matrix(stream, op, rank=rank), reference.matrix(stream, op, rank=rank)
                _note_absent(only, stream, op, pair)
                series += _distances(stream, op, rank, pair, rtol, target.ops(stream))
    series.sort(key=_rank_of)
    steps = set(target.steps()), set(reference.steps())
    return RunComparison(
        series=series,
        only=only,
        steps=len(steps[0] & steps[1]),
        skipped=len(steps[0] ^ steps[1]),
        ranks=ranks,
        same_values=target.ranks == reference.ranks
        and all(_same_blocks(target.blocks(rank), reference.blocks(rank)) for rank in ranks),
    )


def _same_blocks(target: Iterator[Rows], reference: Iterator[Rows]) -> bool:
    for one, other in zip_longest(target, reference):
        if one is None or other is None:
            return False
        place = one.step, one.micro_step, _columns(one.layout)
        if place != (other.step, other.micro_step, _columns(other.layout)):
            return False
        if one.values.tobytes() != other.values.tobytes():
            return False
    return True


def _columns(layout: Layout) -> tuple[object, ...]:
    return (
        *(layout.stream, layout.ops, layout.names, layout.chunks, layout.calls),
        *(layout.shapes, layout.dtypes),
    )


def _rank_of(one: SeriesDistance) -> tuple[float, float, float, tuple[int, int]]:
    never = float("inf")
    apart = never if one.first_apart is None else one.first_apart
    different = never if one.first_different is None else one.first_different
    return apart, different, -one.largest, one.order


def _note_absent(
    only: tuple[list[str], list[str]], stream: str, op: str, pair: tuple[Matrix, Matrix]
) -> None:
    for side, other in ((0, 1), (1, 0)):
        known = set(pair[other].names)
        only[side].extend(f"{stream} {name} {op}" for name in pair[side].names if name not in known)


def _distances(
    stream: str, op: str, rank: int, pair: tuple[Matrix, Matrix], rtol: float, ops: list[str]
) -> Iterator[SeriesDistance]:
    steps, at_target, at_reference = np.intersect1d(
        pair[0].steps, pair[1].steps, assume_unique=True, return_indices=True
    )
    places = [{name: place for place, name in enumerate(one.names)} for one in pair]
    for name in pair[0].names:
        if name not in places[1] or not len(steps):
            continue
        a = pair[0].values[at_target, places[0][name]]
        b = pair[1].values[at_reference, places[1][name]]
        present = ~(is_missing(a) & is_missing(b))
        if present.any():
            order = stage_of(stream, name, places[0][name])
            # A mean near zero is never close, relatively: sizes and scalars tell when runs part.
            is_size = kind_of(stream, name, op, tuple(ops)) is not None
            limit = rtol if is_size else np.inf
            series = stream, name, op, rank
            yield _distance(series, steps[present], a[present], b[present], order, limit)


def _distance(
    series: tuple[str, str, str, int],
    steps: NDArray[np.int64],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    order: tuple[int, int],
    rtol: float,
) -> SeriesDistance:
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    distance[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    distance[np.isnan(distance)] = np.inf  # NaN or Inf on one side
    different = np.flatnonzero(distance > 0)
    apart = _first_apart(distance, rtol)
    largest = int(distance.argmax())
    at = largest if apart is None else apart
    stream, name, op, rank = series
    return SeriesDistance(
        stream=stream,
        name=name,
        op=op,
        rank=rank,
        steps=len(steps),
        first_different=int(steps[different[0]]) if len(different) else None,
        first_apart=None if apart is None else int(steps[apart]),
        largest=float(distance[largest]),
        at=int(steps[largest]),
        mean=float(distance.mean()),
        values=(float(a[at]), float(b[at])),
        order=order,
        is_judged=math.isfinite(rtol),
    )


def _first_apart(distance: NDArray[np.float64], rtol: float) -> int | None:
    """Return the first place beyond noise that another one within the next two confirms."""
    beyond = distance > rtol
    for place in np.flatnonzero(beyond):
        earlier = distance[:place]
        if len(earlier) >= _EARLIER_STEPS and distance[place] <= _BEYOND * np.median(earlier):
            continue
        following = beyond[place + 1 : place + 3]
        if following.any() or not len(following):
            return int(place)
    return None
