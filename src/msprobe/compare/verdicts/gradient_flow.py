# SPDX-License-Identifier: Apache-2.0
"""Differences in gradients that come into a call, or into a parameter.

The gradient of a value is the sum of its consumers' shares, made inside the autograd engine
where no call is recorded. So the consumers are looked up in the forward pass, and what their
backward calls returned is held against the sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.training.buffers import changes_unseen
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import (
    SUM_GROWTH,
    backward_bound,
    exact_operand,
    is_summed_noise,
    operand_of,
)
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.origin_state import (
    OriginState,
    inherit,
    lacking_side,
    lost_gradient,
    mark,
    settle_as_close,
)
from msprobe.compare.verdicts.unmatched_calls import UnmatchedCalls
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, module_names
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of

# What shows that a gradient is without consequence.
NEEDS_GRADIENT: Final = "what needs a gradient"
# A loss such as a logarithm near zero enlarges more; so far apart it is not told from a fault.
_DOUBTFUL: Final = 0.01
# Two sums are one where they are nearer to each other than this part of a summand of one alone.
_LITTLE: Final = 0.125
_LACKING: Final = (Status.MISSING, Status.ADDED)
# Calls to look at behind an input without a gradient.
_FARTHEST: Final = 200


class GradientFlow:
    """Judges incoming gradients."""

    def __init__(self, state: OriginState, unmatched: UnmatchedCalls, safety: float) -> None:
        self._state = state
        self._unmatched = unmatched
        self._safety = safety
        # Gradients that are parts of one sum: place of the record, and argument.
        self._summed: set[tuple[int, object]] = set()

    def judge_incoming(self, call: Call, row: Row) -> None:
        """Judge the gradient of an output, whose maker is not a single recorded call."""
        state = self._state
        shares = self._shares(call, row)
        if shares is None or (not shares and state.has_difference):
            self._judge_unknown(row)
            return
        if self.has_lone_shares(call, row) or any(share.status.is_difference for share in shares):
            mark(row, Origin.INHERITED)
            return
        if self._is_sum_of(row, shares):
            mark(row, Origin.INHERITED, Cause.SUM_OF_CLOSE)
            return
        if state.has_difference and call.parsed.is_module:
            state.inherit_unrecorded(row)
            return
        mark(row, Origin.INTRODUCED, Cause.CHANGED_GRADIENT if shares else Cause.OTHER_START)

    def has_lone_shares(self, call: Call, row: Row) -> bool:
        """Return whether a gradient differs by shares of calls of one side, which are blamed."""
        shares = self._shares(call, row) or ()
        differing = [share for share in shares if share.status.is_difference]
        if not differing or any(share.pair.is_matched for share in differing):
            return False
        self._blame_lone(shares)
        return True

    def is_lone_rounding(self, call: Call, row: Row) -> bool:
        """Return whether the rounding of shares of calls of one side explains a gradient.

        They may be much larger than their sum: a softmax of a sum of exponentials, say.
        """
        result = operand_of(row)
        if result is None or row.status is not Status.DIFFERS:
            return False
        lone = [s.value for s in self._shares(call, row) or () if not s.pair.is_matched]
        sizes = [each.size for each in map(exact_operand, lone) if each is not None]
        return result.error <= SUM_GROWTH * result.epsilon * max(sizes, default=0.0)

    def _blame_lone(self, shares: Iterable[Row]) -> None:
        """Blame calls of one side alone for a sum of gradients, if only theirs differ in it."""
        for share in () if self._state.has_difference else shares:
            if not share.pair.is_matched:
                self._unmatched.blame_for(share)

    def judge_parameter_gradient(self, call: Call, row: Row) -> None:
        """Judge the gradient of a parameter, as it was accumulated."""
        if not call.is_matched and self._module_record(call, RecordKind.FORWARD) is None:
            return  # its module has no partner either, which is reported
        state = self._state
        if row.status in _LACKING and self._reads_none[row.status is Status.ADDED]:
            row.cause, row.subject = Cause.UNREAD_GRADIENTS, lacking_side(row)
            return
        if row.status is Status.DIFFERS and self._is_noise(call, row):
            settle_as_close(row, Cause.NOISE)
            return
        makers = state.flow.makers(row)
        common = makers.common
        if common is not None:
            inherit(row, state.rows[common])
            return
        if makers.target and makers.reference and state.has_difference:
            mark(row, Origin.INHERITED, Cause.OTHER_USERS)
            return
        shares = self._parameter_shares(call, row)
        if not shares and self._judge_by_module(call, row):
            return
        before = self._accumulated_before(call, row)[-1:]
        since = [
            each for each in shares if not before or each.pair.position > before[0].pair.position
        ]
        added = [*before, *since]
        shares += self._accumulated_before(call, row)
        if any(share.status.is_difference for share in shares):
            mark(row, Origin.INHERITED)
        elif shares and (self._is_sum_of(row, shares) or _add_up(row, added)):
            mark(row, Origin.INHERITED, Cause.SUM_OF_CLOSE)
        elif self._differs_in_module(call, row) or self._has_lone_user(call, row):
            mark(row, Origin.INHERITED)
        elif not shares and state.may_inherit(row):
            state.inherit_unrecorded(row)
        elif not isinstance(row, Matched):
            mark(row, Origin.INTRODUCED, Cause.NO_PARAMETER_GRADIENT, lacking_side(row))
        else:
            mark(row, Origin.INTRODUCED, Cause.ACCUMULATED)

    @cached_property
    def _reads_none(self) -> tuple[bool, bool]:
        """Whether a side changes parameters without an optimizer and shows none of their gradients.

        As compiled code does. It is not known that there was none.
        """
        comparison = self._state.comparison
        pairs = [p for p in comparison.pairs if comparison.parsed(p).kind in PARAMETER_GRADIENTS]
        target, reference = (
            facts is not None and changes_unseen(facts) and not any(own)
            for facts, own in zip(
                comparison.facts,
                ([p.target for p in pairs], [p.reference for p in pairs]),
                strict=True,
            )
        )
        return target, reference

    def _judge_by_module(self, call: Call, row: Row) -> bool:
        """Judge a parameter's gradient by what its module got in both directions, if that tells.

        For dumps of modules alone, where no call tells its share.
        """
        result = operand_of(row)
        passes = [
            (forward, backward)
            for forward, backward in self._module_passes(call, row.pair.position)
            if forward.is_matched and backward.is_matched
        ]
        if result is None or not passes:
            return False
        before = self._accumulated_before(call, row)[-1:]
        rows = [each for one in passes for side in one for each in side.rows] + before
        if any(each.status.is_difference for each in rows):
            mark(row, Origin.INHERITED)
            return True
        own, passed_on = (
            0.0,
            sum(each.error for each in map(operand_of, before) if each is not None),
        )
        for forward, backward in passes:
            gradients = [each for each in map(operand_of, backward.inputs) if each is not None]
            saved = [each for each in map(operand_of, forward.rows) if each is not None]
            # Made in the type of the gradients, and cast to that of the parameter.
            coarsest = max(each.epsilon for each in (result, *gradients))
            made = replace(result, epsilon=coarsest)
            bound = backward_bound(call.operator.family, gradients, saved, made)
            own, passed_on = own + bound.own, passed_on + bound.passed_on
        if result.error <= SUM_GROWTH * own:
            settle_as_close(row, Cause.ROUNDING)
        elif result.error <= self._safety * passed_on + SUM_GROWTH * own:
            mark(row, Origin.INHERITED, Cause.CLOSE_GRADIENTS)
        else:
            return False
        return True

    def _module_passes(self, call: Call, position: int) -> Iterator[tuple[Call, Call]]:
        """Yield the calls of a parameter's module before a place, with their backward records.

        A backward record may come long after it: where the module's input needs no gradient.
        """
        calls, is_target = self._state.calls, call.pair.target is not None
        for index in count():
            forward = calls.named(module_names(call.parsed.base, index)[0], is_target=is_target)
            if forward is None or forward.pair.position > position:
                return
            backward = calls.backward_of(forward, is_target=is_target)
            if backward is not None:
                yield forward, backward

    def _differs_in_module(self, call: Call, row: Row) -> bool:
        """Return whether any call of a parameter's module took in a gradient that differs."""
        return any(
            each.status.is_difference
            for _, backward in self._module_passes(call, row.pair.position)
            for each in backward.inputs
        )

    def _has_lone_user(self, call: Call, row: Row) -> bool:
        """Return whether a call of one side alone, outside the module, uses a parameter; blames it.

        As the penalty of a loss does.
        """
        module = self._module_record(call, RecordKind.FORWARD)
        keys = {
            fingerprint(each.value)
            for each in (module.inputs if module is not None else ())
            if each.value.role is Role.PARAMETER and each.value.argument == row.value.slot
        }
        users = [each for each in self._lone_inputs if fingerprint(each.value) in keys - {None}]
        shares = [self._handed_back(each, each.pair.target is not None) for each in users]
        lone = [share for share in shares if share is not None and share.value.is_tensor]
        self._blame_lone(lone)
        return bool(lone)

    @cached_property
    def _lone_inputs(self) -> list[Row]:
        """Inputs of the calls that one side alone makes."""
        return [
            row
            for row in self._state.rows
            if not row.pair.is_matched and row.value.role is Role.INPUT
        ]

    def _is_noise(self, call: Call, row: Row) -> bool:
        """Return whether a gradient is zero up to the rounding of the sum that made it.

        Such are those of a bias before a norm, or of one that a softmax does not depend on.
        """
        result = operand_of(row)
        _, name = module_names(call.parsed.base, 0)
        for is_target in (True, False):
            backward = self._state.calls.named(name, is_target=is_target)
            if result is None or backward is None:
                continue
            taken_in = [each for each in map(exact_operand, _values(backward.inputs)) if each]
            return is_summed_noise(call.operator.family, taken_in, result)
        return False

    def _module_record(self, call: Call, direction: RecordKind) -> Call | None:
        """Return the first record of a module in a direction, if both sides have it."""
        forward, backward = module_names(call.parsed.base, 0)
        name = forward if direction is RecordKind.FORWARD else backward
        found = self._state.calls.named(name, is_target=call.pair.target is not None)
        return found if found is not None and found.is_matched else None

    def judge_unmatched_backward(self, call: Call) -> None:
        """Judge a backward record that one side lacks though both made the forward call."""
        state = self._state
        forward = state.calls.forward_of(call)
        if forward is None or not forward.is_matched:
            return
        cut = any(lost_gradient(row) for row in forward.outputs)
        lost_before = self._lost_before(forward)
        lost = next((row for row in forward.inputs if lost_gradient(row)), None)
        detached = None if lost is None else _side_without(lost)
        explained = state.has_difference and not cut
        is_idle = lost is not None and cut and not self._leads_to_leaf(forward.inputs)
        for row in call.rows:
            if not row.status.is_difference:
                continue
            if is_idle:
                row.cause, row.subject = Cause.HARMLESS, NEEDS_GRADIENT
            elif explained or lost_before:
                row.origin = Origin.INHERITED
            elif cut and detached is not None:
                mark(row, Origin.INTRODUCED, Cause.DETACHED, detached)
            elif cut:
                mark(row, Origin.INTRODUCED, Cause.CUT_HERE)
            elif row.value.is_tensor:
                mark(row, Origin.INTRODUCED, Cause.NO_GRADIENT)

    def is_idle(self, call: Call, row: Row) -> bool:
        """Return whether a gradient that one side lacks would lead to nothing that needs one.

        All behind it is frozen, though a hook makes a value there ask for a gradient, as adapters
        do for gradient checkpointing.
        """
        forward = self._state.calls.forward_of(call)
        if forward is None or row.status not in _LACKING:
            return False
        place = row.value.argument
        incoming = [each for each in forward.inputs if each.value.argument == place]
        return any(map(lost_gradient, incoming)) and not self._leads_to_leaf(incoming)

    def _leads_to_leaf(self, rows: Iterable[Row]) -> bool:
        """Return whether values come from one that needs a gradient and that no call made."""
        state = self._state
        waiting = [row for row in rows if row.holds_tensor]
        seen: set[int] = set()
        while waiting and len(seen) < _FARTHEST:
            row = waiting.pop()
            found = state.flow.makers(row)
            makers = {*found.target, *found.reference}
            if not makers and any(value.requires_grad is not False for value in row.values):
                return True
            for maker in (state.calls.of(state.rows[index]) for index in makers):
                if maker.start not in seen:
                    seen.add(maker.start)
                    waiting += [each for each in maker.inputs if each.holds_tensor]
        return bool(waiting)

    def explains_missing_gradient(self, call: Call, row: Row) -> bool:
        """Return whether a gradient is None because the forward pass cut the graph before.

        Blames an unmatched call that did it.
        """
        state = self._state
        forward = state.calls.forward_of(call)
        if forward is None:
            return False
        place = row.value.argument
        for incoming in forward.inputs:
            if incoming.value.argument != place:
                continue
            if not lost_gradient(incoming):
                return self._is_cut_behind(incoming)
            makers = state.flow.makers(incoming)
            if self._unmatched.blame_cut({*makers.target, *makers.reference}):
                return True
            common = makers.common
            # Where the maker's own result still requires one, it was detached on the way.
            if common is not None and lost_gradient(state.rows[common]):
                return self._has_backward(state.calls.of(state.rows[common]))
        return False

    def _is_cut_behind(self, row: Row) -> bool:
        """Return whether a call that a value comes from was given something without a gradient.

        A backward pass that asks for some gradients only passes over what does not lead to them.
        """
        state = self._state
        sources = self._makers_of_inputs
        first = state.flow.makers(row).common
        if first is None:
            return False
        call = state.calls.of(state.rows[first])
        behind = (call, *(maker for _, maker in state.upstream(call, sources, _FARTHEST)))
        return any(lost_gradient(each) for one in behind for each in one.inputs)

    def _makers_of_inputs(self, call: Call) -> Iterator[tuple[Row, int]]:
        for row in call.inputs:
            common = self._state.flow.makers(row).common if row.holds_tensor else None
            if common is not None:
                yield row, common

    def is_summed_elsewhere(self, call: Call, row: Row) -> bool:
        """Return whether a gradient that one side lacks is part of another call's, or holds it.

        Autocast casts a parameter once for all calls that share it: the first of them is then seen
        to hand back the gradients of all, after the others handed back none.
        """
        if (row.pair.position, row.value.argument) in self._summed:
            return True
        shares = self._shares_of_input(call, row) if row.status in _LACKING else []
        for parts in _sums(shares):
            if _is_one_sum(parts) or self._is_sum_of_others(parts):
                self._summed |= {(part.pair.position, part.value.argument) for part in parts}
        return (row.pair.position, row.value.argument) in self._summed

    def _is_sum_of_others(self, parts: Sequence[Row]) -> bool:
        """Return whether the sum is of other gradients, of calls that cast what they are given."""
        calls = [self._state.calls.of(part) for part in parts]
        given = [row for call in calls for row in call.inputs]
        types = [value.dtype for row in given for value in row.values if value.is_tensor]
        coarsest = max(map(epsilon_of, types), default=0.0)
        return any(row.status.is_difference for row in given) and all(
            coarsest > epsilon_of(value.dtype)
            for part in parts
            for value in part.values
            if value.is_tensor
        )

    def _shares_of_input(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that all calls hand back for what this call hands back one for."""
        state = self._state
        forward = state.calls.forward_of(call)
        used = [] if forward is None else [e for e in forward.inputs if e.value.requires_grad]
        incoming = next((each for each in used if each.value.argument == row.value.argument), None)
        if incoming is None or lost_gradient(incoming):
            return []
        found: dict[int, Row] = {}
        for is_target, flow in ((True, state.flow.target), (False, state.flow.reference)):
            for index in flow.users(incoming, by_content=True):
                share = self._handed_back(state.rows[index], is_target)
                if share is not None:
                    found[id(share)] = share
        return list(found.values())

    def is_detached(self, call: Call, row: Row) -> bool:
        """Return whether the forward call was given a gradient's input without one on one side."""
        forward = self._state.calls.forward_of(call)
        return forward is not None and any(
            incoming.value.argument == row.value.argument and lost_gradient(incoming)
            for incoming in forward.inputs
        )

    def _has_backward(self, forward: Call) -> bool:
        """Return whether the backward record of a call exists on one side, to be blamed itself."""
        calls = self._state.calls
        return forward.is_matched and any(
            calls.backward_of(forward, is_target=is_target) is not None
            for is_target in (True, False)
        )

    def _lost_before(self, forward: Call) -> bool:
        """Return whether a call got a value whose maker had already lost the gradient.

        Where the maker's own result still requires one, it was detached on the way here.
        """
        state = self._state
        for row in forward.inputs:
            if not lost_gradient(row):
                continue
            makers = state.flow.makers(row)
            if self._unmatched.blame_cut({*makers.target, *makers.reference}):
                return True
            if makers.common is not None and lost_gradient(state.rows[makers.common]):
                return True
        return False

    def _judge_unknown(self, row: Row) -> None:
        state = self._state
        if state.may_inherit(row):
            state.inherit_unrecorded(row)
        elif state.worst_close and row.error is not None and row.error <= _doubtful(row):
            mark(row, Origin.INHERITED, Cause.UNTRACED)
        else:
            mark(row, Origin.INTRODUCED, Cause.UNEXPLAINED_GRADIENT)

    def _shares(self, call: Call, row: Row) -> list[Row] | None:
        """Return the gradients that consumers of a value handed back; None if not known."""
        state = self._state
        forward = state.calls.forward_of(call)
        if forward is None:
            return None
        place = row.value.slot.replace("input.", "output.", 1)
        made = next((out for out in forward.outputs if out.value.slot == place), None)
        if made is None or made.value.value_id is None:
            return None
        shares: dict[int, Row] = {}
        for is_target, flow in ((True, state.flow.target), (False, state.flow.reference)):
            for index in flow.users(made):
                share = self._handed_back(state.rows[index], is_target)
                if share is not None and share.pair.position < row.pair.position:
                    shares[id(share)] = share
        return list(shares.values())

    def _handed_back(self, used: Row, is_target: bool) -> Row | None:
        """Return the row of the gradient that a consumer returned for one of its inputs."""
        state = self._state
        value = used.target if is_target else used.reference
        call = state.calls.of(used)
        if value is None or call.parsed.is_module:
            return None  # the calls inside a module are looked at themselves
        consumer = state.calls.backward_of(call, is_target=is_target)
        if consumer is None:
            return None
        place = value.argument
        return next((row for row in consumer.outputs if row.value.argument == place), None)

    def _is_sum_of(self, row: Row, shares: Iterable[Row]) -> bool:
        """Return whether errors of the shares, and the rounding of a sum, explain a difference."""
        result = operand_of(row)
        if result is None:
            return False
        operands = [operand for operand in map(operand_of, shares) if operand is not None]
        errors = sum(operand.error for operand in operands)
        sizes = sum(operand.size for operand in operands)
        return result.error <= SUM_GROWTH * (errors + 2 * result.epsilon * sizes)

    def _parameter_shares(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that calls inside a module handed back for a parameter."""
        shape = row.value.squeezed_shape
        module = call.parsed.path
        return [
            share
            for share in self._gradients_by_module[module]
            if share.value.squeezed_shape == shape and share.pair.position < row.pair.position
        ]

    def _accumulated_before(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that a parameter had earlier in the step."""
        return [
            each
            for each in self._parameter_gradients[call.parsed.base]
            if each.value.slot == row.value.slot and each.pair.position < row.pair.position
        ]

    @cached_property
    def _gradients_by_module(self) -> dict[str, list[Row]]:
        """Gradients returned by the API calls of each module, for anything."""
        found: dict[str, list[Row]] = defaultdict(list)
        calls = self._state.calls
        position, module, is_wanted = -1, "", False
        for row in self._state.rows:
            pair = row.pair
            if pair.position != position:
                position = pair.position
                parsed = calls.parse(pair)
                is_wanted = parsed.kind is RecordKind.BACKWARD and not parsed.is_module
                module = calls.module(pair) if is_wanted else ""
            if is_wanted and row.value.role is Role.OUTPUT:
                found[module].append(row)
        return found

    @cached_property
    def _parameter_gradients(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self._state.rows:
            if row.value.role is Role.PARAMETER_GRAD:
                found[self._state.calls.parse(row.pair).base].append(row)
        return found


def _sums(shares: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the gradients that one call may hand back as one, in each micro batch.

    It is the last of them, and the others have none on its side.
    """
    parts: list[Row] = []
    for share in sorted(shares, key=lambda each: each.pair.position):
        parts.append(share)
        if share.status not in _LACKING:
            if len(parts) > 1:
                yield parts
            parts = []


def _is_one_sum(parts: Sequence[Row]) -> bool:
    """Return whether gradients that one side lacks in part add up to the same."""
    apart: complex = 0.0
    for part in parts:
        target, reference = (_tensor(each) for each in (part.target, part.reference))
        apart += _pair_of(target) - _pair_of(reference)
    missing = [_norm_of(part) for part in parts if part.status in _LACKING]
    return math.hypot(apart.real, apart.imag) <= _LITTLE * math.hypot(*missing)


def _tensor(value: Value | None) -> Value | None:
    return value if value is not None and value.is_tensor else None


def _norm_of(row: Row) -> float:
    """Return the norm of a gradient that one side has."""
    known = [v.norm for v in (row.target, row.reference) if v is not None and v.is_tensor]
    return known[0] or 0.0 if known else 0.0


def _pair_of(value: Value | None) -> complex:
    """Return the projections of a gradient, which add up as the gradients do; NaN if unknown."""
    if value is None:
        return 0.0
    return math.nan if value.pair is None else value.pair


def _add_up(row: Row, shares: Sequence[Row]) -> bool:
    """Return whether a gradient is the sum of its shares on both sides, as projections tell."""
    if not isinstance(row, Matched) or not all(isinstance(each, Matched) for each in shares):
        return False
    operands = [each for each in map(operand_of, (row, *shares)) if each is not None]
    if len(operands) < len(shares) + 1:
        return False
    rounding = SUM_GROWTH * operands[0].epsilon * sum(each.size for each in operands)
    for total, parts in zip(
        row.values, zip(*(each.values for each in shares), strict=True), strict=True
    ):
        pairs = [total.pairs_with(part) for part in parts]
        if None in pairs or abs((total.pair or 0) - sum(p[1] for p in pairs if p)) > rounding:
            return False
    return True


def _values(rows: Iterable[Row]) -> list[Value]:
    return [row.value for row in rows]


def _doubtful(row: Row) -> float:
    """Return how far a gradient may be apart and still be what becomes of rounding."""
    return _DOUBTFUL if len({value.dtype for value in row.values}) == 1 else math.inf


def _side_without(row: Row) -> str:
    """Return the side where a value requires no gradient, in words."""
    return "reference" if row.value.requires_grad else "target"
