# SPDX-License-Identifier: Apache-2.0
"""Write graphs as ``.vis.db``: the file of mindstudio-probe's graphs, which its plugin opens."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from msprobe.compare.model import Origin, Row, Status
from msprobe.dump.records import Statistic
from msprobe.dump.values import PartPath, Role, Value
from msprobe.errors import ReportWriteError
from msprobe.files import report_file
from msprobe.graph.comparing import HalfResult
from msprobe.graph.model import ROOT_NAME, Graph, HalfKind, Node, NodeKind, Severity
from msprobe.graph.sources import REFERENCE, TARGET, GraphPlace, GraphSet, GraphSide
from msprobe.graph.vis_schema import FEWEST_NODES, INDEXES, PRECISION, TABLES, VIEW
from msprobe.json_text import strict

FORMAT: Final = "1"
SOURCES: Final = {TARGET: "NPU", REFERENCE: "Bench"}
_MODULE: Final = "0"
_ValueKey = tuple[str, PartPath]  # record, and place in it

_TYPES: Final = {NodeKind.API: "1", NodeKind.COLLECTION: "9"}
_TASKS: Final = {"statistics": "summary", "tensor": "all", "md5": "md5", "structure": "structure"}
_BACKWARD: Final = (HalfKind.BACKWARD, HalfKind.PARAMETERS_GRAD)
_COLORS: Final[dict[str, dict[str, Any]]] = {
    "#FFFCF3": {"value": [0, 0.3], "description": "equal, or within tolerance"},
    "#FFDC7F": {"value": [0.3, 0.6], "description": "differs because its inputs do"},
    "#FF704D": {"value": [0.6, 1], "description": "the difference begins or grows here"},
    "#C7C7C7": {"value": [], "description": "only on one side"},
}
_LEVELS: Final = ("pass", "warning", "error", "unmatched node")
_TIPS: Final = {
    "Max diff": "difference of the largest values",
    "Min diff": "difference of the smallest values",
    "Mean diff": "difference of the means",
    "L2norm diff": "difference of the norms",
    "Cosine": "cosine of the angle between the two tensors",
    "MaxAbsErr": "largest difference of two elements",
    "MaxRelativeErr": "largest difference relative to the reference",
    "One Thousandth Err Ratio": "share of elements with a relative error below 0.001",
    "Five Thousandths Err Ratio": "share of elements with a relative error below 0.005",
    "md5": "whether the checksums agree",
}


def vis_name(graphs: GraphSet) -> str:
    """Return the usual name of a file: ``compare_20260131120000.vis.db``."""
    kind = "compare" if graphs.reference else "build"
    return f"{kind}_{datetime.now():%Y%m%d%H%M%S}.vis.db"


def write_vis_db(
    path: Path, graphs: GraphSet, *, overflow: bool = False, pieces_from: int = FEWEST_NODES
) -> Path:
    """Write graphs into one file; return it.

    Args:
        path: the file; it appears when it is complete.
        graphs: all graphs.
        overflow: whether calls were graded by what they do with NaN and Inf.
        pieces_from: number of nodes from which on a page can be opened by the piece.

    Raises:
        ReportWriteError: the file cannot be written.
    """
    with report_file(path) as temporary:
        try:
            connection = sqlite3.connect(temporary)
            try:
                _write(connection, graphs, overflow=overflow, pieces_from=pieces_from)
            finally:
                connection.close()
        except sqlite3.Error as exc:
            raise ReportWriteError(path, f"cannot be written: {exc}") from exc
    return path


def _write(
    connection: sqlite3.Connection, graphs: GraphSet, *, overflow: bool, pieces_from: int
) -> None:
    # The file gets its name when it is complete: nothing has to survive a crash before.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(TABLES)
    writer = _Writer(connection)
    ranks = _rank_numbers(graphs.places)
    links = _partners(graphs, ranks)
    numbers: list[Mapping[str, int]] = []
    for place, rank in zip(graphs.places, ranks.values(), strict=True):
        numbers += writer.add_place(place, rank, links.get((place.step, rank), {}))
    if sum(len(side.graph.nodes) for side in graphs.graphs) >= pieces_from:
        from msprobe.graph.stored import write_pieces  # only large files need NumPy

        write_pieces(connection, graphs, numbers)
    writer.finish()
    writer.add_config(graphs, sorted(set(ranks.values())), overflow=overflow)
    connection.executescript(INDEXES + VIEW)
    connection.commit()


def _rank_numbers(places: Sequence[GraphPlace]) -> dict[tuple[int, int | str], int]:
    """Return step and rank → a number for it; ranks without one get the next that is free."""
    names = list(dict.fromkeys(place.rank for place in places))
    free = iter(set(range(len(names))) - {name for name in names if isinstance(name, int)})
    numbers = {name: name if isinstance(name, int) else next(free) for name in names}
    return {(place.step, place.rank): numbers[place.rank] for place in places}


def _partners(
    graphs: GraphSet, ranks: Mapping[tuple[int, int | str], int]
) -> dict[tuple[int, int], dict[int, dict[str, Any]]]:
    """Return step and rank → node → what it communicates with."""
    names = {
        (place.step, place.rank): [node.name for node in place.target.graph.nodes]
        for place in graphs.places
    }
    found: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
    for link in graphs.links:
        for rank, node in link.members:
            others = {
                str(ranks[link.step, other]): [None, names[link.step, other][partner]]
                for other, partner in link.members
                if other != rank
            }
            kind = "send_receive" if link.kind == "collective" else "send"
            found.setdefault((link.step, ranks[link.step, rank]), {})[node] = {
                "communications_type": kind,
                "nodes_info": others,
            }
    return found


class _Writer:
    """Fills the tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._texts: dict[str, int] = {}
        self._stacks: dict[str, int] = {}
        self._sides = 0
        self._records = 0
        self._values = 0
        self._text("")

    def add_place(
        self, place: GraphPlace, rank: int, links: Mapping[int, dict[str, Any]]
    ) -> list[Mapping[str, int]]:
        """Write one rank of one step, one side or both; return the numbers of their records."""
        ids: dict[str, dict[str, int]] = {}
        for side in place.sides:
            ids[side.side] = self._number_records(side)
        values: dict[_ValueKey, int] = {}  # value of the reference → its number
        for side in reversed(place.sides):  # the reference first: the target's values point at it
            self._add_side(side, rank, ids, links if side.side == TARGET else {}, values)
        return [*ids.values()]

    def _number_records(self, side: GraphSide) -> dict[str, int]:
        found = {}
        for name in (name for name, _, _ in _entries(side.graph)):
            self._records += 1
            found[name] = self._records
        return found

    def _add_side(
        self,
        side: GraphSide,
        rank: int,
        ids: Mapping[str, Mapping[str, int]],
        links: Mapping[int, dict[str, Any]],
        values: dict[_ValueKey, int],
    ) -> None:
        self._sides += 1
        graph = side.graph
        source = SOURCES[side.side]
        self._connection.execute(
            "INSERT INTO side VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                *(self._sides, source, graph.step, rank, str(graph.rank)),
                f"{source}_{graph.step}_{rank}",
                *(graph.framework, graph.task, graph.level, json.dumps(graph.notes), None),
            ),
        )
        own, others = ids[side.side], ids.get(_other(side.side), {})
        parents = _Parents(graph)
        partners = {} if side.results is None else side.results.partners
        indices = _precision_indices(side, parents)
        records, rows = [], []
        for name, node, half in _entries(graph):
            result = None if side.results is None else side.results.halves.get(name)
            link = links.get(node.id) if half is HalfKind.FORWARD else None
            records.append(
                (
                    *(own[name], self._sides, _place(node, name), self._text(name)),
                    *(_TYPES.get(node.kind, _MODULE), self._text(parents.of(node, half))),
                    *(indices.get(name), side.overflow.get(name), node.micro_step),
                    *(others.get(partners.get(name, "")), self._stack(side, name)),
                    *(None if link is None else json.dumps(link), None, 0),
                    *_result_cells(result),
                    *(None, None, None),
                )
            )
            rows += self._value_rows(side, name, own[name], values)
        self._insert("record", records)
        self._insert("value", rows)

    def _value_rows(
        self, side: GraphSide, name: str, record: int, values: dict[_ValueKey, int]
    ) -> list[tuple[Any, ...]]:
        compared = {} if side.side == REFERENCE else _rows_by_value(side.rows(name) or ())
        found = []
        for value in side.values.get(name, ()):
            self._values += 1
            if side.side == REFERENCE:
                values[name, value.path] = self._values
            found.append(self._value_row(value, record, compared.get(id(value)), values))
        return found

    def _value_row(
        self, value: Value, record: int, row: Row | None, values: Mapping[_ValueKey, int]
    ) -> tuple[Any, ...]:
        partner = None
        if row is not None and row.reference is not None:
            partner = values.get((row.pair.reference or "", row.reference.path))
        is_compared = row is not None and row.reference is not None
        return (
            *(self._values, record, int(value.role is Role.OUTPUT), self._text(value.slot)),
            self._text(value.type),
            *self._tensor_cells(value),
            value.requires_grad,
            value.md5,
            value.data_name,
            None if value.is_tensor else _content(value),
            *(value.value_id, partner),
            _result_word(row) if row is not None and is_compared else None,
            self._text(row.reason) if row is not None and is_compared and row.reason else None,
            None if row is None or not is_compared else _metrics(row),
        )

    def _tensor_cells(self, value: Value) -> tuple[Any, ...]:
        if not value.is_tensor:
            return (None,) * 6
        return (
            self._text(value.raw_dtype or value.dtype),
            self._text(str([*(value.shape or ())])),
            *(_number(each) for each in (value.max, value.min, value.mean, value.norm)),
        )

    def _stack(self, side: GraphSide, name: str) -> int | None:
        frames = side.frames(name)
        if not frames:
            return None
        return self._stacks.setdefault(json.dumps([*frames]), len(self._stacks))

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            places = ",".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", rows)

    def finish(self) -> None:
        """Write the texts and stacks that all sides share."""
        self._insert("text", [(number, _whole(text)) for text, number in self._texts.items()])
        self._insert("tb_stack", [(str(number), text) for text, number in self._stacks.items()])

    def add_config(self, graphs: GraphSet, ranks: Sequence[int], *, overflow: bool) -> None:
        """Write what the file as a whole is."""
        summary = graphs.summary
        mode = graphs.places[0].target.graph.task if summary is None else summary["mode"]
        steps = sorted({place.step for place in graphs.places})
        colors = {
            color: {**band, "accuracy_level": level}
            for (color, band), level in zip(_COLORS.items(), _LEVELS, strict=True)
        }
        micro_steps = max(
            node.micro_step for place in graphs.places for node in place.target.graph.nodes
        )
        self._connection.execute(
            "INSERT INTO tb_config VALUES (?,?,?,?,?,?,?,?,?)",
            (
                *("1", "compare" if graphs.reference else "build", _TASKS.get(mode, "")),
                json.dumps(_TIPS),
                micro_steps + 1,
                int(overflow),
                json.dumps(colors),
                *(json.dumps([*ranks]), json.dumps(steps)),
            ),
        )
        about = {
            "format": FORMAT,
            "target": graphs.target,
            "reference": graphs.reference,
            "summary": None if summary is None else json.dumps(strict(_kept(summary))),
        }
        self._insert("msprobe", [*about.items()])


def _kept(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a summary that pages of graphs show."""
    return {
        "mode": summary["mode"],
        "verdict": summary["verdict"],
        "introduced": [
            {key: entry[key] for key in ("name", "step", "rank", "reason", "source")}
            for entry in summary["introduced"]
        ],
    }


def _entries(graph: Graph) -> Iterable[tuple[str, Node, HalfKind]]:
    """Yield the nodes as the file has them: one for each record, and for each box."""
    for node in graph.nodes:
        if node.halves:
            for half in node.halves:
                yield half.record, node, half.kind
        else:
            yield node.name, node, HalfKind.FORWARD


class _Parents:
    """The box around each node of the file: backward records lie in backward records."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def of(self, node: Node, half: HalfKind) -> str:
        """Return the name of the box; empty for the root."""
        if node.kind is NodeKind.ROOT:
            return ""
        own_backward = node.half(HalfKind.BACKWARD)
        if half is HalfKind.PARAMETERS_GRAD and own_backward is not None:
            return own_backward.record
        box = self._graph.nodes[node.parent]
        while half in _BACKWARD and box.kind is NodeKind.MODULE:
            backward = box.half(HalfKind.BACKWARD)
            if backward is not None:
                return backward.record
            box = self._graph.nodes[box.parent]
        return box.halves[0].record if box.halves else box.name


def _place(node: Node, name: str) -> int:
    """Return the place of a record in call order; boxes are before what is inside."""
    orders = (half.order for half in node.halves if half.record == name)
    return next(orders, -1 if node.name == ROOT_NAME else node.id)


def _other(side: str) -> str:
    return REFERENCE if side == TARGET else TARGET


def _precision_indices(side: GraphSide, parents: _Parents) -> dict[str, float | None]:
    """Return the index of each node of the file: the worst of what is inside of it."""
    if side.results is None or side.side == REFERENCE:
        return {}
    worst: dict[str, Severity] = {}
    entries = [*_entries(side.graph)]
    for name, node, half in sorted(entries, key=lambda entry: -entry[1].id):
        result = side.results.halves.get(name)
        severity = max(
            worst.get(name, Severity.NONE), Severity.NONE if result is None else result.severity
        )
        worst[name] = severity
        box = parents.of(node, half)
        worst[box] = max(worst.get(box, Severity.NONE), severity)
    return {
        name: None if name not in side.results.partners else PRECISION.get(worst[name])
        for name, _, _ in entries
    }


def _result_cells(result: HalfResult | None) -> tuple[Any, ...]:
    if result is None:
        return (None,) * 4
    return result.status, result.origin, _number(result.error), int(result.severity)


def _result_word(row: Row) -> str:
    if not row.status.is_difference:
        return "warning" if row.status is Status.UNREAD else "pass"
    return "warning" if row.origin is Origin.INHERITED else "error"


def _rows_by_value(rows: Sequence[Row]) -> dict[int, Row]:
    return {id(row.target): row for row in rows if row.target is not None}


def _metrics(row: Row) -> str | None:
    if row.metrics is None:
        return None
    metrics = row.metrics
    found = {
        "Cosine": metrics.cosine,
        "EucDist": metrics.euclidean,
        "MaxAbsErr": metrics.max_abs_err,
        "MaxRelativeErr": metrics.max_rel_err,
        "One Thousandth Err Ratio": metrics.ratio_1e3,
        "Five Thousandths Err Ratio": metrics.ratio_5e3,
    }
    return json.dumps({key: str(each) for key, each in found.items() if each is not None})


def _number(number: Statistic) -> float | int | str | None:
    """Return a number for the database, which has no NaN and no integers beyond 64 bits."""
    if isinstance(number, float) and math.isnan(number):
        return "nan"
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
        return str(number)
    return number


def _content(value: Value) -> str:
    content = value.value
    return _whole(content if isinstance(content, str) else json.dumps(strict(content)))


def _whole(text: str) -> str:
    """Return a text without half characters, which a database does not take."""
    return text.encode("utf-8", "backslashreplace").decode()
