# SPDX-License-Identifier: Apache-2.0
"""Keeps the open backward passes of a step and the gradients of parameters."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any, Final

from msprobe.capture.adapter import Adapter
from msprobe.capture.backward import (
    CLOSED,
    SIDE_INPUT,
    SIDE_OUTPUT,
    BackwardPass,
    Gradients,
    gradient_path,
)
from msprobe.capture.call import Draft
from msprobe.capture.names import PARAMETERS_GRAD, parameters_grad_name
from msprobe.capture.recorder import Recorder
from msprobe.capture.values import Position

# A record whose gradients are still arriving is written after this long, so that a killed process
# keeps it; the complete one replaces it.
_UNFINISHED_FOR_S: Final = 0.5


class ParameterArrival:
    """The gradients of one module's parameters, one arrival each."""

    __slots__ = ("draft", "remaining")

    def __init__(self, draft: Draft, remaining: int) -> None:
        self.draft = draft
        self.remaining = remaining


class GradientBook:
    """Turns arriving gradients into backward records."""

    def __init__(self, recorder: Recorder, adapter: Adapter) -> None:
        """Create it for the records of `recorder`."""
        self._recorder = recorder
        self._adapter = adapter
        self._open: dict[BackwardPass, None] = {}
        # The graph task that last delivered a gradient of a call, of the passes not ended yet.
        self._reached: dict[Gradients, int] = {}
        # Results of `autograd.grad` come outside of a graph task; these numbers no task has.
        self._result_passes = itertools.count(-2, -1)
        # Records of modules that are not their call's first pass, by graph task and first record.
        self._later: dict[tuple[int, str], str] = {}
        # Records of later passes whose module may begin after them: name, order, task, parent.
        self._misplaced: list[tuple[str, int, int, str]] = []
        self._arrivals: dict[tuple[str, str, str], int] = {}
        self._parameters: dict[str, ParameterArrival] = {}
        self._last_write = time.monotonic()

    def gradient(
        self, gradients: Gradients, graph_task: int, side: str, position: Position, tensor: Any
    ) -> None:
        """Take one gradient; `tensor` is only read, now.

        Args:
            gradients: the call it belongs to.
            graph_task: the backward pass that delivers it.
            side: ``input`` (with respect to an output) or ``output`` (to an input).
            position: which one.
            tensor: the whole gradient, every share added up.
        """
        recorder = self._recorder
        if gradients.call.step != recorder.step:
            return  # a graph kept over the end of its step: its record is already closed
        current = gradients.pass_of(graph_task) or self._open_pass(gradients, graph_task)
        if current is CLOSED:
            return
        mode = recorder.selection.data_mode
        wanted = mode.input if side == SIDE_INPUT else mode.output
        if wanted and not gradients.call.only_bounds:
            described = self._adapter.record_tensor(
                tensor, current.draft, gradient_path(side, position), is_gradient=True
            )
            current.place(side, position, described)
        current.remaining -= 1
        if current.remaining <= 0 and (gradients.has_input_edges or not gradients.call.is_module):
            del self._open[current]
            self._finish(current)

    def results(self, found: Iterable[tuple[Gradients, int, Any]]) -> None:
        """Take gradients that a backward pass returned instead of delivering them to hooks.

        Args:
            found: the call, which of its outputs, and the gradient with respect to that output.
        """
        number = next(self._result_passes)
        for gradients, index, tensor in found:
            # The pass may have gone on behind this output; then hooks have seen it, or another.
            task = self._reached.get(gradients, number)
            current = gradients.pass_of(task)
            if current is None or not current.has(SIDE_INPUT, index):
                self.gradient(gradients, task, SIDE_INPUT, index, tensor)

    def share(
        self,
        gradients: Gradients,
        graph_task: int,
        position: Position,
        tensor: Any,
        *,
        of: int,
    ) -> None:
        """Take one of several shares of the gradient with respect to an input.

        The shares are added up in a private copy, for the record only.

        Args:
            gradients: the call it belongs to.
            graph_task: the backward pass that delivers it.
            position: which input.
            tensor: the share.
            of: how many shares a full pass delivers.
        """
        if gradients.call.step != self._recorder.step:
            return
        current = gradients.pass_of(graph_task) or self._open_pass(gradients, graph_task)
        if current is CLOSED:
            return
        known = current.shares.get(position)
        if known is None:
            current.shares[position] = (1, self._adapter.private_copy(tensor))
            return
        count, total = known[0] + 1, self._adapter.add(known[1], tensor)
        if count < of:
            current.shares[position] = (count, total)
            return
        del current.shares[position]
        self.gradient(gradients, graph_task, SIDE_OUTPUT, position, total)

    def _open_pass(self, gradients: Gradients, graph_task: int) -> BackwardPass:
        recorder = self._recorder
        call = gradients.call
        name = gradients.next_name()
        draft = recorder.draft(name, recorder.say_backward(name, call.backward_parent))
        current = gradients.open_pass(graph_task, draft)
        current.in_scope = recorder.begin_backward_in_scope(call)
        self._open[current] = None
        self._reached[gradients] = graph_task
        if name != call.backward_name:
            if call.is_module:
                self._later[graph_task, call.backward_name] = name
            if call.backward_parent is not None:
                self._misplaced.append((name, draft.order, graph_task, call.backward_parent))
        return current

    def _finish(self, current: BackwardPass) -> None:
        gradients = current.gradients
        gradients.close_pass(current)
        left_over = () if gradients.call.only_bounds else current.shares.items()
        for position, (_, total) in left_over:
            # The other consumers of this input took no part in this pass.
            described = self._adapter.record_tensor(
                total, current.draft, gradient_path(SIDE_OUTPUT, position), is_gradient=True
            )
            current.place(SIDE_OUTPUT, position, described)
        current.shares.clear()
        scope = self._recorder.selection.scope
        inside = scope is None or scope.end(gradients.call.backward_name) or current.in_scope
        if gradients.call.only_bounds:
            return
        if not inside:
            self._recorder.account.skipped["outside scope"] += 1
            return
        draft = current.draft
        if gradients.call.is_module:
            draft.order = self._recorder.next_order()  # children first
        mode = self._recorder.selection.data_mode
        if not mode.input:
            del draft.parts[SIDE_INPUT]
        if not mode.output:
            del draft.parts[SIDE_OUTPUT]
            draft.parts.pop("output_kwargs", None)
        current.write_remarks()
        self._recorder.finish(draft)

    def _place_later_passes(self) -> None:
        """Put records of later passes under their module's record of the same pass."""
        for name, order, graph_task, first in self._misplaced:
            parent = self._later.get((graph_task, first))
            if parent is not None:
                self._recorder.correct_parent(name, order, parent)
        self._misplaced.clear()
        self._later.clear()

    def close_passes(self) -> None:
        """Finish the records of passes: the backward pass is over, or recording stops."""
        passes, self._open = list(self._open), {}
        self._reached.clear()
        # Inner calls began later: they come before the modules around them.
        passes.sort(key=lambda one: -one.gradients.call.call_order)
        for current in passes:
            self._finish(current)
        self._place_later_passes()
        for arrival in self._parameters.values():
            self._recorder.write_interim(arrival.draft)

    def close_step(self) -> None:
        """Finish every open record, for the step is over.

        Until then a parameter that the first backward passes of the step left out may still get its
        first gradient, which belongs into the record of its module's first arrivals.
        """
        self.close_passes()
        arrivals, self._parameters = list(self._parameters.values()), {}
        for arrival in arrivals:
            self._recorder.finish(arrival.draft)

    def write_unfinished(self) -> None:
        """Write what is open as it stands, if that was not done for a while."""
        now = time.monotonic()
        if now - self._last_write < _UNFINISHED_FOR_S:
            return
        self._last_write = now
        for current in self._open:
            self._recorder.write_interim(current.draft)

    def parameter(
        self, module: str, parameter: str, tensor: Any, *, of: int, kind: str = PARAMETERS_GRAD
    ) -> None:
        """Take the gradient of a parameter.

        Args:
            module: base name of the owning module, ``Module.fc.Linear``.
            parameter: its name in the module, ``weight``.
            tensor: the gradient.
            of: how many parameters of this module can get one.
            kind: as accumulated, or as left by the reduction over ranks.
        """
        key = (kind, module, parameter)
        number = self._arrivals.get(key, 0)
        self._arrivals[key] = number + 1
        name = parameters_grad_name(module, number, kind)
        arrival = self._parameters.get(name)
        if arrival is None:
            draft = self._recorder.draft(name, self._recorder.next_order())
            arrival = self._parameters[name] = ParameterArrival(draft, of)
        draft = arrival.draft
        described = self._adapter.record_tensor(tensor, draft, parameter, is_gradient=True)
        draft.parts[parameter] = [described]
        arrival.remaining -= 1
        if arrival.remaining == 0:
            del self._parameters[name]
            self._recorder.finish(draft)

    def next_step(self) -> None:
        """Begin to count again."""
        self._arrivals.clear()
        self._misplaced.clear()
        self._later.clear()
        self._last_write = time.monotonic()
