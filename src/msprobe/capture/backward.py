# SPDX-License-Identifier: Apache-2.0
"""Backward records: gradients of one call, collected as the backward pass delivers them.

``input[i]`` is the gradient of the forward's output i, ``output[i]`` the gradient of its positional
input i, ``output_kwargs`` those of keyword inputs. What never arrives stays null. Each backward
pass over a call (a retained graph, a double backward) is a record of its own.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from msprobe.capture.call import Call, Draft
from msprobe.capture.names import later_pass
from msprobe.capture.values import Position
from msprobe.dump.records import JsonTree, TensorRecord, with_note

SIDE_INPUT: Final = "input"
SIDE_OUTPUT: Final = "output"

# A layout is the shape of the arguments: None for a leaf, a list or a dict of layouts.
Layout = Any


def layout_of(count: int, positions: list[Position]) -> list[Layout]:
    """Return the null-filled mirror of `count` positional arguments that hold these tensors."""
    layout: list[Layout] = [None] * count
    for position in positions:
        if type(position) is tuple and type(position[0]) is int:
            layout[position[0]] = _grow(layout[position[0]], position[1:])
    return layout


def _grow(layout: Layout, path: tuple[int | str, ...]) -> Layout:
    if not path:
        return layout
    head = path[0]
    if type(head) is int:
        layout = layout if type(layout) is list else []
        layout.extend([None] * (head + 1 - len(layout)))
    else:
        layout = layout if type(layout) is dict else {}
        layout.setdefault(head, None)
    layout[head] = _grow(layout[head], path[1:])
    return layout


def _copy(layout: Layout) -> Layout:
    if type(layout) is list:
        return [_copy(item) for item in layout]
    if type(layout) is dict:
        return {key: _copy(item) for key, item in layout.items()}
    return None


class Gradients(msgspec.Struct, gc=False, eq=False):
    """What is expected from the backward of one call.

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
        flat = all(type(position) is int for position in positions)
        return cls(
            call,
            arguments if flat else layout_of(arguments, positions),
            ()
            if flat
            else tuple(
                ".".join(map(str, p)) for p in positions if type(p) is tuple and type(p[0]) is str
            ),
        )

    def remark(self, side: str, position: Position, text: str, *, only_null: bool = False) -> None:
        """Remember a fact about one gradient (or one that is null); every pass is given it."""
        if self.remarks is None:
            self.remarks = []
        self.remarks.append((side, position, text, only_null))

    def pass_of(self, graph_task: int) -> BackwardPass | None:
        """Return the pass of this graph task: None before its first gradient, or `CLOSED`."""
        if self._task == graph_task:
            return self._pass
        return self._others.get(graph_task) if self._others is not None else None

    def next_name(self) -> str:
        """Return the record name of the pass that `open_pass` would begin."""
        return later_pass(self.call.backward_name, self._count)

    def open_pass(self, graph_task: int, draft: Draft) -> BackwardPass:
        """Begin the record of one backward pass in `draft`."""
        if self._pass is not None:  # a second pass over a retained graph, or one inside another
            if self._others is None:
                self._others = {}
            self._others[self._task] = self._pass
        self._task = graph_task
        self._count += 1
        self._pass = BackwardPass(self, draft)
        return self._pass

    def close_pass(self, done: BackwardPass) -> None:
        """Let go of a record that was handed on; its later gradients are dropped."""
        if self._pass is done:
            self._pass = CLOSED
            return
        others = self._others or {}
        for task, one in others.items():
            if one is done:
                others[task] = CLOSED


class BackwardPass:
    """The record of one pass, filled gradient by gradient.

    Attributes:
        gradients: what it belongs to.
        draft: the record.
        remaining: gradients still expected.
        in_scope: whether it began inside the recorded range.
        shares: per input that several consumers inside the call give a share of its gradient, how
            many have come and their sum (a private copy).
    """

    __slots__ = ("draft", "gradients", "in_scope", "remaining", "shares")

    def __init__(self, gradients: Gradients, draft: Draft) -> None:
        self.gradients = gradients
        self.draft = draft
        self.remaining = gradients.expected
        self.in_scope = True
        self.shares: dict[Position, tuple[int, Any]] = {}
        arguments = gradients.arguments
        parts = draft.parts
        parts["input"] = [None] * gradients.outputs
        parts["output"] = [None] * arguments if type(arguments) is int else _copy(arguments)
        if gradients.keywords:
            parts["output_kwargs"] = dict.fromkeys(gradients.keywords)

    def has(self, side: str, index: int) -> bool:
        """Return whether a gradient has its place already, or comes too late for one."""
        return self is CLOSED or self.draft.parts[side][index] is not None

    def place(self, side: str, position: Position, value: JsonTree) -> None:
        """Put a described gradient where its tensor stood in the call."""
        if type(position) is int:
            self.draft.parts[side][position] = value
            return
        assert type(position) is tuple
        if type(position[0]) is str:
            self.draft.parts["output_kwargs"][".".join(map(str, position))] = value
            return
        target = self.draft.parts[side]
        for key in position[:-1]:
            target = target[key]
        target[position[-1]] = value

    def write_remarks(self) -> None:
        """Say in the record why a gradient is missing, or what else it includes."""
        for side, position, text, only_null in self.gradients.remarks or ():
            if side not in self.draft.parts:
                continue
            entry = self._entry(side, position)
            if isinstance(entry, TensorRecord) and self._is_waiting(entry):
                if not only_null:
                    entry.note = text
            elif isinstance(entry, TensorRecord | msgspec.Raw):
                if not only_null:  # a copy: the description may stand in other records too
                    self.place(side, position, with_note(entry, text))
            else:
                remarks = self.draft.parts.setdefault("remarks", {})
                remarks[gradient_path(side, position)] = text

    def _is_waiting(self, entry: TensorRecord) -> bool:
        """Return whether a device has yet to deliver its statistics, into this very object."""
        return any(record is entry for record, _ in self.draft.waiting or ())

    def _entry(self, side: str, position: Position) -> JsonTree:
        if type(position) is int:
            return self.draft.parts[side][position]
        assert type(position) is tuple
        if type(position[0]) is str:
            return self.draft.parts["output_kwargs"].get(".".join(map(str, position)))
        entry = self.draft.parts[side]
        for key in position:
            entry = entry[key]
        return entry


# Stands for every pass whose record was handed on.
CLOSED: Final = BackwardPass.__new__(BackwardPass)


def gradient_path(side: str, position: Position) -> str:
    """Return the part of a gradient's file name: ``input.0``, ``output.1.a``, ``kwargs.mask``."""
    if type(position) is int:
        return f"{side}.{position}"
    assert type(position) is tuple
    joined = ".".join(map(str, position))
    return f"kwargs.{joined}" if type(position[0]) is str else f"{side}.{joined}"
