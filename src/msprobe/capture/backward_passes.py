# SPDX-License-Identifier: Apache-2.0
"""Follow the backward passes of a step: the gradients of each call, and when it has them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from msprobe.capture.adapter import Adapter
from msprobe.capture.backward import CLOSED, SIDE_INPUT, SIDE_OUTPUT, BackwardPass, Gradients
from msprobe.capture.calls import Calls
from msprobe.capture.values import Position
from msprobe.dump.record_names import RecordKind, parameters_grad_name


class BackwardPasses:
    """Collects the gradients of calls and parameters, and tells the sink of the calls.

    Each pass over a call is told as a beginning, its gradients, and an end.

    Attributes:
        reached: the graph task that last delivered a gradient of a call, of the passes not ended.
    """

    def __init__(self, calls: Calls, adapter: Adapter) -> None:
        """Create it.

        Args:
            calls: the calls whose gradients come.
            adapter: adds shares of a gradient up.
        """
        self._calls = calls
        self._step = calls.step
        self._adapter = adapter
        selection = calls.selection
        mode = selection.data_mode
        # Whether every gradient that arrives is wanted.
        self._is_all_wanted = selection.scope is None and mode.input and mode.output
        self._open: dict[BackwardPass, None] = {}
        self.reached: dict[Gradients, int] = {}
        # Results of `autograd.grad` come outside of a graph task; these numbers no task has.
        self._result_passes = itertools.count(-2, -1)
        # Records of modules that are not their call's first pass, by graph task and first record.
        self._later: dict[tuple[int, str], str] = {}
        # Records of later passes whose module may begin after them: name, order, task, parent.
        self._misplaced: list[tuple[str, int, int, str]] = []
        self._arrivals: dict[tuple[str, str, str], int] = {}
        # How many gradients a record of parameters still waits for, by its name.
        self._remaining: dict[str, int] = {}

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
        self.take(gradients, graph_task, ((tensor, side, position),))

    def take(
        self,
        gradients: Gradients,
        graph_task: int,
        arrived: Sequence[tuple[Any, str, Position]],
    ) -> None:
        """Take several gradients of one call: tensor, side and position of each, see `gradient`."""
        if gradients.call.step != self._step.number:
            return  # a graph kept over the end of its step: its record is already closed
        if len(arrived) == gradients.expected and self._may_be_whole(gradients):
            self._take_whole(gradients, graph_task, arrived)
            return
        current = gradients.pass_of(graph_task) or self._open_pass(gradients, graph_task)
        if current is CLOSED:
            return
        self._hand_on(current, arrived)
        current.remaining -= len(arrived)
        if current.remaining <= 0 and (gradients.has_input_edges or not gradients.call.is_module):
            del self._open[current]
            self._finish(current)

    def _may_be_whole(self, gradients: Gradients) -> bool:
        """Return whether a pass that now gets all its gradients at once is the call's first."""
        is_over = gradients.has_input_edges or not gradients.call.is_module
        return is_over and self._is_all_wanted and gradients.is_unvisited

    def _take_whole(
        self,
        gradients: Gradients,
        graph_task: int,
        arrived: Sequence[tuple[Any, str, Position]],
    ) -> None:
        current = gradients.open_pass(graph_task, self._step.next_order())
        self.reached[gradients] = graph_task
        self._calls.sink.backward_whole(current, arrived)
        gradients.close_pass(current)

    def _hand_on(self, current: BackwardPass, arrived: Iterable[tuple[Any, str, Position]]) -> None:
        mode, tell = self._calls.selection.data_mode, self._calls.sink.gradient
        is_followed = current.gradients.call.only_bounds  # for the scope, and not recorded
        for tensor, side, position in arrived:
            if side == SIDE_INPUT:
                assert type(position) is int
                current.arrived |= 1 << position
                is_wanted = mode.input
            else:
                is_wanted = mode.output
            if is_wanted and not is_followed:
                tell(current, side, position, tensor)

    def results(self, found: Iterable[tuple[Gradients, int, Any]]) -> None:
        """Take gradients that a backward pass returned instead of delivering them to hooks.

        Args:
            found: the call, which of its outputs, and the gradient with respect to that output.
        """
        number = next(self._result_passes)
        for gradients, index, tensor in found:
            # The pass may have gone on behind this output; then hooks have seen it, or another.
            task = self.reached.get(gradients, number)
            current = gradients.pass_of(task)
            if current is CLOSED or (current is not None and current.arrived >> index & 1):
                continue
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
        if gradients.call.step != self._step.number:
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
        call = gradients.call
        current = gradients.open_pass(graph_task, self._step.next_order())
        self._calls.sink.backward_begin(current)
        current.in_scope = self._calls.begin_backward(call)
        self._open[current] = None
        self.reached[gradients] = graph_task
        name = current.name
        if name != call.backward_name:
            if call.is_module:
                self._later[graph_task, call.backward_name] = name
            if call.backward_parent is not None:
                self._misplaced.append((name, current.order, graph_task, call.backward_parent))
        return current

    def _finish(self, current: BackwardPass) -> None:
        call = current.gradients.call
        current.gradients.close_pass(current)
        if current.shares:  # the other consumers of these inputs took no part in this pass
            shares, current.shares = current.shares, {}
            self._hand_on(
                current, [(total, SIDE_OUTPUT, place) for place, (_, total) in shares.items()]
            )
        if self._calls.end_backward(call, began_inside=current.in_scope):
            self._calls.sink.backward_end(current)
        else:
            self._calls.sink.backward_dropped(current)

    def _place_later_passes(self) -> None:
        """Put records of later passes under their module's record of the same pass."""
        for name, order, graph_task, first in self._misplaced:
            parent = self._later.get((graph_task, first))
            if parent is not None:
                self._calls.sink.place(name, order, parent, None)
        self._misplaced.clear()
        self._later.clear()

    @property
    def has_begun(self) -> bool:
        """Whether gradients of a pass have arrived that is not known to have ended."""
        return bool(self._open)

    def close_passes(self) -> None:
        """Finish the passes that are open: the backward pass is over, or observing stops."""
        passes, self._open = list(self._open), {}
        self.reached.clear()
        # Inner calls began later: they come before the modules around them.
        passes.sort(key=lambda one: -one.gradients.call.call_order)
        for current in passes:
            self._finish(current)
        self._place_later_passes()
        self._calls.sink.pause()

    def close_step(self) -> None:
        """Finish everything that is open, for the step is over."""
        self.close_passes()
        self._remaining.clear()
        self._calls.sink.end_step()

    def parameter(
        self,
        module: str,
        parameter: str,
        tensor: Any,
        *,
        of: int,
        kind: str = RecordKind.PARAMETERS_GRAD,
        is_of_one_call: bool = False,
    ) -> None:
        """Take the gradient of a parameter.

        Args:
            module: base name of the owning module, ``Module.fc.Linear``.
            parameter: its name in the module, ``weight``.
            tensor: the gradient.
            of: how many parameters of this module can get one.
            kind: as accumulated, or as left by the reduction over ranks.
            is_of_one_call: whether one call of the module alone, in this pass, made all of it.
        """
        key = (kind, module, parameter)
        number = self._arrivals.get(key, 0)
        self._arrivals[key] = number + 1
        name = parameters_grad_name(module, number, kind)
        remaining = self._remaining.get(name, of) - 1
        self._remaining[name] = remaining
        all_of = self._only_pass_over(module) if is_of_one_call and not number else None
        self._calls.sink.parameter_gradient(
            name, parameter, tensor, is_last=remaining == 0, all_of=all_of
        )

    def _only_pass_over(self, module: str) -> str | None:
        """Return the record of the pass over a module's call, if the calls reached are this one."""
        start = f"{module}.{RecordKind.BACKWARD}."
        found = [one for one in self.reached if one.call.backward_name.startswith(start)]
        if len(found) != 1 or not found[0].is_in_first_pass:
            return None
        return found[0].call.backward_name

    def next_step(self) -> None:
        """Begin to count again."""
        self._arrivals.clear()
        self._remaining.clear()
        self._misplaced.clear()
        self._later.clear()
