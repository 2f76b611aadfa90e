# SPDX-License-Identifier: Apache-2.0
"""Read the gradients that cross the boundary of a call, at the nodes that are there anyway.

MindSpore's dynamic graph shows itself: a tensor leads to the node that made it (``_grad_node``), a
node to those before it (``next_functions``). So nothing has to be inserted: before a call the
*edges* of its inputs are noted, after it the graph is walked from the outputs back to them, and
hooks on the nodes in between read the gradients.

Where this MindSpore has no such nodes (before 2.10), `are_visible` says so, and a run is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mindspore import Tensor
from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT, Gradients
from msprobe.capture.backward_record import gradient_path
from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.values import Found, Position
from msprobe.mindspore.guard import quietly

Edge = tuple[int, int]
"""A node's unique number, and which of its outputs."""

# Leaves carry the largest sequence number.
_LEAF: Final = 1 << 62
# A graph is walked backward once: there is one pass over each call.
_PASS: Final = 0


def are_visible() -> bool:
    """Return whether this MindSpore shows the nodes of its graph."""
    return hasattr(Tensor, "_grad_node") and hasattr(Tensor, "_output_index")


def edge_of(tensor: Any) -> Edge | None:
    """Return the graph edge of a tensor, None when no gradient flows to it."""
    if not tensor._requires_grad:
        return None
    node = tensor._grad_node
    return None if node is None else (node._unique_id(), tensor._output_index)


class InputEdges:
    """Where the inputs of a call hang, taken before the call.

    Attributes:
        positions: of the inputs, by edge.
        born: a sequence number that every node made inside the call exceeds.
    """

    __slots__ = ("born", "positions")

    def __init__(self, found: Found) -> None:
        self.positions: dict[Edge, list[Position]] = {}
        self.born = -1
        for tensor, position in found:
            edge = edge_of(tensor)
            if edge is None:
                continue
            self.positions.setdefault(edge, []).append(position)
            number = tensor._grad_node._sequence_nr()
            if number < _LEAF:
                self.born = max(self.born, number)


class _NodeTap(msgspec.Struct, eq=False):
    """Reads at one node the gradients of one call.

    Attributes:
        session: receives the gradients.
        gradients: the call.
        outputs: (index among the call's outputs, index among the node's).
        inputs: (slot of the node's inputs, position in the call, shares that arrive in all).
        passed: (index among the node's outputs, position) of inputs returned as they were.
        before: the node's (node, index) of each slot.
    """

    session: Session
    gradients: Gradients
    outputs: list[tuple[int, int]] = []
    inputs: list[tuple[int, Position, int]] = []
    passed: list[tuple[int, Position]] = []
    before: Sequence[tuple[Any, int]] = ()

    def arrives(self, grad_outputs: Sequence[Any]) -> None:
        """Take the gradients that arrive at the node; called before it computes."""
        quietly(self.session, "backward", self._before, grad_outputs)

    def after(self, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
        """Take the gradients that the node computed."""
        quietly(self.session, "backward", self._after, grad_inputs)

    def _before(self, grad_outputs: Sequence[Any]) -> None:
        book = self.session.backward
        for index, number in self.outputs:
            if (gradient := _at(grad_outputs, number)) is not None:
                book.gradient(self.gradients, _PASS, SIDE_INPUT, index, gradient)
        for number, position in self.passed:
            if (gradient := _at(grad_outputs, number)) is not None:
                book.gradient(self.gradients, _PASS, SIDE_OUTPUT, position, gradient)

    def _after(self, grad_inputs: Sequence[Any]) -> None:
        book = self.session.backward
        if len(grad_inputs) != len(self.before):
            grad_inputs = _spread(grad_inputs, self.before)
        for slot, position, shares in self.inputs:
            gradient = _at(grad_inputs, slot)
            if gradient is None:
                continue
            if shares > 1:
                book.share(self.gradients, _PASS, position, gradient, of=shares)
            else:
                book.gradient(self.gradients, _PASS, SIDE_OUTPUT, position, gradient)


def _at(gradients: Sequence[Any], index: int) -> Any:
    found = gradients[index] if index < len(gradients) else None
    return found if isinstance(found, Tensor) else None


def _spread(gradients: Sequence[Any], before: Sequence[tuple[Any, int]]) -> list[Any]:
    """Put the gradients of a node at their slots, None at the others.

    The node of jitted code leaves out the gradients that were not asked for. Order and shapes tell
    where the others belong; a gradient that could belong to several slots is left out.
    """
    shapes = [
        tuple(node._input_metadata[index].shape) if node is not None else None
        for node, index in before
    ]
    wanted = [tuple(gradient.shape) for gradient in gradients]
    first = _embed(wanted, shapes)
    last = _embed(wanted[::-1], shapes[::-1])
    spread: list[Any] = [None] * len(before)
    if first is None or last is None:
        return spread
    for gradient, slot, other in zip(gradients, first, reversed(last), strict=True):
        if slot == len(before) - 1 - other:
            spread[slot] = gradient
    return spread


def _embed(wanted: Sequence[Any], shapes: Sequence[Any]) -> list[int] | None:
    """Return the first slots, ascending, that have the wanted shapes; None if there are none."""
    slots, slot = [], -1
    for shape in wanted:
        slot = next((i for i in range(slot + 1, len(shapes)) if shapes[i] == shape), len(shapes))
        if slot == len(shapes):
            return None
        slots.append(slot)
    return slots


class Tapping:
    """Attaches the taps of one call."""

    def __init__(
        self, session: Session, call: Call, edges: InputEdges, found: Found, count: int
    ) -> None:
        """Prepare it.

        Args:
            session: receives the gradients.
            call: the call.
            edges: of its inputs.
            found: its input tensors.
            count: number of its positional arguments.
        """
        self._session = session
        self._edges = edges
        self._gradients = Gradients.expect(call, count, [position for _, position in found])
        self._taps: dict[int, tuple[Any, _NodeTap]] = {}
        self._sources: dict[Edge, list[tuple[Any, int]]] = {}

    def attach(self, outputs: Sequence[Any]) -> None:
        """Tap the outputs (a flat list; items that are no tensors only keep their position)."""
        gradients = self._gradients
        gradients.outputs = len(outputs)
        begin = []
        seen: dict[Edge, int] = {}
        for index, output in enumerate(outputs):
            edge = edge_of(output) if isinstance(output, Tensor) else None
            if edge is None:
                continue
            if edge in seen:
                gradients.remark(SIDE_INPUT, index, f"same as input.{seen[edge]}")
                continue
            seen[edge] = index
            node = output._grad_node
            gradients.expected += 1
            self._tap(node).outputs.append((index, edge[1]))
            positions = self._edges.positions.get(edge)
            if positions is None:
                begin.append(node)
            else:
                gradients.expected += 1
                gradients.has_input_edges = True
                self._tap(node).passed.append((edge[1], positions[0]))
                self._repeat(positions)
        self._walk(begin, seen)
        self._register()

    def _tap(self, node: Any) -> _NodeTap:
        number = node._unique_id()
        if number not in self._taps:
            tap = _NodeTap(self._session, self._gradients, [], [], [])
            self._taps[number] = (node, tap)
        return self._taps[number][1]

    def _repeat(self, positions: list[Position]) -> None:
        first = gradient_path(SIDE_OUTPUT, positions[0])
        for position in positions[1:]:
            self._gradients.remark(SIDE_OUTPUT, position, f"same as {first}")

    def _walk(self, pending: list[Any], outputs: dict[Edge, int]) -> None:
        wanted, born = self._edges.positions, self._edges.born
        visited: set[int] = set()
        while pending:
            node = pending.pop()
            number = node._unique_id()
            if number in visited:
                continue
            visited.add(number)
            for slot, (before, index) in enumerate(node.next_functions):
                if before is None:
                    continue
                edge = (before._unique_id(), index)
                if edge in wanted:
                    self._sources.setdefault(edge, []).append((node, slot))
                elif born < before._sequence_nr() < _LEAF:
                    if edge in outputs:
                        text = "includes the share of another output"
                        self._gradients.remark(SIDE_INPUT, outputs[edge], text)
                    pending.append(before)

    def _register(self) -> None:
        gradients = self._gradients
        for edge, sources in self._sources.items():
            positions = self._edges.positions[edge]
            self._repeat(positions)
            gradients.expected += 1
            gradients.has_input_edges = True
            for node, slot in sources:
                self._tap(node).inputs.append((slot, positions[0], len(sources)))
        for node, tap in self._taps.values():
            if tap.outputs or tap.passed:
                node.register_prehook(tap.arrives)
            if tap.inputs:
                tap.before = node.next_functions
                node.register_hook(tap.after)
