# SPDX-License-Identifier: Apache-2.0
"""The events of a run, and the interface of their receivers.

The observers of a framework (hooks of modules, function modes, edges of the autograd graph) report
to `Calls` and `BackwardPasses`. These number the calls, select those to keep, and tell their sink.
A recording is a sink; other consumers of a run are further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from msprobe.capture.backward import BackwardPass
    from msprobe.capture.call import Call
    from msprobe.capture.stacks import Stack
    from msprobe.capture.values import Found, Position
    from msprobe.dump.facts import OptimizerStep
    from msprobe.dump.records import JsonTree


class CallSink:
    """Receives calls and gradients, in the order in which they happen.

    Every method runs where the event happens, on the thread of the user's program: tensors are as
    the call sees them, and may be overwritten afterwards. They may only be read. An exception is
    noted in the account of the step, and the program goes on.

    A sink defines the methods of the events that it wants; the others do nothing.
    """

    # -- forward -------------------------------------------------------------------------------

    def begin(self, call: Call, stack: Stack) -> None:
        """Note that a call of a module or an API begins; `call.parent` is the call around it."""

    def begin_kernel(self, call: Call, stack: Stack) -> None:
        """Note that an operator of level L2 begins, inside of any number of calls."""

    def begin_again(self, call: Call, original: Call) -> None:
        """Note that a backward pass recomputes `original`: `call` has its names and number."""

    def inputs(
        self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any] | None, found: Found
    ) -> bool:
        """Take the inputs of a call, before it runs (an in-place call changes them).

        Returns:
            Whether each tensor among the arguments was appended to `found` with its position. Only
            a sink that looks through all of them anyway does that: the recording.
        """
        return False

    def fact(self, call: Call, name: str, value: JsonTree) -> None:
        """Take a fact about a call: a part of its record that is written unchanged."""

    def part(self, call: Call, name: str, values: Mapping[str, Any]) -> None:
        """Take further values of a call, such as a module's own parameters."""

    def outputs(self, call: Call, output: Any) -> None:
        """Take the outputs of a call."""

    def end(self, call: Call) -> None:
        """Note that a call returned and everything about it is known."""

    def raised(self, call: Call, error: str) -> None:
        """Note that a call ended with an exception of the class `error`."""

    def place(self, name: str, order: int, parent: str | None, stack: int | None) -> None:
        """Note where a record belongs, which was not known when it began.

        Args:
            name: the record.
            order: its place among the records of the step.
            parent: the record around it.
            stack: where it was called; None for a backward record.
        """

    # -- backward ------------------------------------------------------------------------------

    def backward_begin(self, backward: BackwardPass) -> None:
        """Note that the first gradient of a call arrives in a backward pass."""

    def gradient(self, backward: BackwardPass, side: str, position: Position, tensor: Any) -> None:
        """Take a gradient of a call.

        Args:
            backward: the pass over the call.
            side: ``input`` for one with respect to an output of the call, ``output`` to an input.
            position: of which output or input.
            tensor: the whole gradient, every share added up.
        """

    def backward_end(self, backward: BackwardPass) -> None:
        """Note that no further gradient of the call comes in this pass."""

    def backward_whole(
        self, backward: BackwardPass, arrived: Sequence[tuple[Any, str, Position]]
    ) -> None:
        """Take a pass whose gradients all arrive at once: tensor, side and position of each.

        Unless a sink has a quicker way, these are the single events.
        """
        self.backward_begin(backward)
        for tensor, side, position in arrived:
            self.gradient(backward, side, position, tensor)
        self.backward_end(backward)

    def backward_dropped(self, backward: BackwardPass) -> None:
        """Note that a pass that began is not wanted: it turned out to lie outside of the scope."""

    def parameter_gradient(
        self, name: str, parameter: str, tensor: Any, *, is_last: bool, all_of: str | None = None
    ) -> None:
        """Take the gradient of a parameter.

        Args:
            name: of the record of the module's gradients, ``Module.fc.Linear.parameters_grad``.
            parameter: its name in the module, ``weight``.
            tensor: the gradient.
            is_last: whether every parameter of the module has one now.
            all_of: the backward record of the one call that all of it comes from, where known.
        """

    # -- training ------------------------------------------------------------------------------

    def optimizer_step(self, step: OptimizerStep) -> None:
        """Take the record of a step of an optimizer, when all its numbers are known.

        For parameters on an accelerator that is when the step of the run ends.
        """

    # -- the run -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Note that a backward pass is over, or that observing stops for now."""

    def end_step(self) -> None:
        """Note that the step is over: nothing more comes of its calls."""


def several(sinks: Sequence[CallSink]) -> CallSink:
    """Return a sink that hands each event on to all of these, in this order."""
    return cast("CallSink", _Several(sinks))


class _Several:
    def __init__(self, sinks: Sequence[CallSink]) -> None:
        events = (name for name, value in vars(CallSink).items() if callable(value))
        for event in (name for name in events if not name.startswith("_")):
            setattr(self, event, partial(_tell, [getattr(sink, event) for sink in sinks]))


def _tell(listeners: Sequence[Callable[..., object]], *args: Any, **kwargs: Any) -> bool:
    answers = [listener(*args, **kwargs) for listener in listeners]
    return any(answers)
