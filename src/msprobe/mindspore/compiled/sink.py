# SPDX-License-Identifier: Apache-2.0
"""`GraphEvents`: the receiver of values that compiled graphs hand over.

Values from the code that `forwards` and `gradients` compile into a graph arrive here. Whether any
are recorded is decided here, at every call, so that no graph has to be compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msprobe.mindspore.compiled.values import GraphValue


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A cell's call in a graph; tensors are `GraphValue`s of their own.

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
    """Receives inputs, outputs and gradients of the cells of a graph."""

    def hand_over(self, take: Take, values: list[GraphValue]) -> None:
        """Have `take` pass the tensors of one delivery to the other methods.

        No exception gets out of here: it would end the user's graph.
        """

    def forward(self, call: GraphCall) -> None:
        """Take the inputs and outputs of a cell's call."""

    def gradient(self, cell: str, side: str, leaf: int, gradient: GraphValue) -> None:
        """Take a gradient that crosses the boundary of a cell's call.

        Args:
            cell: the cell's name.
            side: ``input`` for the gradient with respect to a result, ``output`` for an argument.
            leaf: which of the results or arguments, counted through everything nested in them.
            gradient: to be read now.
        """

    def parameter_gradient(self, parameter: Any, gradient: GraphValue) -> None:
        """Take the gradient of a parameter, as an optimiser receives it."""


Take = Callable[[GraphEvents, list[GraphValue]], None]
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


def receiver() -> GraphEvents | None:
    """Return the receiver of the values that graphs hand over, None while nothing is recorded."""
    return _receiver.current
