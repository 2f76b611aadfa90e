# SPDX-License-Identifier: Apache-2.0
"""Graphs as JSON for pages: tables by column, each text once.

Its readers are the views of the page; both sides change together. Numbers are rounded to seven
digits, as many as tell float32 numbers apart on a screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from msprobe.compare.model import Row, Status
from msprobe.dump.records import Statistic
from msprobe.dump.stack_frames import user_line
from msprobe.dump.values import Role, Value
from msprobe.graph.comparing import HalfResult, Tally, statistic_error
from msprobe.graph.model import TIMES, Graph, HalfKind, Node, NodeFlag, Roll
from msprobe.graph.sources import REFERENCE, GraphPlace, GraphSet, GraphSide
from msprobe.json_text import strict
from msprobe.overflow.severity import Severity as OverflowLevel

VERSION: Final = 1
MOST_NODES: Final = 20_000
"""Nodes of all graphs together that a page holds at once."""
MOST_DETAILS: Final = 3_000
"""Nodes of all graphs together with whose values a page is still small enough."""

PARTS: Final = ("nodes", "edges", "rolls", "details")
"""The parts of a graph that grow with it."""

TEXTS: Final = frozenset(
    (
        *("name", "label", "class", "path", "source", "forward", "backward", "dtype", "device"),
        *("status", "status_backward", "origin", "origin_backward"),
        *("from_slot", "to_slot", "shape"),
    )
)
"""Columns that hold places of texts."""
STATISTICS: Final = ("max", "min", "mean", "norm")
NUMBERS: Final = frozenset(
    (
        *("norm", "grad_norm", "error", "error_backward", "confidence"),
        *(f"error_{name}{ending}" for name in STATISTICS for ending in ("", "_backward")),
    )
)
"""Columns of numbers that may be missing, NaN or infinite."""

_DIGITS: Final = 7
_OVERFLOW: Final = {
    OverflowLevel.MEDIUM: 1,
    OverflowLevel.HIGH: 2,
    OverflowLevel.CRITICAL: 3,
}
_MOST_LAYERS: Final = 200


class Texts:
    """All texts of a page, each once; columns hold their places."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {"": 0}

    def place(self, text: str | None) -> int:
        """Return the place of a text; 0 for none."""
        return self._places.setdefault(text or "", len(self._places))

    def listed(self) -> list[str]:
        """Return the texts by place."""
        return [*self._places]


def whole(graphs: GraphSet) -> dict[str, Any]:
    """Return everything that a page of graphs shows, ready for JSON."""
    texts = Texts()
    count = sum(len(side.graph.nodes) for side in graphs.graphs)
    found = overview(graphs)
    parts = PARTS if count <= MOST_DETAILS else PARTS[:-1]
    found["graphs"] = [graph_json(side, texts, parts=parts) for side in graphs.graphs]
    found["texts"] = texts.listed()
    return found


def overview(graphs: GraphSet) -> dict[str, Any]:
    """Return what a page shows first: the answer, steps and ranks, layers, communication."""
    summary = graphs.summary
    title = graphs.target if summary is None else f"{graphs.target} against {graphs.reference}"
    task = graphs.places[0].target.graph.task
    return {
        "version": VERSION,
        "title": title,
        "target": graphs.target,
        "reference": graphs.reference or None,
        "mode": task if summary is None else summary["mode"],
        "headline": None if summary is None else _headline(graphs, summary),
        "culprits": [] if summary is None else _culprits(graphs, summary),
        "cells": _cells(graphs),
        "layers": _layers(graphs),
        "links": _links(graphs),
    }


def graph_json(side: GraphSide, texts: Texts, *, parts: Sequence[str]) -> dict[str, Any]:
    """Return one graph.

    Args:
        side: the graph.
        texts: the texts of the page; texts are added.
        parts: those of `PARTS` that come with it.
    """
    graph = side.graph
    found: dict[str, Any] = {
        "side": side.side,
        "step": graph.step,
        "rank": str(graph.rank),
        "framework": graph.framework,
        "task": graph.task,
        "level": graph.level,
        "notes": graph.notes,
        "micro_steps": max(node.micro_step for node in graph.nodes) + 1,
        "count": len(graph.nodes),
    }
    if "nodes" in parts:
        found["nodes"] = node_columns(side, range(len(graph.nodes)), texts)
    if "edges" in parts:
        found["edges"] = edge_columns(graph, range(len(graph.edges)), texts)
    if "rolls" in parts:
        found["rolls"] = [roll_json(side, roll) for roll in graph.rolls]
    return found | {"details": _details(side) if "details" in parts else None}


def _details(side: GraphSide) -> dict[str, Any]:
    """Return the details of all nodes; matched ones have both sides at the target's node."""
    is_told = side.results is not None and side.side == REFERENCE
    return {
        str(node.id): detail_json(side, node)
        for node in side.graph.nodes
        if node.halves and not (is_told and _is_matched(side, node))
    }


def _is_matched(side: GraphSide, node: Node) -> bool:
    return side.results is not None and side.results.matches[node.id] >= 0


def node_columns(side: GraphSide, ids: Iterable[int], texts: Texts) -> dict[str, list[Any]]:
    """Return facts about some nodes, by column."""
    nodes = [side.graph.nodes[number] for number in ids]
    facts = [_NodeFacts(side, node) for node in nodes]
    columns: dict[str, list[Any]] = {
        "parent": [node.parent for node in nodes],
        "size": [node.size for node in nodes],
        "kind": [int(node.kind) for node in nodes],
        "flags": [int(each.flags) for each in facts],
        "name": [texts.place(node.name) for node in nodes],
        "label": [texts.place(node.label) for node in nodes],
        "class": [texts.place(node.class_name) for node in nodes],
        "path": [texts.place(node.path) for node in nodes],
        "source": [texts.place(each.source) for each in facts],
        "order": [_order(node, HalfKind.FORWARD) for node in nodes],
        "order_backward": [_order(node, HalfKind.BACKWARD) for node in nodes],
        "micro": [node.micro_step for node in nodes],
        "forward": [texts.place(_record(node, HalfKind.FORWARD)) for node in nodes],
        "backward": [texts.place(_record(node, HalfKind.BACKWARD)) for node in nodes],
        "overflow": [each.overflow for each in facts],
        "norm": [number(each.norm) for each in facts],
        "grad_norm": [number(each.gradient_norm) for each in facts],
        "dtype": [texts.place(each.dtype) for each in facts],
        "device": [texts.place(each.device) for each in facts],
    }
    if side.results is not None:
        columns |= _result_columns(side, nodes, texts)
    return {name: _shortened(column) for name, column in columns.items() if _tells(column)}


def _result_columns(side: GraphSide, nodes: Sequence[Node], texts: Texts) -> dict[str, list[Any]]:
    results = side.results
    assert results is not None
    forward = [_result(side, node, HalfKind.FORWARD) for node in nodes]
    backward = [_result(side, node, HalfKind.BACKWARD) for node in nodes]
    tallies = [results.tallies[node.id] for node in nodes]
    found: dict[str, list[Any]] = {
        "match": [results.matches[node.id] for node in nodes],
        "confidence": [number(results.confidences[node.id]) for node in nodes],
    }
    for ending, halves in (("", forward), ("_backward", backward)):
        found |= {
            f"status{ending}": [
                texts.place(None if half is None else half.status) for half in halves
            ],
            f"origin{ending}": [
                texts.place(None if half is None else half.origin) for half in halves
            ],
            f"error{ending}": [None if half is None else number(half.error) for half in halves],
            f"severity{ending}": [0 if half is None else int(half.severity) for half in halves],
        }
        for name in STATISTICS:
            found[f"error_{name}{ending}"] = [
                None if half is None else number(statistic_error(half.rows, name))
                for half in halves
            ]
    tallied: dict[str, Callable[[Tally], int]] = {
        "worst": lambda tally: int(tally.worst),
        "introduced": lambda tally: tally.introduced,
        "differs": lambda tally: tally.differs,
        "unmatched": lambda tally: tally.unmatched,
        "halves": lambda tally: tally.halves,
    }
    return found | {name: [*map(count, tallies)] for name, count in tallied.items()}


def _tells(column: Sequence[Any]) -> bool:
    return any(entry is not None for entry in column)


def _shortened(column: list[Any]) -> list[Any]:
    """Return a column, or its one value."""
    is_uniform = len(column) > 1 and all(entry == column[0] for entry in column)
    return column[:1] if is_uniform else column


class _NodeFacts:
    """Facts about a node that its values tell."""

    __slots__ = ("device", "dtype", "flags", "gradient_norm", "norm", "overflow", "source")

    def __init__(self, side: GraphSide, node: Node) -> None:
        self.flags = node.flags
        self.overflow = 0
        self.dtype = self.device = ""
        self.norm: float | None = None
        self.gradient_norm: float | None = None
        for half in node.halves:
            self.overflow = max(self.overflow, _OVERFLOW.get(side.overflow.get(half.record), 0))  # type: ignore[arg-type]  # None is no key
            for value in side.values.get(half.record, ()):
                self._see(half.kind, value)
        record = _record(node, HalfKind.FORWARD) or _record(node, HalfKind.BACKWARD)
        self.source = user_line(tuple(side.frames(record))) if record else None

    def _see(self, half: HalfKind, value: Value) -> None:
        if not value.is_tensor:
            return
        if value.has_nan or value.has_inf:
            self.flags |= NodeFlag.NONFINITE
        if value.role is Role.PARAMETER:
            self.flags |= NodeFlag.PARAMETERS
        if value.role is not Role.OUTPUT:
            return
        norm = _largest(self.norm if half is HalfKind.FORWARD else self.gradient_norm, value.norm)
        if half is HalfKind.FORWARD:
            self.norm = norm
            self.dtype = self.dtype or value.dtype
            self.device = self.device or value.device or ""
        elif half is HalfKind.BACKWARD:
            self.gradient_norm = norm


def _largest(known: float | None, norm: Statistic) -> float | None:
    if norm is None:
        return known
    found = float(norm)
    return found if known is None or math.isnan(found) or found > known else known


def _result(side: GraphSide, node: Node, kind: HalfKind) -> HalfResult | None:
    half = node.half(kind)
    if half is None or side.results is None:
        return None
    return side.results.halves.get(half.record)


def _order(node: Node, kind: HalfKind) -> int:
    half = node.half(kind)
    return -1 if half is None else half.order


def _record(node: Node, kind: HalfKind) -> str:
    half = node.half(kind)
    return "" if half is None else half.record


def edge_columns(graph: Graph, places: Iterable[int], texts: Texts) -> dict[str, list[Any]]:
    """Return some edges of a graph, by column."""
    edges = [graph.edges[place] for place in places]
    columns: dict[str, list[Any]] = {
        "from": [edge.source for edge in edges],
        "to": [edge.target for edge in edges],
        "from_slot": [texts.place(edge.source_slot) for edge in edges],
        "to_slot": [texts.place(edge.target_slot) for edge in edges],
        "shape": [texts.place(shape_text(edge.shape)) for edge in edges],
        "dtype": [texts.place(edge.dtype) for edge in edges],
        "how": [int(edge.how) for edge in edges],
        "confidence": [edge.confidence for edge in edges],
        "gradient": [int(edge.has_gradient) for edge in edges],
        "lca": [graph.common_box((edge.source, edge.target)) for edge in edges],
    }
    return {name: _shortened(column) for name, column in columns.items()}


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text, its sizes with times signs between them; ``scalar`` without any."""
    return TIMES.join(map(str, shape)) or "scalar"


def roll_json(side: GraphSide, roll: Roll) -> dict[str, Any]:
    """Return repeated layers, with the largest error and severity of each."""
    found: dict[str, Any] = {
        "parent": roll.parent,
        "members": [*roll.members],
        "class": roll.class_name,
        "label": roll.label,
    }
    if side.results is not None:
        found["error"] = [number(_worst_error(side, member)) for member in roll.members]
        found["worst"] = [int(side.results.tallies[member].worst) for member in roll.members]
    return found


def _worst_error(side: GraphSide, box: int) -> float | None:
    assert side.results is not None
    nodes = side.graph.nodes[box : box + side.graph.nodes[box].size]
    found = [
        result.error
        for node in nodes
        for half in node.halves
        if (result := side.results.halves.get(half.record)) and result.error is not None
    ]
    return max(found, default=None)


def detail_json(side: GraphSide, node: Node) -> dict[str, Any]:
    """Return everything about one node: its records with their values, its call stack."""
    record = _record(node, HalfKind.FORWARD) or (node.halves[0].record if node.halves else "")
    found: dict[str, Any] = {
        "name": node.name,
        "stack": side.frames(record) if record else [],
        "halves": [
            {
                "half": half.kind,
                "record": half.record,
                "values": _values_json(side, half.record),
            }
            for half in node.halves
        ],
    }
    groups = (
        [*value.group_ranks]
        for half in node.halves
        for value in side.values.get(half.record, ())
        if value.group_ranks
    )
    if group := next(groups, None):
        found["group"] = group
    return found


def _values_json(side: GraphSide, record: str) -> list[dict[str, Any]]:
    rows = side.rows(record)
    if rows:
        return [_row_json(row) for row in rows]
    return [_value_json(value) for value in side.values.get(record, ())]


def _row_json(row: Row) -> dict[str, Any]:
    found = _value_json(row.value) if row.target is None else _value_json(row.target)
    if row.target is not None and row.reference is not None and row.status is not Status.EQUAL:
        found["reference"] = _value_json(row.reference)
    found["status"] = row.status
    if row.origin is not None:
        found["origin"] = row.origin
    if row.error is not None:
        found["error"] = number(row.error)
    if row.reason:
        found["reason"] = row.reason
    if row.metrics is not None:
        metrics = row.metrics
        found["metrics"] = {
            "cosine": number(metrics.cosine),
            "max_abs_err": number(metrics.max_abs_err),
            "max_rel_err": number(metrics.max_rel_err),
            "relative_l2": number(metrics.relative_l2),
            "mismatches": metrics.mismatches,
        }
    return found


def _value_json(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {"slot": value.slot, "role": value.role}
    if not value.is_tensor:
        found["type"] = value.type
        if value.value is not None:
            found["value"] = strict(value.value)
        return found
    found |= {"dtype": value.dtype, "shape": [*(value.shape or ())]}
    for name in STATISTICS:
        statistic = getattr(value, name)
        if statistic is not None:
            found[name] = number(statistic)
    facts = {
        "requires_grad": value.requires_grad,
        "nan": value.nan_count,
        "inf": value.inf_count,
        "md5": value.md5,
        "device": value.device,
        "data_name": value.data_name,
        "note": value.note or value.remark,
    }
    return found | {key: fact for key, fact in facts.items() if fact is not None}


def number(value: Statistic) -> Any:
    """Return a number as JSON: rounded, NaN and infinities as words."""
    if type(value) is not float:
        return value
    if not math.isfinite(value):
        return strict(value)
    return float(f"{value:.{_DIGITS}g}")


def _headline(graphs: GraphSet, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer in a sentence, and the node that it is about (-1 for none)."""
    verdict = summary["verdict"]
    where = verdict["where"] or {}
    record = where.get("record") or next((each["name"] for each in summary["introduced"]), None)
    found = {"sentence": verdict["sentence"], "class": verdict["class"], "node": -1}
    found |= {key: verdict[key] for key in ("confidence", "evidence", "next") if key in verdict}
    place = (
        None if record is None else _place_of(graphs, record, where.get("step"), where.get("rank"))
    )
    return found | (place or {})


def _culprits(graphs: GraphSet, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for entry in summary["introduced"]:
        place = _place_of(graphs, entry["name"], entry["step"], entry["rank"])
        if place is not None:
            found.append({**place, "reason": entry["reason"], "source": entry["source"]})
    return found


def _place_of(
    graphs: GraphSet, record: str, step: int | None, rank: int | str | None
) -> dict[str, Any] | None:
    """Return the node of a record; the first that has it if step or rank are unknown."""
    for place in graphs.places:
        if step not in (None, place.step) or rank not in (None, place.rank):
            continue
        for side in place.sides:
            for node in side.graph.nodes:
                for half in node.halves:
                    if half.record == record:
                        return {
                            "step": place.step,
                            "rank": str(place.rank),
                            "side": side.side,
                            "node": node.id,
                            "half": half.kind,
                        }
    return None


def _cells(graphs: GraphSet) -> list[dict[str, Any]]:
    """Return one cell of the table of steps and ranks for each place."""
    cells = []
    index = 0
    for place in graphs.places:
        cells.append(_cell(place, index))
        index += len(place.sides)
    return cells


def _cell(place: GraphPlace, index: int) -> dict[str, Any]:
    levels = chain.from_iterable(side.overflow.values() for side in place.sides)
    cell: dict[str, Any] = {
        "step": place.step,
        "rank": str(place.rank),
        "overflow": max((_OVERFLOW[level] for level in levels), default=0),
        "target": index,
        "reference": None if place.reference is None else index + 1,
    }
    if place.target.results is not None:
        tally = place.target.results.tallies[0]
        cell["severity"] = int(tally.worst)
        cell["counts"] = {
            "introduced": tally.introduced,
            "differs": tally.differs,
            "unmatched": tally.unmatched,
            "halves": tally.halves,
        }
    return cell


def _layers(graphs: GraphSet) -> dict[str, Any] | None:
    """Return the severity of each repeated layer on each rank; None without such layers."""
    rows = []
    labels: dict[str, None] = {}
    for place in graphs.places:
        side = place.target
        if side.results is None or not side.graph.rolls:
            continue
        longest = max(side.graph.rolls, key=lambda roll: len(roll.members))
        worst = {
            side.graph.nodes[member].path: int(side.results.tallies[member].worst)
            for member in longest.members[:_MOST_LAYERS]
        }
        labels |= dict.fromkeys(worst)
        rows.append((place, worst))
    if not rows:
        return None
    return {
        "labels": [*labels],
        "rank": [
            {
                "step": place.step,
                "rank": str(place.rank),
                "severity": [worst.get(label, 0) for label in labels],
            }
            for place, worst in rows
        ],
    }


def _links(graphs: GraphSet) -> list[dict[str, Any]]:
    """Return the communications between ranks of the target, the earliest first."""
    return [
        {
            "step": link.step,
            "kind": link.kind,
            "members": [[str(rank), node] for rank, node in link.members],
        }
        for link in graphs.links
    ]
