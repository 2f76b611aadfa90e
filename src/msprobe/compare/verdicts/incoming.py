# SPDX-License-Identifier: Apache-2.0
"""Differences in the inputs of a call: inherited, from outside, or a fault of the call itself."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Match, Matched, OperationPair, Origin, Row, Status
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.data_flow import Makers, fingerprint, fingerprints
from msprobe.compare.verdicts.gradient_flow import GradientFlow
from msprobe.compare.verdicts.origin_state import (
    OriginState,
    inherit,
    is_shard,
    mark,
    name_of,
    settle_as_close,
)
from msprobe.compare.verdicts.status import shape_words
from msprobe.compare.verdicts.unmatched_calls import Blame, UnmatchedCalls
from msprobe.compare.verdicts.wiring import is_other_order
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import kind_of

_NO_CALL: Final = "a value that no recorded call made"
_RANDOM_STATE: Final = "rng."


class Incoming:
    """Judges the inputs of calls."""

    def __init__(
        self, state: OriginState, unmatched: UnmatchedCalls, gradients: GradientFlow
    ) -> None:
        self._state = state
        self._unmatched = unmatched
        self._gradients = gradients

    def judge(self, call: Call) -> None:
        """Set the origin of all inputs and parameters of a call that differ.

        Other arguments become suspects: the results of the call have to show their effect.
        """
        tensors_agree = True
        others: list[Row] = []
        for row in call.inputs:
            if not row.status.is_difference:
                continue
            if not row.holds_tensor:
                others.append(row)
            elif row.value.role is Role.PARAMETER:
                self._judge_parameter(call, row)
            else:
                self._judge_tensor(call, row)
                tensors_agree = tensors_agree and not row.status.is_difference
        suspects = [row for row in others if self._is_suspect(call, row, tensors_agree)]
        if suspects:
            self._state.suspects[call.start] = suspects

    def judge_forms(self, call: Call) -> bool:
        """Judge the inputs that differ in dimensions of size 1 alone, if there are any.

        Such a dimension means nothing, unless the call broadcasts along it, as its result shows.
        """
        found = [
            row
            for row in call.inputs
            if isinstance(row, Matched)
            and row.status in (Status.EQUAL, Status.CLOSE)
            and row.target.shape != row.reference.shape
        ]
        for row in found:
            row.status, row.finding = Status.SHAPE, shape_words(row)
            self._judge_tensor(call, row)
        return bool(found)

    def _judge_parameter(self, call: Call, row: Row) -> None:
        state = self._state
        if is_shard(row) and isinstance(state.comparison.rank, int):
            row.cause = Cause.SHARD  # as a root of FSDP shows its own ones before it gathers them
            return
        if self._is_of_another_network(row):
            known = (each or _NO_CALL for each in self._known_values(row))
            mark(row, Origin.INTRODUCED, Cause.OTHER_PARAMETER, " instead of ".join(known))
            return
        exchanged = state.start.exchanged_parameters(row)
        if exchanged is not None and not self._has_lone_likes(call):
            mark(row, Origin.INTRODUCED, Cause.OTHER_PARAMETER, exchanged)
            return
        if self._agreed_at_start(call, row):
            if state.has_difference or state.worst_close:
                is_explained = state.has_difference or state.is_likely(row)
                cause = Cause.WRITTEN_STATE if is_explained else Cause.UNTRACED
                mark(row, Origin.INHERITED, cause)
            else:
                self._blame_feeding(row, Cause.CHANGED_STATE, "")
            return
        first = state.outside.parameter_of(row)
        if first is not None and state.rows[first] is not row:
            mark(row, Origin.INHERITED, Cause.SAME_PARAMETER, name_of(state, first))
            return
        if exchanged is not None:
            # The parameter is the same; the call may be another one.
            mark(row, Origin.INHERITED, Cause.UNTRACED)
            return
        mark(row, Origin.INTRODUCED, Cause.PARAMETER)

    def _has_lone_likes(self, call: Call) -> bool:
        """Return whether one side alone makes a further call of a function, which may be meant."""
        calls, base = self._state.calls, call.parsed.base
        lone = (pair for pair in calls.pairs if not pair.is_matched)
        return any(calls.parse(pair).base == base for pair in lone)

    def _is_of_another_network(self, row: Row) -> bool:
        """Return whether one side gives a call the parameter of an earlier one, which is trained.

        The other gives it one that is not: that of a target network or a teacher, say. An update
        between the two calls would leave it trained.
        """
        is_known = any(index is not None for index in self._state.outside.given_before(row))
        is_matched = isinstance(row, Matched) and row.value.role is not Role.PARAMETER
        return is_known and is_matched and len({v.requires_grad for v in row.values}) > 1

    def _is_suspect(self, call: Call, row: Row, tensors_agree: bool) -> bool:
        """Judge an argument that is no tensor, and return whether it may be at fault itself."""
        has_same_signature = call.pair.match in (Match.EXACT, Match.ALIGNED)
        if not has_same_signature and not isinstance(row, Matched):
            return False
        makers = self._state.flow.makers(row)
        if makers.target or makers.reference:
            mark(row, Origin.INHERITED, Cause.TAKEN_FROM_TENSOR)
            return False
        is_size = all(value.type in ("int", "torch.Size", "slice") for value in row.values)
        calls = self._state.calls
        if is_size and _is_same_reshape(call):
            row.cause = Cause.NO_EFFECT
            return False
        # Of other samples, a call makes something else, whatever else it is given.
        if ((is_size or calls.split_batches) and not tensors_agree) or calls.are_batch_sizes(row):
            mark(row, Origin.INHERITED)
            return False
        return True

    def _judge_tensor(self, call: Call, row: Row) -> None:
        if row.value.slot.startswith(_RANDOM_STATE):
            origin = Origin.INHERITED if self._state.has_difference else Origin.INPUT
            mark(row, origin, Cause.RANDOM_STATE)
            return
        if row.pair.match is Match.ALIAS and not isinstance(row, Matched) and _agrees(call):
            return  # another API takes other tensors in
        makers = self._state.flow.makers(row)
        common = makers.common
        if common is not None:
            inherit(row, self._state.rows[common])
        elif _is_other_batch(row) and self._state.calls.split_batches:
            mark(row, Origin.INPUT, Cause.OTHER_SPLIT)
        elif not all(map(self._unmatched.only_hands_on, makers.first)):
            self._judge_wiring(call, row, makers)
        elif call.is_backward:
            self._gradients.judge_incoming(call, row)
        elif self._is_view_of_lone(row):
            mark(row, Origin.INHERITED)
        else:
            self._judge_outside(call, row)

    def _is_view_of_lone(self, row: Row) -> bool:
        """Return whether calls of one side alone made a value, or what they were given differs.

        They are blamed. No call is recorded for a view of their result such as ``.T``.
        """
        makers = (
            made.get(_numbers(value))
            for made, value in zip(self._lone_results, (row.target, row.reference), strict=True)
        )
        found = [
            self._unmatched.blame_for(maker)
            for maker in makers
            if maker is not None and self._is_made_before(maker.pair, row.pair)
        ]
        return any(each is not Blame.CONSTANT for each in found)

    def _is_made_before(self, lone: OperationPair, pair: OperationPair) -> bool:
        """Return whether a call of one side alone returns before another call begins.

        The record of a module follows those of its parts, which are given what it is given.
        """
        name = pair.reference if lone.target is None else pair.target
        around = (*self._state.calls.around(lone),)
        return lone.position < pair.position and name not in around

    def _judge_wiring(self, call: Call, row: Row, makers: Makers) -> None:
        """Judge a value that different calls made on the two sides."""
        state = self._state
        if call.is_backward and self._gradients.is_lone_rounding(call, row):
            settle_as_close(row, Cause.ROUNDING)
            return
        if all(isinstance(row, Matched) and value.is_handed_through for value in row.values):
            # What all uses of a value give back arrives at each call that returns it as it is, in
            # an order that extra casts change; the uses were judged.
            mark(row, Origin.INHERITED)
            return
        blamed = explained = False
        for index in makers.first:
            maker = state.rows[index]
            if not maker.pair.is_matched:
                found = self._unmatched.blame_for(maker)
                blamed = blamed or found is Blame.CALL
                explained = explained or found is Blame.EARLIER
            elif state.explains(index) and maker.pair.position < row.pair.position:
                explained = True
        one_sided = not (makers.target and makers.reference)
        is_sum = one_sided and call.is_backward
        if explained or blamed or (is_sum and self._gradients.has_lone_shares(call, row)):
            mark(row, Origin.INHERITED)
            return
        is_outside = not call.is_backward and state.calls.parent(call.pair) is None
        if is_outside and state.calls.split_batches:
            # What collects samples into batches collects others.
            mark(row, Origin.INPUT, Cause.OTHER_SPLIT)
            return
        is_data = not call.is_backward and state.outside.model_input_of(row) is not None
        if one_sided and is_data:
            # That side makes its data (random ones, say) while it is recorded, the other before.
            mark(row, Origin.INPUT, Cause.MODEL_INPUT)
            return
        if one_sided and self._inherits_alone(row):
            return
        parent = None if call.is_backward else state.calls.parent(call.pair)
        own_code = parent is not None and not state.calls.records_apis
        is_part = own_code and row.status is Status.SHAPE
        is_same_call = not call.is_backward and self._is_same_call_of_tensors(call, row)
        made = next(iter((*makers.target, *makers.reference)))
        if (
            one_sided
            and is_same_call
            and not is_part
            and state.rows[made].pair.is_matched
            and not self._is_another_tensor(row, makers)
        ):
            side = "reference" if makers.target else "target"
            where = f"{name_of(state, made)} and here, in the {side} alone,"
            is_gradient = state.calls.of(state.rows[made]).is_backward
            cause = Cause.WRITTEN_GRADIENT if is_gradient else Cause.CHANGED_BETWEEN
            self._blame_feeding(row, cause, where)
            return
        if parent is not None and own_code:
            self._blame_code_around(call, parent, row)
            return
        self._blame_feeding(row, self._cause_of(call, makers), self.made_by(row, makers))

    def _cause_of(self, call: Call, makers: Makers) -> Cause:
        """Return why a call is given another value, which different calls made."""
        state = self._state
        one_sided = not (makers.target and makers.reference)
        # The value that no call made may be what an earlier step left, unless all agrees so far.
        is_open = one_sided and bool(state.has_difference or state.worst_close)
        given = () if call.is_backward or is_open else call.inputs
        if given and is_other_order(state.flow, state.rows, makers, given):
            return Cause.OTHER_ORDER
        if one_sided:
            return Cause.UNRECORDED_VALUE
        made = (state.rows[index] for index in makers.first)
        is_drawn = any(not row.pair.is_matched and self._unmatched.draws(row) for row in made)
        return Cause.OTHER_DRAW if is_drawn else Cause.OTHER_VALUE

    def _cause_of_outside(self, row: Row) -> Cause:
        """Return the same of values that no recorded call made as they are."""
        is_turned = self._state.outside.are_exchanged(row)
        return Cause.OTHER_ORDER if is_turned else Cause.OTHER_VALUE

    def _inherits_alone(self, row: Row) -> bool:
        """Let a value that a call made on one side alone inherit, if something explains it."""
        state = self._state
        if state.may_inherit(row):
            state.inherit_unrecorded(row)
        elif state.start.is_updated_alone(row):
            mark(row, Origin.INHERITED, Cause.LONE_UPDATE)
        else:
            return False
        return True

    def _is_another_tensor(self, row: Row, makers: Makers) -> bool:
        """Return whether the value that no call made is not what a call made on the other side.

        A change keeps the shape, and does not turn a result into a parameter, nor a complex number
        into one of its parts. Nor does the other side have what it makes.
        """
        if row.status is Status.SHAPE or len({kind_of(value.dtype) for value in row.values}) > 1:
            return True
        others = self._state.outside.given_to_other(row)
        return any(
            not made and (name is not None or is_known)
            for name, is_known, made in zip(
                self._known_values(row), others, (makers.target, makers.reference), strict=True
            )
        )

    def _known_values(self, row: Row) -> list[str | None]:
        """Return what each value is that no call made, in words: a parameter, an earlier input."""
        state = self._state
        return [
            name or (None if index is None else f"what {name_of(state, index)} is given")
            for name, index in zip(
                state.start.names_of(row), state.outside.given_before(row), strict=True
            )
        ]

    def _is_same_call_of_tensors(self, call: Call, row: Row) -> bool:
        """Return whether both sides give a tensor to an argument of the same function."""
        are_tensors = all(value.is_tensor for value in row.values)
        return (
            isinstance(row, Matched)
            and are_tensors
            and not self._state.calls.makes_other_call(call.pair)
        )

    def made_by(self, row: Row, makers: Makers) -> str:
        """Return what made a value on the target's side and what on the reference's."""
        state = self._state
        sides = [next(iter(side), None) for side in (makers.target, makers.reference)]
        names = [None if index is None else name_of(state, index) for index in sides]
        if names[0] == names[1]:  # another result of the same call
            names = [None if index is None else state.rows[index].name for index in sides]
        found, expected = (
            known or _NO_CALL if name is None else f"the result of {name}"
            for name, known in zip(names, self._known_values(row), strict=True)
        )
        alone = [index is not None and not state.rows[index].pair.is_matched for index in sides]
        if alone == [True, False]:
            return f"{found}, which only the target calls, instead of {expected}"
        if alone == [False, True]:
            return f"{found} instead of {expected}, which only the reference calls"
        return f"{found} instead of {expected}"

    def _blame_code_around(self, call: Call, parent: str, row: Row) -> None:
        """Blame the module whose own code made a value between its parts, for a part's input.

        A module that only hands on what it was given itself is not the one.
        """
        formed = self._formed_of(row)
        if len({*formed}) > 1 and None not in formed:
            words = " instead of ".join(f"the result of {name}" for name in formed)
            self._blame_feeding(row, self._cause_of_outside(row), words)
            return
        calls = self._state.calls
        both = fingerprints(row)
        is_target = call.pair.target is not None
        outer = calls.parent_of(parent, is_target=is_target)
        while outer is not None:
            around = calls.named(parent, is_target=is_target)
            given = () if around is None else around.inputs
            if not any(fingerprints(each) == both for each in given):
                break
            parent, outer = outer, calls.parent_of(outer, is_target=is_target)
        self._state.blamed_parents.setdefault(parent, row)
        mark(row, Origin.INHERITED, Cause.SURROUNDING_CODE, parent)

    def _formed_of(self, row: Row) -> list[str | None]:
        """Return on each side the call of both whose result holds these numbers in another form."""
        values = row.target, row.reference
        found = (made.get(_numbers(each)) for made, each in zip(self._results, values, strict=True))
        end = row.pair.position
        return [each.name if each and each.position < end else None for each in found]

    @cached_property
    def _lone_results(self) -> list[dict[Hashable, Row]]:
        """Numbers → the first result of a call of one side alone, for the target and so on."""
        found: list[dict[Hashable, Row]] = [{}, {}]
        for row in self._state.rows:
            if row.value.role is Role.OUTPUT and not row.pair.is_matched:
                found[row.pair.target is None].setdefault(_numbers(row.value), row)
        for made in found:
            made.pop(None, None)
        return found

    @cached_property
    def _results(self) -> list[dict[Hashable, OperationPair]]:
        """Numbers → the first call that makes them on both sides, for the target's and so on."""
        found: list[dict[Hashable, OperationPair]] = [{}, {}]
        for row in self._state.rows:
            if row.value.role is Role.OUTPUT and row.status is Status.EQUAL:
                for made, value in zip(found, (row.target, row.reference), strict=True):
                    made.setdefault(_numbers(value), row.pair)
        for made in found:
            made.pop(None, None)
        return found

    def _blame_feeding(self, row: Row, cause: Cause, subject: str) -> None:
        """Blame a call for the value that it was given; modules around it, and others, inherit."""
        both = fingerprints(row)
        first = self._state.fed.setdefault(both, row)
        if first is row or both == (None, None):
            mark(row, Origin.INTRODUCED, cause, subject)
        else:
            mark(row, Origin.INHERITED, Cause.SAME_VALUE, first.name)

    def _judge_outside(self, call: Call, row: Row) -> None:
        """Judge a value that no recorded call made."""
        state = self._state
        exchanged = state.start.exchanged_data(row)
        if exchanged is not None:
            self._blame_feeding(row, self._cause_of_outside(row), exchanged)
            return
        parameter = state.outside.parameter_of(row)
        if parameter is not None:
            mark(row, Origin.INHERITED, Cause.SEE_PARAMETER, state.rows[parameter].name)
            return
        gradient = state.outside.gradient_of(row)
        if gradient is not None:
            mark(row, Origin.INHERITED, Cause.SEE_GRADIENT, state.rows[gradient].name)
            return
        swapped = state.outside.swapped_parameters(row)
        if swapped is not None:
            self._judge_swapped(row, *swapped)
            return
        if state.outside.model_input_of(row) is not None:
            mark(row, Origin.INPUT, Cause.MODEL_INPUT)
            return
        if self._is_parameter(call, row):
            self._judge_parameter(call, row)
            return
        parent = state.calls.parent(call.pair)
        # What clipping takes in are gradients.
        is_late = state.calls.is_after_backward(call)
        if is_late and parent is None:
            state.inherit_unrecorded(row)
            return
        if parent is None or not (is_late or state.calls.has_modules):
            if state.may_have_grown(row):
                # A view of a value that differs: no call is recorded for `.T`.
                mark(row, Origin.INHERITED, Cause.LIKELY)
                return
            mark(row, Origin.INPUT, Cause.OUTSIDE)
            return
        if state.may_inherit(row):
            likely = state.is_likely(row)
            mark(row, Origin.INHERITED, Cause.LIKELY if likely else Cause.UNRECORDED_CODE)
            return
        if state.calls.records_apis:
            self._blame_feeding(
                row,
                Cause.UNRECORDED_VALUE,
                f"{_NO_CALL} (a parameter, a buffer, a constant or unrecorded code), though "
                "everything before agrees",
            )
            return
        self._blame_code_around(call, parent, row)

    def _judge_swapped(self, row: Row, target: int, reference: int) -> None:
        """Judge a parameter that is not the other side's, or is so before or after an update."""
        rows = [self._state.rows[index] for index in (target, reference)]
        if len({(parse_record_name(each.pair.name).base, each.value.slot) for each in rows}) == 1:
            mark(row, Origin.INHERITED, Cause.SAME_PARAMETER, rows[0].name)
            return
        mark(
            row, Origin.INTRODUCED, Cause.OTHER_PARAMETER, " instead of ".join(r.name for r in rows)
        )

    def _agreed_at_start(self, call: Call, row: Row) -> bool:
        """Return whether facts show that a parameter agreed when the step began."""
        argument = row.value.argument
        if row.value.role is not Role.PARAMETER:
            argument = signature_of(call.parsed.base).name_of(argument)
        return self._state.start.agreed(self._state.calls.module(call.pair), argument)

    @staticmethod
    def _is_parameter(call: Call, row: Row) -> bool:
        if not isinstance(row, Matched) or not all(value.is_tensor for value in row.values):
            return False
        part, _, argument = row.value.slot.partition(".")
        if call.parsed.is_module or part not in ("input", "kwargs"):
            return False
        return call.operator.takes_state(argument)


def _is_same_reshape(call: Call) -> bool:
    """Return whether both sides give a value the same shape, whichever sizes they spell out.

    The shape that results says all that such a call does: ``-1`` is one of its sizes.
    """
    return call.operator.kin == "reshape" and all(
        isinstance(row, Matched) and row.target.shape == row.reference.shape for row in call.outputs
    )


def _is_other_batch(row: Row) -> bool:
    """Return whether two tensors have another number of samples, and else the same shape."""
    if row.status is not Status.SHAPE:
        return False
    shapes = [value.shape or () for value in row.values]
    return len({len(shape) for shape in shapes}) == 1 and len({shape[1:] for shape in shapes}) == 1


def _agrees(call: Call) -> bool:
    """Return whether the results that both sides have of a call agree."""
    return not any(r.status.is_difference for r in call.outputs if isinstance(r, Matched))


def _numbers(value: Value | None) -> Hashable:
    """Return what a tensor holds, in whichever shape; None if that is nothing special."""
    key = fingerprint(value) if value is not None and value.is_tensor else None
    return (key[0], *key[2:]) if isinstance(key, tuple) else None
