# SPDX-License-Identifier: Apache-2.0
"""Match the communication calls of different ranks, and order faults by these matches.

The n-th call of one function in one group, on each of its members, is one *match*; so is the
n-th message from one rank to another. Along matches a fault spreads from rank to rank:
`earliest_faults` keeps those that no other fault can explain.

Everything here is pure: calls go in, names come out.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msprobe.collectives.calls import CommunicationCall, Endpoint, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatch:
    """Calls of several ranks that are one communication.

    Attributes:
        calls: by rank, then position.
        layer: matches of a lower layer come first; calls of one rank lie in ascending layers.
    """

    calls: tuple[CommunicationCall, ...]
    layer: int


class Fault(NamedTuple):
    """A record that no fault of another rank or earlier record explains."""

    layer: int
    rank: int
    position: int
    name: str


def connect(calls_by_rank: Mapping[int, Sequence[CommunicationCall]]) -> list[CollectiveMatch]:
    """Return all matches, earliest first. A call with unknown partners is in no match.

    Takes time and memory in proportion to the number of calls and members.
    """
    calls = [call for rank in sorted(calls_by_rank) for call in calls_by_rank[rank]]
    everyone = frozenset(calls_by_rank)
    groups = _Union(len(calls))
    occurrences: dict[Hashable, int] = defaultdict(int)
    first_of: dict[Hashable, int] = {}
    for number, call in enumerate(calls):
        for end in call.endpoints:
            key = _key(call, end, everyone)
            if key is None:
                continue
            here = (call.rank, end.part if end.is_message else None, key)
            match = (key, occurrences[here])
            occurrences[here] += 1
            groups.join(number, first_of.setdefault(match, number))
    return _layered(calls, groups)


def earliest_faults(
    matches: Sequence[CollectiveMatch],
    faulty: Mapping[int, Mapping[str, int]],
    faulty_inputs: Mapping[int, Collection[str]] | None = None,
) -> list[Fault]:
    """Return the faults with which it begins, the earliest layer first.

    On each rank only the first faulty record can be a beginning. It is none if it is, or follows, a
    communication that brought it values from a rank where a fault had been sent on.

    Args:
        matches: the result of `connect`.
        faulty: per rank, the faulty records with their places in the order of execution.
        faulty_inputs: per rank, those communications among them whose inputs are faulty already:
            they hand a fault on even if nothing before them is known to be faulty.

    Returns:
        At most one a rank. A layer is that of the last match up to the record, 0 before any.
    """
    first = {
        rank: min((position, name) for name, position in names.items())
        for rank, names in faulty.items()
        if names
    }
    inputs = faulty_inputs or {}
    reached: dict[int, int] = {}  # rank → position where another rank's fault came in
    layers = dict.fromkeys(first, 0)
    for match in matches:
        senders = [
            call
            for call in match.calls
            if call.sends
            and call.name in faulty.get(call.rank, ())
            and (
                # A pure sender receives nothing: only its own rank's faults matter.
                not call.receives
                or call.name in inputs.get(call.rank, ())
                or first[call.rank][0] < call.position
                or reached.get(call.rank, call.position) < call.position
            )
        ]
        for call in match.calls:
            if call.rank in first and call.position <= first[call.rank][0]:
                layers[call.rank] = match.layer
            if call.receives and any(sender.rank != call.rank for sender in senders):
                reached.setdefault(call.rank, call.position)
    return sorted(
        Fault(layers[rank], rank, position, name)
        for rank, (position, name) in first.items()
        if position < reached.get(rank, position + 1)
    )


def _key(call: CommunicationCall, end: Endpoint, everyone: frozenset[int]) -> Hashable:
    if end.is_message:
        (peer,) = end.ranks or (None,)
        ends = (call.rank, peer) if end.part is Part.SEND else (peer, call.rank)
        return ("message", ends, end.channel)
    return ("collective", end.ranks or everyone, end.channel)


class _Union:
    """Numbers that are joined into groups (union-find with path halving)."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, number: int) -> int:
        parent = self._parent
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    def join(self, one: int, other: int) -> None:
        one, other = sorted((self.root(one), self.root(other)))
        self._parent[other] = one


def _layered(calls: Sequence[CommunicationCall], groups: _Union) -> list[CollectiveMatch]:
    """Return the groups as matches, sorted so that each rank's calls keep their order."""
    members: dict[int, list[CommunicationCall]] = defaultdict(list)
    next_groups: dict[int, list[int]] = defaultdict(list)
    waiting: dict[int, int] = defaultdict(int)
    previous: dict[int, int] = {}
    for number, call in enumerate(calls):
        group = groups.root(number)
        members[group].append(call)
        before = previous.get(call.rank)
        if before is not None and before != group:
            next_groups[before].append(group)
            waiting[group] += 1
        previous[call.rank] = group
    # Ranks whose dumps lack calls may wait for each other in a circle: the one that comes first in
    # its rank then goes first.
    place = {group: min(call.position for call in found) for group, found in members.items()}
    ready = [(place[group], group) for group in members if not waiting[group]]
    stuck = [(place[group], group) for group in members if waiting[group]]
    heapq.heapify(ready)
    heapq.heapify(stuck)
    layer = dict.fromkeys(members, 1)
    done: dict[int, None] = {}
    while ready or stuck:
        _, group = heapq.heappop(ready or stuck)
        if group in done:
            continue
        done[group] = None
        for following in next_groups[group]:
            waiting[following] -= 1
            if following not in done:
                layer[following] = max(layer[following], layer[group] + 1)
                if not waiting[following]:
                    heapq.heappush(ready, (place[following], following))
    order = {group: number for number, group in enumerate(done)}
    return [
        CollectiveMatch(calls=tuple(members[group]), layer=layer[group])
        for group in sorted(done, key=lambda group: (layer[group], order[group]))
    ]
