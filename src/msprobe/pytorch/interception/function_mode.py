# SPDX-License-Identifier: Apache-2.0
"""Observe API calls: a torch function mode, with nothing patched.

torch calls the handler for every overridable function, method and operator, also when it was
imported directly. While the handler runs the mode is off, so calls made inside an API are not seen
again: that is the wanted granularity.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType, MethodType
from typing import Any, Final, Protocol

import torch
from torch import Tensor, overrides
from torch.overrides import TorchFunctionMode

from msprobe.capture.call import Call
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.capture.stacks import Stack, stack_key
from msprobe.capture.values import Found
from msprobe.config import RiskLevel
from msprobe.dump.records import JsonTree
from msprobe.pytorch.apis.api_rules import Action, ApiEntry, is_kept_at
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.apis.operator_names import operator_path
from msprobe.pytorch.gradients.gradient_taps import take_result
from msprobe.pytorch.gradients.input_edges import InputEdges, input_edges
from msprobe.pytorch.gradients.quick_taps import tap_gradients
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.interception import mode_stack
from msprobe.pytorch.interception.call_recorder import CallRecorder, QuickCall
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.left_modes import LeftMode
from msprobe.pytorch.interception.tracing import COMPILER, JIT_STATE, is_tracing
from msprobe.pytorch.values.adapter import TENSOR_TYPES, TorchAdapter
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.memory_effects import MemoryEffects
from msprobe.pytorch.values.random_state import RandomWatch
from msprobe.pytorch.values.tensor_search import tensors_in

HANDLE_CODE: Final = overrides.handle_torch_function.__code__
torch_redispatch: Final = getattr(overrides, "redispatch_function", None)
_is_grad_enabled: Final = torch.is_grad_enabled
_functions_enabled: Final = torch._C._is_torch_function_enabled
_functorch_active: Final = torch._C._are_functorch_transforms_active
_RESULT_ENTRIES: Final = frozenset({torch.autograd.grad})


class CallRunner(Protocol):
    """Runs the functions of observed calls in place of the mode."""

    def leaves_out(self, entry: ApiEntry) -> bool:
        """Return whether a call of an API is to be run as if it were not observed."""

    def __call__(
        self,
        call: Call,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return the output that the program goes on with.

        It calls the function once as the program would: an exception of the function is the
        program's own. What it does beyond that belongs inside `quietly`, where nothing is observed
        or recorded; functions that it calls there again draw the same random numbers inside
        `RandomReplay.again`.
        """


class OpenCall:
    """State of an API call between its begin and its end.

    Attributes:
        call: the call.
        edges: where its inputs hang in the graph; None when no gradients are taken.
        found: its tensors.
        random: compares the random state, for calls that draw numbers.
    """

    __slots__ = ("call", "edges", "found", "random")

    def __init__(self, call: Call) -> None:
        """Create it for a call that begins."""
        self.call = call
        self.found: Found = []
        self.edges: InputEdges | None = None
        self.random: RandomWatch | None = None


class ApiObserver(TorchFunctionMode):
    """Turns API calls into events of the session.

    Attributes:
        session: receives the events.
        left: takes the mode away.
        asleep: above 0, calls of an optimizer are not recorded, those of its closure are.
        memory: receives the effects of calls on memory.
        runner: runs the functions of calls in place of this mode; None for the tasks that only
            read. Calls that are not observed (`Calls` numbers none for them) never reach it.
    """

    def __init__(
        self,
        session: Session,
        adapter: TorchAdapter,
        table: ApiTable,
        recomputations: Recomputations,
        shared: SharedEdges,
        recorder: CallRecorder | None,
        redispatch: Callable[..., Any] | None = torch_redispatch,
    ) -> None:
        """Create it, not yet installed.

        Args:
            session: receives the events.
            adapter: its memo learns of births and writes.
            table: the treatment of each function.
            recomputations: recognises repeated calls of checkpointed code.
            shared: divides gradients among calls.
            recorder: records plain calls; None for no quick way.
            redispatch: torch's way to run a function with the mode on inside; None where torch has
                none, then `inside_backward` must be entered where torch enters its engine.
        """
        super().__init__()
        self.session = session
        self.left = LeftMode(
            partial(mode_stack.is_installed, self), partial(mode_stack.remove, self)
        )
        self.memory = MemoryEffects(adapter)
        self.runner: CallRunner | None = None
        self._table = table
        self._recomputations = recomputations
        self._shared = shared
        self._recorder = recorder
        self._risk = session.config.risk_level
        self._keeps_rng = session.config.record_rng
        self.asleep = 0
        self._in_closure = False
        self._inside = 0
        self._redispatch = redispatch
        if TENSORS is not None and recorder is not None and self._risk is RiskLevel.ALL:
            path = TENSORS.ApiPath(
                self,
                self.__torch_function__,
                session,
                self.left.threads,
                table.entries,
                session.stacks.by_key,
                adapter.undefined.storages,
                is_tracing,
                COMPILER,
                JIT_STATE,
                stack_key,
                operator_path,
                HANDLE_CODE,
                recorder,
            )
            # torch asks the mode for its handler, and that this is a method of the mode.
            self.__dict__["__torch_function__"] = MethodType(path.handle, self)

    def is_on(self) -> bool:
        """Return whether a call made here and now, in this thread, would reach this mode."""
        return (
            self.session.observing
            and _functions_enabled()
            and mode_stack.is_installed(self)
            and not is_tracing()
        )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle one call; the result is always that of the user's call."""
        if kwargs is None:
            kwargs = {}
        session, left = self.session, self.left
        is_left = left.threads and left.is_left_here()
        if is_left or not session.observing or is_tracing():
            return func(*args, **kwargs)
        entry = self._table.lookup(func)
        action = entry.action
        if action is Action.METADATA:
            if entry.bans and not (entry.is_setter and len(args) == 2 and args[1] is None):
                quietly(session, "memo", self.memory.ban, args, kwargs)
            result = func(*args, **kwargs)
            if entry.allocates:
                quietly(session, "memo", self.memory.note_writes, entry, args, kwargs, result)
            return result
        if action is Action.BACKWARD_ENTRY or action is Action.DESCEND:
            return self._go_inside(func, types, args, kwargs)
        frame = calling_frame(sys._getframe(1))
        with_grad = _is_grad_enabled()
        opened = quietly(session, "api begin", self._begin, entry, frame, with_grad, args, kwargs)
        runner = self.runner
        try:
            if runner is None or opened is None:
                result = func(*args, **kwargs)
            else:
                result = runner(opened.call, func, args, kwargs)
        except BaseException as error:
            # Only to note it: the user's exception goes on unchanged.
            if opened is not None:
                self.note_raised(opened, error)
            raise
        quietly(session, "api end", self.end_call, entry, opened, args, kwargs, result)
        return result

    # -- backward ------------------------------------------------------------------------------

    @contextmanager
    def inside_backward(self, _roots: Sequence[Any], _gradients: Sequence[Any]) -> Iterator[None]:
        """Put the mode back for a backward pass that the observed thread starts.

        The pass was started by a function that reached the mode, and while this handles a call it
        is off: recomputed code would run unseen.
        """
        session = self.session
        in_own_thread = threading.get_ident() == session.thread
        if not in_own_thread or not session.observing or mode_stack.is_installed(self):
            yield
            return
        with self._back_on():
            yield

    @contextmanager
    def _back_on(self) -> Iterator[None]:
        """Put the mode on top of the stack, which it left to handle a call."""
        self._inside += 1
        try:
            with self:
                yield
        finally:
            self._inside -= 1

    # -- sleep ---------------------------------------------------------------------------------

    def go_to_sleep(self, *, wakes_with_grad: bool) -> Callable[[], None]:
        """Record no calls that this thread makes from now on, until the result is called.

        Args:
            wakes_with_grad: whether calls of a closure are recorded all the same: those from the
                first with gradients on until a backward pass begins.

        Returns: how to end it; a second call does nothing.
        """
        session = self.session
        if threading.get_ident() != session.thread or not mode_stack.is_installed(self):
            return _do_nothing
        back = ExitStack()
        if wakes_with_grad or self._inside or torch._C._current_graph_task_id() != -1:
            self.asleep += 1
            self._in_closure = False
            back.callback(self._wake_lightly)
        else:
            mode_stack.remove(self)
            back.callback(self._wake)
        return back.close

    @contextmanager
    def in_closure(self) -> Iterator[None]:
        """Context in which all calls are recorded: an optimizer runs code of the user's."""
        before, self.asleep = self.asleep, 0
        try:
            yield
        finally:
            self.asleep = before

    def _is_of_closure(self, with_grad: bool) -> bool:
        """Return whether a call during `Optimizer.step` is made by its closure.

        That one was running when the recording began: nothing else tells where it ends. Parts of a
        forward pass may turn gradients off, as an optimizer does.
        """
        is_before = self._in_closure and not self.session.backward.has_begun
        self._in_closure = with_grad or is_before
        return self._in_closure

    def _wake_lightly(self) -> None:
        self.asleep -= 1

    def _wake(self) -> None:
        session = self.session
        if session.capturing and threading.get_ident() == session.thread:
            self.memory.forget()  # written unseen
            mode_stack.install_lowest(self)

    def _go_inside(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call with the mode on inside, so that recomputation in a backward is seen."""
        if any(kind not in TENSOR_TYPES for kind in types) or self._redispatch is None:
            # A user's own subclass must get its handler called. Without redispatch the mode is
            # put back where torch enters its engine (see `inside_backward`).
            result = func(*args, **kwargs)
        else:
            with self._back_on():
                result = self._redispatch(func, types, args, kwargs)
        self._in_closure = False
        if torch._C._current_graph_task_id() == -1:
            quietly(self.session, "backward end", self._backward_ended, func, args, kwargs, result)
        return result

    def _backward_ended(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if func in _RESULT_ENTRIES and isinstance(result, tuple):
            inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
            inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs or ())
            take_result(self.session, inputs, result)
        self.session.backward.close_passes()

    # -- begin ---------------------------------------------------------------------------------

    def _begin(
        self,
        entry: ApiEntry,
        frame: FrameType,
        with_grad: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> OpenCall | QuickCall | None:
        session = self.session
        if session.muted or (self.asleep and not self._is_of_closure(with_grad)):
            return None
        if self._risk is not RiskLevel.ALL and not self._is_wanted(entry):
            return None
        stack = session.stacks.at(frame)
        if stack.traits.internal:
            return None
        runner = None if stack.traits.checkpointed else self.runner
        if runner is not None and session.calls.keeps_all and runner.leaves_out(entry):
            return None
        name = entry.name if entry.operator_name is None else operator_path(entry, frame)
        opened = self.open_call(name, stack, frame, with_grad, args, kwargs, entry)
        if entry.draws_random and opened is not None and opened.call.keeps_forward:
            opened.random = RandomWatch(args, kwargs, keeps_state=self._keeps_rng)
        return opened

    def open_call(
        self,
        name: str,
        stack: Stack,
        frame: FrameType | None,
        with_grad: bool,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        entry: ApiEntry | None = None,
    ) -> OpenCall | QuickCall | None:
        """Begin a call under `name` and describe its inputs; None when it is not recorded."""
        call: Call | None = None
        recorder = self._recorder
        if stack.traits.checkpointed:
            call = self._recomputations.begin(name, stack, frame, is_module=False)
            if call is None:
                return None
        elif recorder is not None and not self.memory.may_leave_unread(entry, kwargs):
            quick = recorder.begin(name, stack, args, kwargs, None, with_grad, True)
            if quick is not None:
                if quick.is_described:
                    return quick
                recorder.unfold(quick)
                call = quick.call
        if call is None:
            call = self.session.calls.begin(name, stack, is_module=False)
        return self.open_begun(call, args, kwargs, entry, with_grad)

    def open_begun(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        entry: ApiEntry | None,
        with_grad: bool,
    ) -> OpenCall:
        """Describe the inputs of a call that has begun."""
        opened = OpenCall(call)
        self._take_inputs(opened, args, kwargs, entry)
        if with_grad and call.keeps_gradients and not _functorch_active():
            opened.edges = input_edges(call, opened.found, len(args), is_one_api=True)
        return opened

    def _is_wanted(self, entry: ApiEntry) -> bool:
        if is_kept_at(entry, self._risk):
            return True
        self.session.account.skipped[f"risk_level {self._risk}"] += 1
        return False

    def _take_inputs(
        self,
        opened: OpenCall,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        entry: ApiEntry | None,
    ) -> None:
        call, found = opened.call, opened.found
        shown_args, shown_kwargs = args, kwargs
        if entry is not None:
            shown_args, shown_kwargs = self.memory.shown_arguments(entry, args, kwargs)
        if not self.session.calls.inputs(call, shown_args, shown_kwargs, found):
            tensors_in(args, kwargs, found)
        self.memory.note_received(found)

    # -- end -----------------------------------------------------------------------------------

    def note_raised(self, opened: OpenCall | QuickCall, error: BaseException) -> None:
        """Hand on the record, as far as it is known, of a call that raised."""
        quietly(self.session, "api error", self._raised, opened, error)

    def _raised(self, opened: OpenCall | QuickCall, error: BaseException) -> None:
        self._unfold(opened)
        self.session.calls.raised(opened.call, type(error).__name__)

    def end_call(
        self,
        entry: ApiEntry,
        opened: OpenCall | QuickCall | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Note the effects of a call on memory, and its result if it is recorded."""
        memory = self.memory
        if entry.is_pure and "out" not in kwargs and not memory.has_undefined:
            if opened is not None and not self._end_quickly(opened, result, is_new=True):
                self.end_pure(entry, opened, result)
            return
        memory.note_writes(entry, args, kwargs, result)
        if opened is None:
            return
        if result is None and entry.returns_mutated and args:
            result = args[0]
        memory.note_result(entry, result)
        shown = memory.shown_result(entry, args, kwargs, result)
        self.close_call(opened, result, shown)

    def end_pure(self, entry: ApiEntry, opened: OpenCall | QuickCall, result: Any) -> None:
        """Take the result of a recorded call that writes nothing, not the quick way."""
        self.memory.note_result(entry, result)
        self._close_in_python(opened, result, result)

    def close_call(self, opened: OpenCall | QuickCall, result: Any, shown: Any) -> None:
        """Describe the result of a call, tap its gradients and hand its record on.

        Args:
            opened: the call.
            result: the result.
            shown: the result as it is to be described.
        """
        if shown is not result or not self._end_quickly(opened, result, is_new=False):
            self._close_in_python(opened, result, shown)

    def _end_quickly(self, opened: OpenCall | QuickCall, result: Any, *, is_new: bool) -> bool:
        recorder = self._recorder
        if recorder is None or isinstance(opened, OpenCall):
            return False
        return recorder.end(opened, result, is_new, self._drawn(opened))

    def _drawn(self, opened: OpenCall | QuickCall) -> JsonTree:
        """Return on which devices a call drew random numbers; None for none."""
        random = opened.random
        return None if random is None else random.drawn(opened.call, self.session.dump)

    def _unfold(self, opened: OpenCall | QuickCall) -> None:
        if self._recorder is not None and not isinstance(opened, OpenCall):
            self._recorder.unfold(opened)

    def _close_in_python(self, opened: OpenCall | QuickCall, result: Any, shown: Any) -> None:
        self._unfold(opened)
        call, calls = opened.call, self.session.calls
        calls.outputs(call, shown)
        if (drawn := self._drawn(opened)) is not None:
            calls.fact(call, "rng", drawn)
        if opened.edges is not None:
            tap_gradients(self.session, self._shared, self._recorder, opened.edges, result)
        calls.end(call)


def _do_nothing() -> None:
    """Do nothing."""


def calling_frame(frame: FrameType) -> FrameType:
    """Return the frame that called the API, given that which called the handler.

    A Python-level API comes through `handle_torch_function`, below the API's own frame.
    """
    if frame.f_code is HANDLE_CODE and frame.f_back is not None:
        return frame.f_back.f_back or frame
    return frame
