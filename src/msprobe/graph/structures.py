# SPDX-License-Identifier: Apache-2.0
"""Two dumps of structure: which calls both sides made, and which only one of them.

Calls are paired by `compare/`, as those of dumps with values are. A pair has no finding, because
nothing is known of its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msprobe.compare.matching import pair_operations
from msprobe.compare.model import Status
from msprobe.compare.options import CompareOptions
from msprobe.compare.ranks import ViewPair
from msprobe.compare.sides import Side
from msprobe.dump.rank_view import RankView
from msprobe.dump.values import Value
from msprobe.graph.building import build_graph
from msprobe.graph.comparing import (
    ComparedGraphs,
    HalfResult,
    NodeResults,
    match_boxes,
    match_nodes,
    tallies_of,
)
from msprobe.graph.model import Severity

MODE: Final = "structure"
"""The task that records calls without values; in the summary, how such dumps are compared."""
_MOST_NAMED: Final = 20


class _StructureSide(Side):
    """A side of which only the places of calls are known."""

    def __init__(self, view: RankView, *, source: str) -> None:
        super().__init__(view, source=source)
        self.names = [name for name in view.parents if "." in name]

    def values(self, name: str) -> list[Value]:
        """Return no values."""
        return []


def compare_structures(pair: ViewPair, options: CompareOptions) -> ComparedGraphs:
    """Return the graphs of both sides, with the calls that only one of them has.

    Args:
        pair: a rank of both sides.
        options: how to pair calls.

    Raises:
        ConfigError: a mapping file has a fault.
        DumpFormatError: a dump is damaged.
    """
    sides = [
        _StructureSide(view, source=source)
        for view, source in ((pair.target, "target"), (pair.reference, "reference"))
    ]
    graphs = [build_graph(side.view, {}, step=pair.step, rank=pair.rank) for side in sides]
    results = [NodeResults.empty(graph) for graph in graphs]
    target, reference = graphs
    pairs = pair_operations(sides[0], sides[1], options)
    matched = [
        (each.target, each.reference, each.confidence)
        for each in pairs
        if each.target is not None and each.reference is not None
    ]
    match_nodes(target, reference, matched, results[0], results[1])
    match_boxes(target, reference, results[0], results[1])
    for graph, result, names, status in zip(
        graphs,
        results,
        ([each.target for each in pairs], [each.reference for each in pairs]),
        (Status.ADDED, Status.MISSING),
        strict=True,
    ):
        alone = {name for name, each in zip(names, pairs, strict=True) if not each.is_matched}
        result.halves = {
            name: HalfResult(Severity.ONE_SIDED, status, None, None, ())
            if name in alone
            else HalfResult(Severity.NONE, Status.EQUAL, None, None, ())
            for name in names
            if name is not None
        }
        result.tallies = tallies_of(graph, result.halves)
    return ComparedGraphs(target, reference, {}, {}, results[0], results[1])


def structure_summary(
    target: str, reference: str, found: Sequence[tuple[ViewPair, ComparedGraphs]]
) -> dict[str, Any]:
    """Return the answer as a comparison's summary has it.

    Args:
        target: path of the dump under test.
        reference: path of the trusted one.
        found: what was found for each rank and step.
    """
    alone = [
        (pair, side, name)
        for pair, graphs in found
        for side, result in (
            ("target", graphs.target_results),
            ("reference", graphs.reference_results),
        )
        for name, half in result.halves.items()
        if half.severity is Severity.ONE_SIDED
    ]
    where = None
    sentence = "both sides made the same calls; their values were not recorded"
    if alone:
        pair, side, name = alone[0]
        where = {"step": pair.step, "rank": pair.rank, "record": name}
        counts = [sum(each == wanted for _, each, _ in alone) for wanted in ("target", "reference")]
        sentence = (
            f"structure: {counts[0]} calls only in the target, {counts[1]} only in the reference; "
            f"first {name}, only in the {side}"
        )
    evidence = [f"{name}: only in the {side}" for _, side, name in alone[:_MOST_NAMED]]
    return {
        "target": target,
        "reference": reference,
        "mode": MODE,
        "equal": not alone,
        "introduced": [],
        "verdict": {
            "sentence": sentence,
            "class": "structure" if alone else "equal",
            "where": where,
            "confidence": "certain",
            "evidence": evidence,
            "next": [],
        },
    }
