# SPDX-License-Identifier: Apache-2.0
"""Find the calls without a partner that cause differences.

A call too many or too few is a culprit if a differing value was made by it (or by what follows
from it) while everything that it took in itself agrees. Extra casts, views and copies that change
nothing stay harmless, as do all calls inside a module that was compiled on one side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from msprobe.api_prefixes import COMPILED
from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Missing, Origin, Row, Status
from msprobe.compare.rounding import resolution_of
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import exact_operand
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.origin_state import OriginState, lost_gradient, mark
from msprobe.compare.verdicts.precision_policy import is_in_other_precision
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.operator import Family

# Where more calls than so many begin a chain, it is another program, not a slip.
_MOST_ROOTS: Final = 8
# How many calls upstream a change of order is looked for.
_FARTHEST: Final = 60
# And how often: each time costs as much as a few calls.
_MOST_SEARCHES: Final = 1000
# Roundings that the results of compiled code and of other calls may be apart.
_ROUNDINGS: Final = 64.0


class Blame(Enum):
    """The origin of a value that an unmatched call made."""

    CALL = "that call, or one before it without a partner"
    EARLIER = "its inputs already differ"
    CONSTANT = "no call: it is a new constant, and only its users count"


@dataclass(frozen=True, slots=True)
class _Chain:
    """Unmatched calls that lead up to one of them.

    Attributes:
        telling: first rows of the calls with which it begins.
        moving: the same among calls that only move numbers or make a mask, where there is no other.
        is_fed_with_difference: whether something that differs came in.
    """

    telling: tuple[int, ...]
    moving: tuple[int, ...]
    is_fed_with_difference: bool


class UnmatchedCalls:
    """Finds the culprits among calls without a partner."""

    def __init__(self, state: OriginState) -> None:
        self._state = state
        self._chains: dict[int, _Chain] = {}
        self._searches = 0

    def blame_for(self, made: Row) -> Blame:
        """Blame the unmatched call that made a value, or those that it got its own values from."""
        rows, call = self._state.rows, self._state.calls.of(made)
        if self._state.calls.split_batches or self._is_cut(call):
            return Blame.EARLIER
        chain = self._chain_of(call)
        if chain.is_fed_with_difference:
            return Blame.EARLIER
        found = chain.telling or chain.moving
        roots = [each for each in found if not self._is_cut(self._state.calls.of(rows[each]))]
        if found and not roots:
            return Blame.EARLIER
        if roots and all(map(self._widens, roots)) and self._is_in_other_precision:
            return Blame.EARLIER
        if roots and all(map(self._scales_loss, roots)):
            return Blame.EARLIER
        for root in roots:
            self._blame(self._state.calls.of(rows[root]))
        return Blame.CALL if roots else Blame.CONSTANT

    def _is_cut(self, call: Call) -> bool:
        """Return whether a backward call lacks on one side because its forward call cut the graph.

        What cut it is judged by itself.
        """
        forward = self._state.calls.forward_of(call) if call.is_backward else None
        return forward is not None and any(map(lost_gradient, forward.outputs))

    def _widens(self, position: int) -> bool:
        """Return whether a call, or that of a backward, only casts to a wider floating type.

        It changes no number. Its gradient is rounded to the type that its value had before.
        """
        calls = self._state.calls
        call = calls.of(self._state.rows[position])
        forward = calls.forward_of(call) if call.is_backward else call
        if forward is None or not self._only_moves(forward):
            return False
        coming, made = (
            [epsilon_of(row.value.dtype) for row in rows if row.value.is_tensor]
            for rows in (forward.inputs, forward.outputs)
        )
        return len(coming) == len(made) == 1 and coming[0] > made[0] > 0

    def _scales_loss(self, position: int) -> bool:
        """Return whether a call is a gradient scaler's; see `Side.scales_loss`."""
        pair = self._state.rows[position].pair
        return self._state.comparison.side_of(pair).scales_loss(pair.name)

    def largest_input(self, made: Row) -> float:
        """Return the largest number that an unmatched call takes in, or those that feed it."""
        call = self._state.calls.of(made)
        operands = (exact_operand(row.value) for row in self._taken_in(call))
        return max((each.peak for each in operands if each is not None), default=0.0)

    def blame_cut(self, makers: Iterable[int]) -> bool:
        """Blame the unmatched call, if any holds a value, that took its gradient away.

        Else the one by which the value gets its gradient on one side alone.
        """
        state = self._state
        lone = [row for index in makers if not (row := state.rows[index]).pair.is_matched]
        for row in lone:
            call = state.calls.of(row)
            if not row.value.requires_grad and self._takes_gradients(call):
                self._blame(call, Cause.CUTTING_CALL)
                return True
        for call in (state.calls.of(row) for row in lone if row.value.requires_grad):
            is_fed = self._chain_of(call).is_fed_with_difference or self._had_lost_gradient(call)
            if not is_fed:
                self._blame(call, Cause.GRADIENT_CALL)
                return True
        return False

    def blame_users(self, call: Call, *, is_target: bool) -> bool:
        """Blame the first call of one side alone that takes in a result of one that both make.

        From it a gradient comes back that the other side lacks.
        """
        state = self._state
        flow = state.flow.target if is_target else state.flow.reference
        for index in (each for row in call.outputs for each in flow.users(row)):
            user = state.calls.of(state.rows[index])
            if not (user.is_matched or user.is_backward):
                self._blame(user, Cause.GRADIENT_CALL)
                return True
        return False

    def _takes_gradients(self, call: Call) -> bool:
        """Return whether an unmatched call, or those that feed it, takes in what requires one."""
        return any(row.value.requires_grad for row in self._taken_in(call))

    def _had_lost_gradient(self, call: Call) -> bool:
        """Return whether an unmatched call, or those that feed it, takes in what lost its gradient.

        That is something that requires one on one side alone.
        """
        rows = self._state.rows
        sources = (self._source(row) for row in self._taken_in(call))
        return any(lost_gradient(rows[source]) for source in sources if source is not None)

    def draws(self, made: Row) -> bool:
        """Return whether an unmatched call, or one of those that feed it, draws random numbers."""
        call = self._state.calls.of(made)
        before = (maker for _, maker in self._state.upstream(call, self._unmatched_sources))
        return any(each.operator.draws_random for each in (call, *before))

    def _taken_in(self, call: Call) -> Iterator[Row]:
        """Yield what an unmatched call, and those that feed it, take in."""
        yield from call.inputs
        for _, maker in self._state.upstream(call, self._unmatched_sources):
            yield from maker.inputs

    def blame_for_nan(self, call: Call) -> None:
        """Blame a call of the target alone that makes NaN from tensors without."""
        if call.pair.target is None or any(_holds_nan(row) for row in call.inputs):
            return
        for row in call.outputs:
            if _holds_nan(row):
                mark(row, Origin.INTRODUCED, Cause.NAN_CALL)

    def blame_hidden(self, call: Call) -> bool:
        """Blame a call upstream, if any, that acts on the order of elements or on a mask alone.

        That is a call that only one side makes, or one with another argument. Statistics do not
        see such a change; results computed from the value show it further on.
        """
        self._searches += 1
        if self._searches > _MOST_SEARCHES:
            return False
        found = self._state.upstream(call, self._first_makers, _FARTHEST)
        return any(self._acts_hidden(maker, row) for row, maker in found)

    def _first_makers(self, call: Call) -> Iterator[tuple[Row, int]]:
        for row in call.inputs:
            for index in set(self._state.flow.makers(row).first):
                yield self._state.rows[index], index

    def _acts_hidden(self, maker: Call, made: Row) -> bool:
        """Blame a call, if statistics hide what it does and it is not the same on both sides."""
        reorders = maker.operator.reorders
        if not reorders and (made.value.dtype != "bool" or _is_one_number(made.value)):
            return False
        if maker.is_matched:
            return self._state.convict(maker.start)
        if reorders and _keeps_order(maker):
            return False
        self._blame(maker, Cause.REORDERING_CALL if reorders else Cause.USED_CALL)
        return True

    def only_hands_on(self, index: int) -> bool:
        """Return whether a row is of a call that hands on what no recorded call made.

        Another tensor may hold the same on one side: a call that both sides make tells no gradient.
        """
        call = self._state.calls.of(self._state.rows[index])
        is_idle = not (call.is_matched and call.is_backward) and _changes_nothing(call)
        return is_idle and all(self._source(row) is None for row in call.inputs)

    def seen_through(self, index: int) -> int:
        """Return the row that a value comes from, behind extra casts, views and copies of it."""
        calls = self._state.calls
        while True:
            call = calls.of(self._state.rows[index])
            if call.is_matched or not self._only_moves(call):
                return index
            sources = {self._source(row) for row in call.inputs if row.value.is_tensor}
            source = sources.pop() if len(sources) == 1 else None
            if source is None:
                return index
            index = source

    def settle_rest(self) -> None:
        """Set the origin of the other unmatched calls: those with differing inputs inherit."""
        for call in self._state.calls:
            if call.is_matched or any(row.origin is not None for row in call.rows):
                continue
            if self._is_fed_with_difference(call):
                for row in call.rows:
                    if row.status.is_difference:
                        row.origin = Origin.INHERITED

    def _blame(self, blamed: Call, cause: Cause = Cause.USED_CALL) -> None:
        call = self._telling_call(blamed)
        if self._runs_compiled(call):
            return
        rounded = self._rounded_before(call)
        if isinstance(rounded, Matched):
            mark(rounded, Origin.INTRODUCED, Cause.LONE_PRECISION)
            rounded.status = Status.DIFFERS
            rounded.finding = f"{rounded.target.dtype} instead of {rounded.reference.dtype}"
            return
        if rounded is not None:
            call = self._state.calls.of(rounded)
        if blamed.is_backward and cause is Cause.USED_CALL:
            cause = Cause.GRADIENT_CALL
        side = "target" if call.pair.reference is None else "reference"
        shown = [row for row in call.outputs if row.value.is_tensor] or list(call.rows)
        for row in shown:
            if row.origin is not Origin.INTRODUCED:
                mark(row, Origin.INTRODUCED, cause, side)

    def _rounded_before(self, call: Call) -> Row | None:
        """Return what made the values coarse that a call casts back to a finer type.

        A call of one side alone, or one that both sides make, in other types. None for other calls.
        """
        given = [row for row in call.inputs if row.value.is_tensor]
        if call.is_backward or not given or not self._widens(call.start):
            return None
        coarse, is_target = given[0].value.dtype, call.pair.target is not None
        flow = self._state.flow.target if is_target else self._state.flow.reference
        for _ in range(_FARTHEST):
            index = next(iter(flow.makers(given[0])), None)
            made = None if index is None else self._state.rows[index]
            if made is None:
                break
            maker = self._state.calls.of(made)
            given = [row for row in maker.inputs if row.values[is_target - 1].dtype == coarse]
            if not given:
                is_other = not isinstance(made, Matched) or made.precisions is not None
                return made if is_other else None
        return None

    def _runs_compiled(self, call: Call) -> bool:
        """Return whether the other side runs compiled code instead of a call, to the same result.

        It holds that call, unrecorded, or one to the same effect.
        """
        return self._compiled_instead[call.pair.target is not None]

    @cached_property
    def _compiled_instead(self) -> tuple[bool, bool]:
        """Whether compiled code that the target alone runs makes what other calls make; and so on.

        The calls are those that the reference alone makes.
        """
        made: tuple[list[Value], list[Value]] = ([], [])
        compiled: tuple[list[Value], list[Value]] = ([], [])
        for call in self._state.calls:
            if not call.is_matched:
                is_compiled = call.pair.name.startswith(f"{COMPILED}.")
                found = (compiled if is_compiled else made)[call.pair.target is None]
                found += [row.value for row in call.outputs if row.value.is_tensor]
        target, reference = (
            bool(compiled[side])
            and all(any(_is_near(own, one) for one in made[1 - side]) for own in compiled[side])
            for side in (0, 1)
        )
        return target, reference

    def _telling_call(self, call: Call) -> Call:
        """Return the call to name: a communication that made the result, a backward's forward."""
        calls = self._state.calls
        made = {fingerprint(row.value) for row in call.outputs} - {None}
        for lone in self._communications:
            if made & {fingerprint(row.value) for row in lone.outputs}:
                return lone
        forward = calls.forward_of(call) if call.is_backward else None
        return call if forward is None or forward.is_matched else forward

    def _may_come_from_difference(self, call: Call) -> bool:
        """Return whether code that was not recorded hands a call values made of what differs.

        That is what came back so far, or into the module around the call.
        """
        calls = self._state.calls
        if call.is_backward:
            return self._first_gradient_apart < call.start
        is_target = call.pair.target is not None
        module = next(calls.modules_around(calls.parent(call.pair), is_target=is_target), None)
        taken_in = () if module is None else module.inputs
        return any(row.status.is_difference for row in taken_in if row.holds_tensor)

    @cached_property
    def _first_gradient_apart(self) -> float:
        """The index of the first gradient that differs."""
        state = self._state
        for index, row in enumerate(state.rows):
            if row.status is Status.DIFFERS and state.calls.of(row).is_backward:
                return index
        return math.inf

    @cached_property
    def _is_in_other_precision(self) -> bool:
        return is_in_other_precision(self._state.comparison)

    @cached_property
    def _draw_on_both_sides(self) -> bool:
        """Whether each side makes a call of its own that draws random numbers."""
        lone = (call for call in self._state.calls if not call.is_matched)
        return len({c.pair.target is None for c in lone if c.operator.draws_random}) > 1

    @cached_property
    def _communications(self) -> list[Call]:
        """The communications of one side alone."""
        state = self._state
        return [
            state.calls.of(row)
            for row in state.rows
            if not row.pair.is_matched
            and row.value.role is Role.OUTPUT
            and is_communication(state.calls.parse(row.pair))
        ]

    def _chain_of(self, call: Call) -> _Chain:
        """Return the first of the unmatched calls that a call's values come from."""
        waiting = [call]
        while waiting:
            top = waiting[-1]
            before = [] if top.start in self._chains else self._unmatched_makers(top)
            missing = [each for each in before if each.start not in self._chains]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if top.start not in self._chains:
                self._chains[top.start] = self._join(top, before)
        return self._chains[call.start]

    def _unmatched_sources(self, call: Call) -> Iterator[tuple[Row, int]]:
        for row in call.inputs:
            source = self._source(row)
            if source is not None and not self._state.rows[source].pair.is_matched:
                yield row, source

    def _unmatched_makers(self, call: Call) -> list[Call]:
        calls, rows = self._state.calls, self._state.rows
        return [calls.of(rows[index]) for _, index in self._unmatched_sources(call)]

    def _join(self, call: Call, before: Iterable[Call]) -> _Chain:
        """Return the chain that ends in a call, from those that end in its makers."""
        state = self._state
        differs = False
        for row in call.inputs:
            source = self._source(row)
            if source is None:
                differs = differs or (row.value.is_tensor and self._may_come_from_difference(call))
            elif state.rows[source].pair.is_matched:
                # Both sides make it, and one of them later: it is paired across this call.
                is_before = state.rows[source].pair.position < call.pair.position
                differs = differs or (is_before and state.explains(source))
        telling: dict[int, None] = {}
        moving: dict[int, None] = {}
        for each in before:
            chain = self._chains[each.start]
            differs = differs or chain.is_fed_with_difference
            telling |= dict.fromkeys(chain.telling)
            moving |= dict.fromkeys(chain.moving)
        # A constant means nothing by itself: the call that takes it in counts.
        is_constant = not any(row.value.is_tensor for row in call.inputs) or _changes_nothing(call)
        is_exchanged = call.operator.draws_random and self._draw_on_both_sides
        if not telling and (not is_constant or is_exchanged):
            if not (self._only_moves(call) or _makes_mask(call)):
                telling[call.start] = None
            elif not moving:
                moving[call.start] = None
        return _Chain(
            tuple(telling)[:_MOST_ROOTS],
            tuple(moving)[:_MOST_ROOTS],
            is_fed_with_difference=differs,
        )

    def _is_fed_with_difference(self, call: Call) -> bool:
        sources = (self._source(row) for row in call.inputs)
        makers = (self._state.rows[source] for source in sources if source is not None)
        return any(
            maker.status.is_difference if maker.pair.is_matched else maker.origin is not None
            for maker in makers
        )

    def _source(self, row: Row) -> int | None:
        flow = self._state.flow
        found = (flow.reference if isinstance(row, Missing) else flow.target).makers(row)
        return found[0] if found else None

    def _only_moves(self, call: Call) -> bool:
        """Return whether a call handed on the same numbers, perhaps at other places."""
        if call.operator.family is not Family.MOVING:
            return False
        coming = {_numbers(row) for row in call.inputs}
        return all(_numbers(row) in coming for row in call.outputs if row.value.is_tensor)


def _changes_nothing(call: Call) -> bool:
    """Return whether all that a call made are values that it was given: dropout without chance."""
    coming = {fingerprint(row.value) for row in call.inputs} - {None}
    made = [fingerprint(row.value) for row in call.outputs if row.value.is_tensor]
    return bool(made) and coming.issuperset(made)


def _makes_mask(call: Call) -> bool:
    """Return whether all that a call made are truth values: what is masked by them tells more."""
    made = [row.value.dtype for row in call.outputs if row.value.is_tensor]
    return bool(made) and all(dtype == "bool" for dtype in made)


def _keeps_order(call: Call) -> bool:
    """Return whether all that a call made is what it was given, in the same order: all samples."""
    coming = {_in_order(row.value) for row in call.inputs} - {None}
    made = [_in_order(row.value) for row in call.outputs if row.value.is_tensor]
    return bool(made) and coming.issuperset(made)


def _is_one_number(value: Value) -> bool:
    """Return whether all elements of a tensor are the same: its statistics hide nothing."""
    return value.max is not None and value.max == value.min


def _in_order(value: Value) -> object:
    """Return what tensors share that hold the same in one order; None where that is not known."""
    key = fingerprint(value) if value.projections else None
    return None if key is None else (key, value.projections)


def _numbers(row: Row) -> object:
    value = row.value
    key = fingerprint(value)
    if value.role is Role.PARAMETER or key is None:
        return key
    return (value.max, value.min, value.norm)


def _holds_nan(row: Row) -> bool:
    return row.value.is_tensor and row.value.has_nan


def _is_near(value: Value, other: Value) -> bool:
    """Return whether two tensors have the same shape and, up to rounding, the same norm."""
    if value.shape != other.shape or value.norm is None or other.norm is None:
        return False
    epsilon = resolution_of((value, other))
    return math.isclose(value.norm, other.norm, rel_tol=_ROUNDINGS * epsilon)
