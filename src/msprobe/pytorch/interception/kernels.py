# SPDX-License-Identifier: Apache-2.0
"""Level L2: record every operator that reaches a device, forward and backward.

A torch dispatch mode is called for each operator of ``aten`` and of every other library, on any
device, below autograd: composite operators have been taken apart by then, and the operators that
the backward pass runs are seen as well. Records are named ``Aten.{op}.{n}.forward``.

With a dispatch mode on, torch takes another way for a few operators, and their last bits differ
(``prod``, by 3e-8): this level is outside the promise that observing changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode

from msprobe.capture.call import Call
from msprobe.capture.session import Session
from msprobe.pytorch.apis.api_rules import (
    Action,
    ApiEntry,
    describe_function,
    written_arguments,
)
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.interception import dispatch_stack
from msprobe.pytorch.interception.ascend_kernel_dump import KernelDump
from msprobe.pytorch.interception.enclosing_calls import EnclosingCalls
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.left_modes import LeftMode
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.adapter import TorchAdapter
from msprobe.pytorch.values.unread import UnreadTensors

_graph_task: Final = torch._C._current_graph_task_id

# Markers of torch's profiler, debuggers and scripting: they compute nothing.
PLUMBING: Final = frozenset({"profiler", "prim", "debug_mode_ops", "streams"})
# Their results are complete only after a wait.
UNFINISHED: Final = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
_TRACED: Final = frozenset({"FakeTensor", "FunctionalTensor"})
_NO_CALL: Final = ApiEntry(prefix="Aten", api="", action=Action.METADATA)
_NOTE: Final = (
    "level L2 is outside the promise of identical bits: torch runs some kernels otherwise"
)


class ApisAboveKernels(ApiTable):
    """The table of APIs without operators: these make kernel records, under the same names."""

    __slots__ = ("_table",)

    def __init__(self, table: ApiTable) -> None:
        """Create it over the table of the run."""
        super().__init__()
        self._table = table

    def lookup(self, func: Any) -> ApiEntry:
        """Return the entry of `func`."""
        if isinstance(func, OpOverload | OpOverloadPacket):
            return _NO_CALL
        return self._table.lookup(func)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Facts about an operator.

    Attributes:
        entry: the facts about it as an API.
        overload: name of the overload.
        is_wanted: whether it is recorded at all.
        is_finished: whether its results are there when it returns.
        written: positions and names of the arguments that it writes.
    """

    entry: ApiEntry
    overload: str
    is_wanted: bool
    is_finished: bool
    written: tuple[tuple[int, str], ...]


class KernelObserver(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch
    """Turns operators into records.

    Attributes:
        calls: knows the calls around a kernel; a further sink while installed.
    """

    # Otherwise torch refuses to run flex_attention and its like; they are passed on.
    supports_higher_order_operators = True

    def __init__(self, session: Session, adapter: TorchAdapter, table: ApiTable) -> None:
        """Create it, not yet installed.

        Args:
            session: receives the records.
            adapter: it learns which memory is undefined.
            table: names operators, and knows which ones the user does not want.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._session = session
        self._adapter = adapter
        self._unread = UnreadTensors(adapter)
        self._table = table
        self._kernels: dict[OpOverload[Any, Any], _Kernel] = {}
        self.calls = EnclosingCalls(session)
        self._device_dump = KernelDump.for_session(session)
        self._left = LeftMode(
            partial(dispatch_stack.is_installed, self), partial(dispatch_stack.remove, self)
        )

    def install(self) -> None:
        """Begin to watch; the session's undo stack gets the way back."""
        session = self._session
        session.calls.add(self.calls)
        session.account.note(_NOTE)
        # The engine restores the mode stack after each node: inside it only the flag changes.
        if _graph_task() == -1:
            self._left.keep()
            dispatch_stack.install_lowest(self)
            session.undo.callback(self._left.remove_from, session.thread)
        session.undo.callback(self._uninstall)

    def suspend(self) -> None:
        """Take the mode off this thread's stack for a while."""
        dispatch_stack.remove(self)

    def resume(self) -> None:
        """Put the mode back."""
        dispatch_stack.install_lowest(self)

    def _uninstall(self) -> None:
        self._session.calls.remove(self.calls)
        self.calls.forget_open()
        self._adapter.forget_values()
        if self._device_dump is not None:
            quietly(self._session, "kernel dump", self._device_dump.close)

    def next_step(self) -> None:
        """Forget the state of the step that is over."""
        self.calls.next_step()
        if self._device_dump is not None:
            self._device_dump.next_step()
        if _graph_task() == -1:
            dispatch_stack.remove(self)  # left behind by a stop inside a backward pass

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle one operator; the result is always that of the operator."""
        if kwargs is None:
            kwargs = {}
        session, left = self._session, self._left
        is_left = left.threads and left.is_left_here()
        if is_left or not session.observing or not isinstance(func, OpOverload) or is_traced(types):
            return func(*args, **kwargs)
        kernel = quietly(session, "kernel", self._kernel, func)
        call = None
        if kernel is not None and kernel.is_wanted:
            frame = sys._getframe(1)
            call = quietly(session, "kernel begin", self._begin, kernel, frame, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            # Only to note it: the user's exception goes on unchanged.
            if call is not None:
                kind = type(error).__name__
                quietly(session, "kernel error", session.calls.raised, call, kind)
            raise
        if kernel is None:
            return result
        quietly(session, "kernel end", self._end, kernel, call, args, kwargs, result)
        return result

    def _begin(
        self,
        kernel: _Kernel,
        frame: FrameType,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Call | None:
        session = self._session
        enclosing = self.calls.here()
        if session.muted and not enclosing.names:
            return None  # only one module is dumped, and this lies outside of it
        if self._device_dump is not None:
            self._device_dump.before_kernel(enclosing.names)
        in_backward = _graph_task() != -1
        calls = session.calls
        call = calls.begin_kernel(
            kernel.entry.name,
            session.stacks.at(frame),
            enclosing.parent,
            enclosing.names,
            in_backward=in_backward,
        )
        if call is None:
            return None
        calls.fact(call, "overload", kernel.overload)
        if in_backward:
            calls.fact(call, "phase", "backward")
        calls.inputs(call, *self._unread.in_arguments(kernel.entry, args, kwargs), [])
        return call

    def _end(
        self,
        kernel: _Kernel,
        call: Call | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        calls, unread = self._session.calls, self._unread
        unread.note_writes(kernel.entry, args, kwargs, result)
        if call is None:
            return
        if kernel.is_finished:
            if result is None and kernel.written:
                result = tuple(argument_of(args, kwargs, *place) for place in kernel.written)
            calls.outputs(call, unread.in_result(kernel.entry, args, kwargs, result))
        elif call.keeps_outputs:
            calls.fact(call, "output", [None])
            calls.fact(call, "pending", True)
        calls.end(call)

    def _kernel(self, func: OpOverload[Any, Any]) -> _Kernel:
        known = self._kernels.get(func)
        if known is None:
            known = self._kernels[func] = self._describe(func)
        return known

    def _describe(self, func: OpOverload[Any, Any]) -> _Kernel:
        entry = describe_function(func)
        # Some operators are no APIs to record; here they are, unless the user excluded them.
        is_excluded = self._table.lookup(func).action is not entry.action
        selection = self._session.calls.selection
        is_excluded |= selection.refuses_api(entry.api, entry.name)
        return _Kernel(
            entry=entry,
            overload=func._overloadname,
            is_wanted=func.namespace not in PLUMBING and not is_excluded,
            is_finished=func.namespace not in UNFINISHED,
            written=written_arguments([func]),
        )


def argument_of(args: Sequence[Any], kwargs: Mapping[str, Any], index: int, name: str) -> Any:
    """Return the argument of an operator at a position or by its name."""
    return args[index] if index < len(args) else kwargs.get(name)


def is_traced(types: Sequence[type]) -> bool:
    """Return whether the operator does not run now: our own must not run in its place either."""
    return is_tracing() or any(kind.__name__ in _TRACED for kind in types)
