# SPDX-License-Identifier: Apache-2.0
"""`open_graphs`: the graphs of one dump, or of two that are compared."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from msprobe.compare.model import Row
from msprobe.compare.options import CompareOptions
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.ranks import pair_views
from msprobe.compare.result import CompareResult
from msprobe.compare.run import run_comparison
from msprobe.dump.dump_steps import Dump, DumpStep, RankKey
from msprobe.dump.rank_view import RankView
from msprobe.dump.reader import open_dump
from msprobe.dump.record_names import forward_name
from msprobe.errors import DumpFormatError, UsageError
from msprobe.garbage import collector_paused
from msprobe.graph.building import RecordValues, build_graph, read_values
from msprobe.graph.comparing import ComparedGraphs, NodeResults, compare_graphs
from msprobe.graph.links import Link, find_links
from msprobe.graph.model import Graph
from msprobe.graph.structures import MODE as STRUCTURE
from msprobe.graph.structures import compare_structures, structure_summary
from msprobe.graph.vis_reader import is_graph_file
from msprobe.overflow.severity import Severity as OverflowLevel
from msprobe.overflow.severity import classify

TARGET: Final = "target"
REFERENCE: Final = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSide:
    """The graph of one rank and step of one of the dumps, with the values at its nodes.

    Attributes:
        side: ``target`` or ``reference``.
        graph: the graph.
        values: the values of each record.
        view: the rank's dump; None where the graph was read from a file of graphs.
        stacks: record name → its call stack, for these.
        results: what a comparison found; None without one.
        overflow: record name → its grade, where overflow was asked for.
    """

    side: str
    graph: Graph
    values: RecordValues
    view: RankView | None = None
    stacks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    results: NodeResults | None = None
    overflow: Mapping[str, OverflowLevel] = field(default_factory=dict)

    def frames(self, record: str) -> list[str]:
        """Return the call stack of a record, innermost frame first; empty if unknown."""
        if self.view is None:
            return [*self.stacks.get(record, ())]
        found = self.view.frames(record)
        if not found and record in self.view.records:
            forward = forward_name(self.view.records.parsed(record))
            found = [] if forward is None else self.view.frames(forward)
        return found

    def rows(self, record: str) -> Sequence[Row] | None:
        """Return the compared values of a record; None where there was no comparison."""
        if self.results is None or record not in self.results.halves:
            return None
        return self.results.halves[record].rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPlace:
    """One rank of one step: one graph, or two that are compared."""

    step: int
    rank: RankKey
    target: GraphSide
    reference: GraphSide | None = None

    @property
    def sides(self) -> list[GraphSide]:
        """The graphs, the target's first."""
        return [self.target] if self.reference is None else [self.target, self.reference]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSet:
    """All graphs of one dump, or of two that are compared.

    Attributes:
        target: path of the dump.
        reference: path of the trusted dump; empty without one.
        places: steps and ranks, in order.
        result: the comparison; None without one, and for files of graphs.
        summary: its summary; None without one.
        links: communications between the ranks of the target, by step, the earliest first.
    """

    target: str
    reference: str
    places: Sequence[GraphPlace]
    result: CompareResult | None = None
    summary: Mapping[str, Any] | None = None
    links: Sequence[Link] = ()

    @property
    def graphs(self) -> list[GraphSide]:
        """All graphs, in order of places, the target's first."""
        return [side for place in self.places for side in place.sides]


def open_graphs(
    target: str | os.PathLike[str],
    reference: str | os.PathLike[str] | None = None,
    *,
    steps: Sequence[int] | None = None,
    ranks: Sequence[int] | None = None,
    overflow: bool = False,
    options: CompareOptions | None = None,
) -> GraphSet:
    """Return the graphs of a dump, or of two dumps with what their comparison found.

    Args:
        target: a dump, or the dump under test; or a file of graphs, ``.vis.db`` or ``.vis``.
        reference: the trusted dump; None to look at one alone.
        steps: only these steps; None for all.
        ranks: only these ranks; None for all.
        overflow: whether calls are graded by what they do with NaN and Inf.
        options: how to compare; None for the usual way. Its steps and ranks are not used.

    Raises:
        DumpFormatError: there is no dump at a path, or it is damaged.
        UsageError: the two cannot be compared, or hold no common step or rank.
    """
    with collector_paused():
        if is_graph_file(Path(target)):
            if reference is not None:
                raise UsageError(f"{target} holds both sides; it is compared with nothing else")
            from msprobe.graph.vis_graphs import open_graph_file

            return open_graph_file(Path(target))
        if reference is None:
            return _single(Path(target), steps, ranks, overflow=overflow)
        given = options or CompareOptions()
        chosen = _with_selection(given, steps, ranks)
        dumps = open_dump(target), open_dump(reference)
        if all(_has_structure_only(dump) for dump in dumps):
            return _structures(dumps, chosen)
        result = run_comparison(Path(target), Path(reference), chosen)
        return compared_graphs(result, overflow=overflow)


def compared_graphs(result: CompareResult, *, overflow: bool = False) -> GraphSet:
    """Return the graphs of both sides of a comparison, which still has its rows."""
    places = [_compared(each, overflow=overflow) for each in result.comparisons]
    return GraphSet(
        target=result.summary["target"],
        reference=result.summary["reference"],
        places=places,
        result=result,
        summary=result.summary,
        links=_links(places),
    )


def _has_structure_only(dump: Dump) -> bool:
    views = (view for step in dump.steps for view in dump.step(step).ranks.values())
    return all(view.head.task == STRUCTURE for view in views)


def _structures(dumps: tuple[Dump, Dump], options: CompareOptions) -> GraphSet:
    """Return the graphs of two dumps without values, with the calls that only one side made."""
    pairs = pair_views(*dumps, steps=options.steps, ranks=options.ranks).pairs
    found = [(pair, compare_structures(pair, options)) for pair in pairs]
    target, reference = (str(dump.path) for dump in dumps)
    places = [
        _place(pair.step, pair.rank, graphs, (pair.target, pair.reference), overflow=False)
        for pair, graphs in found
    ]
    return GraphSet(
        target=target,
        reference=reference,
        places=places,
        summary=structure_summary(target, reference, found),
        links=_links(places),
    )


def _with_selection(
    options: CompareOptions, steps: Sequence[int] | None, ranks: Sequence[int] | None
) -> CompareOptions:
    return replace(
        options,
        steps=None if steps is None else tuple(steps),
        ranks=None if ranks is None else tuple(ranks),
    )


def _single(
    path: Path, steps: Sequence[int] | None, ranks: Sequence[int] | None, *, overflow: bool
) -> GraphSet:
    places = []
    for step in _chosen_steps(open_dump(path), steps):
        for rank, view in step.ranks.items():
            if ranks is not None and (view.rank or 0) not in ranks:
                continue
            values = read_values(view)
            graph = build_graph(view, values, step=step.number, rank=rank)
            side = GraphSide(
                side=TARGET,
                graph=graph,
                view=view,
                values=values,
                overflow=_overflow_levels(view) if overflow else {},
            )
            places.append(GraphPlace(step=step.number, rank=rank, target=side))
    if not places:
        raise UsageError(f"{path}: holds none of the ranks {', '.join(map(str, ranks or ()))}")
    return GraphSet(target=str(path), reference="", places=places, links=_links(places))


def _links(places: Sequence[GraphPlace]) -> list[Link]:
    found: list[Link] = []
    for step, group in groupby(places, key=lambda place: place.step):
        ranks = [(place.target.graph, place.target.view) for place in group]
        found += find_links(step, [(graph, view) for graph, view in ranks if view is not None])
    return found


def _chosen_steps(dump: Dump, steps: Sequence[int] | None) -> list[DumpStep]:
    return [dump.step(number) for number in (dump.steps if steps is None else steps)]


def _compared(comparison: RankComparison, *, overflow: bool) -> GraphPlace:
    views = comparison.target.view, comparison.reference.view
    found = compare_graphs(comparison)
    return _place(comparison.step, comparison.rank, found, views, overflow=overflow)


def _place(
    step: int,
    rank: RankKey,
    found: ComparedGraphs,
    views: tuple[RankView, RankView],
    *,
    overflow: bool,
) -> GraphPlace:
    sides = [
        GraphSide(
            side=name,
            graph=graph,
            view=view,
            values=values,
            results=results,
            overflow=_overflow_levels(view) if overflow else {},
        )
        for name, graph, view, values, results in (
            (
                TARGET,
                found.target,
                views[0],
                found.target_values,
                found.target_results,
            ),
            (
                REFERENCE,
                found.reference,
                views[1],
                found.reference_values,
                found.reference_results,
            ),
        )
    ]
    return GraphPlace(step=step, rank=rank, target=sides[0], reference=sides[1])


def _overflow_levels(view: RankView) -> dict[str, OverflowLevel]:
    """Return the grade of each record that has one."""
    found: dict[str, OverflowLevel] = {}
    for record in view.records:
        try:
            level = classify(view.records[record])
        except DumpFormatError:
            continue
        if level is not None:
            found[record] = level
    return found
