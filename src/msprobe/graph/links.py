# SPDX-License-Identifier: Apache-2.0
"""Communications between the ranks of a step, as links between nodes of their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msprobe.collectives.calls import CommunicationCall, Part, communication_calls
from msprobe.collectives.matching import connect
from msprobe.dump.dump_steps import RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind
from msprobe.graph.model import Graph, HalfKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Nodes of several ranks that are one communication.

    Attributes:
        step: number of the step.
        kind: whether all send and receive, or some send and some receive.
        members: rank and node.
    """

    step: int
    kind: Literal["collective", "message"]
    members: tuple[tuple[RankKey, int], ...]


def find_links(step: int, ranks: Sequence[tuple[Graph, RankView]]) -> list[Link]:
    """Return the communications between the ranks of a step, the earliest first."""
    if len(ranks) < 2:
        return []
    calls: dict[int, list[CommunicationCall]] = {}
    nodes: dict[int, tuple[RankKey, Mapping[str, tuple[int, HalfKind]]]] = {}
    for place, (graph, view) in enumerate(ranks):
        rank = place if view.rank is None else view.rank
        names = {name: view.records.parsed(name) for name in view.records}
        calls[rank] = communication_calls(view.records, names, rank)
        nodes[rank] = graph.rank, graph.node_of()
    links = []
    for match in connect(calls):
        members = tuple(
            (nodes[call.rank][0], nodes[call.rank][1][call.name][0])
            for call in match.calls
            if call.kind is RecordKind.FORWARD and call.name in nodes[call.rank][1]
        )
        if len(members) > 1:
            parts = {end.part for call in match.calls for end in call.endpoints}
            kind: Literal["collective", "message"] = (
                "collective" if parts == {Part.BOTH} else "message"
            )
            links.append(Link(step=step, kind=kind, members=members))
    return links
