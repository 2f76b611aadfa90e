# SPDX-License-Identifier: Apache-2.0
"""`Consequences`: what the difference in a call's results comes to, along the flow of data.

Another program makes its masks and positions by other calls, in another order. They are without
consequence where everything that is made of them agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import Enum, auto
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Final

from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.rounding import ONCE
from msprobe.compare.verdicts.agreement import are_same
from msprobe.compare.verdicts.calls import Call, Calls
from msprobe.compare.verdicts.data_flow import DataFlow
from msprobe.compare.verdicts.same_inputs import is_opaque, shows_elements
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of

# What is made of masks and positions is near; of a whole model it is not worth following.
_MOST_CALLS: Final = 2000


class Effect(Enum):
    """What is made of the constants of a call."""

    NONE = auto()
    """Everything that is made of them agrees."""
    HIDDEN = auto()
    """What uses them is given other differences, too: nothing tells the effects apart."""
    SHOWN = auto()
    """A result differs for no other reason, or nothing tells."""


class Consequences:
    """Follows differences from a call to the values that they end in."""

    def __init__(
        self,
        calls: Calls,
        flow: DataFlow,
        read: Mapping[int, Sequence[Call]] = MappingProxyType({}),
    ) -> None:
        """Take in a step.

        Args:
            calls: its calls.
            flow: where their values come from.
            read: of numbers that the program reads, the calls that it gives them; see
                `read_numbers`.
        """
        self._calls = calls
        self._flow = flow
        self._read = read

    def unseen(self, call: Call) -> list[Call]:
        """Return the calls that a call's results reach, itself first, if nobody sees that they do.

        What is made inside of a call whose results agree does not leave it.

        Returns:
            none if results that differ, and that no call takes in, follow from the call, unless
            both sides end in the same ones, or if too many calls follow.
        """
        found = {call.start: call}
        ends: tuple[list[Value], list[Value]] = ([], [])
        waiting = [call]
        while waiting:
            if len(found) > _MOST_CALLS:
                return []
            top = waiting.pop()
            differing = [row for row in top.outputs if row.status.is_difference]
            if self._has_agreeing_parent(top):
                continue
            if top is not call and not differing and _is_choice(top):
                return []
            hiding = [row for row in top.outputs if row not in differing and _hides(row)]
            for row in (*differing, *hiding):
                is_end = row.status is not Status.EQUAL and not _is_further(top, row)
                for side, value in enumerate((row.target, row.reference)):
                    if value is None:
                        continue
                    later = self._users_on(side, row, value)
                    if is_end and not later:
                        ends[side].append(value)
                    waiting += [user for user in later if user.start not in found]
                    found.update((user.start, user) for user in later)
        return list(found.values()) if are_same(*ends, resolution=0.0) else []

    def end_alike(self, made: Iterable[Call], apart: Mapping[tuple[int, ...], float]) -> bool:
        """Return whether calls come to the same tensors on both sides, however they make them.

        That is what none of a side's later calls takes in: averages of weights, say.

        Args:
            made: the calls.
            apart: shape → how far apart a weight is, relative to its norm; no average is further.
        """
        ends: tuple[list[Value], list[Value]] = ([], [])
        for row in (row for call in made for row in call.outputs if row.value.is_tensor):
            both = [
                None if value is None or self._users_on(side, row, value) else value
                for side, value in enumerate((row.target, row.reference))
            ]
            if row.status.is_difference or None in both:
                for side, value in enumerate(both):
                    ends[side].extend([value] if value is not None else [])
        shapes = {value.shape or () for side in ends for value in side}
        return bool(shapes) and all(
            are_same(
                *([value for value in side if (value.shape or ()) == shape] for side in ends),
                resolution=apart.get(shape, 0.0) / ONCE,
            )
            for shape in shapes
        )

    def effect(self, call: Call, begun: Sequence[Row]) -> Effect:
        """Return what is made of constants that a call takes in or makes.

        Nothing is, if everything that is made of them agrees, element by element. A call that is
        given something else that differs proves nothing; another one of its kind must.

        Args:
            call: the call.
            begun: its rows that are blamed.
        """
        chain = {call.start: False}  # place of a call → whether it is given other differences
        around: set[str] = set()  # the records around them
        waiting = [call.start]
        proved: set[str] = set()
        unknown: set[str] = set()
        while waiting:
            top = self._calls.of(self._calls.rows[heappop(waiting)])
            around.update(self._calls.around(top.pair))
            differing = [row for row in top.outputs if row.status.is_difference or not _shown(row)]
            is_chosen = top is not call and not differing and _is_choice(top)
            if len(chain) > _MOST_CALLS or is_chosen or self._makes_other_gradients(top):
                return Effect.SHOWN
            is_agreeing = _has_agreeing_result(top)
            hands_on = self._shows_inside(top) and is_agreeing
            # A result that one side alone returns, and nobody uses, changes no other one.
            is_proved = is_agreeing and not any(self._matters(top, row) for row in differing)
            if is_proved or not differing or (hands_on and top is not call):
                proved.add(top.operator.name)
                # Another shape of the same has an effect where a call broadcasts it.
                reshaped = (row for row in top.outputs if len({v.shape for v in row.values}) > 1)
                followed = [user for row in reshaped for user in self._later_users(row, top)]
            elif hands_on and all(map(is_constant, begun)):
                users = [user for row in begun for user in self._users(row)]
                inside = call.pair.name
                followed = [user for user in users if inside in self._calls.around(user.pair)]
            else:
                chain[top.start] = top is not call and self._has_other_differences(
                    top, chain, around, call
                )
                if chain[top.start] and top.is_matched:
                    if not self._shows_inside(top):  # no call inside takes it in
                        unknown.add(top.operator.name)
                    continue
                if any(self._is_end(top, row) for row in differing):
                    return Effect.SHOWN
                proved.update("a number" for row in differing if self._is_left(row))
                later = (self._later_users(row, top) for row in differing)
                followed = [user for users in later for user in self._innermost(users)]
            for user in followed:
                if user.start not in chain:
                    chain[user.start] = False
                    heappush(waiting, user.start)
        if unknown <= proved:
            return Effect.NONE if proved else Effect.SHOWN
        return Effect.HIDDEN

    def _users(self, row: Row) -> list[Call]:
        """Return the calls that take a row's values in, on either side."""
        sides = (self._flow.target, self._flow.reference)
        found = (index for side in sides for index in side.users(row, by_content=True))
        return self._calls_of(found)

    def _users_on(self, side: int, row: Row, value: Value) -> list[Call]:
        """Return the later calls of one side that take a tensor in: that one, not one like it.

        A buffer or a parameter is known by its content alone.
        """
        flow = (self._flow.target, self._flow.reference)[side]
        return self._calls_of(flow.users_after(row, by_content=value.value_id is None))

    def _calls_of(self, indices: Iterable[int]) -> list[Call]:
        calls = (self._calls.of(self._calls.rows[index]) for index in indices)
        return [*{call.start: call for call in calls}.values()]

    def _is_end(self, call: Call, row: Row) -> bool:
        """Return whether nothing recorded takes a result in, nor the program, as a number."""
        is_left = _is_further(call, row) or _is_for_the_program(row)
        return not is_left and not self._later_users(row, call)

    def _matters(self, call: Call, row: Row) -> bool:
        """Return whether a result is one of both sides, or taken in by a later call."""
        return not _is_further(call, row) or bool(self._later_users(row, call))

    def _is_left(self, row: Row) -> bool:
        """Return whether a number is the program's, and no argument is known to follow from it."""
        return _is_for_the_program(row) and id(row) not in self._read

    def _later_users(self, row: Row, call: Call) -> list[Call]:
        users = (*self._users(row), *self._read.get(id(row), ()))
        return [user for user in users if user.start > call.start]

    def _innermost(self, users: list[Call]) -> list[Call]:
        """Return the users of a value that have no other of them inside."""
        around = {parent for user in users for parent in self._calls.around(user.pair)}
        return [user for user in users if user.pair.name not in around]

    def _shows_inside(self, call: Call) -> bool:
        """Return whether what a call does is shown by those inside it."""
        return self._calls.records_apis and self._calls.has_inner(call)

    def _has_agreeing_parent(self, call: Call) -> bool:
        is_target = call.pair.target is not None
        names = self._calls.around(call.pair)
        around = (self._calls.named(name, is_target=is_target) for name in names)
        return any(
            each is not None
            and _has_agreeing_result(each)
            and all(not row.status.is_difference or _is_further(each, row) for row in each.outputs)
            for each in around
        )

    def _has_other_differences(
        self, call: Call, chain: Mapping[int, bool], around: Set[str], begin: Call
    ) -> bool:
        """Return whether a call is given something that differs for another reason.

        Args:
            call: the call.
            begin: the first of the chain.
            chain: the calls that it may be fed by, and whether they are.
            around: the records around these, whose results may be theirs.
        """
        rows = self._calls.rows
        seen = {call.start}
        waiting = [call]
        while waiting:  # calls of one side alone hand on what they are given
            for row in waiting.pop().inputs:
                if not row.status.is_difference or not row.holds_tensor:
                    continue
                makers = self._flow.makers(row)
                made = [rows[index] for index in (*makers.target, *makers.reference)]
                if not made and isinstance(row, Matched):
                    return True
                for each in made:
                    maker = self._calls.of(each)
                    is_other = maker.pair.name not in around and _is_other(each, begin)
                    if chain.get(maker.start, is_other):
                        return True
                    if not (maker.is_matched or maker.start in chain or maker.start in seen):
                        seen.add(maker.start)
                        waiting.append(maker)
        return False

    def _makes_other_gradients(self, call: Call) -> bool:
        """Return whether a call makes other gradients of the same."""
        backward = self._calls.backward_of(call, is_target=call.pair.target is not None)
        if backward is None or not call.is_matched:
            return False
        given = any(row.status.is_difference for row in backward.inputs)
        return not given and any(row.status.is_difference for row in backward.outputs)


def needs_no_gradient(call: Call, calls: Calls) -> bool:
    """Return whether no gradient flows back to what a call of a forward pass makes."""
    if call.parsed.kind is not RecordKind.FORWARD:
        return False
    values = [value for row in call.outputs for value in row.values if value.is_tensor]
    if not values:
        return False
    if all(value.requires_grad is False for value in values):
        return True
    backward = (calls.backward_of(call, is_target=side) for side in (True, False))
    return calls.has_backward and not any(backward)


def is_constant(row: Row) -> bool:
    """Return whether a row is of a tensor, or none, that a call is given without a gradient."""
    tensors = [value for value in row.values if not value.is_null]
    return row.value.role is Role.INPUT and all(
        value.is_tensor and value.requires_grad is False for value in tensors
    )


def _is_choice(call: Call) -> bool:
    """Return whether a call draws or chooses by numbers that differ: a maximum's place, say.

    Other numbers are an effect, though the same was chosen this time.
    """
    by = (row for row in call.inputs if row.status.is_difference and row.holds_tensor)
    is_by_number = any(epsilon_of(value.dtype) for row in by for value in row.values)
    made = (value for row in call.outputs for value in row.values)
    return call.operator.draws_random or (
        is_by_number and not any(epsilon_of(value.dtype) for value in made)
    )


def _is_other(row: Row, begin: Call) -> bool:
    """Return whether a result differs on its own; calls of the other side alone belong together."""
    if row.pair.is_matched:
        return row.status.is_difference
    is_of_one_side = not begin.is_matched and (row.pair.target is None) is (
        begin.pair.target is None
    )
    return row.origin is Origin.INTRODUCED and is_of_one_side


def _has_agreeing_result(call: Call) -> bool:
    """Return whether a tensor that a call makes agrees; others may be kept by one program alone."""
    return any(
        row.holds_tensor and not row.status.is_difference and _shown(row) for row in call.outputs
    )


def _shown(row: Row) -> bool:
    """Return whether a value that agrees shows that its elements do, and is no single number."""
    if not isinstance(row, Matched) or not row.holds_tensor:
        return True
    return math.prod(row.value.shape or ()) > 1 and shows_elements(row)


def _hides(row: Row) -> bool:
    """Return whether a tensor may agree only since some of its elements rule the others."""
    return math.prod(row.value.shape or ()) > 1 and not _shown(row)


def _is_further(call: Call, row: Row) -> bool:
    """Return whether one side alone returns a further result: places of a maximum, or a cache."""
    return call.is_matched and (not isinstance(row, Matched) or any(map(is_opaque, row.values)))


def _is_for_the_program(row: Row) -> bool:
    """Return whether a value is one truth value or integer; what the program does by it shows."""
    return all(
        value.is_tensor and math.prod(value.shape or ()) == 1 and not epsilon_of(value.dtype)
        for value in row.values
    )
