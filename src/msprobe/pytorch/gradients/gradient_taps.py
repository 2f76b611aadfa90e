# SPDX-License-Identifier: Apache-2.0
"""Read the gradients that cross the boundary of a call, without adding a node to the graph.

Before a call the gradient edges of its inputs are noted. After it, the graph is walked from the
outputs back to these edges. A hook on the node behind an output gives the gradient with respect to
that output; a hook on a node at the boundary gives that node's share of the gradient with respect
to an input. The walk stops at nodes older than the call, so it never leaves it.

An output that is a view of a tensor made in the call is read at the node of that tensor, if no one
else can use the tensor: when the view is changed in place later, the gradient comes there and no
longer to the view's own node. A linear layer returns such views.

Hooks hold nodes' slots and our own bookkeeping, never a tensor or a node: the graph lives exactly
as long as it would without us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT, Gradients
from msprobe.capture.backward_record import gradient_path
from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.capture.values import Found, Position
from msprobe.pytorch.gradients.shared_edges import ACCUMULATES, Share, SharedEdges
from msprobe.pytorch.interception.guard import quietly

_graph_task: Final = torch._C._current_graph_task_id
_sequence_number: Final = torch._C._autograd._get_sequence_nr
_METADATA_KEY: Final = "msprobe"
_CUSTOM_NODE: Final[Any] = BackwardCFunction  # by its stub it could be no Node
_WRITES_TO_VIEW: Final = "CopySlices"  # the node that a base gets with it
_HANDED_THROUGH: Final = "pass-through: includes later uses of the input itself"
_CHANGED_VIEW: Final = "a view changed in place: its gradient may reach its base alone"
_NOT_THIS_VIEW: Final = "no gradient came to this view: it was not used, or changed in place first"
# A node of the graph and the number of one of its outputs.
Edge = tuple[Node, int]


class _Region:
    """Which elements of its base a view has: of a gradient of the base, they are the view's.

    Attributes:
        is_all: whether nothing but this view shows the base.
    """

    __slots__ = ("_base", "_offset", "_size", "_stride", "is_all")

    def __init__(self, base: Tensor, view: Tensor, *, is_all: bool) -> None:
        self.is_all = is_all
        self._size = view.size()
        self._stride: tuple[int, ...] | None = None  # None for all elements in the same order
        is_whole = base.is_contiguous() and view.is_contiguous() and base.numel() == view.numel()
        if not is_whole:
            self._base = (base.size(), base.stride())
            self._stride = view.stride()
            self._offset = int(view.storage_offset() - base.storage_offset())

    @classmethod
    def of(cls, base: Tensor, view: Tensor, *, is_all: bool) -> _Region | None:
        """Return it; None where an element of the view is not one element of the base as it is."""
        if type(base) is not Tensor or base.layout is not torch.strided or base.is_nested:
            return None
        if base.dtype != view.dtype or base.is_conj() != view.is_conj() or view.is_neg():
            return None
        return None if _overlaps(view) else cls(base, view, is_all=is_all)

    def take(self, gradient: Tensor) -> Tensor:
        """Return the view's part of a gradient of the base."""
        if self._stride is None:
            return gradient.reshape(self._size)
        size, stride = self._base
        if gradient.stride() != stride:
            gradient = gradient.new_empty_strided(size, stride).copy_(gradient)
        offset = int(gradient.storage_offset()) + self._offset
        return gradient.as_strided(self._size, self._stride, offset)


def _overlaps(view: Tensor) -> bool:
    """Return whether two elements of a strided tensor may lie at one address."""
    end = 0
    for stride, size in sorted(zip(view.stride(), view.size(), strict=True)):
        if size > 1 and stride <= end:
            return True
        end += (size - 1) * stride
    return False


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
        outputs: (index of the output, output number of the node, region of it) of each output that
            it made.
        inputs: (input slot of the node, position, shares in all, region of it) of each input that
            it reaches.
    """

    session: Session
    gradients: Gradients
    outputs: tuple[tuple[int, int, _Region | None], ...] = ()
    inputs: tuple[tuple[int, Position, int, _Region | None], ...] = ()

    def __call__(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        """After the node has run: both sides are known."""
        quietly(self.session, "backward", self._take, grad_inputs, grad_outputs)

    def _take(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        task = _graph_task()
        book = self.session.gradients
        gradients = self.gradients
        note_birth(self.session, grad_outputs)
        for index, number, region in self.outputs:
            gradient = grad_outputs[number]
            if gradient is not None:
                if region is not None:
                    gradient = region.take(gradient)
                book.gradient(gradients, task, SIDE_INPUT, index, gradient)
        if not self.inputs:
            return
        note_birth(self.session, grad_inputs)
        for slot, position, shares, region in self.inputs:
            gradient = grad_inputs[slot]
            if gradient is None:
                continue
            if region is not None:
                gradient = region.take(gradient)
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
    """A hook on a leaf that an API returned as it was."""

    __slots__ = ("_tap", "index", "positions")
    # A copy or a file of the leaf is made without it, and without a warning.
    __torch_unserializable__ = True

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
        "_based",
        "_call",
        "_edges",
        "_found",
        "_gradients",
        "_handed",
        "_hits",
        "_is_one_api",
        "_outputs",
        "_passed",
        "_session",
        "_shared",
        "_taps",
        "_used",
    )

    def __init__(
        self,
        session: Session,
        shared: SharedEdges,
        call: Call,
        edges: InputEdges,
        found: Found,
        arguments: int,
        *,
        is_one_api: bool,
    ) -> None:
        """Prepare it.

        Args:
            session: receives the gradients.
            shared: divides gradients among calls.
            call: the call.
            edges: of its inputs.
            found: its inputs.
            arguments: how many positional ones it has.
            is_one_api: whether no code of the user's runs inside.
        """
        self._session = session
        self._shared = shared
        self._call = call
        self._is_one_api = is_one_api
        self._edges = edges
        self._found = found
        self._gradients = Gradients.expect(call, arguments, [position for _, position in found])
        self._taps: dict[Node, _NodeTap] = {}
        # The index of each output by its edge, and by that of its base where this one is tapped.
        self._outputs: dict[Edge, int] = {}
        # The edge of a view by that of its base, where this one is tapped.
        self._based: dict[Edge, Edge] = {}
        # Outputs that nodes inside the call consume.
        self._used: list[Edge] = []
        # Inputs that an API hands through, and (by their list of positions) a module.
        self._passed: dict[Node, list[tuple[int, Position]]] = {}
        self._handed: set[int] = set()
        # Where each input's shares come from: node, slot of the node, region of the gradient.
        self._hits: dict[int, tuple[Position, list[tuple[Node, int, _Region | None]]]] = {}

    def attach(self, outputs: Sequence[Any]) -> None:
        """Tap the outputs (a flat list; what is not a tensor takes its place only)."""
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
        for edge in self._used:
            self._divide(edge)
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

    def _add(self, index: int, edge: Edge, region: _Region | None) -> None:
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
        if not self._is_one_api and not _is_all_of_its_base(edge):
            self._gradients.remark(SIDE_INPUT, index, _NOT_THIS_VIEW, only_null=True)
            return False
        received = next((position for one, position in self._found if one is view), None)
        base_edge = (node, base.output_nr)
        region = _Region.of(base, view, is_all=received is None)
        if base_edge in self._based:
            self._tap_view_itself(base_edge)
        elif base_edge not in self._outputs and region is not None:
            self._based[base_edge] = edge
            self._outputs[base_edge] = index
            self._add(index, base_edge, region)
            _leave_mark(
                edge[0], _NodeTap(self._session, self._gradients, ((index, edge[1], region),))
            )
            start.append(node)
            if received is not None:
                self._changed_input(received, node, region)
            return True
        # What comes to the base is not this view's alone.
        if received is not None:
            self._gradients.remark(SIDE_INPUT, index, _CHANGED_VIEW)
            self._gradients.remark(SIDE_OUTPUT, received, _CHANGED_VIEW)
        return False

    def _tap_view_itself(self, base_edge: Edge) -> None:
        """Tap a view at its own node after all: its base is consumed otherwise, too."""
        index = self._outputs.pop(base_edge)
        self._untap(index)
        self._add(index, self._based.pop(base_edge), None)

    def _changed_input(self, position: Position, node: Any, region: _Region) -> None:
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
        for tap in _marks(edge[0]):
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
        if self._call.is_module:
            self._hand_through(index, positions, partial(self._shared.add, *edge))
            return
        self._gradients.remark(SIDE_INPUT, index, "pass-through: all consumers of the input")
        self._add(index, edge, None)
        self._passed.setdefault(edge[0], []).append((edge[1], positions[0]))

    def _hand_through(
        self, index: int, positions: list[Position], add: Callable[[Share], None]
    ) -> None:
        """Divide the gradient of a tensor that a module returns as it was given."""
        self._handed.add(id(positions))
        self._gradients.remark(SIDE_INPUT, index, _HANDED_THROUGH)
        add(Share(self._gradients, SIDE_INPUT, index, _sequence_number()))
        if positions:
            self._gradients.remark(SIDE_OUTPUT, positions[0], _HANDED_THROUGH)
            add(Share(self._gradients, SIDE_OUTPUT, positions[0], self._edges.born))

    def _leaf(self, index: int, output: Tensor) -> None:
        positions = self._edges.leaves.get(id(output), [])
        self._gradients.expected += 1 + bool(positions)
        self._same(positions)
        if self._call.is_module:
            self._hand_through(index, positions, partial(self._shared.add_leaf, output))
            return
        self._gradients.remark(SIDE_INPUT, index, "pass-through: all consumers of the leaf")
        tap = _NodeTap(self._session, self._gradients)
        handle = output.register_hook(  # type: ignore[no-untyped-call]
            _LeafTap(tap, index, positions)
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
        share = Share(self._gradients, SIDE_INPUT, index, _sequence_number())
        self._shared.add(*edge, share)

    # -- inputs --------------------------------------------------------------------------------

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
                if number >= ACCUMULATES:
                    positions = leaves.get(id(parent.variable)) if leaves else None
                    if positions is not None:
                        self._hit(node, slot, positions)
                elif number >= born:
                    if edge in outputs:
                        self._used.append(edge)
                    todo.append(parent)

    def _hit(
        self, node: Node, slot: int, positions: list[Position], region: _Region | None = None
    ) -> None:
        known = self._hits.get(id(positions))
        if known is None:
            if id(positions) in self._handed:
                return
            known = self._hits[id(positions)] = (positions[0], [])
            self._same(positions)
        known[1].append((node, slot, region))

    # -- hooks ---------------------------------------------------------------------------------

    def _tap(self, node: Node) -> _NodeTap:
        tap = self._taps.get(node)
        if tap is None:
            tap = self._taps[node] = _NodeTap(self._session, self._gradients)
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
            if isinstance(node, _CUSTOM_NODE):
                self._register_custom(node, tap, passed)
            elif tap.inputs and not passed:
                node.register_hook(tap)
            else:
                node.register_prehook(_OutputTap(tap, passed))
            if any(region is None for *_, region in tap.outputs):
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


def _is_all_of_its_base(edge: Edge) -> bool:
    """Return whether a call inside this one made a view and showed nothing else of its base."""
    return any(
        region is not None and region.is_all and number == edge[1]
        for tap in _marks(edge[0])
        for _, number, region in tap.outputs
    )


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
            for index, number, _ in tap.outputs:
                if number == tensor.output_nr:
                    found.append((tap.gradients, index, gradient))
    session.gradients.results(found)
