# SPDX-License-Identifier: Apache-2.0
"""Align calls whose numbers cannot be trusted, by their order and their values.

Calls that were paired before divide the run into gaps; inside a gap, ever weaker grounds are tried
in turn: the same values in the same module, the same parameters, the same line of code, the same
shapes, the same operation, and so on. Each finds partners in the same order on both sides only, so
one further call shifts nothing.
"""

from __future__ import annotations

import itertools
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from msprobe.compare.matching.call_signature import (
    CallSignature,
    CallSignatureReader,
    are_unrelated,
    likeness,
    numbers_likeness,
)
from msprobe.compare.matching.runs import slide_holes
from msprobe.compare.matching.sequences import IndexPair, align, monotone, most_alike

# Calls of one size on both sides, of those that could be: below it, equal sizes are chance.
_LEAST_SHARE_OF_SCALES: Final = 0.6
# Pairs of calls to look at in a run of like ones.
_LARGEST_RUN: Final = 900
# Of the median distance; and the distance below which nothing is an outlier.
_OUTLIER: Final = 2.0
_SURELY_EQUAL: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Call:
    """An operation to be aligned.

    Attributes:
        place: its place in the order of its side.
        name: the record's name.
        family: equal for calls that may be paired.
        scope: path of the module around it, as both sides know it.
        fallback: a wider family, the last ground for a partner.
    """

    place: int
    name: str
    family: str
    scope: str
    fallback: str


_Gap = tuple[list[Call], list[Call]]
_CallPair = tuple[Call, Call]


class Found(NamedTuple):
    """Two calls found to be the same, as places, and how sure that is (0 to 1)."""

    target: int
    reference: int
    confidence: float


class _Ground(NamedTuple):
    """A reason to pair two calls: equal keys. Likeness adds up to `spread` to its confidence."""

    least: float
    spread: float
    key: Callable[[Call, CallSignatureReader], Hashable]


def _same(
    get: Callable[[CallSignature], Hashable | None], call: Call, read: CallSignatureReader
) -> Hashable:
    """Return a key of calls whose signatures agree in one thing; one that lacks it equals none."""
    signature = read(call.name)
    found = get(signature)
    if found is None:
        return call.name, id(read)
    return call.family, call.scope, signature.structure, found


def _same_shapes(call: Call, read: CallSignatureReader) -> Hashable:
    return call.family, call.scope, read(call.name).structure


def _same_line(call: Call, read: CallSignatureReader) -> Hashable:
    return _same_shapes(call, read), read.source_code(call.name) or (call.name, id(read))


_SAME_VALUES: Final = _Ground(0.99, 0.0, partial(_same, attrgetter("values")))
_SAME_SCALES: Final = _Ground(0.8, 0.15, partial(_same, attrgetter("scales")))
_GROUNDS: Final = (
    _SAME_VALUES,
    _Ground(0.9, 0.1, partial(_same, attrgetter("outside"))),
    _SAME_SCALES,
    _Ground(0.8, 0.15, _same_line),
    _Ground(0.8, 0.15, _same_shapes),
    _Ground(0.6, 0.25, lambda call, _: (call.family, call.scope)),
    _Ground(0.5, 0.3, lambda call, read: (call.family, read(call.name).structure)),
    _Ground(0.3, 0.4, lambda call, _: call.family),
    _Ground(0.2, 0.4, lambda call, _: call.fallback),
)


class Aligner:
    """Finds partners for calls of the two sides."""

    def __init__(
        self, read_target: CallSignatureReader, read_reference: CallSignatureReader
    ) -> None:
        self._read_target = read_target
        self._read_reference = read_reference

    def align(
        self,
        target: Sequence[Call],
        reference: Sequence[Call],
        known: Iterable[IndexPair],
    ) -> list[Found]:
        """Return partners among calls that have none yet.

        Args:
            target: calls of the target in order.
            reference: calls of the reference in order.
            known: places of pairs that are certain, in any order.
        """
        return self._pairs_in_gaps(_gaps(target, reference, monotone(list(known))))

    def _pairs_in_gaps(self, gaps: list[_Gap]) -> list[Found]:
        found: list[Found] = []
        for ground in _GROUNDS:
            pairs = [self._pairs_on(ground, *gap) for gap in gaps]
            if ground is _SAME_SCALES:
                if not _tells_calls_apart(gaps, pairs):
                    continue
                pairs = self._without_outliers(pairs)
            remaining: list[_Gap] = []
            for gap, in_gap in zip(gaps, pairs, strict=True):
                found += [
                    Found(t.place, r.place, self._confidence(ground, t, r)) for t, r in in_gap
                ]
                remaining += _split(*gap, in_gap)
            gaps = remaining
        return found

    def _settle_runs(
        self,
        target: list[Call],
        reference: list[Call],
        pairs: list[IndexPair],
        choose: Callable[[list[int], list[int], list[IndexPair]], list[IndexPair]],
    ) -> list[_CallPair]:
        """Choose the pairs of runs of like calls again.

        Two neighbours of one value or nearly one size may have been taken for each other, which
        leaves one call without a partner on either side.
        """
        target_keys = [_same_shapes(call, self._read_target) for call in target]
        reference_keys = [_same_shapes(call, self._read_reference) for call in reference]
        runs = [
            (key, list(run))
            for key, run in itertools.groupby(pairs, key=lambda pair: target_keys[pair[0]])
        ]
        settled: list[IndexPair] = []
        low = (-1, -1)
        for number, (key, run) in enumerate(runs):
            has_next = number + 1 < len(runs)
            high = runs[number + 1][1][0] if has_next else (len(target), len(reference))
            target_run = [i for i in range(low[0] + 1, high[0]) if target_keys[i] == key]
            reference_run = [j for j in range(low[1] + 1, high[1]) if reference_keys[j] == key]
            low = run[-1]
            has_holes = len(target_run) > len(run) and len(reference_run) > len(run)
            settled += choose(target_run, reference_run, run) if has_holes else run
        # Two runs may both have reached into the calls between them.
        return [(target[i], reference[j]) for i, j in monotone(settled)]

    def _like(self, target: Call, reference: Call) -> float:
        return numbers_likeness(
            self._read_target(target.name), self._read_reference(reference.name)
        )

    def _without_outliers(self, pairs: list[list[_CallPair]]) -> list[list[_CallPair]]:
        """Drop pairs much less alike than the others: of the same size by chance."""
        distances = [[1 - self._like(t, r) for t, r in in_gap] for in_gap in pairs]
        everything = [distance for in_gap in distances for distance in in_gap]
        limit = _OUTLIER * statistics.median(everything) + _SURELY_EQUAL
        return [
            [pair for pair, distance in zip(in_gap, apart, strict=True) if distance <= limit]
            for in_gap, apart in zip(pairs, distances, strict=True)
        ]

    def _pairs_on(
        self, ground: _Ground, target: list[Call], reference: list[Call]
    ) -> list[_CallPair]:
        target_keys = [ground.key(call, self._read_target) for call in target]
        reference_keys = [ground.key(call, self._read_reference) for call in reference]
        pairs = align(target_keys, reference_keys)

        def in_step(first: list[int], second: list[int], run: list[IndexPair]) -> list[IndexPair]:
            """Return pairs of calls in step, if no fewer of them have the same values."""
            found = [
                (i, j)
                for i, j in zip(first, second, strict=False)
                if target_keys[i] == reference_keys[j]
            ]
            return found if len(first) == len(second) and len(found) >= len(run) else run

        def by_values(first: list[int], second: list[int], run: list[IndexPair]) -> list[IndexPair]:
            """Return the pairs whose values are most alike."""
            if len(first) * len(second) > _LARGEST_RUN:
                return run
            likes = [[self._like(target[i], reference[j]) for j in second] for i in first]
            return [(first[i], second[j]) for i, j in most_alike(likes)]

        if ground in (_SAME_VALUES, _SAME_SCALES):
            choose = in_step if ground is _SAME_VALUES else by_values
            return self._settle_runs(target, reference, pairs, choose)
        if len(target) != len(reference):
            pairs = self._slide(target, reference, target_keys, reference_keys, pairs)
        paired = [(target[i], reference[j]) for i, j in pairs]
        return [pair for pair in paired if not self._are_unrelated(*pair)]

    def _are_unrelated(self, target: Call, reference: Call) -> bool:
        return are_unrelated(self._read_target(target.name), self._read_reference(reference.name))

    def _slide(
        self,
        target: list[Call],
        reference: list[Call],
        target_keys: list[Hashable],
        reference_keys: list[Hashable],
        pairs: list[IndexPair],
    ) -> list[IndexPair]:
        """Move single unpaired calls along runs of equal ones to where the values fit best."""

        def like(i: int, j: int) -> float:
            return self._like(target[i], reference[j])

        forth = dict(pairs)
        slide_holes(forth, target_keys, like)
        back = {j: i for i, j in forth.items()}
        slide_holes(back, reference_keys, lambda j, i: like(i, j))
        return sorted((i, j) for j, i in back.items())

    def _confidence(self, ground: _Ground, target: Call, reference: Call) -> float:
        if not ground.spread:
            return ground.least
        alike = likeness(self._read_target(target.name), self._read_reference(reference.name))
        return round(ground.least + ground.spread * alike, 3)


def _tells_calls_apart(gaps: list[_Gap], pairs: list[list[_CallPair]]) -> bool:
    """Return whether most calls find one of their size: then both runs saw nearly the same values.

    Otherwise equal sizes are chance, and would pair calls across.
    """
    possible = sum(min(len(target), len(reference)) for target, reference in gaps)
    return possible > 0 and sum(map(len, pairs)) >= _LEAST_SHARE_OF_SCALES * possible


def _gaps(
    target: Sequence[Call], reference: Sequence[Call], anchors: Sequence[IndexPair]
) -> list[_Gap]:
    """Group the calls of both sides by the anchors around them."""
    in_target: defaultdict[int, list[Call]] = defaultdict(list)
    in_reference: defaultdict[int, list[Call]] = defaultdict(list)
    target_anchors = [place for place, _ in anchors]
    reference_anchors = [place for _, place in anchors]
    for call in target:
        in_target[bisect_left(target_anchors, call.place)].append(call)
    for call in reference:
        in_reference[bisect_left(reference_anchors, call.place)].append(call)
    return [(calls, in_reference[gap]) for gap, calls in in_target.items() if in_reference.get(gap)]


def _split(target: list[Call], reference: list[Call], pairs: list[_CallPair]) -> list[_Gap]:
    if not pairs:
        return [(target, reference)]
    gaps = []
    i = j = 0
    target_places = [call.place for call in target]
    reference_places = [call.place for call in reference]
    for t, r in pairs:
        next_i = bisect_left(target_places, t.place, i)
        next_j = bisect_left(reference_places, r.place, j)
        if next_i > i and next_j > j:
            gaps.append((target[i:next_i], reference[j:next_j]))
        i, j = next_i + 1, next_j + 1
    if i < len(target) and j < len(reference):
        gaps.append((target[i:], reference[j:]))
    return gaps
