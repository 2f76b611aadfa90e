# SPDX-License-Identifier: Apache-2.0
"""From observed calls to records: number, select, describe, hand to the writer.

This is the hot path: it runs on the training thread, for every call. Everything that can be done
once (names of APIs, formatting of stacks, filters) is done elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msprobe.capture.account import Account
from msprobe.capture.adapter import Adapter
from msprobe.capture.call import Call, Draft
from msprobe.capture.names import (
    BACKWARD,
    PARAMETERS_GRAD,
    RECOMPUTE,
    CallCounters,
    api_names,
    module_names,
)
from msprobe.capture.overflow import OverflowCheck
from msprobe.capture.selection import Selection
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Describer, Found
from msprobe.dump.journal import OUTSIDE_CONSTRUCT
from msprobe.dump.writer import RankDump

_WAITING_LIMIT: Final = 512  # drafts that may wait for the device before a copy is started


class Rerun:
    """A checkpointed call's record and how often the call was repeated.

    Attributes:
        draft: the forward record.
        times: recomputations so far.
        said: recomputations that the written record knows of.
    """

    __slots__ = ("draft", "said", "times")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.times = 0
        self.said = 0


class CallWatcher(Protocol):
    """Follows the calls that are open, for level L2."""

    def began(self, call: Call) -> None:
        """Note that a call begins."""

    def ended(self, call: Call) -> None:
        """Note that a call ended, or raised."""


class Recorder:
    """Makes the records of one step at a time.

    Attributes:
        modules: the module calls that are open now, outermost first.
        account: what happened in the current step.
        watcher: is told of calls, at level L2.
        close_lost: ends the open modules that a call with this stack is not made in.
        step: number of the current step.
    """

    def __init__(
        self,
        *,
        adapter: Adapter,
        describer: Describer,
        selection: Selection,
        saves_tensors: bool,
        structure_only: bool,
        overflow: OverflowCheck | None,
        keeps_construct: bool,
        expands_modules: bool,
        submit: Callable[[Callable[[], None]], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        """Create it.

        Args:
            adapter: the framework.
            describer: turns values into JSON.
            selection: what is kept.
            saves_tensors: whether every kept record gets its tensors saved.
            structure_only: whether APIs and modules only make the tree of calls.
            overflow: the overflow check, when that is the task.
            keeps_construct: whether parents are recorded (not at L1).
            expands_modules: whether `list` keeps everything inside a matching module (mix).
            submit: runs something on the writer's thread.
            failed: takes note of something of ours that failed, and where.
        """
        self._adapter = adapter
        self._describer = describer
        self.selection = selection
        self._saves_tensors = saves_tensors
        self._structure_only = structure_only
        self.overflow = overflow
        self._keeps_construct = keeps_construct
        self._expands_modules = expands_modules
        self._submit = submit
        self._failed = failed
        self._counters = CallCounters()
        self._orders = itertools.count()
        self._dump: RankDump | None = None
        self._said_stacks: set[int] = set()
        self._said_owners: set[str] = set()
        self._deferred: list[Draft] = []
        self._reruns: dict[str, Rerun] = {}
        # Modules whose backward `list` wants, and whose backward lay in `scope`.
        self._wanted_modules: set[str] = set()
        self._modules_in_scope: set[str] = set()
        self._hidden_modules: set[str] = set()
        self.modules: list[Call] = []
        self.watcher: CallWatcher | None = None
        self.close_lost: Callable[[Stack], None] | None = None
        self.step = 0
        self.account = Account(0)

    # -- steps ---------------------------------------------------------------------------------

    def use(self, dump: RankDump | None) -> None:
        """Write to `dump` from now on."""
        self._dump = dump
        self._said_stacks.clear()
        self._said_owners.clear()

    def next_step(self, step: int) -> None:
        """Forget everything that belongs to the step so far."""
        self._counters.reset()
        self._orders = itertools.count()
        self._reruns.clear()
        self._wanted_modules.clear()
        self._modules_in_scope.clear()
        self._hidden_modules.clear()
        self.modules.clear()
        if self.selection.scope is not None:
            self.selection.scope.reset()
        self.step = step
        self.account = Account(step)

    def next_order(self) -> int:
        """Return the next place in the order of records and calls."""
        return next(self._orders)

    # -- calls ---------------------------------------------------------------------------------

    def begin(self, base: str, stack: Stack, *, is_module: bool) -> Call:
        """Number a call and decide what is kept of it.

        Args:
            base: the name without its number: ``Functional.relu``, ``Module.fc.Linear``.
            stack: where it was called.
            is_module: modules become the parents of what follows until `end` or `abandon`.
        """
        number = self._counters.take(base)
        names = module_names if is_module else api_names
        forward_name, backward_name = names(base, number)
        modules = self.modules
        if modules and self.close_lost is not None:
            self.close_lost(stack)
        enclosing = modules[-1] if modules else None
        order = next(self._orders)
        if enclosing is not None:
            parent: str | None = enclosing.forward_name
            backward_parent: str | None = enclosing.backward_name
        else:
            parent = backward_parent = stack.traits.owner
        call = Call(
            forward_name,
            backward_name,
            is_module=is_module,
            call_order=order,
            parent=parent,
            backward_parent=backward_parent,
            stack=stack.index,
            step=self.step,
        )
        self._select(call, enclosing)
        self._say_call(call, stack)
        if is_module:
            modules.append(call)
        if self.watcher is not None:
            self.watcher.began(call)
        return call

    def begin_recomputation(self, original: Call, *, keeps_record: bool) -> Call:
        """Return the call that repeats `original`: same names, no number of its own."""
        call = Call(
            original.forward_name,
            original.backward_name,
            is_module=original.is_module,
            call_order=original.call_order,
            parent=original.parent,
            backward_parent=original.backward_parent,
            stack=original.stack,
            step=self.step,
        )
        call.is_recompute = True
        call.expands = original.expands
        call.keeps_gradients = original.keeps_gradients
        if original.forward_name in self._reruns:
            self._count_recomputation(original)
            if keeps_record:
                call.keeps_inputs, call.keeps_outputs = (
                    original.keeps_inputs,
                    original.keeps_outputs,
                )
                name = f"{original.forward_name}.{RECOMPUTE}"
                call.draft = self.draft(name, next(self._orders))
        if call.is_module:
            self.modules.append(call)
        if self.watcher is not None:
            self.watcher.began(call)
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
        """Number a kernel (level L2) and decide what is kept of it; None for nothing.

        Args:
            base: the name without its number: ``Aten.add``.
            stack: where it was called.
            parent: the call whose kernel it is.
            enclosing: names of all calls around it; `list` may select any of them.
            in_backward: whether it runs in a backward pass.
        """
        forward_name, backward_name = api_names(base, self._counters.take(base))
        selection = self.selection
        mode = selection.data_mode
        is_selected = not selection.has_filters or any(
            selection.matches(name) for name in (forward_name, *enclosing)
        )
        if not is_selected or not (mode.backward if in_backward else mode.forward):
            self.account.skipped["not selected"] += 1
            return None
        call = Call(
            forward_name,
            backward_name,
            is_module=False,
            call_order=next(self._orders),
            parent=parent if parent is not None else stack.traits.owner,
            backward_parent=None,
            stack=stack.index,
            step=self.step,
        )
        call.keeps_inputs, call.keeps_outputs = mode.input, mode.output
        call.draft = self.draft(forward_name, call.call_order)
        self._say_call(call, stack)
        return call

    def remember_for_recomputation(self, call: Call) -> None:
        """Keep the draft of a checkpointed call, so that its record can say it was recomputed."""
        if call.draft is not None and not call.is_recompute:
            self._reruns[call.forward_name] = Rerun(call.draft)

    def _count_recomputation(self, original: Call) -> None:
        known = self._reruns.get(original.forward_name)
        if known is not None:
            known.times += 1
            known.draft.parts["recomputed"] = known.times

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
                if self._expands_modules:
                    call.expands = (wanted_forward, wanted_backward)
                if wanted_backward:
                    self._wanted_modules.add(_base_of(call))
            if selection.scope is not None:
                inputs = selection.scope.begin(call.forward_name)
                if not backward and selection.scope.is_bound(call.backward_name):
                    backward = call.only_bounds = True
        if self._structure_only:
            return
        call.keeps_gradients = backward
        if not forward:
            if not backward:
                self.account.skipped["not selected"] += 1
            return
        call.keeps_inputs = inputs and mode.input
        call.keeps_outputs = mode.output
        call.draft = self.draft(call.forward_name, call.call_order)

    def _say_call(self, call: Call, stack: Stack) -> None:
        dump = self._dump
        if dump is None:
            return
        if stack.index not in self._said_stacks:
            self._said_stacks.add(stack.index)
            dump.put_frames(stack.index, stack.frames)
        if not (self._keeps_construct or call.draft is not None):
            return
        owner = stack.traits.owner
        if owner is not None and call.parent == owner and owner not in self._said_owners:
            self._said_owners.add(owner)
            dump.put_call(owner, call.call_order, None, None)
        dump.put_call(
            call.forward_name,
            call.call_order if self._keeps_construct else OUTSIDE_CONSTRUCT,
            call.parent,
            call.stack,
        )

    def begin_backward_in_scope(self, call: Call) -> bool:
        """Note that the backward of `call` begins; return whether that is inside the scope."""
        scope = self.selection.scope
        if scope is None:
            return True
        inside = scope.begin(call.backward_name)
        if inside and call.is_module:
            self._modules_in_scope.add(_base_of(call))
        return inside

    def hide(self, module: str | None) -> None:
        """Note that a module ran unrecorded, while another one was dumped alone."""
        if module is not None:
            self._hidden_modules.add(module)

    def wants_parameters_of(self, module: str) -> bool:
        """Return whether the gradients of this module's parameters are recorded now.

        They belong to the module's backward: they are wanted with it. A module that ran only while
        another one was dumped alone has none.
        """
        if module in self._hidden_modules and module not in self._counters:
            return False
        selection = self.selection
        if selection.everything:
            return True
        listed = module in self._wanted_modules or selection.matches(f"{module}.{PARAMETERS_GRAD}")
        scope = selection.scope
        return listed and (scope is None or scope.inside or module in self._modules_in_scope)

    def say_backward(self, name: str, parent: str | None) -> int:
        """Note that a backward record begins; return its place in the order."""
        order = next(self._orders)
        if self._keeps_construct and self._dump is not None:
            self._dump.put_call(name, order, parent, None)
        return order

    def correct_parent(self, name: str, order: int, parent: str, stack: int | None = None) -> None:
        """Replace the parent that `begin` or `say_backward` noted for a record.

        Args:
            name: the record.
            order: its place among the records of the step.
            parent: the right one.
            stack: where it was called; None for a backward record.
        """
        if self._keeps_construct and self._dump is not None:
            self._dump.put_call(name, order, parent, stack)

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Describe what the call received, before it runs (an in-place call changes it).

        Returns:
            Whether they are described, and so each tensor with its position is in `found`.
        """
        draft = call.draft
        if draft is None or not call.keeps_inputs:
            return False
        parts = draft.parts
        describe = self._describer.inputs
        parts["input_args"], parts["input_kwargs"] = describe(draft, args, kwargs, found)
        return True

    def outputs(self, call: Call, output: Any) -> None:
        """Describe what the call returned."""
        scope = self.selection.scope
        if scope is not None and not scope.end(call.forward_name):
            if call.draft is not None and not call.keeps_inputs:
                self._drop(call)
            return
        draft = call.draft
        if draft is None or not call.keeps_outputs:
            return
        draft.parts["output"] = self._describer.outputs(draft, output)

    def _drop(self, call: Call) -> None:
        call.draft = None
        self.account.skipped["outside scope"] += 1

    def part(self, call: Call, name: str, value: Mapping[str, Any]) -> None:
        """Describe a further named part, such as a module's own parameters."""
        draft = call.draft
        if draft is not None and (call.keeps_inputs or call.keeps_outputs):
            draft.parts[name] = {
                key: self._describer.value(item, draft, f"{name}.{key}")
                for key, item in value.items()
            }

    def end(self, call: Call) -> None:
        """Hand the forward record on."""
        if self.watcher is not None:
            self.watcher.ended(call)
        if call.is_module:
            self._leave(call)
        draft, call.draft = call.draft, None  # hooks on the graph keep the call, not the record
        if draft is None:
            return
        if call.is_module and "output" in draft.parts:
            draft.order = next(self._orders)  # children first, as readers align by
        self.finish(draft)

    def abandon(self, call: Call, error: str) -> None:
        """Hand on what is known of a call that raised."""
        if self.watcher is not None:
            self.watcher.ended(call)
        if call.is_module:
            self._leave(call)
        scope = self.selection.scope
        inside = scope is None or scope.end(call.forward_name) or call.keeps_inputs
        draft, call.draft = call.draft, None
        if draft is not None and draft.parts and inside:
            draft.parts["raised"] = error
            self.finish(draft)

    def _leave(self, call: Call) -> None:
        # A call that never told its end (KeyboardInterrupt skips torch's hooks) goes with it.
        modules = self.modules
        if call in modules:
            del modules[modules.index(call) :]

    # -- records -------------------------------------------------------------------------------

    def draft(self, name: str, order: int) -> Draft:
        """Return a new record, with the place for its tensors if these are to be saved."""
        saves = self._saves_tensors or (
            self.selection.has_tensor_filters and self.selection.saves_tensors(name)
        )
        draft = Draft(name, order, self._dump if saves else None, self._adapter.tensor_suffix)
        if self.overflow is not None:
            draft.files, draft.held = self._dump, []
        return draft

    def finish(self, draft: Draft) -> None:
        """Hand a draft on unless nothing of it is kept."""
        if not draft.parts:
            self.account.skipped["outside scope"] += 1
            return
        self.hand_on(draft)

    def hand_on(self, draft: Draft) -> None:
        """Write a draft, whatever it holds, or let it wait for what the device still computes."""
        if draft.error is not None:
            self._failed("reading a tensor", draft.error)
            draft.error = None  # its traceback holds the tensor
        if draft.waiting is not None:
            self._deferred.append(draft)
            if len(self._deferred) >= _WAITING_LIMIT:
                self.flush_deferred()
            return
        if self.overflow is not None and not self.overflow.keeps(draft):
            return
        self._write(draft, self._dump)
        self.account.records += 1

    def write_interim(self, draft: Draft) -> None:
        """Write a record that is not complete yet; the complete one replaces it."""
        if draft.waiting is None and self.overflow is None:
            self._write(draft, self._dump)

    def rewrite_recomputed(self) -> None:
        """Write the records of recomputed calls again; readers take the later one."""
        for known in self._reruns.values():
            if known.times != known.said and known.draft.waiting is None:
                known.said = known.times
                self._write(known.draft, self._dump)

    def _write(self, draft: Draft, dump: RankDump | None) -> None:
        if dump is not None:
            dump.put_record(draft.name, draft.order, draft.parts, nonfinite=draft.nonfinite)

    def flush_deferred(self) -> None:
        """Start the copy of what the device computed; the writer's thread waits for it."""
        drafts, self._deferred = self._deferred, []
        resolve = None
        try:
            resolve = self._adapter.take_batch()
        except Exception as error:  # noqa: BLE001 - `stop` and `step` come here, too
            self._failed("statistics from the device", error)
        if not drafts and resolve is None:
            return
        self.account.records += len(drafts)
        dump = self._dump

        def complete() -> None:
            try:
                if resolve is not None:
                    resolve()
            except Exception as error:  # noqa: BLE001 - a record without numbers beats none
                self._failed("statistics from the device", error)
            for draft in drafts:
                try:
                    self._adapter.fill(draft)
                except Exception as error:  # noqa: BLE001 - likewise
                    self._failed("statistics from the device", error)
                draft.waiting = None
                self._write(draft, dump)

        self._submit(complete)


def _base_of(call: Call) -> str:
    """Return ``Module.fc.Linear`` for a module call."""
    return call.backward_name.rpartition(f".{BACKWARD}.")[0]
