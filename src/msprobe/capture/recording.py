# SPDX-License-Identifier: Apache-2.0
"""Recordings: the sinks that make records of calls and hand them to the writer, one per task.

`Recording` describes values (task statistics); the other tasks differ in whose tensors are saved
and in which records are kept. It runs on the training thread, for every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from msprobe.capture.account import Step
from msprobe.capture.adapter import Adapter
from msprobe.capture.backward import BackwardPass
from msprobe.capture.backward_record import (
    begin_parts,
    gradient_path,
    is_waiting,
    place,
    write_remarks,
)
from msprobe.capture.call import Call, Draft, LateText
from msprobe.capture.events import CallSink
from msprobe.capture.stacks import Stack
from msprobe.capture.values import Describer, Found, Position
from msprobe.config import DataMode
from msprobe.dump.lines import OUTSIDE_CONSTRUCT
from msprobe.dump.record_names import recompute_name
from msprobe.dump.records import JsonTree, with_text
from msprobe.dump.writer import RankDump

_WAITING_LIMIT: Final = 512  # drafts that may wait for the device before a copy is started
# A record whose gradients are still arriving is written after this long, so that a killed process
# keeps it; the complete one replaces it.
_UNFINISHED_FOR_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingContext:
    """The objects that a recording uses.

    Attributes:
        step: the step of the run.
        adapter: the framework.
        describer: turns values into JSON.
        data_mode: which sides of a call are recorded.
        keeps_construct: whether parents are recorded (not at L1).
        submit: runs something on the writer's thread.
        failed: takes note of something of ours that failed, and where.
    """

    step: Step
    adapter: Adapter
    describer: Describer
    data_mode: DataMode
    keeps_construct: bool
    submit: Callable[[Callable[[], None]], None]
    failed: Callable[[str, BaseException], None]


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


class Unfilled(NamedTuple):
    """A record that is whole but for the numbers of values that a device still computes.

    Attributes:
        name: its name.
        order: its place among the records of the step.
        text: its JSON.
    """

    name: str
    order: int
    text: LateText


class Recording(CallSink):
    """Records calls and gradients, tensors as statistics.

    Attributes:
        dump: where it writes; None outside of recorded steps.
        keeps_construct: whether parents are recorded (not at L1).
        written_stacks: indices of the stacks that the dump has.
        open_passes: backward passes of which gradients are still to come.
    """

    # Whether a record may need more than what it says: its tensors, or a judgement.
    _has_more: ClassVar[bool] = False

    def __init__(self, around: RecordingContext) -> None:
        """Create it; `use` says where it writes."""
        self._step = around.step
        self._adapter = around.adapter
        self._record_tensor = around.adapter.record_tensor
        self._record_gradients = around.adapter.record_gradients
        self._suffix = around.adapter.tensor_suffix
        self._describer = around.describer
        self._inputs_json = around.describer.inputs
        self._outputs_json = around.describer.outputs
        self._data_mode = around.data_mode
        self.keeps_construct = around.keeps_construct
        self._submit = around.submit
        self._failed = around.failed
        self.dump: RankDump | None = None
        self.written_stacks: set[int] = set()
        self._written_owners: set[str] = set()
        self._deferred: list[Draft | Unfilled] = []
        self._reruns: dict[str, Rerun] = {}
        self.open_passes: dict[BackwardPass, None] = {}
        self._parameters: dict[str, Draft] = {}
        self._last_write = time.monotonic()

    def use(self, dump: RankDump | None) -> None:
        """Write to `dump` from now on."""
        self.dump = dump
        self.written_stacks.clear()
        self._written_owners.clear()

    def next_step(self) -> None:
        """Forget everything that belongs to the step so far."""
        self._reruns.clear()
        self._last_write = time.monotonic()

    # -- decisions of tasks --------------------------------------------------------------------

    def new_draft(self, name: str, order: int) -> Draft:
        """Return a new record."""
        return Draft(name, order, self._suffix)

    def keeps(self, draft: Draft) -> bool:
        """Return whether a record that is complete is written."""
        return True

    def write_interim(self, draft: Draft) -> None:
        """Write a record that is not complete yet; the complete one replaces it."""
        if draft.waiting is None:
            self._write(draft, self.dump)

    # -- calls ---------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Open the record of a call, if any of it is kept; note its place in the tree."""
        if self.open_passes:
            self.write_unfinished()
        name = call.forward_name
        if call.is_recompute:
            name = recompute_name(name)
        if call.keeps_forward:
            call.draft = self.new_draft(name, call.call_order)
            if call.is_checkpointed:
                self._reruns[name] = Rerun(call.draft)
        if self.keeps_construct or call.draft is not None:
            self.write_place(call, name, stack)
        elif self.dump is not None and stack.index not in self.written_stacks:
            self._write_stack(self.dump, stack)

    begin_kernel = begin

    def begin_again(self, call: Call, original: Call) -> None:
        """Count a recomputation, and open a record of its own if it has one."""
        known = self._reruns.get(original.forward_name)
        if known is None:
            return
        known.times += 1
        known.draft.parts["recomputed"] = known.times
        if call.keeps_forward:
            name = recompute_name(original.forward_name)
            call.draft = self.new_draft(name, self._step.next_order())

    def _write_stack(self, dump: RankDump, stack: Stack) -> None:
        self.written_stacks.add(stack.index)
        dump.put_frames(stack.index, stack.frames)

    def write_place(self, call: Call, name: str, stack: Stack) -> None:
        """Write where a call belongs, and its stack if the dump does not have it."""
        dump = self.dump
        if dump is None:
            return
        if stack.index not in self.written_stacks:
            self._write_stack(dump, stack)
        owner = stack.traits.owner
        if owner is not None and call.parent == owner and owner not in self._written_owners:
            self._written_owners.add(owner)
            dump.put_call(owner, call.call_order, None, None)
        dump.put_call(
            name,
            call.call_order if self.keeps_construct else OUTSIDE_CONSTRUCT,
            call.parent,
            call.stack,
        )

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Describe the inputs of the call."""
        draft = call.draft
        if draft is None or not call.keeps_inputs:
            return False
        parts = draft.parts
        described = self._inputs_json(draft, args, kwargs, found)
        parts["input_args"], parts["input_kwargs"] = described
        return True

    def outputs(self, call: Call, output: Any) -> None:
        """Describe the outputs of the call."""
        draft = call.draft
        if draft is not None and call.keeps_outputs:
            draft.parts["output"] = self._outputs_json(draft, output)

    def part(self, call: Call, name: str, values: Mapping[str, Any]) -> None:
        """Describe a further named part, such as a module's own parameters."""
        draft = call.draft
        if draft is not None and (call.keeps_inputs or call.keeps_outputs):
            draft.parts[name] = {
                key: self._describer.value(item, draft, f"{name}.{key}")
                for key, item in values.items()
            }

    def fact(self, call: Call, name: str, value: JsonTree) -> None:
        """Put a fact into the record unchanged."""
        if call.draft is not None:
            call.draft.parts[name] = value

    def end(self, call: Call) -> None:
        """Hand the forward record on."""
        draft, call.draft = call.draft, None  # hooks on the graph keep the call, not the record
        if draft is None or not call.keeps_forward:
            return
        if call.is_module and "output" in draft.parts:
            draft.order = self._step.next_order()  # children first, as readers align by
        if draft.parts:
            self.hand_on(draft)
        else:
            self.finish(draft)

    def raised(self, call: Call, error: str) -> None:
        """Hand on the record, as far as it is known, of a call that raised."""
        draft, call.draft = call.draft, None
        if draft is not None and draft.parts and call.keeps_forward:
            draft.parts["raised"] = error
            self.finish(draft)

    def place(self, name: str, order: int, parent: str | None, stack: int | None) -> None:
        """Replace the entry of a record in the tree of calls."""
        if self.keeps_construct and self.dump is not None:
            self.dump.put_call(name, order, parent, stack)

    # -- gradients -----------------------------------------------------------------------------

    def backward_begin(self, backward: BackwardPass) -> None:
        """Open the record of a pass."""
        backward.draft = draft = self.new_draft(backward.name, backward.order)
        begin_parts(draft.parts, backward.gradients, self._data_mode)
        self.open_passes[backward] = None
        self.place(backward.name, backward.order, backward.gradients.call.backward_parent, None)

    def gradient(self, backward: BackwardPass, side: str, position: Position, tensor: Any) -> None:
        """Describe a gradient."""
        draft = backward.draft
        if draft is not None:
            path = gradient_path(side, position)
            described = self._record_tensor(tensor, draft, path, is_gradient=True)
            place(draft.parts, side, position, described)

    def backward_whole(
        self, backward: BackwardPass, arrived: Sequence[tuple[Any, str, Position]]
    ) -> None:
        """Make and write the record of a pass at once, where its gradients are plain."""
        gradients = backward.gradients
        parts = None
        if not (self._has_more or gradients.remarks or gradients.keywords):
            arguments = gradients.arguments
            if type(arguments) is int:
                parts = self._record_gradients(arrived, gradients.outputs, arguments)
        if parts is None:
            super().backward_whole(backward, arrived)
            return
        call, order = gradients.call, backward.order
        self.place(backward.name, order, call.backward_parent, None)
        if call.is_module:
            order = self._step.next_order()  # children first
        if self.dump is not None:
            self.dump.put_record(backward.name, order, parts)
        self._step.account.records += 1

    def backward_end(self, backward: BackwardPass) -> None:
        """Hand the record of a pass on."""
        draft = self._let_go(backward)
        if draft is None:
            return
        if backward.gradients.call.is_module:
            draft.order = self._step.next_order()  # children first
        write_remarks(draft, backward.gradients)
        self.finish(draft)

    def backward_dropped(self, backward: BackwardPass) -> None:
        """Forget the record of a pass."""
        self._let_go(backward)

    def _let_go(self, backward: BackwardPass) -> Draft | None:
        draft, backward.draft = backward.draft, None
        self.open_passes.pop(backward, None)
        return draft

    def parameter_gradient(
        self, name: str, parameter: str, tensor: Any, *, is_last: bool, all_of: str | None = None
    ) -> None:
        """Describe the gradient of a parameter."""
        draft = self._parameters.get(name)
        if draft is None:
            draft = self._parameters[name] = self.new_draft(name, self._step.next_order())
        described = self._record_tensor(tensor, draft, parameter, is_gradient=True)
        if all_of is not None and not is_waiting(draft, described):
            described = with_text(described, "all_of", all_of)
        draft.parts[parameter] = [described]
        if is_last:
            del self._parameters[name]
            self.finish(draft)

    def pause(self) -> None:
        """Write the records that wait for further gradients of parameters."""
        for draft in self._parameters.values():
            self.write_interim(draft)

    def end_step(self) -> None:
        """Finish every open record, for the step is over.

        Until then a parameter that the first backward passes of the step left out may still get its
        first gradient, which belongs into the record of its module's first arrivals.
        """
        drafts, self._parameters = list(self._parameters.values()), {}
        for draft in drafts:
            self.finish(draft)

    def write_unfinished(self) -> None:
        """Write open passes in their present state, if that was not done for a while."""
        now = time.monotonic()
        if now - self._last_write < _UNFINISHED_FOR_S:
            return
        self._last_write = now
        for backward in self.open_passes:
            if backward.draft is not None:
                self.write_interim(backward.draft)

    # -- records -------------------------------------------------------------------------------

    def finish(self, draft: Draft) -> bool:
        """Hand a draft on unless nothing of it is kept; return whether it is or may be written."""
        if not draft.parts:
            self._step.account.skipped["outside scope"] += 1
            return False
        return self.hand_on(draft)

    def hand_on(self, draft: Draft) -> bool:
        """Write a draft, or let it wait for numbers that the device still computes.

        Returns: whether it is or may be written.
        """
        if draft.error is not None:
            self._failed("reading a tensor", draft.error)
            draft.error = None  # its traceback holds the tensor
        if draft.waiting is not None:
            self._put_off(draft)
            return True
        if draft.is_bad:
            self._step.is_bad = True
        if self._has_more and not self.keeps(draft):
            return False
        dump = self.dump
        if dump is not None:
            dump.put_record(draft.name, draft.order, draft.parts, nonfinite=draft.nonfinite)
        self._step.account.records += 1
        return True

    def defer(self, name: str, order: int, text: LateText) -> None:
        """Write a record when its values have their numbers."""
        self._put_off(Unfilled(name, order, text))

    def _put_off(self, record: Draft | Unfilled) -> None:
        self._deferred.append(record)
        if len(self._deferred) >= _WAITING_LIMIT:
            self.flush_deferred()

    def rewrite_recomputed(self) -> None:
        """Write the records of recomputed calls again; readers take the later one."""
        for known in self._reruns.values():
            if known.times != known.said and known.draft.waiting is None:
                known.said = known.times
                self._write(known.draft, self.dump)

    def _write(self, draft: Draft, dump: RankDump | None) -> None:
        if dump is not None:
            dump.put_record(draft.name, draft.order, draft.parts, nonfinite=draft.nonfinite)

    def flush_deferred(self) -> None:
        """Start the copy of the device's statistics; the writer's thread waits for it."""
        drafts, self._deferred = self._deferred, []
        resolve = None
        try:
            resolve = self._adapter.take_batch()
        except Exception as error:  # noqa: BLE001 - `stop` and `step` come here, too
            self._failed("statistics from the device", error)
        if not drafts and resolve is None:
            return
        dump, account = self.dump, self._step.account

        def complete() -> None:
            try:
                if resolve is not None:
                    resolve()
            except Exception as error:  # noqa: BLE001 - a record without numbers beats none
                self._failed("statistics from the device", error)
            for record in drafts:
                if isinstance(record, Unfilled):
                    account.records += self._write_filled(record, dump)
                    continue
                try:
                    self._adapter.fill(record)
                except Exception as error:  # noqa: BLE001 - logged, and training goes on
                    self._failed("statistics from the device", error)
                record.waiting = None
                if record.is_bad:
                    self._step.is_bad = True
                if self.keeps(record):
                    account.records += 1
                    self._write(record, dump)

        self._submit(complete)

    def _write_filled(self, record: Unfilled, dump: RankDump | None) -> bool:
        """Write a record whose values have come; return whether that was possible."""
        try:
            text, is_bad = record.text.fill()
        except Exception as error:  # noqa: BLE001 - logged, and training goes on
            self._failed("statistics from the device", error)
            return False
        if is_bad:
            self._step.is_bad = True
        if dump is not None:
            dump.put_record(record.name, record.order, text)
        return True


class TensorRecording(Recording):
    """Saves tensors as well: of all records, or of those whose names are wanted."""

    _has_more = True

    def __init__(self, around: RecordingContext, wanted: Sequence[str] = ("",)) -> None:
        """Create it.

        Args:
            around: see `Recording`.
            wanted: parts of names; a record whose name has one of them gets its tensors saved.
        """
        super().__init__(around)
        self._wanted = tuple(wanted)

    def new_draft(self, name: str, order: int) -> Draft:
        """Return a new record, with the place for its tensors if these are to be saved."""
        draft = super().new_draft(name, order)
        if any(part in name for part in self._wanted):
            draft.files = self.dump
        return draft
