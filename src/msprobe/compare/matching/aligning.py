# SPDX-License-Identifier: Apache-2.0
"""Partners among calls whose numbers say nothing, found by their order and their values.

Calls that were paired before divide the run into gaps; inside a gap, ever weaker grounds are tried
in turn: the same values in the same module, the same shapes, the same operation, and so on. Each
finds partners in the same order on both sides only, so one further call shifts nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msprobe.compare.matching.evidence import EvidenceReader, likeness, numbers_likeness
from msprobe.compare.matching.sequences import IndexPair, align, monotone

# How far an unpaired call is moved along a run of equal ones to where it fits best.
_MAX_SLIDE: Final = 2000
_SLIDE_ROUNDS: Final = 3
# Likenesses to look at in a gap, so that long runs of equal calls stay cheap.
_LEAST_SLIDES: Final = 2000
_SLIDES_PER_CALL: Final = 30


@dataclass(frozen=True, slots=True)
class Call:
    """An operation to be aligned.

    Attributes:
        place: its place in the order of its side.
        name: the record's name.
        family: what it may be paired with.
        scope: path of the module around it, as both sides know it.
        fallback: a wider family, the last ground for a partner.
    """

    place: int
    name: str
    family: str
    scope: str
    fallback: str


class Found(NamedTuple):
    """Two calls found to be the same, as places, and how sure that is (0 to 1)."""

    target: int
    reference: int
    confidence: float


class _Ground(NamedTuple):
    """A reason to pair two calls: equal keys. Likeness adds up to `spread` to its confidence."""

    least: float
    spread: float
    key: Callable[[Call, EvidenceReader], Hashable]


def _same_values(call: Call, read: EvidenceReader) -> Hashable:
    evidence = read(call.name)
    if evidence.values is None:
        return call.name, id(read)  # equal to nothing
    return call.family, call.scope, evidence.signature, evidence.values


_GROUNDS: Final = (
    _Ground(0.99, 0.0, _same_values),
    _Ground(0.8, 0.15, lambda call, read: (call.family, call.scope, read(call.name).signature)),
    _Ground(0.6, 0.25, lambda call, _: (call.family, call.scope)),
    _Ground(0.5, 0.3, lambda call, read: (call.family, read(call.name).signature)),
    _Ground(0.3, 0.4, lambda call, _: call.family),
    _Ground(0.2, 0.4, lambda call, _: call.fallback),
)
_SHAPES_GROUND: Final = 1


class Aligner:
    """Finds partners for calls of the two sides."""

    def __init__(self, read_target: EvidenceReader, read_reference: EvidenceReader) -> None:
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
        anchors = monotone(list(known))
        found: list[Found] = []
        for gap_target, gap_reference in _gaps(target, reference, anchors):
            found += self._align_gap(gap_target, gap_reference)
        return found

    def _align_gap(self, target: list[Call], reference: list[Call]) -> list[Found]:
        found: list[Found] = []
        gaps = [(target, reference)]
        for ground in _GROUNDS:
            remaining: list[tuple[list[Call], list[Call]]] = []
            for gap in gaps:
                pairs = self._pairs_on(ground, *gap)
                found += [Found(t.place, r.place, self._confidence(ground, t, r)) for t, r in pairs]
                remaining += _split(*gap, pairs)
            gaps = remaining
        return found

    def _pairs_on(
        self, ground: _Ground, target: list[Call], reference: list[Call]
    ) -> list[tuple[Call, Call]]:
        target_keys = [ground.key(call, self._read_target) for call in target]
        reference_keys = [ground.key(call, self._read_reference) for call in reference]
        pairs = align(target_keys, reference_keys)
        if ground is not _GROUNDS[0] and len(target) != len(reference):
            pairs = self._slide(target, reference, target_keys, reference_keys, pairs)
        return [(target[i], reference[j]) for i, j in pairs]

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
            return numbers_likeness(
                self._read_target(target[i].name), self._read_reference(reference[j].name)
            )

        forth = dict(pairs)
        _slide_gaps(forth, target_keys, like)
        back = {j: i for i, j in forth.items()}
        _slide_gaps(back, reference_keys, lambda j, i: like(i, j))
        return sorted((i, j) for j, i in back.items())

    def _confidence(self, ground: _Ground, target: Call, reference: Call) -> float:
        if not ground.spread:
            return ground.least
        alike = likeness(self._read_target(target.name), self._read_reference(reference.name))
        return round(ground.least + ground.spread * alike, 3)


def _slide_gaps(
    partners: dict[int, int], keys: Sequence[Hashable], like: Callable[[int, int], float]
) -> None:
    """For each place without a partner, find the place in its run that is better left out.

    A run is broken by a pair of another key, not by another place without a partner.
    """
    budget = _LEAST_SLIDES + _SLIDES_PER_CALL * len(keys)
    for _ in range(_SLIDE_ROUNDS):
        has_moved = False
        for hole in [place for place in range(len(keys)) if place not in partners]:
            for step in (-1, 1):
                path, seen = _best_path(hole, step, partners, keys, like)
                budget -= seen
                for empty, neighbour in itertools.pairwise(path):
                    partners[empty] = partners.pop(neighbour)
                has_moved = has_moved or len(path) > 1
                hole = path[-1]  # noqa: PLW2901
            if budget < 0:
                return
        if not has_moved:
            return


def _best_path(
    hole: int,
    step: int,
    partners: Mapping[int, int],
    keys: Sequence[Hashable],
    like: Callable[[int, int], float],
) -> tuple[list[int], int]:
    """Return the places by which a hole moves to where it leaves the most alike pairs.

    Returns:
        The places, from the hole on, and how many were looked at.
    """
    path, gain, best_gain, best_length = [hole], 0.0, 1e-9, 1
    neighbour = hole
    for seen in range(_MAX_SLIDE):
        neighbour += step
        if not 0 <= neighbour < len(keys):
            return path[:best_length], seen
        partner = partners.get(neighbour)
        if partner is None:
            continue
        if keys[neighbour] != keys[hole]:
            return path[:best_length], seen
        gain += like(path[-1], partner) - like(neighbour, partner)
        path.append(neighbour)
        if gain > best_gain:
            best_gain, best_length = gain, len(path)
    return path[:best_length], _MAX_SLIDE


def _gaps(
    target: Sequence[Call], reference: Sequence[Call], anchors: Sequence[IndexPair]
) -> list[tuple[list[Call], list[Call]]]:
    """Group the calls of both sides by the anchors between which they stand."""
    in_target: defaultdict[int, list[Call]] = defaultdict(list)
    in_reference: defaultdict[int, list[Call]] = defaultdict(list)
    target_anchors = [place for place, _ in anchors]
    reference_anchors = [place for _, place in anchors]
    for call in target:
        in_target[bisect_left(target_anchors, call.place)].append(call)
    for call in reference:
        in_reference[bisect_left(reference_anchors, call.place)].append(call)
    return [(calls, in_reference[gap]) for gap, calls in in_target.items() if in_reference.get(gap)]


def _split(
    target: list[Call], reference: list[Call], pairs: list[tuple[Call, Call]]
) -> list[tuple[list[Call], list[Call]]]:
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
