# SPDX-License-Identifier: Apache-2.0
"""`build_graph`: the graph of one rank in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msprobe.dump.dump_steps import RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.values import Value
from msprobe.errors import DumpFormatError
from msprobe.graph.edges import NO_FLOW, Flow, find_edges, values_by_record
from msprobe.graph.hierarchy import Calls, build_nodes
from msprobe.graph.model import Graph
from msprobe.graph.rolling import find_rolls

RecordValues = Mapping[str, Sequence[Value]]
"""The values of each record."""


def build_graph(view: RankView, values: RecordValues, *, step: int, rank: RankKey) -> Graph:
    """Return the calls of a rank as a graph.

    Args:
        view: the rank's dump of one step.
        values: the values of its records; see `read_values`.
        step: number of the step.
        rank: the rank's number, or its folder's name.

    Raises:
        DumpFormatError: the file of records is damaged.
    """
    damages = view.ignore_damaged()
    nodes, notes = build_nodes(
        Calls(
            parents=view.parents,
            records=view.records,
            parsed=view.records.parsed,
            micro_steps=view.call_tree.micro_steps,
            framework=view.head.framework,
        )
    )
    if view.incomplete_reason is not None:
        notes.append(f"records may be missing: {view.incomplete_reason}")
    graph = Graph(
        step=step,
        rank=rank,
        framework=view.head.framework,
        task=view.head.task,
        level=view.head.level,
        nodes=nodes,
        notes=[*damages, *notes],
    )
    finish_graph(graph, values, view.flow)
    return graph


def finish_graph(graph: Graph, values: RecordValues, flow: Flow = NO_FLOW) -> None:
    """Add the edges and the repeated layers to a graph that has its nodes."""
    graph.edges = find_edges(graph.nodes, values_by_record(values), flow)
    graph.rolls = find_rolls(graph)


def read_values(view: RankView) -> dict[str, list[Value]]:
    """Return the values of all records of a rank; damaged records have none.

    Raises:
        DumpFormatError: the file of records is damaged.
    """
    found: dict[str, list[Value]] = {}
    for record in view.records:
        try:
            found[record] = view.records.values_of(record)
        except DumpFormatError:
            found[record] = []
    return found
