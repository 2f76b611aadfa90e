# SPDX-License-Identifier: Apache-2.0
"""Large graphs by column in a ``.vis.db``, so that a page of them opens without reading all calls.

The columns are those that pages show, compressed; details of a node are read from the file's other
tables when they are asked for. A file in which pairs were changed by hand has none any more.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from msprobe.errors import DumpFormatError
from msprobe.graph.comparing import NodeResults
from msprobe.graph.model import Graph, Half, HalfKind, Node, NodeKind
from msprobe.graph.page_json import detail_json, overview
from msprobe.graph.source import GraphTables, PieceSource, tables_of
from msprobe.graph.sources import REFERENCE, GraphSet, GraphSide
from msprobe.graph.tables import StoredColumn, Table, unpacked
from msprobe.graph.text_block import TextBlock
from msprobe.graph.vis_graphs import half_result
from msprobe.graph.vis_reader import VisNode, guarded, node_in_file

_TABLES: Final = """
CREATE TABLE piece (graph INTEGER, part TEXT, name TEXT, kind TEXT, content BLOB,
    PRIMARY KEY (graph, part, name)) WITHOUT ROWID;
CREATE TABLE half (graph INTEGER, node INTEGER, place INTEGER, kind TEXT, record INTEGER,
    PRIMARY KEY (graph, node, place)) WITHOUT ROWID;
CREATE INDEX record_changed_by_hand ON record (modified) WHERE modified;
"""
_ALL: Final = -1
_BLOCK: Final = "text block"
_LEAST_BYTES: Final = 1 << 24


def write_pieces(
    connection: sqlite3.Connection, graphs: GraphSet, records: Sequence[Mapping[str, int]]
) -> None:
    """Add the columns to a file.

    Args:
        connection: the file.
        graphs: all graphs.
        records: for each graph, record → its number in the file.
    """
    connection.executescript(_TABLES)
    tables = tables_of(graphs)
    rows = [
        _packed(_ALL, "overview", overview(graphs)),
        (_ALL, _BLOCK, "", "utf-8", zlib.compress(tables[0].nodes.texts.content, 1)),
    ]
    for graph, each in enumerate(tables):
        counts = {"nodes": each.nodes.count, "edges": each.edges.count}
        rows += [
            _packed(graph, "head", {**each.head, "rows": counts}),
            _packed(graph, "rolls", each.rolls),
        ]
        for part, table in (("nodes", each.nodes), ("edges", each.edges)):
            rows += [(graph, part, *column) for column in table.to_store()]
    connection.executemany("INSERT INTO piece VALUES (?,?,?,?,?)", rows)
    connection.executemany(
        "INSERT INTO half VALUES (?,?,?,?,?)",
        (
            (graph, node.id, place, half.kind, records[graph][half.record])
            for graph, side in enumerate(graphs.graphs)
            for node in side.graph.nodes
            for place, half in enumerate(node.halves)
        ),
    )


def _packed(graph: int, part: str, content: Any) -> tuple[int, str, str, str, bytes]:
    # Texts may hold half characters, which only this writer of JSON takes.
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return graph, part, "", "json", zlib.compress(text.encode(), 1)


def open_pieces(path: Path) -> PieceSource | None:
    """Return the graphs of a file by the piece; None if it must be read whole.

    Raises:
        DumpFormatError: the file is damaged.
    """
    with _opened(path) as base:
        known = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'piece'").fetchone()
        if known is None or base.execute("SELECT 1 FROM record WHERE modified").fetchone():
            return None
        block = base.execute("SELECT content FROM piece WHERE part = ?", (_BLOCK,)).fetchone()
        return None if block is None else _Stored(path, base, *block).source()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(guarded(path)) as base:
            yield base
    except (sqlite3.Error, ValueError, KeyError, TypeError, IndexError, OSError) as exc:
        raise DumpFormatError(path, f"is damaged: {exc}") from exc


class _Stored:
    """The columns of a file."""

    def __init__(self, path: Path, base: sqlite3.Connection, block: bytes) -> None:
        self._path = path
        self._most = max(path.stat().st_size, _LEAST_BYTES)
        self._overview = self._json(base, _ALL, "overview", dict[str, Any])
        self._texts = TextBlock(unpacked(block, 4 * self._most))
        self._tables = [
            self._graph(base, graph)
            for (graph,) in base.execute("SELECT graph FROM piece WHERE part = 'head'").fetchall()
        ]

    def source(self) -> PieceSource:
        """Return the graphs."""
        return PieceSource(self._overview, self._tables, self._detail)

    def _json(self, base: sqlite3.Connection, graph: int, part: str, kind: Any) -> Any:
        query = "SELECT content FROM piece WHERE graph = ? AND part = ?"
        (content,) = base.execute(query, (graph, part)).fetchone()
        return msgspec.json.decode(unpacked(content, 4 * self._most), type=kind)

    def _graph(self, base: sqlite3.Connection, graph: int) -> GraphTables:
        head = self._json(base, graph, "head", dict[str, Any])
        return GraphTables(
            head=head,
            nodes=self._table(base, graph, "nodes", head),
            edges=self._table(base, graph, "edges", head),
            rolls=self._json(base, graph, "rolls", list[dict[str, Any]]),
        )

    def _table(
        self, base: sqlite3.Connection, graph: int, part: str, head: Mapping[str, Any]
    ) -> Table:
        count = head["rows"][part]
        if type(count) is not int or not 0 <= count <= self._most:
            raise ValueError(f"{count} {part}")
        query = "SELECT name, kind, content FROM piece WHERE graph = ? AND part = ?"
        columns = [StoredColumn(*row) for row in base.execute(query, (graph, part))]
        return Table.stored(count, self._texts, columns)

    def _detail(self, graph: int, node: int) -> dict[str, Any]:
        """Return the values and the call stack of a node, read from the tables of records."""
        nodes = self._tables[graph].nodes
        if not 0 <= node < nodes.count:
            raise IndexError(node)
        row = {name: cells[0] for name, cells in nodes.rows([node]).items()}
        with _opened(self._path) as base:
            found = _NodeInFile(base, self._path, self._tables[graph].head, graph, node)
            return found.detail(str(row["name"]))


class _NodeInFile:
    """Records of one node, and of its partner."""

    def __init__(
        self,
        base: sqlite3.Connection,
        path: Path,
        head: Mapping[str, Any],
        graph: int,
        node: int,
    ) -> None:
        self._base, self._path, self._node = base, path, node
        self._side = str(head["side"])
        query = (
            "SELECT h.kind, t.text, s.data_source, s.step, s.rank FROM half h "
            "JOIN record r ON r.id = h.record JOIN text t ON t.id = r.name "
            "JOIN side s ON s.id = r.side WHERE h.graph = ? AND h.node = ? ORDER BY h.place"
        )
        self._halves = base.execute(query, (graph, node)).fetchall()

    def detail(self, name: str) -> dict[str, Any]:
        """Return what a page shows of the node."""
        known: dict[str, VisNode] = {}
        results = NodeResults(matches=[], confidences=[])
        for _, record, *place in self._halves:
            known[record] = self._read(record, *place)
            partner = known[record].partner
            if partner is not None and self._side != REFERENCE:
                other = self._read(partner, "Bench", *place[1:])
                results.halves[record] = half_result(0, known[record], other)
        halves = [
            Half(HalfKind(kind), record, 0, is_recorded=True) for kind, record, *_ in self._halves
        ]
        own = Node(
            id=self._node, parent=-1, kind=NodeKind.MODULE, name=name, label="", halves=halves
        )
        side = GraphSide(
            side=self._side,
            graph=Graph(step=0, rank=0, framework="", task="", level="", nodes=[]),
            values={record: each.values for record, each in known.items()},
            stacks={record: each.frames for record, each in known.items()},
            results=results,
        )
        return detail_json(side, own)

    def _read(self, record: str, source: str, step: int, rank: int) -> VisNode:
        return node_in_file(self._base, self._path, (source, step, rank, record))
