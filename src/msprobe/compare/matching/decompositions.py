# SPDX-License-Identifier: Apache-2.0
"""Calls of a MindSpore layer that are one function in PyTorch, compared as that function.

Each group of calls becomes one operation with the name of its main call. Its values are those that
PyTorch's function has too: its inputs from outside, and the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import MINDSPORE, JoinedRecord, Side, SlotOf
from msprobe.dump.record_names import RecordKind, RecordName, backward_name, recompute_name
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import operator_of
from msprobe.operators.mindspore_layers import CASTS, DECOMPOSITIONS, FLOW, Decomposition, Step
from msprobe.operators.operator import Operator

# How many calls the next step of a layer is looked for among.
_REACH: Final = 4


class _Part(NamedTuple):
    step: Step
    place: int
    call: RecordName


def join_decompositions(target: Side, reference: Side, options: CompareOptions) -> list[str]:
    """Join calls of MindSpore's side that make up one function that the other side calls.

    A mapping file may name any of these calls, so nothing is joined where there is one.

    Returns:
        Notes for the user.
    """
    if target.framework == reference.framework:
        return []
    if options.data_mapping is not None or options.api_mapping not in (None, True):
        return []
    notes = []
    for side, other in ((target, reference), (reference, target)):
        if side.framework == MINDSPORE:
            notes += _Joiner(side, _operators(other)).join()
    return notes


def argument_slots(
    operator: Operator, kind: RecordKind, values: Sequence[Value]
) -> Mapping[str, str]:
    """Return slots of a joined call → slots of its partner, which may take them by keyword.

    Args:
        operator: the operator that both compute.
        kind: of the records.
        values: those of the partner.
    """
    is_backward = kind is RecordKind.BACKWARD
    part = "output" if is_backward else "input"
    keywords = ("output_kwargs",) if is_backward else ("input", "kwargs")
    known = {value.slot for value in values}
    return {
        f"{part}.{place}": f"{keyword}.{name}"
        for place, name in enumerate(operator.arguments)
        for keyword in keywords
        if f"{keyword}.{name}" in known
    }


def _operators(side: Side) -> set[str]:
    """Return the operators that a side calls as one function."""
    calls = {(name.prefix, name.path) for name in _calls(side)}
    return {operator_of(*call).name for call in calls}


def _calls(side: Side) -> Iterator[RecordName]:
    for name in map(side.parsed, side.names):
        if name.kind is RecordKind.FORWARD and not name.is_module and not name.recompute:
            yield name


class _Joiner:
    """Finds and joins the calls of one side."""

    def __init__(self, side: Side, wanted: set[str]) -> None:
        self._side = side
        self._calls = list(_calls(side))
        self._known = frozenset(side.names)
        self._decompositions = [each for each in DECOMPOSITIONS if each.operator in wanted]
        self._joined: dict[str, JoinedRecord] = {}
        self._absorbed: set[str] = set()
        self._used: set[int] = set()
        self._counts: Counter[str] = Counter()

    def join(self) -> list[str]:
        for place, call in enumerate(self._calls):
            if place in self._used:
                continue
            found = self._decomposition_at(place)
            if found is None:
                operator = self._side.operator(call.full)
                state = [
                    value
                    for value in self._inputs(call)
                    if operator.takes_state(value.slot.partition(".")[2])
                ]
            else:
                self._add(*found)
                state = [value for part in found[1] for value in self._arguments(part)]
            self._absorb_casts(place, state)
        self._side.join(self._joined, self._absorbed)
        counts = ", ".join(f"{name} ({count})" for name, count in self._counts.items())
        return [f"calls of MindSpore were joined to be compared as {counts}"] if counts else []

    def _decomposition_at(self, place: int) -> tuple[Decomposition, list[_Part]] | None:
        for decomposition in self._decompositions:
            parts = self._parts(decomposition, place)
            if parts is not None and not self._is_cut_off(decomposition, parts):
                return decomposition, parts
        return None

    def _parts(self, decomposition: Decomposition, place: int) -> list[_Part] | None:
        """Return the calls from a place on if they are the steps of a decomposition."""
        first, last = decomposition.steps[0], decomposition.steps[-1]
        module = self._side.module(self._calls[place].full)
        parts: list[_Part] = []
        flow: Value | None = None
        for number, step in enumerate(decomposition.steps):
            # What is put back into shape was taken out of it first, and the reverse.
            is_closing = step is last and step is first and number > 0
            if is_closing and parts[0].step is not step:
                continue
            reach = range(place, min(place + (_REACH if parts else 1), len(self._calls)))
            found = self._find(step, reach, flow, module)
            if found is not None:
                call = self._calls[found]
                parts.append(_Part(step, found, call))
                flow = self._output(call) if FLOW in step.arguments else flow
                place = found + 1
            elif is_closing or not step.is_optional:
                return None
        return parts

    def _find(self, step: Step, reach: range, flow: Value | None, module: str) -> int | None:
        """Return the place of the call that is a step; None if it is not within reach."""
        for place in reach:
            call = self._calls[place]
            is_free = place not in self._used and self._side.module(call.full) == module
            if is_free and _api(call) == step.api and self._takes(call, step, flow):
                return place
        return None

    def _takes(self, call: RecordName, step: Step, flow: Value | None) -> bool:
        """Return whether a call takes the result of the step before."""
        if not step.arguments:
            return True
        inputs = {value.slot: value for value in self._inputs(call)}
        taken = inputs.get(f"input.{step.arguments.index(FLOW)}")
        if taken is None or self._output(call) is None:
            return False
        if step.api == "MatMul" and not self._is_of_layer(call, inputs):
            return False
        return flow is None or _numbers(taken) == _numbers(flow)

    def _is_cut_off(self, decomposition: Decomposition, parts: Sequence[_Part]) -> bool:
        """Return whether the optional first step is there, but its counterpart was not found."""
        first, place = decomposition.steps[0], parts[0].place - 1
        if parts[0].step is first or place < 0 or _api(self._calls[place]) != first.api:
            return False
        made = self._output(self._calls[place])
        index = parts[0].step.arguments.index(FLOW)
        taken = [v for v in self._inputs(parts[0].call) if v.slot == f"input.{index}"]
        return made is not None and [_numbers(v) for v in taken] == [_numbers(made)]

    def _is_of_layer(self, call: RecordName, inputs: Mapping[str, Value]) -> bool:
        """Return whether a product may be that of a layer, whose weight is (out, in)."""
        output, weight = self._output(call), inputs.get("input.1")
        shapes = [value.shape if value else None for value in (inputs["input.0"], weight, output)]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            return False
        (_, taken), (made, width), (_, given) = (shape or () for shape in shapes)
        return bool(taken == width and made == given)

    def _add(self, decomposition: Decomposition, parts: list[_Part]) -> None:
        operator = operator_of("Functional", decomposition.operator)
        head = next(part.call for part in parts if part.step.api == decomposition.head)
        calls = [part.call.full for part in parts]
        backward = [backward_name(part.call) or "" for part in parts]
        for names, first, last in (
            (calls, "input", "output"),
            ([*map(recompute_name, calls)], "input", "output"),
            (backward, "output", "input"),
        ):
            name = names[calls.index(head.full)]
            if name not in self._known:
                continue
            taken = zip(parts, names, strict=True)
            slots = [slot for part, of in taken for slot in _slots(operator, part, of, first)]
            place = parts[0].step.arguments.index(FLOW)
            slots.insert(0, SlotOf(names[0], f"{first}.{place}", f"{first}.0"))
            result = SlotOf(names[-1], f"{last}.0", f"{last}.0")
            slots = [*slots, result] if last == "output" else [result, *slots]
            self._joined[name] = JoinedRecord(operator, tuple(slots))
            self._absorbed.update(set(names) - {name})
        self._used.update(part.place for part in parts)
        self._counts[operator.name] += 1

    def _absorb_casts(self, place: int, state: Sequence[Value]) -> None:
        """Leave out casts of parameters before a call that change nothing."""
        wanted = [_numbers(value) for value in state]
        while wanted and place and _api(self._calls[place - 1]) in CASTS:
            place -= 1
            call = self._calls[place]
            output, inputs = self._output(call), self._inputs(call)
            if output is None or not inputs or _numbers(inputs[0]) != _numbers(output):
                return
            if _numbers(output) not in wanted:
                return
            names = (call.full, recompute_name(call.full), backward_name(call) or "")
            self._absorbed.update(name for name in names if name in self._known)

    def _arguments(self, part: _Part) -> list[Value]:
        """Return the arguments of a step from outside, besides the value that flows through."""
        places = {
            f"input.{place}"
            for place, name in enumerate(part.step.arguments)
            if name not in ("", FLOW)
        }
        return [value for value in self._inputs(part.call) if value.slot in places]

    def _inputs(self, call: RecordName) -> list[Value]:
        values = self._side.values(call.full)
        return [value for value in values if value.role is Role.INPUT and value.is_tensor]

    def _output(self, call: RecordName) -> Value | None:
        values = self._side.values(call.full)
        return next((value for value in values if value.slot == "output.0"), None)


def _slots(operator: Operator, part: _Part, name: str, kind: str) -> Iterator[SlotOf]:
    """Yield the values of a step that are arguments of the whole, or their gradients."""
    for place, argument in enumerate(part.step.arguments):
        if argument in operator.arguments:
            whole = operator.arguments.index(argument)
            yield SlotOf(name, f"{kind}.{place}", f"{kind}.{whole}")
    for attribute, argument in part.step.attributes if kind == "input" else ():
        whole = operator.arguments.index(argument)
        yield SlotOf(name, f"attributes.{attribute}", f"{kind}.{whole}")


def _api(call: RecordName) -> str:
    return call.path.rpartition(".")[2]


def _numbers(value: Value) -> tuple[object, ...]:
    """Return a key equal for two records of one value, even in another shape."""
    # As text, so that NaN equals NaN.
    numbers = (value.dtype, value.max, value.min, value.mean, value.norm, value.md5)
    return tuple(map(repr, numbers))
