# SPDX-License-Identifier: Apache-2.0
"""The gradients of one call: those expected, and those that one backward pass has delivered.

Each backward pass over a call (a retained graph, a double backward) is one of its own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, cast

import msgspec

from msprobe.capture.call import Call, Draft
from msprobe.capture.values import Position
from msprobe.dump.record_names import later_pass

SIDE_INPUT: Final = "input"
SIDE_OUTPUT: Final = "output"

# A layout is the shape of the arguments: None for a leaf, a list or a dict of layouts.
Layout = Any


def layout_of(count: int, positions: list[Position]) -> list[Layout]:
    """Return the null-filled mirror of `count` positional arguments that hold these tensors."""
    layout: list[Layout] = [None] * count
    for position in positions:
        if type(position) is tuple and type(position[0]) is int:
            _grow(layout, position)
    return layout


def _grow(layout: Layout, path: tuple[Any, ...]) -> None:
    """Make room for the value at `path`, whose containers may not be there yet."""
    for key, inner in pairwise(path):
        wanted: type = list if type(inner) is int else dict
        _make_room(layout, key)
        if type(layout[key]) is not wanted:
            layout[key] = wanted()
        layout = layout[key]
    _make_room(layout, path[-1])


def _make_room(layout: Layout, key: Any) -> None:
    if type(layout) is dict:
        layout.setdefault(key, None)
    else:
        layout.extend([None] * (key + 1 - len(layout)))


class Gradients(msgspec.Struct, gc=False, eq=False):
    """The gradients expected from the backward of one call.

    It lives as long as the graph does, like `Call`; its passes are let go when they are written.

    Attributes:
        call: the forward call.
        outputs: number of entries in the record's ``input``.
        arguments: layout of the positional arguments.
        keywords: paths of the tensors that were passed by keyword.
        has_input_edges: whether a gradient with respect to an input can arrive; the last to come.
        expected: how many gradients arrive in a full pass.
        remarks: per side and position, why a gradient is missing or what it includes; and whether
            that holds only for a missing one.
    """

    call: Call
    arguments: int | list[Layout]
    keywords: tuple[str, ...]
    outputs: int = 0
    expected: int = 0
    has_input_edges: bool = False
    remarks: list[tuple[str, Position, str, bool]] | None = None
    # The newest pass; nearly always there is only one.
    _task: int = -1
    _pass: BackwardPass | None = None
    _count: int = 0
    _others: dict[int, BackwardPass] | None = None

    @classmethod
    def expect(cls, call: Call, arguments: int, positions: list[Position]) -> Gradients:
        """Return it for a call with this many positional arguments and tensors at these places."""
        for position in positions:
            if type(position) is not int:
                break
        else:
            return cls(call, arguments, ())
        keywords = (p for p in positions if type(p) is tuple and type(p[0]) is str)
        return cls(
            call,
            layout_of(arguments, positions),
            tuple(".".join(map(str, place)) for place in keywords),
        )

    def remark(self, side: str, position: Position, text: str, *, only_null: bool = False) -> None:
        """Remember a fact about one gradient (or one that is null); every pass is given it."""
        if self.remarks is None:
            self.remarks = []
        self.remarks.append((side, position, text, only_null))

    @property
    def is_unvisited(self) -> bool:
        """Whether no backward pass has come to the call."""
        return not self._count

    @property
    def is_in_first_pass(self) -> bool:
        """Whether one backward pass alone has come to the call."""
        return self._count == 1

    def pass_of(self, graph_task: int) -> BackwardPass | None:
        """Return the pass of this graph task: None before its first gradient, or `CLOSED`."""
        if self._task == graph_task:
            return self._pass
        return self._others.get(graph_task) if self._others is not None else None

    def open_pass(self, graph_task: int, order: int) -> BackwardPass:
        """Begin one backward pass, at the place `order` among the records of the step."""
        if self._pass is not None:  # a second pass over a retained graph, or one inside another
            if self._others is None:
                self._others = {}
            self._others[self._task] = self._pass
        name = self.call.backward_name
        self._task = graph_task
        self._pass = BackwardPass(self, later_pass(name, self._count), order, self.expected)
        self._count += 1
        return self._pass

    def close_pass(self, done: BackwardPass) -> None:
        """Release a record that was handed on; its later gradients are dropped."""
        if self._pass is done:
            self._pass = CLOSED
            return
        others = self._others or {}
        for task, one in others.items():
            if one is done:
                others[task] = CLOSED


class BackwardPass(msgspec.Struct, eq=False):
    """One backward pass over a call.

    Attributes:
        gradients: the gradients of its call.
        name: of its record.
        order: where it began, among the records of the step.
        remaining: gradients still expected.
        draft: the record in the making, which the recording keeps here.
        in_scope: whether it began inside the recorded range.
        arrived: a bit for each output of the call whose gradient has come.
        shares: per input that several consumers inside the call give a share of its gradient, how
            many have come and their sum (a private copy).
    """

    gradients: Gradients
    name: str
    order: int
    remaining: int
    draft: Draft | None = None
    in_scope: bool = True
    arrived: int = 0
    shares: dict[Position, tuple[int, Any]] = msgspec.field(default_factory=dict)


# In the place of every pass whose record was handed on.
CLOSED: Final = BackwardPass(cast("Gradients", None), "", 0, 0)
