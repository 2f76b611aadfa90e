# SPDX-License-Identifier: Apache-2.0
"""`Graph`: the calls of one rank in one step as nested boxes, and the values between them.

Nodes are numbered in preorder, children in order of execution, so the subtree of node `i` is
``range(i, i + nodes[i].size)``, and a call that follows another one has the larger number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag, StrEnum
from typing import Final

ROOT_NAME: Final = "DefaultModel"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
"""Between a number and what there is so often, and between sizes of a shape."""


class NodeKind(IntEnum):
    """Kind of a node."""

    ROOT = 0
    MODULE = 1
    API = 2
    GROUP = 3
    """Calls of an optimizer, or of the clipping of gradients."""
    COLLECTION = 4
    """APIs that follow each other outside of all modules."""


class NodeFlag(IntFlag):
    """Facts about a node."""

    FORWARD = 1
    BACKWARD = 2
    FOLDED = 4
    """A view, a cast or another call that computes nothing: usually drawn as part of an edge."""
    RECOMPUTED = 8
    COMMUNICATION = 16
    IN_PLACE = 32
    RAISED = 64
    PARAMETERS = 128
    NONFINITE = 256
    UNCALLED = 512
    """Only backward records are known."""


NO_FLAGS: Final = NodeFlag(0)


class HalfKind(StrEnum):
    """Which records of a call a half holds."""

    FORWARD = "forward"
    RECOMPUTED = "recomputed"
    BACKWARD = "backward"
    PARAMETERS_GRAD = "parameters_grad"


class How(IntEnum):
    """How it is known that one call made the value that another one used."""

    RECORDED = 0
    SAME_FILE = 1
    CHECKSUM = 2
    STATISTICS = 3
    GRAPH = 4


class Severity(IntEnum):
    """How much a node asks for a look; of a subtree, the largest counts."""

    NONE = 0
    EQUAL = 1
    CLOSE = 2
    INHERITED = 3
    AMPLIFIED = 4
    ONE_SIDED = 5
    INTRODUCED = 6


@dataclass(frozen=True, slots=True)
class Half:
    """One record of a node.

    Attributes:
        kind: forward, backward …
        record: the record's name.
        order: place among all calls, from 0, in the order in which they began.
        is_recorded: whether the dump holds a record of it, or only its place in the hierarchy.
    """

    kind: HalfKind
    record: str
    order: int
    is_recorded: bool


@dataclass(slots=True, kw_only=True)
class Node:
    """One call with its forward and backward records, or a box around calls.

    Attributes:
        id: its number.
        parent: number of the box around it; -1 for the root.
        size: number of nodes in its subtree, itself included.
        kind: module, API …
        name: name of its forward record, or of the box.
        label: the last part of its name, as it is shown inside its parent.
        class_name: class of the module; empty for all others.
        path: path of the module, or the API.
        flags: facts about it.
        halves: its records, the forward one first.
        micro_step: number of the micro step.
    """

    id: int
    parent: int
    size: int = 1
    kind: NodeKind
    name: str
    label: str
    class_name: str = ""
    path: str = ""
    flags: NodeFlag = NO_FLAGS
    halves: list[Half] = field(default_factory=list)
    micro_step: int = 0

    def half(self, kind: HalfKind) -> Half | None:
        """Return the first record of a kind."""
        return next((half for half in self.halves if half.kind is kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A value that one node made and another one used.

    Attributes:
        source: the node that made it.
        target: the node that used it.
        source_slot: the value among those of the forward record of `source`: ``output.0``.
        target_slot: the same for `target`: ``input.0``.
        shape: its shape.
        dtype: its type.
        how: how the connection is known.
        confidence: from 0 to 1; 1 where it was recorded.
        has_gradient: whether a gradient flows back along it.
    """

    source: int
    target: int
    source_slot: str
    target_slot: str
    shape: tuple[int, ...]
    dtype: str
    how: How
    confidence: float
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """Modules that follow each other and are alike, shown as one: 24 times ``Block``.

    Attributes:
        parent: the box around them.
        members: their numbers, in order.
        class_name: their class.
    """

    parent: int
    members: tuple[int, ...]
    class_name: str

    @property
    def label(self) -> str:
        """Number and class: 24 times ``Block``."""
        return f"{len(self.members)} {TIMES} {self.class_name}"


@dataclass(slots=True, kw_only=True)
class Graph:
    """The calls of one rank in one step.

    Attributes:
        step: number of the step.
        rank: the rank's number, or its folder's name where it has none.
        framework: as the dump names it; also `task` and `level`.
        nodes: all nodes, by number.
        edges: values between them, in the order of their use.
        rolls: repeated layers.
        notes: on what is not known, for the user.
    """

    step: int
    rank: int | str
    framework: str
    task: str
    level: str
    nodes: list[Node]
    edges: list[Edge] = field(default_factory=list)
    rolls: list[Roll] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def children(self, node: int) -> Iterator[int]:
        """Yield the numbers of the nodes directly inside a node, in order."""
        child, end = node + 1, node + self.nodes[node].size
        while child < end:
            yield child
            child += self.nodes[child].size

    def ancestors(self, node: int) -> list[int]:
        """Return the boxes around a node, innermost first; the root is the last."""
        found = []
        parent = self.nodes[node].parent
        while parent >= 0:
            found.append(parent)
            parent = self.nodes[parent].parent
        return found

    def is_inside(self, node: int, box: int) -> bool:
        """Return whether a node is a box itself, or inside of it."""
        return box <= node < box + self.nodes[box].size

    def common_box(self, nodes: Sequence[int]) -> int:
        """Return the innermost box that holds all of some nodes."""
        box, last = min(nodes), max(nodes)
        while box + self.nodes[box].size <= last:
            box = self.nodes[box].parent
        return box

    def node_of(self) -> dict[str, tuple[int, HalfKind]]:
        """Return record name → number of its node, and which half of it the record is."""
        return {half.record: (node.id, half.kind) for node in self.nodes for half in node.halves}
