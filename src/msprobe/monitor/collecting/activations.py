# SPDX-License-Identifier: Apache-2.0
"""Measure activations and their gradients: a sink of the calls that capture's module hooks see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msprobe.capture.backward import SIDE_INPUT, BackwardPass
from msprobe.capture.events import CallSink
from msprobe.capture.values import Found, Position
from msprobe.dump.record_names import base_of
from msprobe.monitor.collecting.step_rows import Key, StepRows
from msprobe.monitor.rows import Stream

if TYPE_CHECKING:
    from msprobe.capture.call import Call
    from msprobe.capture.stacks import Stack

INPUT: Final = "input"
OUTPUT: Final = "output"


class MonitoredModule:
    """One module of the models.

    Attributes:
        path: its name in the model, ``layers.0.mlp``.
        name: as it is shown: that, or a shorter one.
        chunk: the model among several.
        module: the module itself; only of a model, else None.
    """

    __slots__ = ("chunk", "module", "name", "path", "wants_forward", "wants_gradients")

    def __init__(self, path: str, name: str, chunk: int, module: Any) -> None:
        self.path = path
        self.name = name
        self.chunk = chunk
        self.module = module
        self.wants_forward = True
        self.wants_gradients = True


class _Place:
    """One call of a module.

    Attributes:
        expected: how many tensors it returned; decides the names of their gradients.
    """

    __slots__ = ("call", "inputs", "micro_step", "module", "outputs")

    def __init__(self, module: MonitoredModule, call: int, micro_step: int) -> None:
        self.module = module
        self.call = call
        self.micro_step = micro_step
        self.inputs: list[Position] = []
        self.outputs: list[Position] = []


class Activations(CallSink):
    """Measures what modules receive and return, and the gradients of both.

    A forward pass of a model in evaluation mode is no micro step and is not measured. Modules in
    evaluation mode inside a model that trains are.

    Attributes:
        rows: of the step; None while nothing is collected.
        micro_step: of the forward pass that runs, or ran last; -1 before the first.
        on_call: told of each call that begins, with its stack; None for no receiver.
        on_values: told of each call twice: its key, micro step, positional arguments or the tensors
            that it returned, and whether it is the latter; None for no receiver.
    """

    def __init__(
        self,
        modules: Mapping[str, MonitoredModule],
        tensors_in: Callable[[Any, Any, Found], object],
        is_training: Callable[[Any], bool],
    ) -> None:
        """Create it.

        Args:
            modules: by the name under which calls are observed, without ``.forward.0``.
            tensors_in: appends the tensors of arguments and keywords, with their positions.
            is_training: tells of a model that is called whether it trains.
        """
        self._modules = modules
        self._tensors_in = tensors_in
        self._is_training = is_training
        self.rows: StepRows | None = None
        self.micro_step = -1
        self.on_call: Callable[[MonitoredModule, Stack], None] | None = None
        self.on_values: Callable[[str, Key, int, Sequence[Any], bool], None] | None = None
        self._places: dict[str, _Place] = {}
        self._calls: Counter[str] = Counter()
        self._skipped: str | None = None
        self._chunks: dict[int, int] = {}

    def begin_step(self, rows: StepRows | None) -> None:
        """Begin a step, or stop with None."""
        self.rows = rows
        self.micro_step = -1
        self._places.clear()
        self._calls.clear()
        self._chunks.clear()
        self._skipped = None

    # -- events --------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Note that a call begins; of a model, it is the next micro step."""
        base = base_of(call.forward_name)
        module = self._modules.get(base)
        if module is None or self._skipped is not None:
            return
        if module.module is not None and call.parent is None:
            if not self._is_training(module.module):
                self._skipped = call.forward_name
                return
            self._next_micro_step(module.chunk)
        if not (module.wants_forward or module.wants_gradients or self.on_values is not None):
            return
        number = self._calls[base]
        self._calls[base] = number + 1
        self._places[call.forward_name] = _Place(module, number, max(self.micro_step, 0))
        if self.on_call is not None:
            self.on_call(module, stack)

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Measure the inputs."""
        place = self._places.get(call.forward_name)
        if place is None or call.is_recompute:
            return False
        self._tensors_in(args, kwargs, found)
        place.inputs = [position for _, position in found]
        self._put(place, found, INPUT)
        self._tell(place, args, is_output=False)
        return True

    def outputs(self, call: Call, output: Any) -> None:
        """Measure the outputs."""
        place = self._places.get(call.forward_name)
        if place is None or call.is_recompute:
            return
        found: Found = []
        self._tensors_in(output if type(output) is tuple else (output,), None, found)
        place.outputs = [position for _, position in found]
        self._put(place, found, OUTPUT)
        self._tell(place, [one for one, _ in found], is_output=True)

    def _tell(self, place: _Place, values: Sequence[Any], *, is_output: bool) -> None:
        if self.on_values is not None:
            key = Key(place.module.name, place.module.chunk, place.call)
            self.on_values(place.module.path, key, place.micro_step, values, is_output)

    def end(self, call: Call) -> None:
        """Note that a call returned."""
        if call.forward_name == self._skipped:
            self._skipped = None

    def raised(self, call: Call, error: str) -> None:
        """Note that a call raised."""
        self.end(call)

    def gradient(self, backward: BackwardPass, side: str, position: Position, tensor: Any) -> None:
        """Measure a gradient; `side` is ``input`` for that of an output."""
        place = self._places.get(backward.gradients.call.forward_name)
        rows = self.rows
        if place is None or rows is None or not place.module.wants_gradients:
            return
        if Stream.ACTV_GRAD not in rows.streams:
            return
        if side == SIDE_INPUT:
            name = _named(place.module.name, OUTPUT, position, place.outputs)
        else:
            name = _named(place.module.name, INPUT, position, place.inputs)
        key = Key(name, place.module.chunk, place.call)
        rows.batch(Stream.ACTV_GRAD, place.micro_step).add((key,), [tensor])

    # -- inside --------------------------------------------------------------------------------

    def _next_micro_step(self, chunk: int) -> None:
        """Count a forward pass of a chunk; chunks of one model pass in turn."""
        count = self._chunks.get(chunk, -1) + 1
        self._chunks[chunk] = count
        if count > self.micro_step:
            self.micro_step = count
            self._calls.clear()

    def _put(self, place: _Place, found: Found, side: str) -> None:
        rows, module = self.rows, place.module
        if rows is None or not found or not module.wants_forward:
            return
        if Stream.ACTV not in rows.streams:
            return
        tensors = [tensor for tensor, _ in found]
        name = f"{module.name}.{side}" if module.name else side
        if len(tensors) == 1:
            keys = [Key(name, module.chunk, place.call)]
        else:
            keys = [
                Key(f"{name}_{number}", module.chunk, place.call) for number in range(len(tensors))
            ]
        rows.batch(Stream.ACTV, place.micro_step).add(keys, tensors)


def _named(module: str, side: str, position: Position, positions: Sequence[Position]) -> str:
    """Return the name of a gradient: that of its activation."""
    name = f"{module}.{side}" if module else side
    if len(positions) <= 1:
        return name
    if position in positions:
        return f"{name}_{positions.index(position)}"
    return f"{name}_{position}"
