# SPDX-License-Identifier: Apache-2.0
"""The graphs of a ``.vis.db`` or ``.vis`` as a `GraphSet`, like those of dumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from msprobe.compare.model import (
    Added,
    Match,
    Matched,
    Missing,
    OperationPair,
    Origin,
    Row,
    Status,
)
from msprobe.dump.dump_steps import RankKey
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Value
from msprobe.graph.building import finish_graph
from msprobe.graph.comparing import HalfResult, NodeResults, match_boxes, match_nodes, tallies_of
from msprobe.graph.hierarchy import Calls, build_nodes
from msprobe.graph.links import Link
from msprobe.graph.model import Graph, Severity
from msprobe.graph.sources import REFERENCE, TARGET, GraphPlace, GraphSet, GraphSide
from msprobe.graph.vis_reader import Verdict, VisGraph, VisNode, read_vis
from msprobe.graph.vis_schema import PRECISION
from msprobe.overflow.severity import Severity as OverflowLevel

_LEVELS: Final = {str(level): level for level in OverflowLevel}
SIDES: Final = {"NPU": TARGET, "Bench": REFERENCE}
"""Sides by their names in files of graphs."""
_STATISTICS: Final = ("max", "min", "mean", "norm", "md5", "shape", "dtype", "value")


def open_graph_file(path: Path) -> GraphSet:
    """Return the graphs of a file.

    Raises:
        DumpFormatError: it cannot be read, or is no file of graphs.
    """
    file = read_vis(path)
    graphs = sorted(file.graphs, key=lambda graph: (graph.step, graph.rank, graph.source != "NPU"))
    places = []
    for (step, rank), group in groupby(graphs, key=lambda graph: (graph.step, graph.rank_name)):
        sides = [_Side(graph, file.task) for graph in group]
        if len(sides) == 1:
            places.append(GraphPlace(step=step, rank=rank, target=sides[0].alone()))
        else:
            places.append(_compared(step, rank, *sides[:2]))
    is_pair = any(place.reference is not None for place in places)
    return GraphSet(
        target=file.paths[0] or str(path),
        reference=file.paths[1] or (str(path) if is_pair else ""),
        places=places,
        summary=file.summary,
        links=_links(file.graphs, places),
    )


class _Side:
    """One graph of the file."""

    def __init__(self, found: VisGraph, task: str) -> None:
        self.source = found.source
        self.nodes: Mapping[str, VisNode] = {node.name: node for node in found.nodes}
        self.values: dict[str, Sequence[Value]] = {
            node.name: node.values for node in found.nodes if not node.is_collection
        }
        collections = {node.name for node in found.nodes if node.is_collection}
        calls = Calls(
            parents={
                node.name: None if node.parent in collections else node.parent
                for node in found.nodes
                if not node.is_collection
            },
            records=self.values,
            parsed=parse_record_name,
            micro_steps={node.name: node.micro_step for node in found.nodes},
            framework="mindspore"
            if any(name.startswith("Cell.") for name in self.nodes)
            else "pytorch",
        )
        nodes, _ = build_nodes(calls)
        self.graph = Graph(
            step=found.step,
            rank=found.rank_name,
            framework=calls.framework,
            task=task,
            level="",
            nodes=nodes,
        )
        finish_graph(self.graph, self.values)

    def alone(self, results: NodeResults | None = None) -> GraphSide:
        """Return it as one side of a place."""
        return GraphSide(
            side=SIDES[self.source],
            graph=self.graph,
            values=self.values,
            stacks={name: node.frames for name, node in self.nodes.items()},
            results=results,
            overflow={
                name: _LEVELS[node.overflow]
                for name, node in self.nodes.items()
                if node.overflow in _LEVELS
            },
        )


def _compared(step: int, rank: RankKey, target: _Side, reference: _Side) -> GraphPlace:
    results = [NodeResults.empty(side.graph) for side in (target, reference)]
    pairs = [
        (name, node.partner, 1.0)
        for name, node in target.nodes.items()
        if node.partner is not None and node.partner in reference.values and name in target.values
    ]
    match_nodes(target.graph, reference.graph, pairs, *results)
    match_boxes(target.graph, reference.graph, *results)
    taken = {other for _, other, _ in pairs}
    for place, (name, node) in enumerate(target.nodes.items()):
        if name in target.values:
            partner = node.partner if node.partner in reference.values else None
            result = half_result(place, node, reference.nodes.get(partner or ""))
            results[0].halves[name] = result
            if partner is not None:
                results[1].halves[partner] = result
    for name in reference.values.keys() - taken:
        results[1].halves[name] = HalfResult(Severity.ONE_SIDED, Status.MISSING, None, None, ())
    for side, found in zip((target, reference), results, strict=True):
        found.tallies = tallies_of(side.graph, found.halves)
    return GraphPlace(
        step=step,
        rank=rank,
        target=target.alone(results[0]),
        reference=reference.alone(results[1]),
    )


def half_result(place: int, node: VisNode, partner: VisNode | None) -> HalfResult:
    """Return what a file of graphs says of a record.

    Args:
        place: of the pair among all.
        node: the record of the target.
        partner: that of the reference; None where it has none.
    """
    if partner is None:
        return HalfResult(Severity.ONE_SIDED, Status.ADDED, None, None, ())
    pair = OperationPair(
        position=place, target=node.name, reference=partner.name, match=Match.EXACT
    )
    others = {value.slot: value for value in partner.values}
    rows: list[Row] = [
        _row(pair, node, value, others.pop(value.slot, None)) for value in node.values
    ]
    rows += [
        Missing(pair=pair, reference=other, status=Status.MISSING) for other in others.values()
    ]
    worst = max((row.status for row in rows), key=_badness, default=Status.EQUAL)
    known = _known(node.verdict, rows)
    return known or HalfResult(_severity(node, worst), worst, None, None, rows)


def _known(verdict: Verdict | None, rows: Sequence[Row]) -> HalfResult | None:
    """Return the result that msprobe wrote; None if there is none that is understood."""
    if verdict is None:
        return None
    try:
        origin = None if verdict.origin is None else Origin(verdict.origin)
        status, severity = Status(verdict.status), Severity(verdict.severity)
    except ValueError:
        return None
    return HalfResult(severity, status, origin, verdict.error, rows)


def _row(pair: OperationPair, node: VisNode, value: Value, other: Value | None) -> Row:
    if other is None:
        return Added(pair=pair, target=value, status=Status.ADDED)
    result, message = node.results.get(value.slot, ("", ""))
    status = _status(value, other, result)
    return Matched(
        pair=pair, target=value, reference=other, status=status, finding=message.strip("[]")
    )


def _status(value: Value, other: Value, result: str) -> Status:
    """Return the status of two values, from them and the result that mindstudio-probe wrote."""
    is_same = _is_same(value, other)
    has_other_bytes = None not in (value.md5, other.md5) and value.md5 != other.md5
    if result == "error" or has_other_bytes or (result == "warning" and not is_same):
        return Status.DIFFERS
    # Tensors that differ may have the same statistics, and be told apart by other words.
    return Status.EQUAL if is_same and result != "warning" else Status.CLOSE


def _is_same(value: Value, other: Value) -> bool:
    return all(repr(getattr(value, name)) == repr(getattr(other, name)) for name in _STATISTICS)


def _badness(status: Status) -> int:
    return 2 if status.is_difference else int(status is not Status.EQUAL)


def _severity(node: VisNode, worst: Status) -> Severity:
    """Return the severity that an index of precision means; that of the values without one."""
    if node.precision is None or node.precision < min(
        index for index in PRECISION.values() if index > 0
    ):
        if worst.is_difference and node.precision is None:
            return Severity.INHERITED
        return Severity.EQUAL if worst is Status.EQUAL else Severity.CLOSE
    at_least = [severity for severity, index in PRECISION.items() if index <= node.precision]
    return max(severity for severity in at_least if severity is not Severity.ONE_SIDED)


def _links(graphs: Sequence[VisGraph], places: Sequence[GraphPlace]) -> list[Link]:
    """Return the communications that the file names, each once."""
    names = {(graph.step, str(graph.rank)): graph.rank_name for graph in graphs}
    by_name = {(place.step, place.rank): place.target.graph.node_of() for place in places}
    nodes = {key: by_name[key[0], name] for key, name in names.items()}
    found: dict[frozenset[tuple[RankKey, int]], Link] = {}
    for graph in graphs:
        for node in graph.nodes if graph.source == "NPU" else ():
            calls = {str(graph.rank): node.name, **node.distributed}
            members = tuple(
                (names[graph.step, rank], nodes[graph.step, rank][name][0])
                for rank, name in sorted(calls.items())
                if name in nodes.get((graph.step, rank), {})
            )
            if len(members) > 1:
                link = Link(step=graph.step, kind="collective", members=members)
                found.setdefault(frozenset(members), link)
    return [*found.values()]
