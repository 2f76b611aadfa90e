# SPDX-License-Identifier: Apache-2.0
"""Records only calls in which something is found: the tasks `overflow_check` and `nan_check`.

A call that is sound costs a look at its values and nothing else: no record, no copy. Arguments are
kept by reference until the call ends, and described when something is found. Those that the call
is going to overwrite are described before it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol

from msprobe.capture.backward import BackwardPass
from msprobe.capture.call import Call, Draft
from msprobe.capture.recording import Recording, RecordingContext
from msprobe.capture.stacks import Stack
from msprobe.capture.value_states import State, ValueWatch
from msprobe.capture.values import Found, Position
from msprobe.dump.record_names import recompute_name
from msprobe.dump.records import JsonTree

_COMMUNICATION: Final = "Distributed."  # it writes into its arguments
# The flag of functions that write into an argument: ``F.relu(x, inplace=True)``.
_IN_PLACE: Final = "inplace"
_OVERWRITTEN: Final = "written during the call: as they are after it"


class RecordCheck(Protocol):
    """Judges records; one for each run.

    Attributes:
        finished: whether nothing is looked for any more.
    """

    finished: bool

    def wants(self, name: str) -> bool:
        """Return whether the record of a call is kept whatever is found, with its tensors."""

    def keeps(self, draft: Draft) -> bool:
        """Judge a finished draft; the tensors of one that is kept are saved."""


class _Received:
    """The arguments of a call that has not ended.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        found: the tensors among them.
        state: of these, and of the results.
        versions: of the tensors; None where nothing can write to them unseen.
        draft: the record, where something is described already.
        parts: further values and facts.
        output: the result.
    """

    __slots__ = ("args", "draft", "found", "kwargs", "output", "parts", "state", "versions")

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found) -> None:
        self.args = args
        self.kwargs = kwargs
        self.found = found
        self.state: int = State.SOUND
        self.versions: list[int] | None = None
        self.draft: Draft | None = None
        self.parts: list[tuple[str, Any, bool]] | None = None
        self.output: Any = None


class WatchRecording(Recording):
    """Describes a call when something is found in it.

    Attributes:
        stacks: those of the calls of the run, by index.
        watch: looks at values; None where every value is described.
    """

    _has_more = True

    def __init__(
        self,
        around: RecordingContext,
        check: RecordCheck,
        watch: ValueWatch | None,
        *,
        sees_writes: bool,
        saves: bool,
    ) -> None:
        """Create it.

        Args:
            around: see `Recording`.
            check: judges complete records.
            watch: looks at values; None where every value is described.
            sees_writes: whether calls that write to tensors are seen before they do.
            saves: whether the tensors of every record that is kept are saved.
        """
        super().__init__(around)
        self._check = check
        self.watch = watch
        self._sees_writes = sees_writes
        self._saves = saves
        self._received: dict[Call, _Received] = {}
        self.stacks: dict[int, Stack] = {}
        self._modules: list[Call] = []
        self._arrived: dict[BackwardPass, list[tuple[Any, str, Position]]] = {}
        self._waiting_parameters: dict[str, list[tuple[str, Any]]] = {}

    def next_step(self) -> None:
        """Forget everything that belongs to the step so far."""
        super().next_step()
        self._received.clear()
        self._modules.clear()
        self._arrived.clear()
        self._waiting_parameters.clear()

    def new_draft(self, name: str, order: int) -> Draft:
        """Return a new record, whose tensors are put aside until it is judged."""
        draft = super().new_draft(name, order)
        if self._saves or self._check.wants(name):
            draft.files, draft.held = self.dump, []
        return draft

    def keeps(self, draft: Draft) -> bool:
        """Return whether something is found in a record."""
        return self._check.keeps(draft)

    def write_interim(self, draft: Draft) -> None:
        """Write nothing: incomplete records are not judged."""

    # -- calls ---------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Note the place of a call; it is written when something is found."""
        self.stacks.setdefault(stack.index, stack)
        if call.is_module:
            self._modules.append(call)

    begin_kernel = begin

    def begin_again(self, call: Call, original: Call) -> None:
        """Note a recomputation, which is looked at if it is to have a record of its own."""
        if call.is_module:
            self._modules.append(call)

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Look at the inputs of the call, and keep them until it ends."""
        if not call.keeps_forward or self._check.finished:
            return False
        self._received[call] = received = _Received(args, kwargs, found)
        if self._is_read_at_once(call, args, kwargs):
            self._describe_inputs(call, received, found)
            self._describe_before_write(call, found)
            return True
        watch = self.watch
        assert watch is not None
        state = received.state = watch.arguments(args, kwargs, found)
        if call.is_module:
            received.versions = [watch.version(tensor) for tensor, _ in found]
        if state == State.UNKNOWN:
            self._describe_inputs(call, received, [])
        return True

    def adopt(
        self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], found: Found, state: int
    ) -> None:
        """Go on with a call that began without this recording (`CallRecorder`).

        Args:
            call: the call.
            args: its positional arguments.
            kwargs: its keyword arguments.
            found: the tensors among them.
            state: of these.
        """
        if not self._check.finished:
            self._received[call] = received = _Received(args, kwargs, found)
            received.state = state

    def _is_read_at_once(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> bool:
        """Return whether the arguments are described before the call runs.

        An adapter hands on a list in place of the tuple where an argument is not read.
        """
        return (
            self.watch is None
            or type(args) is not tuple
            or (not call.is_module and writes_arguments(call.forward_name.rsplit(".", 2)[0]))
            or bool(not call.is_module and kwargs and kwargs.get(_IN_PLACE))
            or (self._saves and call.is_module and not self._sees_writes)
            or self._check.wants(call.forward_name)
        )

    def _describe_inputs(self, call: Call, received: _Received, found: Found) -> Draft:
        """Begin the record of a call with its arguments; append each tensor to `found`."""
        draft = received.draft = self._draft_of(call)
        parts, describe = draft.parts, self._describer.inputs
        parts["input_args"], parts["input_kwargs"] = describe(
            draft, received.args, received.kwargs, found
        )
        return draft

    def _describe_before_write(self, writer: Call, found: Found) -> None:
        """Describe the arguments of open modules that a call may overwrite."""
        watch = self.watch
        if watch is None or not self._saves:
            return
        for call in self._modules:
            received = self._received.get(call)
            if received is None or received.draft is not None or call is writer:
                continue
            if any(
                watch.share_memory(one, other) for one, _ in found for other, _ in received.found
            ):
                self._describe_inputs(call, received, [])

    def _draft_of(self, call: Call) -> Draft:
        name = call.forward_name
        order = call.call_order
        if call.is_recompute:
            name = recompute_name(name)
            order = self._step.next_order()
        draft = self.new_draft(name, order)
        draft.parent, draft.stack = call.parent, self._stack_of(call)
        return draft

    def _stack_of(self, call: Call) -> Stack | None:
        return None if call.stack is None else self.stacks.get(call.stack)

    def outputs(self, call: Call, output: Any) -> None:
        """Look at the outputs of the call."""
        received = self._received.get(call)
        if received is None:
            return
        received.output = (output,)
        if received.draft is None and self.watch is not None:
            state = self.watch.result(output)
            if state > received.state:
                received.state = state

    def part(self, call: Call, name: str, values: Mapping[str, Any]) -> None:
        """Keep a further named part, such as a module's own parameters."""
        received, watch = self._received.get(call), self.watch
        if received is None:
            return
        received.parts = [*(received.parts or ()), (name, values, True)]
        if self._saves and watch is not None:
            received.state = max([received.state, *map(watch.tensor, values.values())])

    def fact(self, call: Call, name: str, value: JsonTree) -> None:
        """Keep a fact of the call."""
        received = self._received.get(call)
        if received is not None:
            received.parts = [*(received.parts or ()), (name, value, False)]

    def end(self, call: Call) -> None:
        """Describe a call in which something is found."""
        received = self._leave(call)
        if received is not None and (received.state or received.draft is not None):
            self._finish_call(call, received)

    def raised(self, call: Call, error: str) -> None:
        """Describe a call that raised, if something was found in its inputs."""
        received = self._leave(call)
        if received is not None and (received.state or received.draft is not None):
            received.parts = [*(received.parts or ()), ("raised", error, False)]
            self._finish_call(call, received)

    def _leave(self, call: Call) -> _Received | None:
        if call.is_module and call in self._modules:
            del self._modules[self._modules.index(call) :]
        return self._received.pop(call, None)

    def _finish_call(self, call: Call, received: _Received) -> None:
        if self._check.finished:
            return
        draft = received.draft
        if draft is None:
            draft = self._describe_inputs(call, received, [])
            self._note_overwritten(draft, received)
        for name, values, is_described in received.parts or ():
            draft.parts[name] = self._further(name, values, draft) if is_described else values
        if received.output is not None:
            draft.parts["output"] = self._describer.outputs(draft, received.output[0])
        if call.is_module:
            draft.order = self._step.next_order()  # children first
        if self.finish(draft):
            self._place_call(call)

    def _further(self, part: str, values: Mapping[str, Any], draft: Draft) -> JsonTree:
        value = self._describer.value
        return {name: value(item, draft, f"{part}.{name}") for name, item in values.items()}

    def _note_overwritten(self, draft: Draft, received: _Received) -> None:
        watch, versions = self.watch, received.versions
        if watch is None or versions is None:
            return
        if versions != [watch.version(tensor) for tensor, _ in received.found]:
            draft.parts.setdefault("remarks", {})["input_args"] = _OVERWRITTEN

    def _place_call(self, call: Call) -> None:
        """Write the place of a call and those of the modules around it."""
        for one in (*self._modules, call):
            stack = self._stack_of(one)
            name = recompute_name(one.forward_name) if one.is_recompute else one.forward_name
            if stack is not None:
                self.write_place(one, name, stack)

    # -- gradients -----------------------------------------------------------------------------

    def backward_begin(self, backward: BackwardPass) -> None:
        """Begin to collect the gradients of a pass."""
        if self.watch is None:
            self._open_record(backward)
        else:
            self._arrived[backward] = []

    def gradient(self, backward: BackwardPass, side: str, position: Position, tensor: Any) -> None:
        """Look at a gradient, and keep it until the pass ends."""
        arrived = self._arrived.get(backward)
        if arrived is None or self.watch is None:
            super().gradient(backward, side, position, tensor)
            return
        if self._check.finished:
            return
        arrived.append((tensor, side, position))
        if self.watch.tensor(tensor) or self._check.wants(backward.name):
            self._describe_arrived(backward)

    def _describe_arrived(self, backward: BackwardPass) -> None:
        """Describe the gradients so far; those to come are described as they arrive."""
        arrived = self._arrived.pop(backward, None) or []
        self._open_record(backward)
        for tensor, side, position in arrived:
            super().gradient(backward, side, position, tensor)

    def _open_record(self, backward: BackwardPass) -> None:
        super().backward_begin(backward)
        draft, call = backward.draft, backward.gradients.call
        if draft is not None:
            draft.parent, draft.stack = call.parent, self._stack_of(call)

    def backward_whole(
        self, backward: BackwardPass, arrived: Sequence[tuple[Any, str, Position]]
    ) -> None:
        """Describe a pass if something is found in its gradients."""
        if self._check.finished:
            return
        watch = self.watch
        if watch is None or self._check.wants(backward.name) or any(watch.gradients(arrived)):
            self._open_record(backward)
            for tensor, side, position in arrived:
                super().gradient(backward, side, position, tensor)
            super().backward_end(backward)

    def backward_end(self, backward: BackwardPass) -> None:
        """End a pass, and write its record if something was found."""
        if self._arrived.pop(backward, None) is None:
            super().backward_end(backward)

    def backward_dropped(self, backward: BackwardPass) -> None:
        """Forget a pass."""
        self._arrived.pop(backward, None)
        super().backward_dropped(backward)

    def parameter_gradient(
        self, name: str, parameter: str, tensor: Any, *, is_last: bool, all_of: str | None = None
    ) -> None:
        """Look at the gradient of a parameter; describe those of its module if need be."""
        if self._check.finished:
            return
        watch, waiting = self.watch, self._waiting_parameters
        is_open = name in self._parameters or self._check.wants(name)
        if not is_open and watch is not None and not watch.tensor(tensor):
            if is_last:
                waiting.pop(name, None)
            else:
                waiting.setdefault(name, []).append((parameter, tensor))
            return
        for earlier, gradient in waiting.pop(name, ()):
            super().parameter_gradient(name, earlier, gradient, is_last=False)
        super().parameter_gradient(name, parameter, tensor, is_last=is_last, all_of=all_of)

    def end_step(self) -> None:
        """Finish every open record, for the step is over."""
        super().end_step()
        self._waiting_parameters.clear()


@cache
def writes_arguments(api: str) -> bool:
    """Return whether an API, ``Tensor.add_``, writes to its arguments, by its name."""
    if api.startswith(_COMMUNICATION):
        return True
    return api[-1] == "_" and (api[-2:] != "__" or ".__i" in api)
