# SPDX-License-Identifier: Apache-2.0
"""`MemorySource`: graphs by the piece, as a page asks for them when it cannot hold all at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import eq, ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msprobe.graph.model import Roll, Severity
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

if TYPE_CHECKING:
    import polars as pl

MOST_FOUND: Final = 1000
_ROW: Final = "number of the node"


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


_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
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
        self._makers: dict[int, dict[int, list[int]]] = {}
        self._edges: dict[int, dict[int, list[int]]] = {}
        self._frames: dict[int, pl.DataFrame] = {}

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
        import polars as pl

        frame = self._frame(graph)
        tests = [_is_so(frame, Condition(*each)) for each in conditions]
        for word in text.lower().split():
            columns = (pl.col(name) for name in _SEARCHED if name in frame.columns)
            tests.append(
                pl.any_horizontal(column.str.contains(word, literal=True) for column in columns)
            )
        rows = frame.with_row_index(_ROW).filter(pl.all_horizontal(pl.col(_ROW) > 0, *tests))
        found = rows[_ROW].to_list()
        return {"ids": found[:limit], "total": len(found)}

    def upstream(self, graph: int, node: int, limit: int = MOST_FOUND) -> list[int]:
        """Return the nodes that a node's values come from, the nearest first."""
        built = self._sides[graph].graph
        makers = self._makers_of(graph)
        inside = range(node, node + built.nodes[node].size)
        found: dict[int, None] = {}
        waiting = [*inside]
        while waiting and len(found) < limit:
            following = []
            for user in waiting:
                for source in makers.get(user, ()):
                    if source not in found and source not in inside:
                        found[source] = None
                        following.append(source)
            waiting = following
        return [*found][:limit]

    def prepare(self) -> None:
        """Index all graphs for searches, so that the first one does not have to wait."""
        for graph in range(len(self._sides)):
            self._edges_in(graph)
            self._makers_of(graph)
            self._frame(graph)

    def _makers_of(self, graph: int) -> dict[int, list[int]]:
        """Return node → the nodes that made what it used."""
        if graph not in self._makers:
            found: defaultdict[int, list[int]] = defaultdict(list)
            for edge in self._sides[graph].graph.edges:
                found[edge.target].append(edge.source)
            self._makers[graph] = found
        return self._makers[graph]

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

    def _frame(self, graph: int) -> pl.DataFrame:
        """Return all nodes with what is searched in them; texts in small letters."""
        if graph not in self._frames:
            import polars as pl

            count = len(self._sides[graph].graph.nodes)
            columns = self._nodes(graph, range(count))
            found = {
                name: _series(column * count if len(column) == 1 else column)
                for name, column in columns.items()
            }
            self._frames[graph] = pl.DataFrame(found)
        return self._frames[graph]


def _series(column: list[Any]) -> pl.Series:
    """Return texts in small letters, or numbers; those that JSON cannot hold are words there."""
    import polars as pl

    if any(type(entry) in (int, float) for entry in column):
        numbers = [None if entry is None else float(entry) for entry in column]
        return pl.Series(numbers, dtype=pl.Float64)
    return pl.Series(column, dtype=pl.String).str.to_lowercase()


def _is_so(frame: pl.DataFrame, condition: Condition) -> pl.Expr:
    """Return whether nodes meet a condition; none does if there is no such column."""
    import polars as pl

    if condition.field == "dir":
        name = str(condition.value)
        return pl.col(name) != "" if name in ("forward", "backward") else pl.lit(value=False)
    if (condition.field, condition.value) == ("status", "error"):
        condition = Condition("severity", ">=", float(Severity.INHERITED))
    fields = ("status", "origin") if condition.field == "status" else (condition.field,)
    names = [*fields, *(f"{field}_backward" for field in fields if field in _HALVED)]
    tests = [
        _compared(frame, name, condition.operator, condition.value)
        for name in names
        if name in frame.columns
    ]
    return pl.any_horizontal(pl.lit(value=False), *tests)


def _compared(frame: pl.DataFrame, name: str, operator: str, value: str | float) -> pl.Expr:
    import polars as pl

    column, wanted = pl.col(name), str(value).lower()
    if frame.schema[name] == pl.String:
        return column.str.contains(wanted, literal=True) if operator == ":" else column == wanted
    try:
        number = float(value)
    except ValueError:
        return pl.lit(value=False)
    if math.isnan(number):
        return column.is_nan()
    test: pl.Expr = _COMPARE["=" if operator == ":" else operator](column.fill_nan(None), number)
    return test
