# SPDX-License-Identifier: Apache-2.0
"""Findings of a comparison, at the nodes of the two graphs.

Pairs of calls, statuses and origins are those of `compare/`. Here they are put at nodes, and
counted upward, so that each box says what the calls inside of it hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from msprobe.compare.model import Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.values import Role, Value
from msprobe.graph.building import RecordValues, build_graph
from msprobe.graph.model import Graph, HalfKind, NodeKind, Severity
from msprobe.report.comparison_words import SEVERITY

_WORST_FIRST: Final = {Status(word): place for place, word in enumerate(SEVERITY)}
_BY_ORIGIN: Final = {
    Origin.INTRODUCED: Severity.INTRODUCED,
    Origin.AMPLIFIED: Severity.AMPLIFIED,
    Origin.INHERITED: Severity.INHERITED,
    Origin.INPUT: Severity.INHERITED,
}


@dataclass(slots=True)
class HalfResult:
    """Findings at one record.

    Attributes:
        severity: how much it asks for a look.
        status: the worst of its values.
        origin: where its difference comes from; None without one.
        error: the largest relative error of its results; None without a number.
        rows: its values.
    """

    severity: Severity
    status: Status
    origin: Origin | None
    error: float | None
    rows: Sequence[Row]


@dataclass(slots=True)
class Tally:
    """Counts over the records of a subtree, by severity."""

    worst: Severity = Severity.NONE
    introduced: int = 0
    differs: int = 0
    unmatched: int = 0
    halves: int = 0

    def count(self, severity: Severity) -> None:
        """Add one record."""
        self.worst = max(self.worst, severity)
        self.halves += 1
        self.introduced += severity is Severity.INTRODUCED
        self.unmatched += severity is Severity.ONE_SIDED
        self.differs += severity in (
            Severity.INHERITED,
            Severity.AMPLIFIED,
            Severity.INTRODUCED,
        )

    def add(self, other: Tally) -> None:
        """Add the counts of another subtree."""
        self.worst = max(self.worst, other.worst)
        self.introduced += other.introduced
        self.differs += other.differs
        self.unmatched += other.unmatched
        self.halves += other.halves


@dataclass(slots=True, kw_only=True)
class NodeResults:
    """Findings at the nodes of one graph; all lists are by number of the node.

    Attributes:
        matches: the node of the other graph; -1 for none.
        confidences: of these matches.
        partners: record name → the record that it is paired with.
        halves: results by record name.
        tallies: counts over subtrees.
    """

    matches: list[int]
    confidences: list[float]
    partners: dict[str, str] = field(default_factory=dict)
    halves: dict[str, HalfResult] = field(default_factory=dict)
    tallies: list[Tally] = field(default_factory=list)

    @classmethod
    def empty(cls, graph: Graph) -> NodeResults:
        """Return results in which nothing has been found yet."""
        count = len(graph.nodes)
        return cls(matches=[-1] * count, confidences=[0.0] * count)


@dataclass(frozen=True, slots=True)
class ComparedGraphs:
    """Two graphs of one rank and step, with what was found at their nodes."""

    target: Graph
    reference: Graph
    target_values: RecordValues
    reference_values: RecordValues
    target_results: NodeResults
    reference_results: NodeResults


def compare_graphs(comparison: RankComparison) -> ComparedGraphs:
    """Return the graphs of both sides of a comparison, with its results at their nodes."""
    values = _values_of(comparison)
    graphs = [
        build_graph(side.view, read, step=comparison.step, rank=comparison.rank)
        for side, read in zip((comparison.target, comparison.reference), values, strict=True)
    ]
    target, reference = graphs
    results = [NodeResults.empty(graph) for graph in graphs]
    pairs = [
        (pair.target, pair.reference, pair.confidence)
        for pair in comparison.pairs
        if pair.target is not None and pair.reference is not None
    ]
    match_nodes(target, reference, pairs, *results)
    match_boxes(target, reference, *results)
    for result, found in zip(results, _halves(comparison), strict=True):
        result.halves = found
    for graph, result in zip(graphs, results, strict=True):
        result.tallies = tallies_of(graph, result.halves)
    return ComparedGraphs(target, reference, *values, *results)


def _values_of(
    comparison: RankComparison,
) -> tuple[dict[str, list[Value]], dict[str, list[Value]]]:
    """Return the values of the records of both sides, which the rows hold."""
    target: dict[str, list[Value]] = {}
    reference: dict[str, list[Value]] = {}
    for row in comparison.rows:
        if row.target is not None and row.pair.target is not None:
            target.setdefault(row.pair.target, []).append(row.target)
        if row.reference is not None and row.pair.reference is not None:
            reference.setdefault(row.pair.reference, []).append(row.reference)
    return target, reference


def match_nodes(
    target: Graph,
    reference: Graph,
    pairs: Sequence[tuple[str, str, float]],
    target_results: NodeResults,
    reference_results: NodeResults,
) -> None:
    """Match nodes as their records are paired; forward ones decide, then all others.

    Args:
        target: the graph under test.
        reference: the trusted one.
        pairs: record of the target, record of the reference, confidence.
        target_results: where matches of the target's nodes are put.
        reference_results: where those of the reference's are put.
    """
    places, others = target.node_of(), reference.node_of()
    for name, other_name, _ in pairs:
        target_results.partners.setdefault(name, other_name)
        reference_results.partners.setdefault(other_name, name)
    for kinds in ((HalfKind.FORWARD,), tuple(HalfKind)):
        for name, other_name, confidence in pairs:
            if name not in places or other_name not in others:
                continue
            node, half = places[name]
            other, _ = others[other_name]
            is_free = target_results.matches[node] < 0 and reference_results.matches[other] < 0
            if half in kinds and is_free:
                _join(target_results, reference_results, node, other, confidence)


def match_boxes(
    target: Graph, reference: Graph, target_results: NodeResults, reference_results: NodeResults
) -> None:
    """Match boxes without a record by their names."""
    others = {node.name: node.id for node in reference.nodes}
    for node in target.nodes:
        other = others.get(node.name)
        if other is None or node.kind is not reference.nodes[other].kind:
            continue
        is_box = node.kind is not NodeKind.API and not any(half.is_recorded for half in node.halves)
        if is_box and target_results.matches[node.id] < 0 and reference_results.matches[other] < 0:
            _join(target_results, reference_results, node.id, other, 1.0)
            target_results.partners[node.name] = node.name
            reference_results.partners[node.name] = node.name


def _join(
    target: NodeResults, reference: NodeResults, node: int, other: int, confidence: float
) -> None:
    target.matches[node], reference.matches[other] = other, node
    target.confidences[node] = reference.confidences[other] = confidence


def _halves(comparison: RankComparison) -> tuple[dict[str, HalfResult], dict[str, HalfResult]]:
    target: dict[str, HalfResult] = {}
    reference: dict[str, HalfResult] = {}
    for pair in comparison.pairs:
        if not pair.is_matched:
            side, name = (reference, pair.reference) if pair.target is None else (target, pair.name)
            status = Status.MISSING if pair.target is None else Status.ADDED
            side[name or ""] = HalfResult(Severity.ONE_SIDED, status, None, None, ())
    for _, rows in groupby(comparison.rows, key=lambda row: row.pair.position):
        found = list(rows)
        pair = found[0].pair
        result = _result(found, is_matched=pair.is_matched)
        for side, name in ((target, pair.target), (reference, pair.reference)):
            if name is not None:
                side[name] = result
    return target, reference


def _result(rows: Sequence[Row], *, is_matched: bool) -> HalfResult:
    worst = min(rows, key=lambda row: _WORST_FIRST[row.status])
    origins = {row.origin for row in rows}
    origin = next((each for each in _BY_ORIGIN if each in origins), None)
    severity = _severity(worst.status, origin) if is_matched else Severity.ONE_SIDED
    return HalfResult(severity, worst.status, origin, _error(rows), rows)


def _severity(status: Status, origin: Origin | None) -> Severity:
    if status.is_difference:
        return Severity.INHERITED if origin is None else _BY_ORIGIN[origin]
    if status is Status.UNREAD:
        return Severity.NONE
    return Severity.EQUAL if status is Status.EQUAL else Severity.CLOSE


def _error(rows: Sequence[Row]) -> float | None:
    """Return the largest error of the results; of all values, if the results have none."""
    for wanted in (_results(rows), rows):
        errors = [row.error for row in wanted if row.error is not None]
        if errors:
            return math.nan if any(map(math.isnan, errors)) else max(errors)
    return None


def statistic_error(rows: Sequence[Row], name: str) -> float | None:
    """Return the largest relative difference of one statistic of the results; None without one.

    Args:
        rows: the compared values of a record.
        name: ``max``, ``min``, ``mean`` or ``norm``.
    """
    worst: float | None = None
    for row in _results(rows):
        if row.target is None or row.reference is None:
            continue
        target, reference = getattr(row.target, name), getattr(row.reference, name)
        if type(target) is not float or type(reference) is not float:
            continue
        error = _relative(target, reference)
        if worst is None or not error <= worst:
            worst = error
    return worst


def _relative(target: float, reference: float) -> float:
    if target == reference or (math.isnan(target) and math.isnan(reference)):
        return 0.0
    return abs((target - reference) / reference) if reference else math.inf


def _results(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.value.role in (Role.OUTPUT, Role.PARAMETER_GRAD)]


def tallies_of(graph: Graph, halves: Mapping[str, HalfResult]) -> list[Tally]:
    """Return the counts of all subtrees."""
    tallies = [Tally() for _ in graph.nodes]
    for node in reversed(graph.nodes):
        for half in node.halves:
            if half.record in halves:
                tallies[node.id].count(halves[half.record].severity)
        if node.parent >= 0:
            tallies[node.parent].add(tallies[node.id])
    return tallies
