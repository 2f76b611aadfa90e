# SPDX-License-Identifier: Apache-2.0
"""The share of a gradient that one call has in a tensor that several calls consume.

A module may use a tensor that it returns, or return a tensor that it was given. The gradient of
such a tensor is a sum over every node that consumes it; the gradient of the call's output is the
sum over the nodes that were made after the call, that of its input the sum over the nodes that were
made since the call began. torch numbers nodes in the order in which they are made, and its engine
runs later ones first. So the parts of the sum arrive in order, and the share of each call is the
sum so far at some moment.

The consumers are looked for when a backward pass begins, as many of them did not exist when the
call ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import Node

from msprobe.capture.backward import Gradients
from msprobe.capture.session import Session
from msprobe.capture.values import Position
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.guard import quietly

# AccumulateGrad nodes carry the largest sequence number, so that the engine runs them first.
ACCUMULATES: Final = 1 << 62
_SHARES: Final = "msprobe shares"  # key in the metadata of a node
_graph_task: Final = torch._C._current_graph_task_id
_will_run: Final = torch._C._will_engine_execute_node


class Share:
    """The part of an edge's gradient that belongs to one call.

    Attributes:
        gradients: of the call.
        side: ``input`` (with respect to an output) or ``output`` (to an input).
        position: which one.
        since: sequence number; consumers made before do not count.
    """

    __slots__ = ("gradients", "position", "side", "since")

    def __init__(self, gradients: Gradients, side: str, position: Position, since: int) -> None:
        self.gradients = gradients
        self.side = side
        self.position = position
        self.since = since


class SharedEdges:
    """The edges of a step whose gradients are to be divided among calls."""

    __slots__ = ("_entry", "_leaves", "_numbers", "_oldest", "_session")

    def __init__(self, session: Session, entry: BackwardEntry) -> None:
        """Create it.

        Args:
            session: receives the shares.
            entry: where backward passes begin.
        """
        self._session = session
        self._entry = entry
        # Sequence numbers of nodes with such edges: their metadata hold the shares, not this.
        self._numbers: set[int] = set()
        self._leaves: dict[int, tuple[weakref.ref[Tensor], list[Share]]] = {}
        self._oldest = ACCUMULATES

    def add(self, node: Node, number: int, share: Share) -> None:
        """Let the gradient of output `number` of a node be divided."""
        metadata: Any = node.metadata
        metadata.setdefault(_SHARES, {}).setdefault(number, []).append(share)
        self._numbers.add(node._sequence_nr())
        self._began(share)

    def add_leaf(self, leaf: Tensor, share: Share) -> None:
        """Let the gradient of a leaf be divided."""
        known = self._leaves.get(id(leaf))
        if known is None or known[0]() is not leaf:
            known = self._leaves[id(leaf)] = (weakref.ref(leaf), [])
        known[1].append(share)
        self._began(share)

    def _began(self, share: Share) -> None:
        if self._oldest == ACCUMULATES:
            undo = self._session.step_undo
            undo.callback(self._forget)
            self._entry.open(undo, self._over)
        self._oldest = min(self._oldest, share.since)

    def _forget(self) -> None:
        self._numbers.clear()
        self._leaves.clear()
        self._oldest = ACCUMULATES

    @contextmanager
    def _over(self, roots: Sequence[Any], gradients: Sequence[Any]) -> Iterator[None]:
        """Take the shares while a backward pass runs from `roots`."""
        found = quietly(self._session, "shared gradient", self._find, roots, gradients) or []
        try:
            yield
        finally:
            for one in found:
                one.close()

    def _find(self, roots: Sequence[Any], gradients: Sequence[Any]) -> list[_Arrivals]:
        """Return the gradients that the pass delivers to each edge, with hooks on its consumers."""
        found: dict[int, _Arrivals] = {}
        todo: list[Node] = []
        # A pass from one root begins with its node, which the engine does not count as one to run.
        root = _node_of(roots[0]) if len(roots) == 1 else None
        for one, gradient in zip(roots, gradients, strict=False):
            node: Any = _node_of(one)
            number = one.output_nr if isinstance(one, Tensor) else one[1]
            if node is None:
                continue
            todo.append(node)
            arrivals = self._arrivals_at(found, node, number, root)
            if arrivals is not None:
                arrivals.starts_with(gradient, node)
        seen: set[Node] = set()
        while todo:
            node = todo.pop()
            if node in seen or not self._oldest <= node._sequence_nr() < ACCUMULATES:
                continue
            seen.add(node)
            for slot, (parent, number) in enumerate(node.next_functions):
                if parent is None:
                    continue
                arrivals = self._arrivals_at(found, parent, number, root)
                if arrivals is not None:
                    arrivals.comes_from(node, slot)
                todo.append(parent)
        for arrivals in found.values():
            arrivals.hook()
        return list(found.values())

    def _arrivals_at(
        self, found: dict[int, _Arrivals], node: Any, number: int, root: Node | None
    ) -> _Arrivals | None:
        shares = self._shares_at(node, number)
        if not shares:
            return None
        known = found.get(id(shares))
        if known is None:
            known = found[id(shares)] = _Arrivals(self._session, shares, root)
        return known

    def _shares_at(self, node: Any, number: int) -> list[Share] | None:
        sequence_number = node._sequence_nr()
        if sequence_number in self._numbers:  # or that of another thread's node
            shares: list[Share] | None = node.metadata.get(_SHARES, {}).get(number)
            return shares
        if self._leaves and sequence_number >= ACCUMULATES:
            leaf, shares = self._leaves.get(id(node.variable), (None, None))
            return shares if leaf is not None and leaf() is node.variable else None
        return None


class _Arrivals:
    """The parts of one edge's gradient in one backward pass, added up in a private copy."""

    __slots__ = ("_coming", "_consumers", "_handles", "_root", "_session", "_shares", "_total")

    def __init__(self, session: Session, shares: Sequence[Share], root: Node | None) -> None:
        self._session = session
        self._root = root
        # The calls that ended last have their whole share first.
        self._shares = sorted(shares, key=lambda share: share.since)
        self._consumers: dict[Node, list[int]] = {}
        self._coming: list[int] | None = None  # sequence numbers of consumers, ascending
        self._handles: list[Any] = []
        self._total: Tensor | None = None

    def starts_with(self, gradient: Tensor | None, node: Any) -> None:
        """Take the gradient that the user hands to the backward pass itself."""
        if gradient is not None:
            self._add(gradient, is_last=False)
            self._handles.append(node.register_prehook(self._complete))

    def comes_from(self, node: Node, slot: int) -> None:
        """Expect a part from a consumer: its gradient at `slot`."""
        self._consumers.setdefault(node, []).append(slot)

    def hook(self) -> None:
        """Put a hook on each consumer."""
        for node in self._consumers:
            self._handles.append(node.register_hook(partial(self._ran, node)))

    def close(self) -> None:
        """Remove the hooks, and release the graph and the gradient."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._consumers.clear()
        self._root = self._total = None

    def _ran(self, node: Node, gradients: Sequence[Tensor | None], _outer: Any) -> None:
        quietly(self._session, "shared gradient", self._take, node, gradients)

    def _take(self, node: Node, gradients: Sequence[Tensor | None]) -> None:
        if self._coming is None:
            running = (one for one in self._consumers if one is self._root or _will_run(one))
            self._coming = sorted(one._sequence_nr() for one in running)
            self._deliver(self._coming[-1])
        number = node._sequence_nr()
        if number not in self._coming:
            return  # a pass inside this one, over the same graph
        self._coming.remove(number)
        self._drop_overtaken(number)
        for slot in self._consumers[node]:
            gradient = gradients[slot]
            if gradient is not None:
                self._add(gradient, is_last=not self._coming and slot == self._consumers[node][-1])
        self._deliver(self._coming[-1] if self._coming else -1)

    def _drop_overtaken(self, number: int) -> None:
        """Drop shares that a later part belongs to, but not this one."""
        if not self._coming or self._coming[-1] < number:
            return
        text = "not reachable: its consumers ran in another order than they were made"
        while self._shares and self._shares[-1].since > number:
            share = self._shares.pop()
            share.gradients.remark(share.side, share.position, text)

    def _add(self, gradient: Tensor, *, is_last: bool) -> None:
        adapter = self._session.adapter
        if self._total is None:
            self._total = gradient if is_last else adapter.private_copy(gradient)
        else:
            self._total = adapter.add(self._total, gradient)

    def _complete(self, _gradients: Any) -> None:
        """Deliver everything: the node itself runs now, after all its consumers."""
        quietly(self._session, "shared gradient", self._deliver, -1)

    def _deliver(self, coming: int) -> None:
        """Hand over each share that no consumer from `coming` on belongs to."""
        while self._shares and self._shares[-1].since > coming:
            share = self._shares.pop()
            if self._total is not None:
                self._session.backward.gradient(
                    share.gradients, _graph_task(), share.side, share.position, self._total
                )


def _node_of(root: Any) -> Node | None:
    """Return the node of a tensor or an edge; None for a leaf."""
    node: Node | None = root.grad_fn if isinstance(root, Tensor) else root[0]
    return node
