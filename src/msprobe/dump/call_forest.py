# SPDX-License-Identifier: Apache-2.0
"""The calls of a rank as trees, each call below the one it ran in, in order of execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName


class Section(StrEnum):
    """One of the parts into which the calls of a rank are divided; the value is its title."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SAVED_VALUES = "saved values"


_SECTIONS: Final = {
    RecordKind.BACKWARD: Section.BACKWARD,
    RecordKind.PARAMETERS_GRAD: Section.BACKWARD,
    RecordKind.PARAMETERS_GRAD_REDUCED: Section.BACKWARD,
    RecordKind.DEBUG: Section.SAVED_VALUES,
}


@dataclass(slots=True)
class CallNode:
    """One call.

    Attributes:
        name: its record name, taken apart.
        is_recorded: whether the dump holds a record of it (or only its place in the tree).
        children: calls that ran inside it.
    """

    name: RecordName
    is_recorded: bool
    children: list[CallNode] = field(default_factory=list)

    def count(self) -> int:
        """Return the number of calls below this one."""
        return sum(1 for _ in walk(self.children))


def walk(nodes: list[CallNode]) -> Iterator[CallNode]:
    """Yield nodes and everything below them, parents first."""
    waiting = nodes[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children[::-1]


def call_forest(view: RankView, selected: set[str] | None = None) -> dict[Section, list[CallNode]]:
    """Return the trees of a rank by section; sections without calls are left out.

    Args:
        view: the rank.
        selected: keep only these records and the calls around them; None keeps all.
    """
    parents = _with_groups(view.parents)
    wanted = None if selected is None else with_ancestors(parents, selected)
    nodes = {
        name: CallNode(view.records.parsed(name), name in view.records)
        for name in (*parents, *view.records)
        if wanted is None or name in wanted
    }
    return _sections(nodes, parents)


def _with_groups(parents: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return parents, with groups (``optimizer``, ``clip_grad``) at the place of their first call.

    A group need not be an entry of its own, and one without calls is left out.
    """
    groups = {parent for parent in parents.values() if parent is not None and "." not in parent}
    result: dict[str, str | None] = {}
    for name, parent in parents.items():
        if parent in groups:
            result.setdefault(parent, None)
        if "." in name or name in groups:
            result.setdefault(name, parent)
    return result


def with_ancestors(parents: Mapping[str, str | None], selected: Iterable[str]) -> set[str]:
    """Return some records and all that enclose them; each link is followed once."""
    wanted: set[str] = set()
    for name in selected:
        current: str | None = name
        while current is not None and current not in wanted:
            wanted.add(current)
            current = parents.get(current)
    return wanted


def _sections(
    nodes: dict[str, CallNode], parents: dict[str, str | None]
) -> dict[Section, list[CallNode]]:
    sections: dict[Section, list[CallNode]] = {section: [] for section in Section}
    backwards = _backward_of_modules(nodes)
    for name, node in nodes.items():
        parent = parents.get(name)
        if name not in parents and node.name.kind in PARAMETER_GRADIENTS:
            parent = backwards.get(node.name.base)
        above = nodes.get(parent) if parent is not None else None
        roots = sections[_SECTIONS.get(node.name.kind, Section.FORWARD)]
        (roots if above is None else above.children).append(node)
    return {section: roots for section, roots in sections.items() if roots}


def _backward_of_modules(nodes: dict[str, CallNode]) -> dict[str, str]:
    """Return module → its last backward call, below which gradients of its parameters belong."""
    return {
        node.name.base: name
        for name, node in nodes.items()
        if node.name.is_module and node.name.kind is RecordKind.BACKWARD
    }
