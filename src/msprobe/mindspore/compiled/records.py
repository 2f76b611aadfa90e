# SPDX-License-Identifier: Apache-2.0
"""Turn values from a compiled graph into records like those of the dynamic graph.

A graph tells when a call is over, not when it begins, and knows no call stack. So a record's parent
is the cell that encloses it by name. Which call of a cell a gradient belongs to follows from the
order in which gradients come: a backward pass goes the other way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mindspore import nn
from msprobe.capture.backward import SIDE_INPUT, Gradients
from msprobe.capture.backward_record import begin_parts, gradient_path, place
from msprobe.capture.call import Call, Draft
from msprobe.capture.nested import key_texts
from msprobe.capture.parameter_gradients import owners_of
from msprobe.capture.session import Session
from msprobe.capture.tensor_search import tensors_in
from msprobe.capture.values import Found, Position
from msprobe.config import Task
from msprobe.dump.record_names import module_names
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.compiled.call_sites import CallSites
from msprobe.mindspore.compiled.forwards import begin_anew
from msprobe.mindspore.compiled.sink import GraphCall, Handed, Take
from msprobe.mindspore.compiled.values import GRAPH_VALUES, Kind
from msprobe.mindspore.compiled.wanted_cells import path_of
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.parameter_gradients import trained_parameters

_clock: Final = time.perf_counter
_BEYOND: Final = "scope goes on after the cell around its bounds; outside, nothing was compiled in"
_NO_OPTIMIZER: Final = (
    "no gradients of parameters: compiled code shows them where an optimiser receives them, and "
    "none ran before step()"
)


@dataclass(slots=True)
class _Places:
    """Positions in the backward record of the tensors of a call's arguments or result.

    Attributes:
        by_leaf: the position of each tensor, by the number that a graph counts it with.
        kinds: dtype and shape of each tensor, by the same number.
        slots: how many places a result has.
    """

    by_leaf: dict[int, Position] = field(default_factory=dict)
    kinds: dict[int, Kind] = field(default_factory=dict)
    slots: int = 0


@dataclass(slots=True)
class _Gradient:
    """A gradient that was described as it came.

    Attributes:
        place: side and leaf.
        kind: its dtype and shape.
        draft: has its payload, and its facts about the record.
        described: its JSON form.
        order: the number with which it came.
    """

    place: tuple[str, int]
    kind: Kind
    draft: Draft
    described: Any
    order: int


@dataclass(slots=True, eq=False)
class _Seen:
    """A call whose forward was handed over, and the gradients that are its own.

    Attributes:
        turn: the same for the calls of a cell between which no gradient of it came: they have
            their backward pass together.
    """

    cell: str
    turn: int
    call: Call
    arguments: int
    tensors: list[Position]
    inputs: _Places
    outputs: _Places
    gradients: dict[tuple[str, int], _Gradient] = field(default_factory=dict)

    def may_get(self, gradient: _Gradient) -> bool:
        """Return whether a gradient, as far as its place, dtype and shape tell, may be its own."""
        side, leaf = gradient.place
        places = self.outputs if side == SIDE_INPUT else self.inputs
        return (
            gradient.place not in self.gradients
            and places.kinds.get(leaf, gradient.kind) == gradient.kind
        )

    @property
    def last(self) -> int:
        """When the latest gradient came, 0 before the first."""
        return max((one.order for one in self.gradients.values()), default=0)


class GraphRecords:
    """Makes the records of cells inside compiled graphs; see `sink.GraphEvents`.

    Attributes:
        callers: the frames that called the graph, where they are known.
    """

    def __init__(
        self,
        session: Session,
        names: CellNames,
        cells: Sequence[tuple[nn.Cell, str]],
        *,
        around: str = "",
        after_stop: bool = False,
        needs_values: bool = True,
        begin: Callable[[], object] | None = None,
    ) -> None:
        """Create it.

        Args:
            session: makes the records.
            names: all cells of the models.
            cells: those that hand over values, with their names.
            around: path of the cell that all of these are in, as `scope` was taken to lie in it.
            after_stop: whether a step's calls are handed over when recording has stopped already.
            needs_values: see `sink.GraphEvents`.
            begin: starts the session if this is wanted now; called when there is something to
                record. None where the caller starts it.
        """
        self.callers: tuple[str, ...] = ()
        self.needs_values = needs_values
        self._begin = begin
        self._session = session
        self._after_stop = after_stop
        self._around = around
        self._cells = {name: cell for cell, name in cells}
        # Made here: a parameter that is asked while its graph runs waits for the graph.
        self._owners = {
            id(parameter): (parameter, owner)
            for parameter, owner in owners_of(session, names, trained_parameters)
        }
        # A container is never called: its items are called by the cell around it.
        containers = nn.CellList | nn.CellDict
        called = [name for name, one in self._cells.items() if not isinstance(one, containers)]
        self._enclosing = _enclosing_names(called)
        every = {name: cell for cell, name in names.items()}
        self._sites = CallSites(every, _enclosing_names(list(every)))
        self._calls: dict[str, list[_Seen]] = {}
        # Of calls that were not handed over yet, and all that came later, of any cell: when a graph
        # runs for the first time, it computes first the calls that it knows first.
        self._early: dict[str, list[_Gradient]] = {}
        self._count = 0
        # Whether a gradient of a parameter came in this step.
        self._has_parameters = False

    def next_step(self) -> None:
        """Begin to count again."""
        self._calls.clear()
        self._early.clear()
        self._has_parameters = False
        begin_anew()

    def hand_over(self, take: Take, values: list[Handed], spent_s: float) -> None:
        """Take the tensors of one delivery; see `sink.GraphEvents`."""
        session = self._session
        if self._begin is not None and not session.capturing:
            quietly(session, "graph begin", self._begin)
        if session.dump is None:
            return
        started = _clock()
        quietly(session, "graph values", take, self, values)
        session.account.spent_s += _clock() - started + spent_s

    def forward(self, call: GraphCall) -> None:
        """Make the forward record of a cell's call."""
        if self._session.observing or self._after_stop:
            self._forward(call)

    def gradient(self, cell: str, side: str, leaf: int, gradient: Handed) -> None:
        """Keep a gradient for its call's backward record; see `sink.GraphEvents`."""
        self._gradient(cell, side, leaf, gradient)

    def parameter_gradient(self, parameter: Any, gradient: Handed) -> None:
        """Take the gradient of a parameter; see `sink.GraphEvents`."""
        _, owner = self._owners.get(id(parameter), (None, None))
        if owner is not None:
            self._has_parameters = True
            owner.take(gradient)

    def settle(self) -> None:
        """Give gradients that came too early to their calls: a graph has come to its end."""
        for cell, early in self._early.items():
            unknown = [one for one in early if not self._assign(cell, one)]
            if unknown:
                self._session.account.skipped["gradients of an unknown call"] += len(unknown)
        self._early.clear()

    def close(self) -> None:
        """Write the backward records: the step is over, and every call is known."""
        self.settle()
        seen = [one for calls in self._calls.values() for one in calls if one.gradients]
        # In a part of the dynamic graph they come from there.
        if seen and self._begin is None and self._owners and not self._has_parameters:
            self._session.account.note(_NO_OPTIMIZER)
        for one in sorted(seen, key=lambda one: one.last):
            quietly(self._session, "graph backward", self._write, one)

    # -- inside --------------------------------------------------------------------------------

    def _forward(self, seen: GraphCall) -> None:
        calls, cell = self._session.calls, seen.cell
        stack = self._session.stacks.of((*self._sites.frames(cell), *self.callers))
        call = calls.begin(cell, stack, is_module=True)
        found: Found = []
        calls.inputs(call, seen.args, seen.kwargs, found)
        parameters = own_parameters(self._cells[cell])
        if seen.parameters:  # as they were when the cell was called
            parameters = dict(zip(parameters, seen.parameters, strict=True))
        calls.part(call, "parameters", parameters)
        calls.outputs(call, seen.result)
        calls.end(call)
        scope = calls.selection.scope
        if self._around and path_of(cell) == self._around and scope is not None and scope.inside:
            self._session.account.note(_BEYOND)
        tensors: Found = []
        tensors_in(GRAPH_VALUES, seen.args, seen.kwargs, tensors)
        before = self._calls.setdefault(cell, [])
        turn = before[-1].turn if before else 0
        if any(one.gradients for one in before if one.turn == turn):
            turn += 1
        made = _Seen(
            cell,
            turn,
            call,
            len(seen.args),
            [position for _, position in tensors],
            _argument_places(seen.args, seen.kwargs),
            _result_places(seen.result),
        )
        before.append(made)
        outer = self._enclosing.get(cell)
        if outer is not None:
            number = len(self._calls.get(outer, ()))
            parent, backward_parent = module_names(outer, number)
            calls.sink.place(call.forward_name, call.call_order, parent, call.stack)
            call.backward_parent = backward_parent

    def _gradient(self, cell: str, side: str, leaf: int, gradient: Any) -> None:
        draft = Draft(cell, 0)
        if self._session.config.task is Task.TENSOR:
            draft.held = []
        described = self._session.adapter.record_tensor(
            gradient, draft, f"{side}.{leaf}", is_gradient=True
        )
        self._count += 1
        made = _Gradient((side, leaf), _kind_of(gradient), draft, described, self._count)
        if self._early or not self._assign(cell, made):
            self._early.setdefault(cell, []).append(made)

    def _assign(self, cell: str, gradient: _Gradient) -> bool:
        """Give a gradient to its call, if that is known: backward goes the other way."""
        for seen in reversed(self._calls.get(cell, [])):
            if seen.may_get(gradient):
                seen.gradients[gradient.place] = gradient
                return True
        return False

    def _doubtful(self, seen: _Seen) -> dict[tuple[str, int], Position]:
        """Return the places of a call of which it is not known whose gradients came.

        Where some calls of a pass got fewer gradients than others (a result that was not used, an
        argument that is data or detached), nothing tells which calls these are.
        """
        calls = [one for one in self._calls[seen.cell] if one.turn == seen.turn]
        counts = Counter(place for one in calls for place in one.gradients)
        found = {}
        for (side, leaf), count in counts.items():
            of_side = seen.outputs if side == SIDE_INPUT else seen.inputs
            if count < len(calls) and leaf in of_side.by_leaf:
                found[side, leaf] = of_side.by_leaf[leaf]
        return found

    def _write(self, seen: _Seen) -> None:
        call, session = seen.call, self._session
        if not call.keeps_gradients:
            return
        calls, recording = session.calls, session.recording
        if not calls.end_backward(call, began_inside=calls.begin_backward(call)):
            return
        calls.place(call.backward_name, call.backward_parent)
        draft = recording.new_draft(call.backward_name, session.current.next_order())
        gradients = Gradients.expect(call, seen.arguments, seen.tensors)
        gradients.outputs = seen.outputs.slots
        mode = calls.selection.data_mode
        begin_parts(draft.parts, gradients, mode)
        doubtful = self._doubtful(seen)
        remarks = {
            gradient_path(side, position): "which call it belongs to is not known"
            for (side, _), position in doubtful.items()
        }
        for gradient in seen.gradients.values():
            side, leaf = gradient.place
            places, wanted = seen.inputs, mode.output
            if side == SIDE_INPUT:
                places, wanted = seen.outputs, mode.input
            position = places.by_leaf.get(leaf)
            if position is None or not wanted or gradient.place in doubtful:
                continue
            place(draft.parts, side, position, gradient.described)
            draft.nonfinite |= gradient.draft.nonfinite
            draft.overflow |= gradient.draft.overflow
            draft.error = draft.error or gradient.draft.error
            for payload, record, _ in gradient.draft.held or ():
                draft.save(payload, record, gradient_path(side, position))
        if sum(bool(other.gradients) for other in self._calls[seen.cell]) > 1:
            remarks["call"] = "taken from the order in which gradients came"
        if remarks:
            draft.parts["remarks"] = remarks
        recording.finish(draft)


def _leaves(value: Any, path: tuple[int | str, ...]) -> Iterator[tuple[Any, Position]]:
    """Yield the leaves of a value as `structure.leaves` counts them, with positions."""
    if isinstance(value, tuple | list):
        for index, one in enumerate(value):
            yield from _leaves(one, (*path, index))
    elif isinstance(value, dict):
        for key, one in zip(key_texts(list(value)), value.values(), strict=True):
            yield from _leaves(one, (*path, key))
    else:
        first = path[0] if len(path) == 1 else None
        yield value, first if isinstance(first, int) else path


def _kind_of(value: Handed) -> Kind:
    return value.dtype, value.shape


def _argument_places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Places:
    places = _Places()
    for leaf, (value, position) in enumerate([*_leaves(args, ()), *_leaves(kwargs, ())]):
        if isinstance(value, GRAPH_VALUES):
            places.by_leaf[leaf] = position
            places.kinds[leaf] = _kind_of(value)
    return places


def _result_places(result: Any) -> _Places:
    """Return the slots of a result; see `msprobe.capture.tensor_search.output_slots`."""
    places = _Places()
    leaf = 0
    for element in result if isinstance(result, tuple | list) else (result,):
        begin = places.slots
        for value, _ in _leaves(element, ()):
            if isinstance(value, GRAPH_VALUES):
                places.by_leaf[leaf] = places.slots
                places.kinds[leaf] = _kind_of(value)
                places.slots += 1
            leaf += 1
        places.slots = max(places.slots, begin + 1)
    return places


def _enclosing_names(names: Sequence[str]) -> dict[str, str]:
    """Return for each cell the innermost cell around it, by path."""
    by_path = {name.rpartition(".")[0]: name for name in names}
    found = {}
    for name in names:
        path = name.rpartition(".")[0].rpartition(".")[0]
        while path:
            if path in by_path:
                found[name] = by_path[path]
                break
            path = path.rpartition(".")[0]
    return found
