# SPDX-License-Identifier: Apache-2.0
"""Read the gradients that cross the boundary of a call, without adding a node to the graph.

Before a call the gradient edges of its inputs are noted. After it, the graph is walked from the
outputs back to these edges. A hook on the node behind an output gives the gradient with respect to
that output; a hook on a node at the boundary gives that node's share of the gradient with respect
to an input. The walk stops at nodes older than the call, so it never leaves it.

Hooks hold nodes' slots and our own bookkeeping, never a tensor or a node: the graph lives exactly
as long as it would without us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT, Gradients, gradient_path
from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.values import Found, Position
from msprobe.pytorch.interception.guard import quietly

_graph_task: Final = torch._C._current_graph_task_id
_sequence_number: Final = torch._C._autograd._get_sequence_nr
# AccumulateGrad nodes carry the largest sequence number, so that the engine runs them first.
_ACCUMULATES: Final = 1 << 62
_METADATA_KEY: Final = "msprobe"
_CUSTOM_NODE: Final[Any] = BackwardCFunction  # by its stub it could be no Node
_CHANGED_VIEW: Final = "a view changed in place: its gradient may reach its base alone"


class InputEdges:
    """Where the inputs of a call hang in the graph, taken before the call.

    Attributes:
        inner: positions by edge, for inputs that were computed.
        leaves: positions by ``id`` of the leaf tensor.
        born: the sequence number at entry; older nodes lie outside the call.
        stale: positions whose edge cannot be read (a stale view).
    """

    __slots__ = ("born", "inner", "leaves", "stale")

    def __init__(self, found: Found) -> None:
        self.inner: dict[tuple[Node | None, int], list[Position]] = {}
        self.leaves: dict[int, list[Position]] = {}
        self.stale: list[Position] = []
        self.born: int = _sequence_number()
        for tensor, position in found:
            if not tensor.requires_grad:
                continue
            try:
                node = tensor.grad_fn
            except RuntimeError:  # a view whose base was changed in a forbidden way
                self.stale.append(position)
                continue
            if node is None:
                self.leaves.setdefault(id(tensor), []).append(position)
            else:
                self.inner.setdefault((node, tensor.output_nr), []).append(position)


class _NodeTap(msgspec.Struct, gc=False, eq=False):
    """A hook on one node; called by the engine with that node's gradients.

    Attributes:
        session: receives them.
        gradients: the call they belong to.
        outputs: (index of the output, output number of the node) of each output it made.
        inputs: (input slot of the node, position, shares in all) of each input it reaches.
    """

    session: Session
    gradients: Gradients
    outputs: tuple[tuple[int, int], ...] = ()
    inputs: tuple[tuple[int, Position, int], ...] = ()

    def __call__(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        """After the node has run: both sides are known."""
        quietly(self.session, "backward", self._take, grad_inputs, grad_outputs)

    def _take(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        task = _graph_task()
        book = self.session.gradients
        gradients = self.gradients
        note_birth(self.session, grad_outputs)
        for index, number in self.outputs:
            gradient = grad_outputs[number]
            if gradient is not None:
                book.gradient(gradients, task, SIDE_INPUT, index, gradient)
        if not self.inputs:
            return
        note_birth(self.session, grad_inputs)
        for slot, position, shares in self.inputs:
            gradient = grad_inputs[slot]
            if gradient is None:
                continue
            if shares == 1:
                book.gradient(gradients, task, SIDE_OUTPUT, position, gradient)
            else:
                book.share(gradients, task, position, gradient, of=shares)


class _CustomNodeTap(_NodeTap, gc=False, eq=False):
    """A hook after the backward of a custom function, which writes where it likes, unannounced."""

    def _take(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        memo = self.session.adapter.memo  # type: ignore[attr-defined]
        if memo.active:
            for gradient in (*grad_inputs, *grad_outputs):
                if gradient is not None:
                    memo.ban(gradient)
        _NodeTap._take(self, grad_inputs, grad_outputs)


class _OutputTap(msgspec.Struct, gc=False, eq=False):
    """A hook before a node runs: the gradients with respect to outputs (and passed-on inputs)."""

    _tap: _NodeTap
    passed: list[tuple[int, Position]] | None = None

    def __call__(self, grad_outputs: Sequence[Tensor | None]) -> None:
        tap = self._tap
        quietly(tap.session, "backward", self._take, grad_outputs)

    def _take(self, grad_outputs: Sequence[Tensor | None]) -> None:
        tap = self._tap
        tap._take((), grad_outputs)
        task = _graph_task()
        for number, position in self.passed or ():
            gradient = grad_outputs[number]
            if gradient is not None:
                tap.session.gradients.gradient(tap.gradients, task, SIDE_OUTPUT, position, gradient)


class _LeafTap:
    """A hook on a leaf that a call returned as it was."""

    __slots__ = ("_tap", "index", "positions")

    def __init__(self, tap: _NodeTap, index: int, positions: list[Position]) -> None:
        self._tap = tap
        self.index = index
        self.positions = positions

    def __call__(self, gradient: Tensor | None) -> None:
        if gradient is not None:  # torch calls hooks of leaves for undefined gradients, too
            quietly(self._tap.session, "backward", self._take, gradient)

    def _take(self, gradient: Tensor) -> None:
        tap, task = self._tap, _graph_task()
        book = tap.session.gradients
        book.gradient(tap.gradients, task, SIDE_INPUT, self.index, gradient)
        for position in self.positions[:1]:
            book.gradient(tap.gradients, task, SIDE_OUTPUT, position, gradient)


def note_birth(session: Session, gradients: Sequence[Tensor | None]) -> None:
    """Let the memo know gradients: the engine made them inside a backward that is observed."""
    memo = session.adapter.memo  # type: ignore[attr-defined]
    if not memo.active:
        return
    for gradient in gradients:
        if gradient is not None:
            memo.born(gradient)


class Tapping:
    """Attaches the taps of one call."""

    __slots__ = (
        "_edges",
        "_gradients",
        "_hits",
        "_outputs",
        "_passed",
        "_received",
        "_session",
        "_taps",
    )

    def __init__(
        self, session: Session, call: Call, edges: InputEdges, found: Found, arguments: int
    ) -> None:
        self._session = session
        self._edges = edges
        self._gradients = Gradients.expect(call, arguments, [position for _, position in found])
        self._received = {id(tensor): position for tensor, position in found}
        self._taps: dict[Node, _NodeTap] = {}
        self._outputs: dict[tuple[Node | None, int], int] = {}
        self._passed: dict[Node, list[tuple[int, Position]]] = {}
        # While walking: where each input's shares come from, (node, slot of the node).
        self._hits: dict[int, tuple[Position, list[tuple[Node, int]]]] = {}

    def attach(self, outputs: Sequence[Any]) -> None:
        """Tap the outputs (a flat list; what is not a tensor takes its place only)."""
        gradients = self._gradients
        gradients.outputs = len(outputs)
        start: list[Node] = []
        for index, output in enumerate(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                self._output(index, output, start)
                position = self._received.get(id(output))
                if position is not None and output._is_view():
                    # Later uses of the base and of other views do not pass this view's node.
                    gradients.remark(SIDE_INPUT, index, _CHANGED_VIEW)
                    gradients.remark(SIDE_OUTPUT, position, _CHANGED_VIEW)
        for position in self._edges.stale:
            gradients.remark(SIDE_OUTPUT, position, "not reachable: a stale view")
        self._walk(start)
        gradients.expected += len(self._hits)
        gradients.has_input_edges = bool(self._hits) or bool(self._passed)
        self._register()

    def _output(self, index: int, output: Tensor, start: list[Node]) -> None:
        gradients = self._gradients
        try:
            node = output.grad_fn
        except RuntimeError:
            gradients.remark(SIDE_INPUT, index, "not reachable: a stale view")
            return
        if node is None:
            self._leaf(index, output)
            return
        edge = (node, output.output_nr)
        first = self._outputs.get(edge)
        if first is not None:
            gradients.remark(SIDE_INPUT, index, f"same as input.{first}")
            return
        self._outputs[edge] = index
        gradients.expected += 1
        tap = self._tap(node)
        tap.outputs = (*tap.outputs, (index, edge[1]))
        positions = self._edges.inner.get(edge)
        if positions is None:
            start.append(node)
            return
        gradients.remark(SIDE_INPUT, index, "pass-through: all consumers of the input")
        gradients.expected += 1
        self._passed.setdefault(node, []).append((edge[1], positions[0]))
        self._same(positions)

    def _leaf(self, index: int, output: Tensor) -> None:
        positions = self._edges.leaves.get(id(output), [])
        self._gradients.expected += 1 + bool(positions)
        self._gradients.remark(SIDE_INPUT, index, "pass-through: all consumers of the leaf")
        self._same(positions)
        tap = _NodeTap(self._session, self._gradients)
        handle = output.register_hook(  # type: ignore[no-untyped-call]
            _LeafTap(tap, index, positions)
        )
        self._session.step_undo.callback(handle.remove)

    def _same(self, positions: list[Position]) -> None:
        for position in positions[1:]:
            first = gradient_path(SIDE_OUTPUT, positions[0])
            self._gradients.remark(SIDE_OUTPUT, position, f"same as {first}")

    def _tap(self, node: Node) -> _NodeTap:
        tap = self._taps.get(node)
        if tap is None:
            tap = self._taps[node] = _NodeTap(self._session, self._gradients)
        return tap

    def _walk(self, todo: list[Node]) -> None:
        inner, leaves, born = self._edges.inner, self._edges.leaves, self._edges.born
        outputs = self._outputs
        seen: set[Node] = set()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            for slot, edge in enumerate(node.next_functions):
                parent: Any = edge[0]  # torch's stubs know neither `variable` nor `metadata`
                if parent is None:
                    continue
                positions = inner.get(edge) if inner else None
                if positions is not None:
                    self._hit(node, slot, positions)
                    continue
                number = parent._sequence_nr()
                if number >= _ACCUMULATES:
                    positions = leaves.get(id(parent.variable)) if leaves else None
                    if positions is not None:
                        self._hit(node, slot, positions)
                elif number >= born:
                    if edge in outputs:
                        self._gradients.remark(
                            SIDE_INPUT, outputs[edge], "includes the share of another output"
                        )
                    todo.append(parent)

    def _hit(self, node: Node, slot: int, positions: list[Position]) -> None:
        known = self._hits.get(id(positions))
        if known is None:
            known = self._hits[id(positions)] = (positions[0], [])
            self._same(positions)
        known[1].append((node, slot))

    def _register(self) -> None:
        for position, sources in self._hits.values():
            for node, slot in sources:
                tap = self._tap(node)
                tap.inputs = (*tap.inputs, (slot, position, len(sources)))
        for node, tap in self._taps.items():
            passed = self._passed.get(node)
            if isinstance(node, _CUSTOM_NODE):
                self._register_custom(node, tap, passed)
            elif tap.inputs and not passed:
                node.register_hook(tap)
            else:
                node.register_prehook(_OutputTap(tap, passed))
            if tap.outputs:
                _leave_mark(node, tap)

    def _register_custom(
        self, node: Node, tap: _NodeTap, passed: list[tuple[int, Position]] | None
    ) -> None:
        """Tap a node whose backward is the user's: it may write into what it is given."""
        after = _CustomNodeTap(self._session, self._gradients)
        after.inputs, tap.inputs = tap.inputs, ()
        node.register_hook(after)
        if tap.outputs or passed:
            node.register_prehook(_OutputTap(tap, passed))


def _leave_mark(node: Node, tap: _NodeTap) -> None:
    """Let the node lead to its tap, so that ``autograd.grad`` with an inner input is understood.

    The engine then runs no hook of the node that made this input: the gradient is in the result.
    """
    metadata: Any = node.metadata
    others = metadata.get(_METADATA_KEY)
    metadata[_METADATA_KEY] = tap if others is None else (others, tap)


def _marks(node: Node) -> Iterator[_NodeTap]:
    metadata: Any = node.metadata
    mark = metadata.get(_METADATA_KEY)
    while type(mark) is tuple:
        mark, tap = mark
        yield tap
    if mark is not None:
        yield mark


def take_result(session: Session, inputs: Sequence[Any], results: Sequence[Any]) -> None:
    """Take gradients from the result of ``autograd.grad(outputs, inputs)``."""
    found = []
    for tensor, gradient in zip(inputs, results, strict=True):
        node = tensor.grad_fn if isinstance(tensor, Tensor) else None
        if node is None or gradient is None:
            continue
        for tap in _marks(node):
            for index, number in tap.outputs:
                if number == tensor.output_nr:
                    found.append((tap.gradients, index, gradient))
    session.gradients.results(found)
