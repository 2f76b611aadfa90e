# SPDX-License-Identifier: Apache-2.0
"""Read the gradients that cross the boundary of a call, without adding a node to the graph.

Before a call the gradient edges of its inputs are noted. After it, the graph is walked from the
outputs back to these edges. A hook on the node behind an output gives the gradient with respect to
that output; a hook on a node at the boundary gives that node's share of the gradient with respect
to an input. The walk stops at nodes older than the call, so it never leaves it.

An output that is a view of a tensor made in the call is read at the node of that tensor, if no one
else can use the tensor: when the view is changed in place later, the gradient comes there and no
longer to the view's own node. A linear layer returns such views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from torch import Tensor
from torch.autograd.graph import Node

from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT
from msprobe.capture.backward_record import gradient_path
from msprobe.capture.session import Session
from msprobe.capture.values import Position
from msprobe.dump.records import PASS_THROUGH
from msprobe.pytorch.gradients.graph_search import CUSTOM_NODE, Edge, find_edges
from msprobe.pytorch.gradients.input_edges import InputEdges, sequence_number
from msprobe.pytorch.gradients.node_taps import (
    CustomNodeTap,
    LeafTap,
    NodeTap,
    OutputTap,
    Region,
    is_all_of_its_base,
    leave_mark,
    marks,
)
from msprobe.pytorch.gradients.shared_edges import Share, SharedEdges

_WRITES_TO_VIEW: Final = "CopySlices"  # the node that a base gets with it
_HANDED_THROUGH: Final = f"{PASS_THROUGH}: includes later uses of the input itself"
_CHANGED_VIEW: Final = "a view changed in place: its gradient may reach its base alone"
_NOT_THIS_VIEW: Final = "no gradient came to this view: it was not used, or changed in place first"


class Tapping:
    """Attaches the taps of one call."""

    __slots__ = (
        "_based",
        "_edges",
        "_gradients",
        "_handed",
        "_hits",
        "_outputs",
        "_passed",
        "_session",
        "_shared",
        "_taps",
    )

    def __init__(self, session: Session, shared: SharedEdges, edges: InputEdges) -> None:
        """Prepare it; see `quick_taps.tap_gradients`."""
        self._session = session
        self._shared = shared
        self._edges = edges
        self._gradients = edges.expected_gradients()
        self._taps: dict[Node, NodeTap] = {}
        # The index of each output by its edge, and by that of its base where this one is tapped.
        self._outputs: dict[Edge, int] = {}
        # The edge of a view by that of its base, where this one is tapped.
        self._based: dict[Edge, Edge] = {}
        # Inputs that an API hands through, and (by their list of positions) a module.
        self._passed: dict[Node, list[tuple[int, Position]]] = {}
        self._handed: set[int] = set()
        # Where each input's shares come from: node, slot of the node, region of the gradient.
        self._hits: dict[int, tuple[Position, list[tuple[Node, int, Region | None]]]] = {}

    def attach(self, outputs: Sequence[Any]) -> None:
        """Tap the outputs (a flat list; items that are not tensors only keep their position)."""
        gradients = self._gradients
        gradients.outputs = len(outputs)
        start: list[Node] = []
        for index, output in enumerate(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                try:
                    self._output(index, output, start)
                except RuntimeError:
                    gradients.remark(SIDE_INPUT, index, "not reachable: a stale view")
        for position in self._edges.stale:
            gradients.remark(SIDE_OUTPUT, position, "not reachable: a stale view")
        self._walk(start)
        gradients.expected += len(self._hits)
        gradients.has_input_edges = bool(self._hits or self._passed or self._handed)
        self._register()

    # -- outputs -------------------------------------------------------------------------------

    def _output(self, index: int, output: Tensor, start: list[Node]) -> None:
        node = output.grad_fn  # of a stale view this raises
        if node is None:
            self._leaf(index, output)
            return
        edge = (node, output.output_nr)
        if edge in self._based:
            self._tap_view_itself(edge)
        first = self._outputs.get(edge)
        if first is not None:
            self._gradients.remark(SIDE_INPUT, index, f"same as input.{first}")
            return
        self._outputs[edge] = index
        self._gradients.expected += 1
        positions = self._edges.inner.get(edge)
        if positions is not None:
            self._pass_through(index, edge, positions)
        elif not (output._is_view() and self._tap_base(index, output, edge, start)):
            self._add(index, edge, None)
            start.append(node)

    def _add(self, index: int, edge: Edge, region: Region | None) -> None:
        tap = self._tap(edge[0])
        tap.outputs = (*tap.outputs, (index, edge[1], region))

    def _untap(self, index: int) -> None:
        for tap in self._taps.values():
            tap.outputs = tuple(output for output in tap.outputs if output[0] != index)

    def _tap_base(self, index: int, view: Tensor, edge: Edge, start: list[Node]) -> bool:
        """Tap a view at the node of its base, if that was made in the call; return whether so."""
        base: Any = view._base
        node = base.grad_fn
        if node is None or node._sequence_nr() < self._edges.born:
            return False
        if not self._edges.is_one_api and not is_all_of_its_base(edge):
            self._gradients.remark(SIDE_INPUT, index, _NOT_THIS_VIEW, only_null=True)
            return False
        received = next((position for one, position in self._edges.found if one is view), None)
        base_edge = (node, base.output_nr)
        region = Region.of(base, view, is_all=received is None)
        if base_edge in self._based:
            self._tap_view_itself(base_edge)
        elif base_edge not in self._outputs and region is not None:
            self._based[base_edge] = edge
            self._outputs[base_edge] = index
            self._add(index, base_edge, region)
            leave_mark(
                edge[0], NodeTap(self._session, self._gradients, ((index, edge[1], region),))
            )
            start.append(node)
            if received is not None:
                self._changed_input(received, node, region)
            return True
        # The gradient of the base is not this view's alone.
        if received is not None:
            self._gradients.remark(SIDE_INPUT, index, _CHANGED_VIEW)
            self._gradients.remark(SIDE_OUTPUT, received, _CHANGED_VIEW)
        return False

    def _tap_view_itself(self, base_edge: Edge) -> None:
        """Tap a view at its own node after all: its base is consumed otherwise, too."""
        index = self._outputs.pop(base_edge)
        self._untap(index)
        self._add(index, self._based.pop(base_edge), None)

    def _changed_input(self, position: Position, node: Any, region: Region) -> None:
        """Take the gradient of an input that is a view and was changed in place.

        Args:
            position: the input.
            node: of its base, after the call.
            region: its elements.
        """
        inner = self._edges.inner
        edge: Any = next((one for one, places in inner.items() if position in places), None)
        if edge is None:
            return  # no gradient is computed for it
        for tap in marks(edge[0]):
            for index, number, its_region in tap.outputs:
                if number == edge[1] and its_region is None:
                    tap.gradients.remark(SIDE_INPUT, index, _CHANGED_VIEW)
        while type(node).__name__ == _WRITES_TO_VIEW:
            before = node.next_functions[0][0]
            if before is None or before._sequence_nr() < self._edges.born:
                self._hit(node, 0, inner[edge], region)
                return
            node = before
        self._gradients.remark(SIDE_OUTPUT, position, _CHANGED_VIEW)

    def _pass_through(self, index: int, edge: Edge, positions: list[Position]) -> None:
        self._gradients.expected += 1
        self._same(positions)
        if self._edges.call.is_module:
            self._hand_through(index, positions, partial(self._shared.add, *edge))
            return
        self._gradients.remark(SIDE_INPUT, index, f"{PASS_THROUGH}: all consumers of the input")
        self._add(index, edge, None)
        self._passed.setdefault(edge[0], []).append((edge[1], positions[0]))

    def _hand_through(
        self, index: int, positions: list[Position], add: Callable[[Share], None]
    ) -> None:
        """Divide the gradient of a tensor that a module returns as it was given."""
        self._handed.add(id(positions))
        self._gradients.remark(SIDE_INPUT, index, _HANDED_THROUGH)
        add(Share(self._gradients, SIDE_INPUT, index, sequence_number()))
        if positions:
            self._gradients.remark(SIDE_OUTPUT, positions[0], _HANDED_THROUGH)
            add(Share(self._gradients, SIDE_OUTPUT, positions[0], self._edges.born))

    def _leaf(self, index: int, output: Tensor) -> None:
        positions = self._edges.leaves.get(id(output), [])
        self._gradients.expected += 1 + bool(positions)
        self._same(positions)
        if self._edges.call.is_module:
            self._hand_through(index, positions, partial(self._shared.add_leaf, output))
            return
        self._gradients.remark(SIDE_INPUT, index, f"{PASS_THROUGH}: all consumers of the leaf")
        tap = NodeTap(self._session, self._gradients)
        handle = output.register_hook(  # type: ignore[no-untyped-call]
            LeafTap(tap, index, positions)
        )
        self._session.step_undo.callback(handle.remove)

    def _same(self, positions: list[Position]) -> None:
        for position in positions[1:]:
            first = gradient_path(SIDE_OUTPUT, positions[0])
            self._gradients.remark(SIDE_OUTPUT, position, f"same as {first}")

    def _divide(self, edge: Edge) -> None:
        """Count for an output that is consumed inside the call the consumers outside alone."""
        if edge in self._based:
            self._tap_view_itself(edge)
            return
        index = self._outputs.pop(edge, None)
        if index is None:
            return  # divided already
        for base_edge, own in list(self._based.items()):
            if own == edge:
                del self._based[base_edge], self._outputs[base_edge]
        self._untap(index)
        share = Share(self._gradients, SIDE_INPUT, index, sequence_number())
        self._shared.add(*edge, share)

    # -- inputs --------------------------------------------------------------------------------

    def _walk(self, start: list[Node]) -> None:
        edges = self._edges
        hits, used = find_edges(start, edges.inner, edges.leaves, self._outputs, edges.born, 0)
        for node, slot, positions in hits:
            self._hit(node, slot, positions)
        for edge in used:
            self._divide(edge)

    def _hit(
        self, node: Node, slot: int, positions: list[Position], region: Region | None = None
    ) -> None:
        known = self._hits.get(id(positions))
        if known is None:
            if id(positions) in self._handed:
                return
            known = self._hits[id(positions)] = (positions[0], [])
            self._same(positions)
        known[1].append((node, slot, region))

    # -- hooks ---------------------------------------------------------------------------------

    def _tap(self, node: Node) -> NodeTap:
        tap = self._taps.get(node)
        if tap is None:
            tap = self._taps[node] = NodeTap(self._session, self._gradients)
        return tap

    def _register(self) -> None:
        for position, sources in self._hits.values():
            for node, slot, region in sources:
                tap = self._tap(node)
                tap.inputs = (*tap.inputs, (slot, position, len(sources), region))
        for node, tap in self._taps.items():
            passed = self._passed.get(node)
            if not (tap.inputs or tap.outputs):
                continue
            if isinstance(node, CUSTOM_NODE):
                self._register_custom(node, tap, passed)
            elif tap.inputs and not passed:
                node.register_hook(tap)
            else:
                node.register_prehook(OutputTap(tap, passed))
            if any(region is None for *_, region in tap.outputs):
                leave_mark(node, tap)

    def _register_custom(
        self, node: Node, tap: NodeTap, passed: list[tuple[int, Position]] | None
    ) -> None:
        """Tap a node whose backward is the user's: it may write into its gradients."""
        after = CustomNodeTap(self._session, self._gradients)
        after.inputs, tap.inputs = tap.inputs, ()
        node.register_hook(after)
        if tap.outputs or passed:
            node.register_prehook(OutputTap(tap, passed))


def take_result(session: Session, inputs: Sequence[Any], results: Sequence[Any]) -> None:
    """Take gradients from the result of ``autograd.grad(outputs, inputs)``."""
    found = []
    for tensor, gradient in zip(inputs, results, strict=True):
        node = tensor.grad_fn if isinstance(tensor, Tensor) else None
        if node is None or gradient is None:
            continue
        for tap in marks(node):
            for index, number, _ in tap.outputs:
                if number == tensor.output_nr:
                    found.append((tap.gradients, index, gradient))
    session.backward.results(found)
