# SPDX-License-Identifier: Apache-2.0
"""The inputs of a call and where they hang in the autograd graph, noted before the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch.autograd.graph import Node

from msprobe.capture.backward import Gradients
from msprobe.capture.call import Call
from msprobe.capture.values import Found, Position
from msprobe.pytorch.values.memo import TENSORS

sequence_number: Final = torch._C._autograd._get_sequence_nr


class InputEdges(Protocol):
    """The inputs of a call and their autograd edges, taken before the call.

    Attributes:
        call: the call.
        found: its inputs.
        arguments: how many positional ones it has.
        is_one_api: whether no code of the user's runs inside.
        inner: positions by edge, for inputs that were computed.
        leaves: positions by ``id`` of the leaf tensor.
        born: the sequence number at entry; older nodes lie outside the call.
        stale: positions whose edge cannot be read (a stale view).
    """

    call: Call
    found: Found
    arguments: int
    is_one_api: bool
    inner: dict[tuple[Node | None, int], list[Position]]
    leaves: dict[int, list[Position]]
    born: int
    stale: list[Position]

    def expected_gradients(self) -> Gradients:
        """Return the gradients of the call, without one so far."""


class PythonInputEdges:
    """`InputEdges` without the C extension."""

    __slots__ = ("arguments", "born", "call", "found", "inner", "is_one_api", "leaves", "stale")

    def __init__(self, call: Call, found: Found, arguments: int, *, is_one_api: bool) -> None:
        """Note the edges; see `InputEdges`."""
        self.call = call
        self.found = found
        self.arguments = arguments
        self.is_one_api = is_one_api
        self.inner: dict[tuple[Node | None, int], list[Position]] = {}
        self.leaves: dict[int, list[Position]] = {}
        self.stale: list[Position] = []
        self.born: int = sequence_number()
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

    def expected_gradients(self) -> Gradients:
        """Return the gradients of the call, without one so far."""
        positions = [position for _, position in self.found]
        return Gradients.expect(self.call, self.arguments, positions)


_make: Final[Any] = PythonInputEdges if TENSORS is None else TENSORS.InputEdges

input_edges: Final[Callable[..., InputEdges]] = _make
"""``input_edges(call, found, arguments, *, is_one_api)``: note the edges of a call's inputs."""
