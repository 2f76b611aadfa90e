# SPDX-License-Identifier: Apache-2.0
"""`Places`: the module and the source line that an operator belongs to, forward and backward.

Forward: the innermost open module and the innermost line of the user's code. Backward: torch
numbers the nodes of the graph in the order in which they are made, and a node belongs to the place
at which it was made. No recording is needed for it.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from msprobe.capture.stacks import StackTable
from msprobe.checks.live_check import Place
from msprobe.dump.stack_frames import user_line
from msprobe.pytorch.interception.stack_traits import classify

_graph_task: Final = torch._C._current_graph_task_id
_sequence_number: Final = torch._C._autograd._get_sequence_nr
_current_node: Final = torch._C._current_autograd_node
# Graphs that are kept for long: the oldest places are forgotten first.
_MOST_NODES: Final = 1_000_000


class Places:
    """Knows the place of each operator while it is installed."""

    def __init__(self) -> None:
        self._stacks = StackTable(classify, lambda _: False)
        self._lines: dict[int, str | None] = {}
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._open: list[tuple[nn.Module, int]] = []
        self._numbers: list[int] = []
        self._made_at: list[Place] = []
        self._next = 0
        self._handles: list[Any] = []

    def install(self) -> None:
        """Begin to follow modules."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        self._next = _sequence_number()

    def remove(self) -> None:
        """End it; undoes `install`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._open.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._open and module not in self._names:
            for name, inner in module.named_modules():
                self._names.setdefault(inner, name or type(module).__name__)
        self._open.append((module, _graph_task()))

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        # Modules that an exception ended without their hook are closed by those around them.
        while self._open:
            if self._open.pop()[0] is module:
                return

    def _forward(self) -> Place:
        module = self._open[-1][0] if self._open else None
        path = "" if module is None else self._names.get(module, type(module).__name__)
        return Place(path, self._line())

    def here(self) -> Place:
        """Return the place of the operator that runs now."""
        task = _graph_task()
        is_inside = bool(self._open) and self._open[-1][1] == task
        if task == -1 or is_inside:
            return self._forward()
        node: Any = _current_node()
        if node is None:
            return Place("", self._line(), is_backward=True)
        number = node._sequence_nr()
        index = bisect_right(self._numbers, number) - 1
        # Nodes that sum up gradients have no number, those made before `install` no place.
        is_known = index >= 0 and number < self._next
        made = self._made_at[index] if is_known else Place("", None)
        return made._replace(is_backward=True)

    def note_nodes(self) -> None:
        """Note the place of graph nodes made since the last call; called for each operator."""
        number = _sequence_number()
        if number <= self._next:
            return
        if len(self._numbers) >= _MOST_NODES:
            del self._numbers[: _MOST_NODES // 2], self._made_at[: _MOST_NODES // 2]
        self._numbers.append(self._next)
        self._made_at.append(self.here())
        self._next = number

    def _line(self) -> str | None:
        stack = self._stacks.at(sys._getframe(1))
        if stack.index not in self._lines:
            self._lines[stack.index] = user_line(stack.frames)
        return self._lines[stack.index]
