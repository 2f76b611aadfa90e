# SPDX-License-Identifier: Apache-2.0
"""Layers that repeat: modules of one list that are built and called alike."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from msprobe.graph.model import Graph, Node, NodeFlag, NodeKind, Roll

_FEWEST: Final = 3
_NUMBER: Final = re.compile(r"\d+")


def find_rolls(graph: Graph) -> list[Roll]:
    """Return the runs of at least three neighbouring modules that are alike, outer ones first.

    Alike are modules of one class whose paths differ in one number, with the same calls inside.
    Views and casts between them do not end a run.
    """
    shapes = _shapes(graph)
    return [
        roll
        for node in graph.nodes
        if node.size > _FEWEST
        for roll in _rolls_in(graph, node.id, shapes)
    ]


def _shapes(graph: Graph) -> list[int]:
    """Return a number for each node; nodes with equal subtrees have the same."""
    numbers: dict[Hashable, int] = {}
    shapes = [0] * len(graph.nodes)
    for node in reversed(graph.nodes):
        inside = tuple(shapes[child] for child in graph.children(node.id))
        own = node.class_name or (node.path if node.kind is NodeKind.API else node.kind)
        shapes[node.id] = numbers.setdefault((own, inside), len(numbers))
    return shapes


def _rolls_in(graph: Graph, box: int, shapes: Sequence[int]) -> Iterator[Roll]:
    run: list[Node] = []
    for child in graph.children(box):
        node = graph.nodes[child]
        if node.flags & NodeFlag.FOLDED:
            continue
        if run and not _continues(run, node, shapes):
            yield from _roll(box, run)
            run = []
        if node.kind is NodeKind.MODULE:
            run.append(node)
    yield from _roll(box, run)


def _continues(run: Sequence[Node], node: Node, shapes: Sequence[int]) -> bool:
    last = run[-1]
    return (
        node.kind is NodeKind.MODULE
        and node.class_name == last.class_name
        and shapes[node.id] == shapes[last.id]
        and node.path != last.path
        and _differ_in_one_number(node.path, last.path)
    )


def _differ_in_one_number(one: str, other: str) -> bool:
    parts, others = one.split("."), other.split(".")
    if len(parts) != len(others):
        return False
    different = [pair for pair in zip(parts, others, strict=True) if pair[0] != pair[1]]
    return len(different) == 1 and all(_NUMBER.fullmatch(part) for part in different[0])


def _roll(box: int, run: Sequence[Node]) -> Iterator[Roll]:
    if len(run) >= _FEWEST:
        members = tuple(node.id for node in run)
        yield Roll(parent=box, members=members, class_name=run[0].class_name)
