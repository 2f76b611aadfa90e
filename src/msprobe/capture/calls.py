# SPDX-License-Identifier: Apache-2.0
"""Number calls, select those to keep, and pass them to the sinks.

This is the hot path: it runs on the training thread, for every call. Everything that can be done
once (names of APIs, formatting of stacks, filters) is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msprobe.capture.account import Step
from msprobe.capture.call import Call
from msprobe.capture.events import CallSink, several
from msprobe.capture.names import CallCounters
from msprobe.capture.selection import Selection
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Found
from msprobe.dump.record_names import RecordKind, api_names, base_of, module_names
from msprobe.dump.records import JsonTree


class Calls:
    """The calls of one step at a time; observers of a framework report to it.

    Attributes:
        step: the step they belong to.
        selection: the calls to keep.
        sink: receives them, and their gradients.
        modules: the module calls that are open now, outermost first.
        last_record: the last forward record of the step that ended; None before the first one.
        counters: number the calls.
        close_lost: ends the open modules that a call with this stack is not made in.
        inputs: see `CallSink.inputs`.
        outputs: see `CallSink.outputs`.
        part: see `CallSink.part`.
        fact: see `CallSink.fact`.
    """

    def __init__(self, step: Step, selection: Selection, sink: CallSink) -> None:
        """Create it.

        Args:
            step: the step of the run.
            selection: the calls to keep.
            sink: receives the calls; there may be more later (`add`).
        """
        self.step = step
        self.selection = selection
        self._is_plain = selection.everything and not selection.only_tree
        self._sinks: tuple[CallSink, ...] = (sink,)
        self._tell(sink)
        self.counters = CallCounters()
        # Modules whose backward `list` wants, and whose backward lay in `scope`.
        self._wanted_modules: set[str] = set()
        self._modules_in_scope: set[str] = set()
        self._hidden_modules: set[str] = set()
        self.modules: list[Call] = []
        self.last_record: str | None = None
        self.close_lost: Callable[[Stack], None] | None = None

    # -- sinks ---------------------------------------------------------------------------------

    def add(self, sink: CallSink) -> None:
        """Add a sink, which receives the events from now on."""
        self._sinks = (*self._sinks, sink)
        self._tell(several(self._sinks))

    def remove(self, sink: CallSink) -> None:
        """Remove a sink that was added."""
        self._sinks = tuple(one for one in self._sinks if one is not sink)
        self._tell(self._sinks[0] if len(self._sinks) == 1 else several(self._sinks))

    def _tell(self, sink: CallSink) -> None:
        self.sink = sink
        # Nothing is to be added to these: a call less for each of them.
        self.inputs: Callable[[Call, Sequence[Any], Mapping[str, Any] | None, Found], bool] = (
            sink.inputs
        )
        self.part: Callable[[Call, str, Mapping[str, Any]], None] = sink.part
        self.fact: Callable[[Call, str, JsonTree], None] = sink.fact
        self.outputs: Callable[[Call, Any], None] = (
            sink.outputs if self.selection.scope is None else self._outputs_in_scope
        )

    @property
    def keeps_all(self) -> bool:
        """Whether the inputs and outputs of every call are kept."""
        mode = self.selection.data_mode
        return self._is_plain and mode.forward and mode.input and mode.output

    # -- calls ---------------------------------------------------------------------------------

    def begin(
        self,
        base: str,
        stack: Stack,
        *,
        is_module: bool,
        is_checkpointed: bool = False,
        is_recompute: bool = False,
    ) -> Call:
        """Begin a call.

        Args:
            base: the name without its number: ``Functional.relu``, ``Module.fc.Linear``.
            stack: where it was called.
            is_module: modules become the parents of what follows until `end` or `raised`.
            is_checkpointed: whether a backward pass may recompute it.
            is_recompute: whether only a recomputation makes it: the first run had no such call.
        """
        names = module_names if is_module else api_names
        forward_name, backward_name = names(base, self.counters.take(base))
        modules = self.modules
        if modules and self.close_lost is not None:
            self.close_lost(stack)
        enclosing = modules[-1] if modules else None
        if enclosing is not None:
            parent: str | None = enclosing.forward_name
            backward_parent: str | None = enclosing.backward_name
        else:
            parent = backward_parent = stack.traits.owner
        step = self.step
        call = Call(
            forward_name,
            backward_name,
            is_module,
            step.next_order(),
            parent,
            backward_parent,
            stack.index,
            step.number,
        )
        if is_checkpointed or is_recompute:
            call.is_checkpointed, call.is_recompute = is_checkpointed, is_recompute
        if self._is_plain:
            mode = self.selection.data_mode
            self._keep(call, mode.forward, mode.backward, mode.input)
        else:
            self._select(call, enclosing)
        self.sink.begin(call, stack)
        if is_module:
            modules.append(call)
        return call

    def begin_again(self, original: Call, *, keeps_record: bool) -> Call:
        """Return the call that repeats `original`: same names, no number of its own.

        Args:
            original: the checkpointed call.
            keeps_record: whether the repetition gets a record of its own.
        """
        call = Call(
            original.forward_name,
            original.backward_name,
            is_module=original.is_module,
            call_order=original.call_order,
            parent=original.parent,
            backward_parent=original.backward_parent,
            stack=original.stack,
            step=self.step.number,
        )
        call.is_recompute = True
        call.expands = original.expands
        call.keeps_gradients = original.keeps_gradients
        if keeps_record and original.keeps_forward:
            call.keeps_forward = True
            call.keeps_inputs, call.keeps_outputs = original.keeps_inputs, original.keeps_outputs
        if call.is_module:
            self.modules.append(call)
        self.sink.begin_again(call, original)
        return call

    def begin_kernel(
        self,
        base: str,
        stack: Stack,
        parent: str | None,
        enclosing: Sequence[str],
        *,
        in_backward: bool,
    ) -> Call | None:
        """Begin an operator of level L2; None for one that is not selected.

        Args:
            base: the name without its number: ``Aten.add``.
            stack: where it was called.
            parent: the call whose kernel it is.
            enclosing: names of all calls around it; `list` and `scope` may select any of them.
            in_backward: whether it runs in a backward pass.
        """
        forward_name, backward_name = api_names(base, self.counters.take(base))
        selection, step = self.selection, self.step
        mode = selection.data_mode
        names = (forward_name, *enclosing)
        scope = selection.kernel_scope
        is_selected = (scope is None or scope.covers(names)) and (
            not selection.has_filters or any(map(selection.matches, names))
        )
        if not is_selected or not (mode.backward if in_backward else mode.forward):
            step.account.skipped["not selected"] += 1
            return None
        call = Call(
            forward_name,
            backward_name,
            is_module=False,
            call_order=step.next_order(),
            parent=parent if parent is not None else stack.traits.owner,
            backward_parent=None,
            stack=stack.index,
            step=step.number,
        )
        call.keeps_forward = True
        call.keeps_inputs, call.keeps_outputs = mode.input, mode.output
        self.sink.begin_kernel(call, stack)
        return call

    def _outputs_in_scope(self, call: Call, output: Any) -> None:
        """Hand on the outputs of the call, unless they lie outside of the scope."""
        scope = self.selection.scope
        if scope is None or scope.end(call.forward_name):
            self.sink.outputs(call, output)
        elif call.keeps_forward and not call.keeps_inputs:
            call.keeps_forward = False
            self.step.account.skipped["outside scope"] += 1

    def end(self, call: Call) -> None:
        """End a call that returned."""
        if call.is_module:
            self._leave(call)
        if call.keeps_forward and not call.is_recompute:
            self.last_record = call.forward_name
        self.sink.end(call)

    def raised(self, call: Call, error: str) -> None:
        """End a call that raised an exception of the class `error`."""
        if call.is_module:
            self._leave(call)
        scope = self.selection.scope
        if scope is not None and not scope.end(call.forward_name) and not call.keeps_inputs:
            call.keeps_forward = False
        self.sink.raised(call, error)
        if not call.is_recompute:
            self.step.ending.call_raised(call, error, is_outermost=not self.modules)

    def _leave(self, call: Call) -> None:
        # A call that never told its end (KeyboardInterrupt skips torch's hooks) goes with it.
        modules = self.modules
        if call in modules:
            del modules[modules.index(call) :]

    def place(self, name: str, parent: str | None) -> int:
        """Note that a record that is no call has its place here; return that."""
        order = self.step.next_order()
        self.sink.place(name, order, parent, None)
        return order

    # -- selection -----------------------------------------------------------------------------

    def _keep(self, call: Call, forward: bool, backward: bool, inputs: bool) -> None:
        call.keeps_gradients = backward
        if forward:
            call.keeps_forward = True
            call.keeps_inputs, call.keeps_outputs = inputs, self.selection.data_mode.output
        elif not backward:
            self.step.account.skipped["not selected"] += 1

    def _select(self, call: Call, enclosing: Call | None) -> None:
        selection = self.selection
        mode = selection.data_mode
        forward, backward = mode.forward, mode.backward
        inputs = True
        if not selection.everything:
            inside = enclosing.expands if enclosing is not None else (False, False)
            wanted_forward = inside[0] or selection.matches(call.forward_name)
            wanted_backward = inside[1] or selection.matches(call.backward_name)
            forward, backward = forward and wanted_forward, backward and wanted_backward
            if call.is_module and selection.has_filters:
                if selection.expands_modules:
                    call.expands = (wanted_forward, wanted_backward)
                if wanted_backward:
                    self._wanted_modules.add(_base_of(call))
            if selection.scope is not None:
                inputs = selection.scope.begin(call.forward_name)
                if not backward and selection.scope.is_bound(call.backward_name):
                    backward = call.only_bounds = True
        if not selection.only_tree:
            self._keep(call, forward, backward, inputs and mode.input)

    def begin_backward(self, call: Call) -> bool:
        """Note that the backward of `call` begins; return whether that is inside the scope."""
        scope = self.selection.scope
        if scope is None:
            return True
        inside = scope.begin(call.backward_name)
        if inside and call.is_module:
            self._modules_in_scope.add(_base_of(call))
        return inside

    def end_backward(self, call: Call, *, began_inside: bool) -> bool:
        """Note that the backward of `call` is over; return whether it is kept."""
        scope = self.selection.scope
        inside = scope is None or scope.end(call.backward_name) or began_inside
        if not inside and not call.only_bounds:
            self.step.account.skipped["outside scope"] += 1
        return inside and not call.only_bounds

    def hide(self, module: str | None) -> None:
        """Note that a module ran unrecorded, while another one was dumped alone."""
        if module is not None:
            self._hidden_modules.add(module)

    def wants_parameters_of(self, module: str) -> bool:
        """Return whether the gradients of this module's parameters are recorded now.

        They belong to the module's backward: they are wanted with it. A module that ran only while
        another one was dumped alone has none.
        """
        if module in self._hidden_modules and module not in self.counters:
            return False
        selection = self.selection
        if selection.everything:
            return True
        listed = module in self._wanted_modules or selection.matches(
            f"{module}.{RecordKind.PARAMETERS_GRAD}"
        )
        scope = selection.scope
        return listed and (scope is None or scope.inside or module in self._modules_in_scope)

    @property
    def any_began(self) -> bool:
        """Whether a call began in this step."""
        return self.counters.has_counted

    def next_step(self) -> None:
        """Forget everything that belongs to the step so far."""
        self.counters.reset()
        self._wanted_modules.clear()
        self._modules_in_scope.clear()
        self._hidden_modules.clear()
        self.modules.clear()
        self.last_record = None
        for scope in (self.selection.scope, self.selection.kernel_scope):
            if scope is not None:
                scope.reset()


def _base_of(call: Call) -> str:
    """Return ``Module.fc.Linear`` for a module call."""
    return base_of(call.backward_name)
