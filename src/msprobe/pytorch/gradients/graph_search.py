# SPDX-License-Identifier: Apache-2.0
"""Find where the graph of a call begins: the edges from its outputs back to its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from msprobe.capture.values import Position
from msprobe.pytorch.gradients.shared_edges import ACCUMULATES
from msprobe.pytorch.values.memo import TENSORS

Edge = tuple[Node, int]
"""A node of the graph and the number of one of its outputs."""

Hit = tuple[Node, int, list[Position]]
"""A node, the slot whose edge leads to an input, and the positions of that input."""

CUSTOM_NODE: Final[Any] = BackwardCFunction
"""The type of nodes whose backward is the user's; by its stub it could be no `Node`."""


def _find_edges(
    accumulates: int,
    custom: type,
    start: list[Node],
    inner: Mapping[tuple[Node | None, int], list[Position]],
    leaves: Mapping[int, list[Position]],
    outputs: Mapping[Edge, int],
    born: int,
    most: int,
) -> tuple[list[Hit], list[Edge]] | None:
    hits: list[Hit] = []
    used: list[Edge] = []
    seen: set[Node] = set()
    todo = list(start)
    while todo:
        node = todo.pop()
        if node in seen:
            if most:
                return None
            continue
        if most and (len(seen) == most or isinstance(node, custom)):
            return None
        seen.add(node)
        for slot, edge in enumerate(node.next_functions):
            parent: Any = edge[0]  # torch's stubs do not know `variable`
            if parent is None:
                continue
            number = 0
            positions = inner.get(edge)
            if positions is None:
                number = parent._sequence_nr()
                if number >= accumulates:
                    positions = leaves.get(id(parent.variable))
            if positions is not None:
                hits.append((node, slot, positions))
            elif born <= number < accumulates:
                if edge in outputs:
                    used.append((parent, edge[1]))
                todo.append(parent)
    return None if most and _is_any_consumed_twice(hits) else (hits, used)


def _is_any_consumed_twice(hits: list[Hit]) -> bool:
    several = any(len(positions) > 1 for _, _, positions in hits)
    return several or len({id(positions) for _, _, positions in hits}) < len(hits)


_search: Final[Any] = _find_edges if TENSORS is None else TENSORS.find_edges

find_edges: Final = partial(_search, ACCUMULATES, CUSTOM_NODE)
"""``find_edges(start, inner, leaves, outputs, born, most)``: search the graph of a call.

From the nodes `start` it goes back to the edges of inputs, and never to nodes older than `born`. It
returns a `Hit` for each node at an input, in `inner` (positions by edge) or `leaves` (positions by
``id`` of the leaf), and the edges among `outputs` that nodes of the call consume. With a limit
`most` above 0 it returns None for a graph with more nodes, with a node or an input that is consumed
twice, or with a custom node.
"""
