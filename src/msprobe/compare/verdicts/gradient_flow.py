# SPDX-License-Identifier: Apache-2.0
"""`GradientFlow`: differences in gradients that come into a call, or into a parameter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.rounding import IN_SUM
from msprobe.compare.training.buffers import changes_unseen
from msprobe.compare.verdicts.arrivals import safety_in
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import (
    backward_bound,
    exact_operand,
    is_summed_noise,
    operand_of,
)
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.gradient_shares import GradientShares, add_up
from msprobe.compare.verdicts.origin_state import (
    OriginState,
    inherit,
    is_lacking,
    is_shard,
    lacking_side,
    mark,
    settle_as_close,
)
from msprobe.compare.verdicts.unmatched_calls import UnmatchedCalls
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, module_names
from msprobe.dump.values import Role

# A loss such as a logarithm near zero enlarges more; so far apart it is not told from a fault.
_DOUBTFUL: Final = 0.01


class GradientFlow:
    """Judges incoming gradients.

    Attributes:
        is_summed_elsewhere: see `GradientShares`.
        has_other_loss: calls of one side alone are blamed for a loss, of which gradients are taken.
    """

    def __init__(self, state: OriginState, unmatched: UnmatchedCalls) -> None:
        self.has_other_loss = False
        self._state = state
        self._unmatched = unmatched
        self._safety = safety_in(state.comparison.mode)
        self._shares = GradientShares(state)
        self.is_summed_elsewhere = self._shares.is_summed_elsewhere

    def judge_incoming(self, call: Call, row: Row) -> None:
        """Judge the gradient of an output, whose maker is not a single recorded call."""
        state = self._state
        shares = self._shares.of_output(call, row)
        if self.has_lone_shares(call, row):
            mark(row, Origin.INHERITED)
            return
        if shares is None or (not shares and state.has_difference):
            self._judge_unknown(row)
            return
        if any(share.status.is_difference for share in shares):
            mark(row, Origin.INHERITED)
            return
        if self._shares.is_sum_of(row, shares):
            mark(row, Origin.INHERITED, Cause.SUM_OF_CLOSE)
            return
        # Shares of a second derivative, of what an earlier backward pass made, have no record.
        if state.has_difference and (call.parsed.is_module or call.parsed.backward_pass):
            state.inherit_unrecorded(row)
            return
        if shares and not self._shares.are_all_of(row, shares):
            self._judge_unknown(row)
            return
        mark(row, Origin.INTRODUCED, Cause.CHANGED_GRADIENT if shares else Cause.OTHER_START)

    def has_lone_shares(self, call: Call, row: Row) -> bool:
        """Return whether a gradient differs by shares of calls of one side, which are blamed."""
        shares = self._shares.of_output(call, row, by_content=True) or ()
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
        lone = [s.value for s in self._shares.of_output(call, row) or () if not s.pair.is_matched]
        sizes = [each.size for each in map(exact_operand, lone) if each is not None]
        return result.error <= IN_SUM * result.epsilon * max(sizes, default=0.0)

    def _blame_lone(self, shares: Iterable[Row]) -> None:
        """Blame calls of one side alone for a sum of gradients, if only theirs differ in it."""
        for share in () if self._state.has_difference else shares:
            if not share.pair.is_matched:
                self._unmatched.blame_for(share)

    def _blame_further(self, row: Row, shares: Sequence[Row]) -> None:
        """Blame calls that one side alone makes besides those of both, for the shares they add.

        Sides that make a gradient by other calls have shares of their own each, and come to the
        same but for what those calls round.
        """
        if len({share.status for share in shares}) == 1 or self._is_beyond(row, shares):
            self._blame_lone(shares)

    def _is_beyond(self, row: Row, shares: Sequence[Row]) -> bool:
        """Return whether a gradient is further apart than the calls of its shares round."""
        result = operand_of(row)
        if result is None or row.status is not Status.DIFFERS or not result.error:
            return False
        calls, own = self._state.calls, 0.0
        for backward in (calls.of(share) for share in shares):
            forward = calls.forward_of(backward)
            if backward.is_matched or forward is None:
                return False
            gradients, saved = (
                [each for r in rows if (each := exact_operand(r.value)) is not None]
                for rows in (backward.inputs, forward.rows)
            )
            own += backward_bound(backward.operator.family, gradients, saved, result).own
        return result.error > IN_SUM * own

    def judge_parameter_gradient(self, call: Call, row: Row) -> None:
        """Judge the gradient of a parameter, as it was accumulated."""
        if not call.is_matched and self._module_record(call, RecordKind.FORWARD) is None:
            return  # its module has no partner either, which is reported
        state = self._state
        if self._is_not_comparable(call, row):
            return
        if row.status is Status.DIFFERS and self._is_settled_alone(call, row):
            return
        makers = state.flow.makers(row)
        common = makers.common
        if common is not None:
            inherit(row, state.rows[common])
            return
        if makers.target and makers.reference and state.has_difference:
            mark(row, Origin.INHERITED, None if state.is_as_far(row) else Cause.OTHER_USERS)
            return
        shares = self._shares.of_parameter(call, row)
        if not shares and self._judge_by_module(call, row):
            return
        before = self._shares.accumulated_before(call, row)
        last = before[-1].pair.position if before else -1
        added = [*before[-1:], *(each for each in shares if each.pair.position > last)]
        # Gradients of the module's other parameters may be all that its calls are seen to make.
        is_told = bool(shares) and any(self._shares.are_all_of(row, s) for s in (shares, added))
        shares += before
        apart = [share for share in shares if share.status.is_difference]
        if apart:
            mark(row, Origin.INHERITED)
            self._blame_further(row, apart)
        elif shares and (self._shares.is_sum_of(row, shares) or add_up(row, added)):
            mark(row, Origin.INHERITED, Cause.SUM_OF_CLOSE)
        elif (
            self.has_other_loss
            or self._differs_in_module(call, row)
            or self._has_lone_user(call, row)
        ):
            mark(row, Origin.INHERITED)
        elif not is_told and (state.is_likely(row) if before else state.may_inherit(row)):
            state.inherit_unrecorded(row)
        elif not isinstance(row, Matched):
            mark(row, Origin.INTRODUCED, Cause.NO_PARAMETER_GRADIENT, lacking_side(row))
        else:
            mark(row, Origin.INTRODUCED, Cause.ACCUMULATED)

    def _is_not_comparable(self, call: Call, row: Row) -> bool:
        """Return whether the sides show other stages of a gradient, or one of them shows none."""
        if self._has_shards and call.parsed.kind is not RecordKind.PARAMETERS_GRAD_REDUCED:
            row.cause = Cause.SHARD  # one side shows what ranks made of it together
        elif is_lacking(row) and self._reads_none[row.status is Status.ADDED]:
            row.cause, row.subject = Cause.UNREAD_GRADIENTS, lacking_side(row)
        else:
            return False
        return True

    @cached_property
    def _has_shards(self) -> bool:
        """Whether one side alone holds a part of each gradient on each rank, as with FSDP."""
        comparison = self._state.comparison
        rows = (r for r in self._state.rows if r.value.role is Role.PARAMETER_GRAD)
        return isinstance(comparison.rank, int) and any(map(is_shard, rows))

    @cached_property
    def _reads_none(self) -> tuple[bool, bool]:
        """Whether a side changes parameters without an optimizer and shows none of their gradients.

        As compiled code does. It is not known that there was none.
        """
        comparison = self._state.comparison
        pairs = [p for p in comparison.pairs if comparison.parsed(p).kind in PARAMETER_GRADIENTS]
        has_any = any(p.target for p in pairs), any(p.reference for p in pairs)
        target, reference = (
            facts is not None and changes_unseen(facts) and not has
            for facts, has in zip(comparison.facts, has_any, strict=True)
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
        before = self._shares.accumulated_before(call, row)[-1:]
        rows = [each for one in passes for side in one for each in side.rows] + before
        if any(each.status.is_difference for each in rows):
            mark(row, Origin.INHERITED)
            return True
        own, passed_on = 0.0, sum(each.error for each in map(operand_of, before) if each)
        for forward, backward in passes:
            gradients = [each for each in map(operand_of, backward.inputs) if each is not None]
            saved = [each for each in map(operand_of, forward.rows) if each is not None]
            # Made in the type of the gradients, and cast to that of the parameter.
            coarsest = max(each.epsilon for each in (result, *gradients))
            made = replace(result, epsilon=coarsest)
            bound = backward_bound(call.operator.family, gradients, saved, made)
            own, passed_on = own + bound.own, passed_on + bound.passed_on
        if result.error <= IN_SUM * own:
            settle_as_close(row, Cause.ROUNDING)
        elif result.error <= self._safety * passed_on + IN_SUM * own:
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
        """Return whether a call uses a parameter that hands it a gradient on one side alone.

        One that this side alone makes is blamed, such as the penalty of a loss; of one that both
        sides make it is judged by itself what cuts the gradient.
        """
        module = self._module_record(call, RecordKind.FORWARD)
        keys = {
            fingerprint(each.value)
            for each in (module.inputs if module is not None else ())
            if each.value.role is Role.PARAMETER and each.value.argument == row.value.slot
        }
        lone = [s for each in keys - {None} for s in self._lone_shares.get(each, [])]
        self._blame_lone(lone)
        return bool(lone)

    @cached_property
    def _lone_shares(self) -> dict[Hashable, list[Row]]:
        """Value → the gradients that calls hand back for it on one side alone."""
        found: defaultdict[Hashable, list[Row]] = defaultdict(list)
        for row in self._state.rows:
            if row.value.role is Role.INPUT and row.value.is_tensor:
                shares = [self._shares.handed_back(row, is_target) for is_target in (True, False)]
                lone = [each for each in shares if each is not None and each.value.is_tensor]
                if len(lone) == 1 and not lone[0].pair.is_matched:
                    found[fingerprint(row.value)].append(lone[0])
        return found

    def _is_settled_alone(self, call: Call, row: Row) -> bool:
        """Settle a gradient that a side changed after a call handed it back, or that is noise."""
        if self._is_changed(call, row):
            if self._has_lone_user(call, row):
                mark(row, Origin.INHERITED)
            else:
                mark(row, Origin.INTRODUCED, Cause.ACCUMULATED)
        elif self._is_noise(call, row):
            settle_as_close(row, Cause.NOISE)
        else:
            return False
        return True

    def _is_changed(self, call: Call, row: Row) -> bool:
        """Return whether one side alone leaves a gradient as it was handed back, which agrees.

        One that is no further apart than that was but kept in another order of memory.
        """
        shares = self._shares.of_parameter(call, row)
        if any(not isinstance(each, Matched) or each.status.is_difference for each in shares):
            return False
        if row.error is not None and any(row.error <= (each.error or 0.0) for each in shares):
            return False
        sides = zip(*(each.values for each in shares), strict=True)
        both = zip(row.values, sides, strict=False)
        kept = {fingerprint(own) in map(fingerprint, handed_back) for own, handed_back in both}
        # What is cast on its way is not what was handed back.
        types = {value.dtype for each in (row, *shares) for value in each.values}
        return len(kept) == 2 and len(types) == 1

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
            taken_in = [each for row in backward.inputs if (each := exact_operand(row.value))]
            return is_summed_noise(call.operator.family, taken_in, result)
        return False

    def _module_record(self, call: Call, direction: RecordKind) -> Call | None:
        """Return the first record of a module in a direction, if both sides have it."""
        forward, backward = module_names(call.parsed.base, 0)
        name = forward if direction is RecordKind.FORWARD else backward
        found = self._state.calls.named(name, is_target=call.pair.target is not None)
        return found if found is not None and found.is_matched else None

    def _judge_unknown(self, row: Row) -> None:
        state = self._state
        limit = _DOUBTFUL if len({value.dtype for value in row.values}) == 1 else math.inf
        if state.may_inherit(row):
            state.inherit_unrecorded(row)
        elif state.worst_close and row.error is not None and row.error <= limit:
            mark(row, Origin.INHERITED, Cause.UNTRACED)
        else:
            mark(row, Origin.INTRODUCED, Cause.UNEXPLAINED_GRADIENT)
