# SPDX-License-Identifier: Apache-2.0
"""Know which API or module call a kernel belongs to, in the forward and in the backward pass.

Forward: the innermost call that is open. Backward: torch numbers the nodes of the graph in the
order in which they are made; a call owns the nodes whose numbers were given out while it was open,
and a kernel belongs to the owner of the node that runs it. A node that was made in another thread
has a number of that thread's own and may be taken for another call's.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

import torch

from msprobe.capture.call import Call
from msprobe.capture.events import CallSink
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack

_graph_task: Final = torch._C._current_graph_task_id
_sequence_number: Final = torch._C._autograd._get_sequence_nr
_current_node: Final = torch._C._current_autograd_node


@dataclass(frozen=True, slots=True)
class Enclosing:
    """The calls around a kernel.

    Attributes:
        parent: name of the innermost call around it, None outside of all.
        names: the names of all calls around it, innermost first.
    """

    parent: str | None = None
    names: tuple[str, ...] = ()


_NOWHERE: Final = Enclosing()


class _Open:
    """A call between its begin and its end."""

    __slots__ = ("backward", "born", "call", "forward", "task")

    def __init__(self, call: Call, around: _Open | None) -> None:
        self.call = call
        self.task = _graph_task()
        self.born: int = _sequence_number()
        inside = around if around is not None and around.task == self.task else None
        self.forward: tuple[str, ...] = (call.forward_name, *(inside.forward if inside else ()))
        self.backward: tuple[Call, ...] = (call, *(inside.backward if inside else ()))


class EnclosingCalls(CallSink):
    """Follows the calls that are open, for level L2."""

    def __init__(self, session: Session) -> None:
        """Create it for the calls of `session`."""
        self._session = session
        self._open: list[_Open] = []
        # Calls that made nodes, in the order in which they ended, and these ends.
        self._owners: list[tuple[int, tuple[Call, ...]]] = []
        self._ends: list[int] = []
        self._placed: set[str] = set()

    def begin(self, call: Call, stack: Stack) -> None:
        """Note that a call begins."""
        self._open.append(_Open(call, self._open[-1] if self._open else None))

    def begin_again(self, call: Call, original: Call) -> None:
        """Note that a call is repeated."""
        self._open.append(_Open(call, self._open[-1] if self._open else None))

    def raised(self, call: Call, error: str) -> None:
        """Note that a call raised."""
        self.end(call)

    def end(self, call: Call) -> None:
        """Note that a call ended, with everything inside that never told its end."""
        for index in range(len(self._open) - 1, -1, -1):
            opened = self._open[index]
            if opened.call is call:
                del self._open[index:]
                self._own(opened)
                return

    def _own(self, opened: _Open) -> None:
        end = _sequence_number()
        if end > opened.born and threading.get_ident() == self._session.thread:
            self._ends.append(end)
            self._owners.append((opened.born, opened.backward))

    def here(self) -> Enclosing:
        """Return the calls around the kernel that runs now."""
        task = _graph_task()
        if self._open and self._open[-1].task == task:
            names = self._open[-1].forward
            return Enclosing(names[0], names)
        if task == -1:
            return _NOWHERE
        calls = self._owner_of(_current_node())
        if not calls:
            return _NOWHERE
        self._say(calls)
        names = tuple(call.backward_name for call in calls)
        return Enclosing(names[0], names)

    def _owner_of(self, node: Any) -> tuple[Call, ...]:
        if node is None:
            return ()
        number = node._sequence_nr()
        # Inner calls end first: the first call that ended later and began earlier is the innermost.
        for index in range(bisect_right(self._ends, number), len(self._ends)):
            born, calls = self._owners[index]
            if born <= number:
                return calls
        return ()

    def _say(self, calls: tuple[Call, ...]) -> None:
        for call in reversed(calls):
            if call.backward_name not in self._placed:
                self._placed.add(call.backward_name)
                self._session.calls.place(call.backward_name, call.backward_parent)

    def forget_open(self) -> None:
        """Forget calls that never ended: observing ends."""
        self._open.clear()

    def next_step(self) -> None:
        """Forget everything."""
        self._open.clear()
        self._owners.clear()
        self._ends.clear()
        self._placed.clear()
