# SPDX-License-Identifier: Apache-2.0
"""Hooks on nodes and leaves of the autograd graph: they hand gradients to the call of these.

Hooks hold nodes' slots and our own bookkeeping, never a tensor or a node: the graph lives exactly
as long as it would without us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
import torch
from torch import Tensor
from torch.autograd.graph import Node

from msprobe.capture.backward import SIDE_INPUT, SIDE_OUTPUT, Gradients
from msprobe.capture.session import Session
from msprobe.capture.values import Position
from msprobe.pytorch.gradients.graph_search import Edge
from msprobe.pytorch.interception.guard import quietly

_graph_task: Final = torch._C._current_graph_task_id
_METADATA_KEY: Final = "msprobe"


class Region:
    """Which elements of its base a view has: of a gradient of the base, they are the view's.

    Attributes:
        is_all: whether nothing but this view shows the base.
    """

    __slots__ = ("_base", "_offset", "_size", "_stride", "is_all")

    def __init__(self, base: Tensor, view: Tensor, *, is_all: bool) -> None:
        self.is_all = is_all
        self._size: Sequence[int] = view.size()
        self._stride: tuple[int, ...] | None = None  # None for all elements in the same order
        is_whole = base.is_contiguous() and view.is_contiguous() and base.numel() == view.numel()
        if not is_whole:
            self._base = (base.size(), base.stride())
            self._stride = view.stride()
            self._offset = int(view.storage_offset() - base.storage_offset())

    @classmethod
    def whole(cls, size: Sequence[int]) -> Region:
        """Return that of a view of this size with all elements of its base, in their order."""
        region = cls.__new__(cls)
        region.is_all, region._size, region._stride = True, size, None
        return region

    @classmethod
    def of(cls, base: Tensor, view: Tensor, *, is_all: bool) -> Region | None:
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


class Reshaped:
    """An input that a product sees in another shape: the gradient of that becomes the input's."""

    __slots__ = ("_size",)

    def __init__(self, size: Sequence[int]) -> None:
        self._size = size

    def take(self, gradient: Tensor) -> Tensor:
        """Return the gradient as the node of the view returns it."""
        return gradient.reshape(self._size)


class Turned:
    """An input that a product sees transposed."""

    __slots__ = ()

    def take(self, gradient: Tensor) -> Tensor:
        """Return the gradient as the node of the view returns it."""
        return gradient.t()


Reached = tuple[int, Position, int, Region | Reshaped | Turned | None]
"""An input that a node reaches, see `NodeTap.inputs`."""


def _overlaps(view: Tensor) -> bool:
    """Return whether two elements of a strided tensor may lie at one address."""
    end = 0
    for stride, size in sorted(zip(view.stride(), view.size(), strict=True)):
        if size > 1 and stride <= end:
            return True
        end += (size - 1) * stride
    return False


class Tap(Protocol):
    """Reads gradients at one node, for one call.

    Attributes:
        session: receives them.
        gradients: the call they belong to.
        outputs: (index of the output, output number of the node, region of it) of each output that
            it made.
        inputs: (input slot of the node, position, shares in all, how the gradient there becomes
            that of the input) of each input that it reaches.
    """

    @property
    def session(self) -> Session:
        """See above."""

    @property
    def gradients(self) -> Gradients:
        """See above."""

    @property
    def outputs(self) -> tuple[tuple[int, int, Region | None], ...]:
        """See above."""

    @property
    def inputs(self) -> tuple[Reached, ...]:
        """See above."""


def take_gradients(tap: Tap, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
    """Hand the gradients at the node of a tap to its call.

    Args:
        tap: the tap.
        grad_inputs: those that the node computed; empty before it has run.
        grad_outputs: those that it was given.
    """
    session = tap.session
    book = session.backward
    arrived: list[tuple[Tensor, str, Position]] = []
    for index, number, region in tap.outputs:
        gradient = grad_outputs[number]
        if gradient is not None:
            if region is not None:
                gradient = region.take(gradient)
            arrived.append((gradient, SIDE_INPUT, index))
    for slot, position, shares, part in tap.inputs:
        gradient = grad_inputs[slot]
        if gradient is None:
            continue
        if part is not None:
            gradient = part.take(gradient)
        if shares == 1:
            arrived.append((gradient, SIDE_OUTPUT, position))
        else:
            book.share(tap.gradients, _graph_task(), position, gradient, of=shares)
    if arrived:
        # The engine made them, inside a backward pass that is observed.
        session.adapter.memo.all_born(arrived)  # type: ignore[attr-defined]
        book.take(tap.gradients, _graph_task(), arrived)


class NodeTap(msgspec.Struct, gc=False, eq=False):
    """A hook on one node; called by the engine with that node's gradients. See `Tap`."""

    session: Session
    gradients: Gradients
    outputs: tuple[tuple[int, int, Region | None], ...] = ()
    inputs: tuple[Reached, ...] = ()

    def __call__(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        """After the node has run: both sides are known."""
        quietly(self.session, "backward", self._take, grad_inputs, grad_outputs)

    def _take(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        take_gradients(self, grad_inputs, grad_outputs)


class CustomNodeTap(NodeTap, gc=False, eq=False):
    """A hook after the backward of a custom function, which may write to any tensor unseen."""

    def _take(self, grad_inputs: Sequence[Tensor | None], grad_outputs: Any) -> None:
        memo = self.session.adapter.memo  # type: ignore[attr-defined]
        if memo.active:
            for gradient in (*grad_inputs, *grad_outputs):
                if gradient is not None:
                    memo.ban(gradient)
        NodeTap._take(self, grad_inputs, grad_outputs)


class OutputTap(msgspec.Struct, gc=False, eq=False):
    """A hook before a node runs: the gradients with respect to outputs (and passed-on inputs)."""

    _tap: NodeTap
    passed: list[tuple[int, Position]] | None = None

    def __call__(self, grad_outputs: Sequence[Tensor | None]) -> None:
        """Take them before the node runs."""
        tap = self._tap
        quietly(tap.session, "backward", self._take, grad_outputs)

    def _take(self, grad_outputs: Sequence[Tensor | None]) -> None:
        tap = self._tap
        tap._take((), grad_outputs)
        task = _graph_task()
        for number, position in self.passed or ():
            gradient = grad_outputs[number]
            if gradient is not None:
                tap.session.backward.gradient(tap.gradients, task, SIDE_OUTPUT, position, gradient)


class LeafTap:
    """A hook on a leaf that an API returned unchanged."""

    __slots__ = ("_tap", "index", "positions")
    # A copy or a file of the leaf is made without it, and without a warning.
    __torch_unserializable__ = True

    def __init__(self, tap: NodeTap, index: int, positions: list[Position]) -> None:
        self._tap = tap
        self.index = index
        self.positions = positions

    def __call__(self, gradient: Tensor | None) -> None:
        """Take it, once it is complete."""
        if gradient is not None:  # torch calls hooks of leaves for undefined gradients, too
            quietly(self._tap.session, "backward", self._take, gradient)

    def _take(self, gradient: Tensor) -> None:
        tap, task = self._tap, _graph_task()
        book = tap.session.backward
        book.gradient(tap.gradients, task, SIDE_INPUT, self.index, gradient)
        for position in self.positions[:1]:
            book.gradient(tap.gradients, task, SIDE_OUTPUT, position, gradient)


def leave_mark(node: Node, tap: Tap) -> None:
    """Let the node lead to its tap, so that ``autograd.grad`` with an inner input is understood.

    The engine then runs no hook of the node that made this input: the gradient is in the result.
    """
    metadata: Any = node.metadata
    others = metadata.get(_METADATA_KEY)
    metadata[_METADATA_KEY] = tap if others is None else (others, tap)


def is_all_of_its_base(edge: Edge) -> bool:
    """Return whether a call inside this one made a view and showed nothing else of its base."""
    return any(
        region is not None and region.is_all and number == edge[1]
        for tap in marks(edge[0])
        for _, number, region in tap.outputs
    )


def marks(node: Node) -> Iterator[Tap]:
    """Yield the taps that `leave_mark` has put on a node."""
    metadata: Any = node.metadata
    mark = metadata.get(_METADATA_KEY)
    while type(mark) is tuple:
        mark, tap = mark
        yield tap
    if mark is not None:
        yield mark
