# SPDX-License-Identifier: Apache-2.0
"""`PieceSource`: graphs by the piece, as a page asks for them when it cannot hold all at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.graph.model import Severity
from msprobe.graph.one_page import comparison_sections
from msprobe.graph.page_json import (
    Texts,
    detail_json,
    edge_columns,
    graph_json,
    node_columns,
    overview,
    roll_json,
)
from msprobe.graph.searching import NodeSearch
from msprobe.graph.sources import GraphSet, GraphSide
from msprobe.graph.tables import Table
from msprobe.graph.text_block import TextBlock

MOST_FOUND: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTables:
    """One graph by column.

    Attributes:
        head: facts about the graph as a whole, as a page has them.
        nodes: its nodes, by number.
        edges: its edges, by the innermost box that holds both ends.
        rolls: its repeated layers.
    """

    head: Mapping[str, Any]
    nodes: Table
    edges: Table
    rolls: Sequence[Mapping[str, Any]]


def tables_of(graphs: GraphSet) -> list[GraphTables]:
    """Return all graphs by column; they share their texts."""
    texts = Texts()
    columns = [_columns(side, texts) for side in graphs.graphs]
    block = TextBlock.of(texts.listed())
    return [
        GraphTables(
            head=graph_json(side, Texts(), parts=()),
            nodes=Table.of(nodes, len(side.graph.nodes), block),
            edges=Table.of(edges, len(side.graph.edges), block),
            rolls=[roll_json(side, roll) for roll in side.graph.rolls],
        )
        for side, (nodes, edges) in zip(graphs.graphs, columns, strict=True)
    ]


def _columns(side: GraphSide, texts: Texts) -> tuple[dict[str, Any], dict[str, Any]]:
    graph = side.graph
    boxes = [graph.common_box((edge.source, edge.target)) for edge in graph.edges]
    places = sorted(range(len(boxes)), key=boxes.__getitem__)
    nodes = node_columns(side, range(len(graph.nodes)), texts)
    return nodes, edge_columns(graph, places, texts)


class PieceSource:
    """Graphs by column; a `GraphSource` of the page's server. Answers are ready for JSON."""

    def __init__(
        self,
        found: Mapping[str, Any],
        tables: Sequence[GraphTables],
        detail: Callable[[int, int], Mapping[str, Any]],
        comparison: Mapping[str, Any] | None = None,
    ) -> None:
        """Hand graphs out.

        Args:
            found: the overview; see `page_json.overview`.
            tables: the graphs.
            detail: returns the values and the call stack of a node of a graph.
            comparison: the sections of the page of the comparison.
        """
        self._found, self._graphs, self.detail = found, tables, detail
        self._sections = comparison
        self._pieces = [_Pieces(each) for each in tables]

    def overview(self) -> dict[str, Any]:
        """Return what a page shows first, with the root of each graph."""
        heads = [
            {**each.head, "root": each.nodes.rows([0]), "findings": pieces.findings()}
            for each, pieces in zip(self._graphs, self._pieces, strict=True)
        ]
        return {**self._found, "graphs": heads}

    def comparison(self) -> Mapping[str, Any] | None:
        """Return the sections of the page of the comparison; None without one."""
        return self._sections

    def children(self, graph: int, node: int) -> dict[str, Any]:
        """Return the nodes directly inside a node, and the edges and rolled layers among them."""
        return self._pieces[graph].children(node)

    def path_to(self, graph: int, node: int) -> list[int]:
        """Return the boxes around a node, the root first."""
        return self._pieces[graph].path_to(node)

    def find(
        self,
        graph: int,
        text: str,
        conditions: Sequence[tuple[str, str, str | float]],
        limit: int = MOST_FOUND,
    ) -> dict[str, Any]:
        """Return the nodes that fit, in order, the first of them with their columns."""
        return self._pieces[graph].find(text, conditions, limit)

    def upstream(self, graph: int, node: int, limit: int = MOST_FOUND) -> list[int]:
        """Return the nodes that a node's values come from, the nearest first."""
        return self._pieces[graph].upstream(node, limit)

    def prepare(self) -> None:
        """Read what searches need, so that the first one does not have to wait."""
        for pieces in self._pieces:
            pieces.find("a", (), 1)


class _Pieces:
    """One graph by the piece."""

    def __init__(self, tables: GraphTables) -> None:
        self._tables = tables
        self._nodes, self._edges = tables.nodes, tables.edges
        self._search = NodeSearch(tables.nodes)

    @cached_property
    def _sizes(self) -> NDArray[Any]:
        return self._nodes.full("size")

    @cached_property
    def _boxes(self) -> NDArray[Any]:
        return self._edges.full("lca") if self._edges.count else np.array([], np.int64)

    @cached_property
    def _by_user(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Users and makers of values, by user."""
        users, makers = self._edges.full("to"), self._edges.full("from")
        order = np.argsort(users, kind="stable")
        return users[order], makers[order]

    @cached_property
    def _rolls(self) -> Mapping[int, list[Mapping[str, Any]]]:
        found: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
        for roll in self._tables.rolls:
            found[roll["parent"]].append(roll)
        return found

    def _size(self, node: int) -> int:
        if not 0 <= node < self._nodes.count:
            raise IndexError(node)
        return int(self._sizes[node])

    def children(self, node: int) -> dict[str, Any]:
        sizes, ids, end = self._sizes, [], node + self._size(node)
        child = node + 1
        while child < end:
            ids.append(child)
            child += max(int(sizes[child]), 1)
        first, last = (bisect_left(self._boxes, node + more) for more in (0, 1))
        return {
            "ids": ids,
            "nodes": self._nodes.rows(ids),
            "edges": self._edges.rows(slice(first, last)) if last > first else {},
            "rolls": self._rolls.get(node, []),
        }

    def path_to(self, node: int) -> list[int]:
        parents, found = self._nodes.full("parent"), []
        self._size(node)
        while (above := int(parents[node])) >= 0:
            if above >= node:
                raise ValueError(f"node {node} is inside node {above}")
            found.append(above)
            node = above
        return found[::-1]

    def find(
        self, text: str, conditions: Sequence[tuple[str, str, str | float]], limit: int
    ) -> dict[str, Any]:
        found = self._search.find(text, conditions)
        first = found[:limit]
        return {"ids": first, "total": len(found), "nodes": self._nodes.rows(first)}

    def findings(self) -> dict[str, Any]:
        """Return where differences begin, or NaN and Inf where nothing is compared."""
        if "severity" in self._nodes:
            return self.find("", [("severity", ">=", Severity.ONE_SIDED)], MOST_FOUND)
        return self.find("", [("overflow", ":", "high,critical"), ("size", "=", 1)], MOST_FOUND)

    def upstream(self, node: int, limit: int) -> list[int]:
        inside = range(node, node + self._size(node))
        if not self._edges.count:
            return []
        users, makers = self._by_user
        found: dict[int, None] = {}
        waiting = [(inside.start, inside.stop)]
        while waiting and len(found) < limit:
            following = []
            for begin, end in waiting:
                first, last = bisect_left(users, begin), bisect_left(users, end)
                for source in makers[first:last].tolist():
                    if source not in found and source not in inside:
                        found[source] = None
                        following.append((source, source + 1))
            waiting = following
        return [*found][:limit]


def source_of(graphs: GraphSet) -> PieceSource:
    """Return graphs in memory by the piece."""
    sides = graphs.graphs
    return PieceSource(
        overview(graphs),
        tables_of(graphs),
        lambda graph, node: detail_json(sides[graph], sides[graph].graph.nodes[node]),
        comparison_sections(graphs),
    )
