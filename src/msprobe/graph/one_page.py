# SPDX-License-Identifier: Apache-2.0
"""Graphs on the page of their comparison: which node each operation of the page is at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msprobe.compare.result import CompareResult
from msprobe.graph.page_json import MOST_NODES, whole
from msprobe.graph.sources import REFERENCE, GraphSet, compared_graphs

NODES: Final = "graph_nodes"
"""Section with the node of each operation of the page: its number, -1 for none; its side."""


def comparison_sections(graphs: GraphSet) -> dict[str, Any] | None:
    """Return the sections of the page of the comparison; None where there was none."""
    if graphs.result is None:
        return None
    sections = graphs.result.page_sections()
    return {**sections, NODES: operation_nodes(graphs, sections)}


def graphs_for_page(result: CompareResult, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with the graphs of a comparison; none where they are too large.

    Args:
        result: the comparison.
        sections: what the page of the comparison shows.
    """
    from msprobe.report.graph_page import graph_sections

    records = sum(
        len(side.view.records)
        for each in result.comparisons
        for side in (each.target, each.reference)
    )
    has_rows = all(each.table is None for each in result.comparisons)
    if not has_rows or records > MOST_NODES:
        return {}
    graphs = compared_graphs(result)
    return {**graph_sections(whole(graphs)), NODES: operation_nodes(graphs, sections)}


def operation_nodes(graphs: GraphSet, sections: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the node of each operation of a page, and its side: 0 target, 1 reference."""
    places: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    for place in graphs.places:
        held = places.setdefault((place.step, str(place.rank)), {})
        for side in place.sides:
            number = int(side.side == REFERENCE)
            for node in side.graph.nodes:
                for half in node.halves:
                    held.setdefault(half.record, (node.id, number))
    texts, table = sections["texts"], sections["operations"]
    count = sections["shown"]["operations"]

    def column(name: str) -> list[Any]:
        cells: list[Any] = table[name]
        return cells * count if len(cells) == 1 else cells

    found = (
        [
            places.get((step, texts[rank]), {}).get(texts[name], (-1, 0))
            for step, rank, name in zip(
                column("step"), column("rank"), column("operation"), strict=True
            )
        ]
        if count
        else []
    )
    return {"node": [node for node, _ in found], "side": [side for _, side in found]}
