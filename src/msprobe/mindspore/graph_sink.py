# SPDX-License-Identifier: Apache-2.0
"""Where compiled graphs hand over what their cells saw.

The hooks of `graph_hooks` are compiled into the graph and call these functions with a name that is
a constant of the graph. MindSpore runs this module as plain Python because ``msprobe`` stands in
``MS_JIT_IGNORE_MODULES``. Whether anything is recorded is decided here, at every call, so that no
graph has to be compiled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class GraphEvents(Protocol):
    """Receives what the cells of a graph saw."""

    def forward(self, cell: str, inputs: Sequence[Any], output: Any) -> None:
        """Take the inputs and the output of a cell's call."""

    def before_backward(self, cell: str, gradients: Sequence[Any]) -> None:
        """Take the gradients with respect to a cell's outputs."""

    def backward(self, cell: str, grad_inputs: Sequence[Any], grad_outputs: Sequence[Any]) -> None:
        """Take the gradients with respect to a cell's inputs and outputs."""


class _Receiver:
    """Who receives the events; None while nothing is recorded."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: GraphEvents | None = None


_receiver = _Receiver()


def receive(events: GraphEvents | None) -> None:
    """Let `events` receive what graphs hand over from now on; None for nobody."""
    _receiver.current = events


def forward(cell: str, inputs: Any, output: Any) -> int:
    """Hand over a cell's call; the result only serves to order the graph."""
    if _receiver.current is not None:
        _receiver.current.forward(cell, _as_sequence(inputs), output)
    return 0


def before_backward(cell: str, gradients: Any) -> None:
    """Hand over the gradients with respect to a cell's outputs."""
    if _receiver.current is not None:
        _receiver.current.before_backward(cell, _as_sequence(gradients))


def backward(cell: str, grad_inputs: Any, grad_outputs: Any) -> None:
    """Hand over the gradients with respect to a cell's inputs."""
    if _receiver.current is not None:
        _receiver.current.backward(cell, _as_sequence(grad_inputs), _as_sequence(grad_outputs))


def _as_sequence(values: Any) -> Sequence[Any]:
    return values if isinstance(values, tuple | list) else (values,)
