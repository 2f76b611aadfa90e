# SPDX-License-Identifier: Apache-2.0
"""`MemorySource`: graphs by the piece, as a page asks for them when it cannot hold all at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NamedTuple

from msprobe.graph.model import Edge, Roll, Severity
from msprobe.graph.one_page import comparison_sections
from msprobe.graph.page_json import (
    PlainTexts,
    detail_json,
    edge_columns,
    graph_json,
    node_columns,
    overview,
    roll_json,
)
from msprobe.graph.sources import GraphSet

MOST_FOUND: Final = 1000


class Condition(NamedTuple):
    """A condition on nodes, as ``norm > 1e4``.

    Attributes:
        field: name of a column, or ``status`` and ``error``, which either half may meet.
        operator: ``:`` (contains, for texts), ``=``, ``<``, ``>``, ``<=`` or ``>=``.
        value: what it is compared with.
    """

    field: str
    operator: str
    value: str | float


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": eq,
    "<": lt,
    ">": gt,
    "<=": le,
    ">=": ge,
}
# Of these columns there is one for each half.
_HALVED: Final = ("status", "error", "origin", "severity")
_SEARCHED: Final = ("name", "path", "label", "class", "source", "dtype")


class MemorySource:
    """Graphs in memory; a `GraphSource` of the page's server. Answers are ready for JSON."""

    def __init__(self, graphs: GraphSet) -> None:
        self._graphs = graphs
        self._sides = graphs.graphs
        self._edges: dict[int, dict[int, list[int]]] = {}
        self._columns: dict[int, dict[str, list[Any]]] = {}

    @cached_property
    def _overview(self) -> dict[str, Any]:
        found = overview(self._graphs)
        heads = []
        for number, side in enumerate(self._sides):
            head = graph_json(side, PlainTexts(), parts=())
            heads.append({**head, "root": self._nodes(number, [0])})
        return {**found, "graphs": heads}

    def overview(self) -> dict[str, Any]:
        """Return what a page shows first, with the root of each graph."""
        return self._overview

    @cached_property
    def _comparison(self) -> dict[str, Any] | None:
        return comparison_sections(self._graphs)

    def comparison(self) -> dict[str, Any] | None:
        """Return the sections of the page of the comparison; None without one."""
        return self._comparison

    def children(self, graph: int, node: int) -> dict[str, Any]:
        """Return the nodes directly inside a node, and the edges and rolled layers among them."""
        side = self._sides[graph]
        ids = list(side.graph.children(node))
        rolls: Iterable[Roll] = (roll for roll in side.graph.rolls if roll.parent == node)
        return {
            "ids": ids,
            "nodes": self._nodes(graph, ids),
            "edges": edge_columns(side.graph, self._edges_in(graph).get(node, ()), PlainTexts()),
            "rolls": [roll_json(side, roll) for roll in rolls],
        }

    def path_to(self, graph: int, node: int) -> list[int]:
        """Return the boxes around a node, the root first."""
        return self._sides[graph].graph.ancestors(node)[::-1]

    def detail(self, graph: int, node: int) -> dict[str, Any]:
        """Return the values and the call stack of a node."""
        return detail_json(self._sides[graph], node)

    def find(
        self,
        graph: int,
        text: str,
        conditions: Sequence[tuple[str, str, str | float]],
        limit: int = MOST_FOUND,
    ) -> dict[str, Any]:
        """Return the nodes whose name or class holds a text and that meet all conditions."""
        columns = self._all_columns(graph)
        words, asked = text.lower().split(), [Condition(*each) for each in conditions]
        searched = [columns[name] for name in _SEARCHED if name in columns]
        found = [
            node
            for node in range(1, len(self._sides[graph].graph.nodes))
            if all(any(word in column[node].lower() for column in searched) for word in words)
            and all(_meets(columns, node, condition) for condition in asked)
        ]
        return {"ids": found[:limit], "total": len(found)}

    def upstream(self, graph: int, node: int, limit: int = MOST_FOUND) -> list[int]:
        """Return the nodes that a node's values come from, the nearest first."""
        built = self._sides[graph].graph
        makers: defaultdict[int, list[Edge]] = defaultdict(list)
        for edge in built.edges:
            makers[edge.target].append(edge)
        inside = range(node, node + built.nodes[node].size)
        found: dict[int, None] = {}
        waiting = [*inside]
        while waiting and len(found) < limit:
            following = []
            for user in waiting:
                for edge in makers.get(user, ()):
                    if edge.source not in found and edge.source not in inside:
                        found[edge.source] = None
                        following.append(edge.source)
            waiting = following
        return [*found][:limit]

    def _nodes(self, graph: int, ids: Sequence[int]) -> dict[str, list[Any]]:
        return node_columns(self._sides[graph], ids, PlainTexts())

    def _edges_in(self, graph: int) -> dict[int, list[int]]:
        """Return the places of the edges by the box that they are drawn in."""
        if graph not in self._edges:
            built = self._sides[graph].graph
            found: defaultdict[int, list[int]] = defaultdict(list)
            for place, edge in enumerate(built.edges):
                found[built.common_box((edge.source, edge.target))].append(place)
            self._edges[graph] = found
        return self._edges[graph]

    def _all_columns(self, graph: int) -> dict[str, list[Any]]:
        if graph not in self._columns:
            count = len(self._sides[graph].graph.nodes)
            columns = self._nodes(graph, range(count))
            self._columns[graph] = {
                name: column * count if len(column) == 1 else column
                for name, column in columns.items()
            }
        return self._columns[graph]


def _meets(columns: dict[str, list[Any]], node: int, condition: Condition) -> bool:
    if condition.field == "dir":
        return bool(columns[str(condition.value)][node])
    if (condition.field, condition.value) == ("status", "error"):
        condition = Condition("severity", ">=", float(Severity.INHERITED))
    fields = ("status", "origin") if condition.field == "status" else (condition.field,)
    names = [*fields, *(f"{field}_backward" for field in fields if field in _HALVED)]
    return any(
        _is_so(columns[name][node], condition.operator, condition.value)
        for name in names
        if name in columns
    )


def _is_so(found: Any, operator: str, value: str | float) -> bool:
    if isinstance(found, str):
        wanted = str(value).lower()
        return wanted in found.lower() if operator == ":" else found.lower() == wanted
    if found is None:
        return False
    try:
        return _COMPARE["=" if operator == ":" else operator](found, float(value))
    except ValueError:
        return False
