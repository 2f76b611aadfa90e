# SPDX-License-Identifier: Apache-2.0
"""Where compiled graphs hand over what their cells saw.

What `forwards` and `gradients` compile into a graph ends here. Whether anything is
recorded is decided here, at every call, so that no graph has to be compiled again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A cell's call in a graph; tensors are `GraphValue`s of their own.

    Attributes:
        cell: the cell's name.
        args: positional arguments.
        kwargs: keyword arguments.
        parameters: values of the cell's own parameters when it was called, in their order; none
            where they were not handed over.
        result: what the call returned.
    """

    cell: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    parameters: Sequence[Any]
    result: Any


class GraphEvents(Protocol):
    """Receives what the cells of a graph saw."""

    def forward(self, call: GraphCall) -> None:
        """Take what a cell's call received and returned."""

    def gradient(self, cell: str, side: str, leaf: int, gradient: Any) -> None:
        """Take a gradient that crosses the boundary of a cell's call.

        Args:
            cell: the cell's name.
            side: ``input`` for the gradient with respect to a result, ``output`` for an argument.
            leaf: which of the results or arguments, counted through everything nested in them.
            gradient: a `GraphValue`, to be read now.
        """

    def parameter_gradient(self, parameter: Any, gradient: Any) -> None:
        """Take the gradient of a parameter, as an optimiser receives it; a `GraphValue`."""


class _Receiver:
    """Who receives the events; None while nothing is recorded."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: GraphEvents | None = None


_receiver = _Receiver()


def receive(events: GraphEvents | None) -> None:
    """Let `events` receive what graphs hand over from now on; None for nobody."""
    _receiver.current = events


def is_open() -> bool:
    """Return whether somebody receives what is handed over."""
    return _receiver.current is not None


def forward(call: GraphCall) -> None:
    """Hand over a cell's call."""
    if _receiver.current is not None:
        _receiver.current.forward(call)


def gradient(cell: str, side: str, leaf: int, value: Any) -> None:
    """Hand over a gradient; see `GraphEvents.gradient`."""
    if _receiver.current is not None:
        _receiver.current.gradient(cell, side, leaf, value)


def parameter_gradient(parameter: Any, value: Any) -> None:
    """Hand over the gradient of a parameter."""
    if _receiver.current is not None:
        _receiver.current.parameter_gradient(parameter, value)
