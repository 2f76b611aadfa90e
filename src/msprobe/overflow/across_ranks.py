# SPDX-License-Identifier: Apache-2.0
"""Follow NaN and Inf from rank to rank, and order the findings of all ranks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msprobe.collectives.calls import CommunicationCall
from msprobe.collectives.matching import CollectiveMatch, connect
from msprobe.dump.dump_steps import RankKey
from msprobe.overflow.examined import Badness
from msprobe.overflow.findings import Finding, Place, Source
from msprobe.overflow.one_rank import RankExamination

# Findings of these sources may have come from another rank.
_MAY_BE_RECEIVED: Final = (Source.INPUT, Source.UNRECORDED)


def connect_ranks(ranks: Mapping[RankKey, RankExamination]) -> list[Finding]:
    """Return the findings of all ranks in order of execution, with their senders filled in.

    Ranks run side by side, so the order is that of the communications between them: what happened
    before one comes before what happened after it, on every rank that took part. Ranks that no
    communication orders are sorted by rank number.
    """
    numbered = {rank.view.rank or 0: rank for rank in ranks.values()}
    if len(numbered) < len(ranks):  # folders of processes without numbers
        found = [finding for rank in ranks.values() for finding in rank.findings]
        return sorted(found, key=lambda finding: (finding.position, str(finding.place.rank)))
    links = _Links(numbered)
    linked = [links.linked(finding, rank) for rank in ranks.values() for finding in rank.findings]
    return sorted(
        linked, key=lambda finding: (finding.layer, finding.position, str(finding.place.rank))
    )


class _Links:
    """Partners of each communication call, and the communications before each record."""

    def __init__(self, ranks: Mapping[int, RankExamination]) -> None:
        self._ranks = ranks
        matches = connect({number: rank.calls for number, rank in ranks.items()})
        self._matches: dict[tuple[int, str], CollectiveMatch] = {
            (call.rank, call.name): match for match in matches for call in match.calls
        }
        self._layers: dict[int, list[tuple[int, int]]] = {number: [] for number in ranks}
        for match in matches:
            for call in match.calls:
                self._layers[call.rank].append((call.position, match.layer))
        for places in self._layers.values():
            places.sort()

    def linked(self, finding: Finding, rank: RankExamination) -> Finding:
        """Return a finding with its layer and, where one is found, its sender."""
        number = rank.view.rank or 0
        finding = replace(finding, layer=self._layer(number, finding.position))
        if finding.source is Source.COMMUNICATION:
            return self._linked_communication(finding, number)
        if finding.source in _MAY_BE_RECEIVED:
            return self._linked_arrival(finding, rank)
        return finding

    def _layer(self, number: int, position: int) -> int:
        places = self._layers[number]
        before = bisect_right(places, (position, len(self._matches) + 1))
        return places[before - 1][1] if before else 0

    def _linked_communication(self, finding: Finding, number: int) -> Finding:
        match = self._matches.get((number, finding.place.name))
        if match is None:
            return replace(finding, detail="whom it met cannot be told from the dump")
        sender = next(self._bad_senders(match, number), None)
        if sender is not None:
            return replace(finding, source=Source.RECEIVED, sender=sender)
        absent = self._absent(match)
        if absent:
            others = ", ".join(map(str, absent))
            detail = f"rank {others} took part and is not in the dump"
        elif len(match.calls) == 1:
            detail = "no call of another rank was found that it met"
        else:
            detail = "what every rank put in is finite"
        return replace(finding, detail=detail)

    def _linked_arrival(self, finding: Finding, rank: RankExamination) -> Finding:
        """Look for an earlier call without a recorded result: `wait` came too late for it."""
        for call in reversed(rank.calls):
            if call.position >= finding.position or not call.receives:
                continue
            if rank.view.records[call.name].parts.get("output") is not None:
                continue
            match = self._matches.get((call.rank, call.name))
            sender = next(self._bad_senders(match, call.rank), None) if match else None
            if sender is not None:
                detail = f"{call.name}, whose result was not recorded, will have brought them"
                return replace(finding, source=Source.RECEIVED, sender=sender, detail=detail)
        return finding

    def _bad_senders(self, match: CollectiveMatch, number: int) -> Iterator[Place]:
        for call in match.calls:
            if call.rank != number and call.sends and self._sends_bad_values(call):
                rank = self._ranks[call.rank]
                yield Place(rank.rank, call.name)

    def _sends_bad_values(self, call: CommunicationCall) -> bool:
        examined = self._ranks[call.rank].examined.get(call.name)
        return examined is not None and examined.worst_argument > Badness.FINITE

    def _absent(self, match: CollectiveMatch) -> list[int]:
        wanted: set[int] = set()
        for call in match.calls:
            for end in call.endpoints:
                wanted |= end.ranks or frozenset()
        return sorted(wanted - set(self._ranks))
