# SPDX-License-Identifier: Apache-2.0
"""`GraphEvents`: the receiver of values that compiled graphs hand over.

Values from the code that `forwards` and `gradients` compile into a graph arrive here. Whether any
are recorded is decided here, at every call, so that no graph has to be compiled again.

Without the C extension the graph calls Python with all values. With it, the graph calls C, which
drops them, calls Python, or, where statistics are all that is wanted, keeps these until
`take_kept`: a call of Python takes the graph longer than most of its operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from msprobe.capture.statistics import from_raw, native_module
from msprobe.mindspore.compiled.structure import Leaf
from msprobe.mindspore.compiled.values import (
    GraphValue,
    Kind,
    Summarised,
    array_type,
    graph_value,
)

NATIVE: Final = native_module()
"""The C extension that graphs can call, None without it."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A cell's call in a graph; tensors are `GraphValue`s of their own, or `Summarised`.

    Attributes:
        cell: the cell's name.
        args: positional arguments.
        kwargs: keyword arguments.
        parameters: values of the cell's own parameters when it was called, in their order; none
            where they were not handed over.
        result: the call's result.
    """

    cell: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    parameters: Sequence[Any]
    result: Any


class GraphEvents(Protocol):
    """Receives inputs, outputs and gradients of the cells of a graph.

    Attributes:
        needs_values: whether tensors must come as `GraphValue`s, and while the graph runs.
    """

    needs_values: bool

    def hand_over(self, take: Take, values: list[Handed], spent_s: float) -> None:
        """Have `take` pass the tensors of one delivery to the other methods.

        No exception gets out of here: it would end the user's graph.

        Args:
            take: passes them on.
            values: the tensors.
            spent_s: what it has taken to summarise them.
        """

    def forward(self, call: GraphCall) -> None:
        """Take the inputs and outputs of a cell's call."""

    def gradient(self, cell: str, side: str, leaf: int, gradient: Handed) -> None:
        """Take a gradient that crosses the boundary of a cell's call.

        Args:
            cell: the cell's name.
            side: ``input`` for the gradient with respect to a result, ``output`` for an argument.
            leaf: which of the results or arguments, counted through everything nested in them.
            gradient: to be read now.
        """

    def parameter_gradient(self, parameter: Any, gradient: Handed) -> None:
        """Take the gradient of a parameter, as an optimiser receives it."""


Handed = GraphValue | Summarised
Take = Callable[[GraphEvents, list[Handed]], None]
"""Passes tensors on; they lie in memory of the graph, to be read before it goes on."""


class _Receiver:
    """The receiver of the events; None while nothing is recorded."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: GraphEvents | None = None


_receiver = _Receiver()


def receive(events: GraphEvents | None) -> None:
    """Let `events` receive the values of graphs from now on; None for no receiver."""
    _receiver.current = events
    if NATIVE is not None:
        NATIVE.deliver_to(None if events is None else not events.needs_values or _hand_over)


def receiver() -> GraphEvents | None:
    """Return the receiver of the values that graphs hand over, None while nothing is recorded."""
    return _receiver.current


# -- calls of C ----------------------------------------------------------------------------------

# A graph lives as long as the process, and so does what its calls have in them.
_calls: Final[list[tuple[Take, list[Kind]]]] = []


def call_key(take: Take, leaves: Sequence[Leaf]) -> list[int] | None:
    """Return what a call of C from a graph says of itself: its number, the kinds of its tensors.

    Args:
        take: gets the tensors.
        leaves: the tensors.

    Returns:
        None where C does not know a kind.
    """
    if NATIVE is None:
        return None
    kinds = [NATIVE.KINDS.get(str(leaf.dtype).lower()) for leaf in leaves]
    if None in kinds:
        return None
    _calls.append((take, [(array_type(leaf.dtype), leaf.shape) for leaf in leaves]))
    return [len(_calls) - 1, *kinds]


def _hand_over(number: int, addresses: tuple[int, ...]) -> None:
    """Take the tensors of a call in the memory of the graph, while that waits."""
    events = receiver()
    if events is not None:
        take, kinds = _calls[number]
        values: list[Handed] = [_at(*one) for one in zip(addresses, kinds, strict=True)]
        events.hand_over(take, values, 0.0)


def _at(address: int, kind: Kind) -> GraphValue:
    assert NATIVE is not None
    dtype, shape = kind
    memory = NATIVE.memory(address, math.prod(shape) * dtype.itemsize)
    return graph_value(np.frombuffer(memory, dtype).reshape(shape))


def take_kept() -> None:
    """Hand over the statistics that calls of C have left, in the order of the calls."""
    events = receiver()
    if NATIVE is None or events is None or events.needs_values:
        return
    for number, spent_s, found in NATIVE.take_delivered():
        take, kinds = _calls[number]
        values: list[Handed] = [
            Summarised(dtype, shape, from_raw(raw))
            for (dtype, shape), raw in zip(kinds, found, strict=True)
        ]
        events.hand_over(take, values, spent_s)
