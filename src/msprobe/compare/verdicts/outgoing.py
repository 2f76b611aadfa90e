# SPDX-License-Identifier: Apache-2.0
"""Differences in the results of a call: inherited from its inputs, or introduced by the call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Mode, Origin, Row, Status
from msprobe.compare.rounding import NEAR
from msprobe.compare.training.gradient_factors import multiple_words
from msprobe.compare.verdicts.arrivals import (
    SAFETY,
    Arrivals,
    error_bound,
    explained_error,
    safety_in,
)
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import Bound, Operand, operand_of, sum_in_own_type
from msprobe.compare.verdicts.cut_gradients import NEEDS_GRADIENT, CutGradients
from msprobe.compare.verdicts.gradient_flow import GradientFlow
from msprobe.compare.verdicts.incoming import Incoming
from msprobe.compare.verdicts.limits import is_beyond_type
from msprobe.compare.verdicts.mask_differences import hidden_difference
from msprobe.compare.verdicts.origin_state import (
    OriginState,
    inherit,
    is_lacking,
    mark,
    settle_as_close,
)
from msprobe.compare.verdicts.retract_harmless import USERS
from msprobe.compare.verdicts.unmatched_calls import Blame, UnmatchedCalls
from msprobe.operators.operator import Family

# Calls to look at behind an input of another shape.
_FARTHEST: Final = 200
# NaN and Inf can follow from differences of this relative size; smaller ones do not explain them.
_LARGE_ERROR: Final = 0.5


class Outgoing:
    """Judges the results of calls."""

    def __init__(
        self,
        state: OriginState,
        unmatched: UnmatchedCalls,
        cut: CutGradients,
        gradients: GradientFlow,
        incoming: Incoming,
    ) -> None:
        self._state = state
        self._unmatched = unmatched
        self._cut = cut
        self._gradients = gradients
        self._incoming = incoming
        self._safety = safety_in(state.comparison.mode)
        self._is_exact_mode = state.comparison.mode is Mode.MD5
        self._sees_statistics_only = state.comparison.mode is Mode.STATISTICS

    def judge(self, call: Call) -> None:
        """Set the origin of all results of a call that differ."""
        differing = [row for row in call.outputs if row.status.is_difference]
        if not differing:
            return
        if call.is_backward and self._belongs_to_lone_call(call):
            for row in differing:
                mark(row, Origin.INHERITED)
            return
        incoming = Arrivals.of(self._state, call)
        for row in differing:
            if call.is_backward and self._gradients.is_summed_elsewhere(call, row):
                mark(row, Origin.INHERITED, Cause.SUM_OF_CLOSE)
            elif call.is_backward and self._cut.is_idle(call, row):
                row.cause, row.subject = Cause.HARMLESS, NEEDS_GRADIENT
            elif is_lacking(row) and self._is_unused(call, row):
                row.cause, row.subject = Cause.HARMLESS, USERS
            else:
                self._judge_output(call, row, incoming)

    def _belongs_to_lone_call(self, call: Call) -> bool:
        """Return whether calls that only one side makes explain other gradients; blames them.

        The same gradient came in, as the loss was made of other calls, but not by the same call.
        """
        if self._state.has_difference or any(row.status.is_difference for row in call.inputs):
            return False
        forwards = self._state.calls.forwards_of(call)
        return any(
            self._unmatched.blame_for(forward.rows[0]) is Blame.CALL
            for forward in forwards
            if not forward.is_matched
        )

    def _judge_output(self, call: Call, row: Row, incoming: Arrivals) -> None:
        state = self._state
        if call.pair.name in state.blamed_parents:
            self._blame_own_code(call, row)
            return
        if call.parsed.is_module and self._judge_by_maker(call, row):
            return
        if incoming.suspect is not None and self._shows_argument(call, row, incoming):
            state.convict(incoming.suspect)
            mark(row, Origin.INTRODUCED)
            return
        if is_lacking(row):
            if row.holds_tensor:  # else a cache by another name: what takes it in tells its effect
                self._judge_lost(call, row, incoming)
            return
        if self._judge_hidden(call, row, incoming):
            return
        if call.parsed.is_module and self._judge_by_parts(call, row, incoming):
            return
        if row.cause is Cause.LONE_PRECISION and not incoming.differs:
            mark(row, Origin.INTRODUCED)
        elif row.status is Status.NONFINITE:
            self._judge_nonfinite(call, row, incoming)
        elif row.status in (Status.SHAPE, Status.DTYPE):
            is_inherited = incoming.differs or self._blame_reshaping(call)
            mark(row, Origin.INHERITED if is_inherited else Origin.INTRODUCED)
        else:
            self._judge_size(call, row, incoming)

    def _judge_by_maker(self, call: Call, row: Row) -> bool:
        """Judge a module's result by the call that made it; return whether that settles it."""
        source = self._source_inside(call, row)
        if source is not None:
            self._share_fate(row, source)
        elif self._is_made_by_lone_call(row):
            mark(row, Origin.INHERITED)
        else:
            return not call.is_backward and self._blame_return(row)
        return True

    def _blame_return(self, row: Row) -> bool:
        """Blame a module for the result of another call that it returns; return whether it did.

        Both sides make either result, to values that agree: one is returned too early, say.
        """
        rows, makers = self._state.rows, self._state.flow.makers(row)
        made = [rows[side[0]] for side in (makers.target, makers.reference) if side]
        agree = all(each.pair.is_matched and each.status is Status.EQUAL for each in made)
        if len(made) < 2 or made[0].pair is made[1].pair or not agree:
            return False
        mark(row, Origin.INTRODUCED, Cause.OTHER_RETURN, self._incoming.made_by(row, makers))
        return True

    def _blame_reshaping(self, call: Call) -> bool:
        """Blame what gave the numbers that a call takes in another shape; return whether it did.

        By itself that has no consequence. Where shapes are broadcast it may have, as in a loss.
        """
        state = self._state
        return any(
            state.convict(maker.start)
            or (not maker.is_matched and self._unmatched.blame_for(made) is Blame.CALL)
            for made, maker in state.upstream(call, self._makers_of_reshaped, _FARTHEST)
        )

    def _makers_of_reshaped(self, call: Call) -> Iterator[tuple[Row, int]]:
        for row in call.inputs:
            if row.holds_tensor and len({value.shape for value in row.values}) > 1:
                for index in set(self._state.flow.makers(row).first):
                    yield self._state.rows[index], index

    def _judge_by_parts(self, call: Call, row: Row, incoming: Arrivals) -> bool:
        """Judge a module's result by those of the calls inside; return whether that settles it."""
        state = self._state
        if not state.calls.has_inner(call):
            return False
        is_near_parts = self._is_near_parts(call, row)
        if state.has_difference:
            is_explained = is_near_parts or incoming.is_near(row)
            mark(row, Origin.INHERITED, None if is_explained else Cause.UNTRACED)
        elif is_near_parts:  # they were computed in a coarser type, under autocast
            settle_as_close(row, Cause.CLOSE_INPUTS)
        return state.has_difference or is_near_parts

    def _source_inside(self, call: Call, row: Row) -> Row | None:
        """Return the row that made a module's result on both sides, perhaps before extra casts."""
        rows = self._state.rows
        makers = self._state.flow.makers(row)
        if makers.common is not None:
            return rows[makers.common]
        if not (makers.target and makers.reference):
            # Not every cast is recorded.
            made = (each for part in self._state.calls.parts(call) for each in part.outputs)
            return next((each for each in made if _has_numbers_of(each, row)), None)
        target, reference = makers.target[0], makers.reference[0]
        source = self._unmatched.seen_through(target)
        return rows[source] if source == self._unmatched.seen_through(reference) else None

    def _is_near_parts(self, call: Call, row: Row) -> bool:
        """Return whether a module's result is hardly further apart than those of its parts.

        Where APIs were recorded they tell themselves what becomes of these, but for the sums of
        gradients that several of them hand back.
        """
        calls = self._state.calls
        is_told = calls.records_apis and not call.is_backward
        if is_told or row.status is not Status.DIFFERS or row.error is None:
            return False
        made = (each for part in calls.parts(call) for each in part.outputs)
        errors = (each.error or 0.0 for each in made if each.holds_tensor)
        return row.error <= NEAR * max(errors, default=0.0)

    def _blame_own_code(self, call: Call, row: Row) -> None:
        """Blame a tensor that only one side gives to a module or a part, else its own code."""
        first = self._state.blamed_parents[call.pair.name]
        lacking = [each for each in call.inputs if _is_lacking(each)]
        if is_lacking(first) and first.holds_tensor:
            lacking.append(first)
        for each in lacking:
            mark(each, Origin.INTRODUCED, Cause.ARGUMENT)
        if lacking:
            mark(row, Origin.INHERITED)
        else:
            shown = ": ".join(filter(None, (first.name, multiple_words(first))))
            mark(row, Origin.INTRODUCED, Cause.OWN_CODE, shown)

    def _judge_hidden(self, call: Call, row: Row, incoming: Arrivals) -> bool:
        """Let a result inherit from inputs whose difference statistics hide, if there are any."""
        if not self._sees_statistics_only or incoming.differs:
            return False
        hidden = hidden_difference(self._state, call)
        if hidden is None:
            return False
        is_explained = row.error is not None and row.error <= NEAR * hidden.error < math.inf
        if is_explained or hidden.differs:
            mark(row, Origin.INHERITED, None if is_explained else Cause.DOUBTFUL_MASK)
        return is_explained or hidden.differs

    def _is_made_by_lone_call(self, row: Row) -> bool:
        """Return whether calls that only one side makes explain a module's result; blames them."""
        makers = (self._state.rows[index] for index in self._state.flow.makers(row).first)
        return any(
            self._unmatched.blame_for(maker) is not Blame.CONSTANT
            for maker in makers
            if not maker.pair.is_matched
        )

    def _shows_argument(self, call: Call, row: Row, incoming: Arrivals) -> bool:
        """Return whether a result differs by more than the tensors that came in explain.

        The arguments of a module take effect in the calls inside it, where these are recorded.
        """
        state = self._state
        if call.parsed.is_module and state.calls.has_inner(call):
            is_told_inside = state.calls.records_apis or call.pair.name in state.blamed_inside
            if is_told_inside:
                return False
        if row.status is Status.NONFINITE:
            return not incoming.has_nonfinite and incoming.worst_error < _LARGE_ERROR
        if row.status is not Status.DIFFERS:
            return not incoming.is_broken
        if not incoming.is_inexact:
            return True
        result = operand_of(row)
        if result is None or row.error is None or row.error <= incoming.worst_error:
            return False
        bound = self._bound(call, row, incoming, result)
        return result.error > SAFETY * (bound.own + bound.passed_on)

    def _is_unused(self, call: Call, row: Row) -> bool:
        """Return whether a part hands back a tensor on one side alone that no other part takes.

        Its own results agree, and code of the module around it that uses this one shows in others.
        """
        state = self._state
        if not call.parsed.is_module or call.is_backward or state.calls.records_apis:
            return False
        flow = state.flow.reference if row.target is None else state.flow.target
        is_part = any(True for _ in state.calls.around(call.pair))
        agree = [
            each.status in (Status.EQUAL, Status.CLOSE) for each in call.outputs if each is not row
        ]
        return (
            is_part and row.holds_tensor and bool(agree) and all(agree) and not [*flow.users(row)]
        )

    def _share_fate(self, row: Row, maker: Row) -> None:
        if maker.status is Status.EQUAL:
            mark(row, Origin.INTRODUCED, Cause.OTHER_RESULT, maker.pair.name)
        else:
            inherit(row, maker)

    def _judge_lost(self, call: Call, row: Row, incoming: Arrivals) -> None:
        """Judge a result that one side does not have."""
        if incoming.differs:
            mark(row, Origin.INHERITED)
        elif call.is_backward and self._cut.explains_missing(call, row):
            mark(row, Origin.INHERITED, Cause.CUT_BEFORE)
        else:
            self._blame_call(call, row)

    def _judge_nonfinite(self, call: Call, row: Row, incoming: Arrivals) -> None:
        if incoming.has_nonfinite:
            mark(row, Origin.INHERITED)
        elif incoming.worst_error >= _LARGE_ERROR or (incoming.differs and incoming.is_broken):
            mark(row, Origin.AMPLIFIED, Cause.INPUTS_FAR_APART)
        elif incoming.reaches_zero:
            mark(row, Origin.AMPLIFIED, Cause.INPUTS_REACH_ZERO)
        elif any(is_beyond_type(each, row) for each in call.inputs):
            mark(row, Origin.INTRODUCED, Cause.BEYOND_TYPE)
        else:
            mark(row, Origin.INTRODUCED, Cause.FINITE_INPUTS)

    def _judge_size(self, call: Call, row: Row, incoming: Arrivals) -> None:
        """Compare the size of a difference with that explained by inputs and rounding."""
        if incoming.differs and row.error is not None and row.error <= incoming.worst_error:
            mark(row, Origin.INHERITED)
            return
        result = operand_of(row)
        if result is None or row.error is None:
            origin = Origin.INHERITED if incoming.differs else Origin.INTRODUCED
            mark(row, origin, self._randomness(call, incoming))
            return
        # It is beyond the noise of this value, though what came in is not: no estimate needed.
        is_measured = self._state.comparison.noise is not None and not incoming.differs
        bound = self._bound(call, row, incoming, result)
        may_settle = not (self._is_exact_mode or incoming.differs or is_measured)
        if may_settle and result.error <= SAFETY * bound.own:
            settle_as_close(row, Cause.ROUNDING)
            return
        explained = explained_error(bound, self._safety)
        is_explained = result.error <= explained or self._is_exact_mode
        if incoming.is_inexact and is_explained and not is_measured:
            if may_settle and row.error <= incoming.worst_error:
                settle_as_close(row, Cause.CLOSE_INPUTS)
            else:
                mark(row, Origin.INHERITED)
        elif incoming.differs:
            if incoming.is_broken or incoming.worst_error >= _LARGE_ERROR:
                mark(row, Origin.INHERITED)
            elif incoming.worst_error:
                growth = result.relative / incoming.worst_error
                about = "" if row.metrics is not None else "about "  # of two estimates
                mark(row, Origin.AMPLIFIED, Cause.GROWTH, f"{about}{growth:.3g}")
                self._state.comparison.growths[id(row)] = growth
            else:
                mark(row, Origin.AMPLIFIED, Cause.UNEXPLAINED)
        elif self._incoming.judge_forms(call):
            self._blame_reshaping(call)
            mark(row, Origin.INHERITED)
        elif self._sees_statistics_only and self._unmatched.blame_hidden(call):
            mark(row, Origin.INHERITED, Cause.REORDERED)
        elif call.is_backward:
            self._blame_call(call, row)
        else:
            mark(row, Origin.INTRODUCED, self._randomness(call, incoming))

    def _blame_call(self, call: Call, row: Row) -> None:
        if not (call.is_backward and self._cut.blame_lost(call, row)):
            mark(row, Origin.INTRODUCED)

    def _bound(self, call: Call, row: Row, incoming: Arrivals, result: Operand) -> Bound:
        has_inner = call.parsed.is_module and self._state.calls.has_inner(call)
        bound = error_bound(call, row, incoming, result, has_inner=has_inner, safety=self._safety)
        is_summed = call.is_backward and len(result.shape) <= 1 and self._has_other_threads
        if is_summed and call.operator.family is Family.NORMALISING:
            own = sum_in_own_type(incoming.incoming, result)
            return Bound(max(bound.own, own), bound.passed_on)
        return bound

    @cached_property
    def _has_other_threads(self) -> bool:
        """Whether sums over all rows are divided among other numbers of threads."""
        own, other = (
            None if facts is None else facts.settings.get("torch.cpu_threads")
            for facts in self._state.comparison.facts
        )
        return own != other

    def _randomness(self, call: Call, incoming: Arrivals) -> Cause | None:
        """Return the cause that a call may have: it draws random numbers."""
        if incoming.differs or call.pair.target is None:
            return None
        notes = self._state.comparison.target.view.records[call.pair.target].data
        return Cause.RANDOM_NUMBERS if isinstance(notes, dict) and "rng" in notes else None


def _is_lacking(row: Row) -> bool:
    """Return whether only one side was given a tensor."""
    return is_lacking(row) and row.holds_tensor and row.cause is Cause.UNRECORDED_CODE


def _has_numbers_of(made: Row, row: Row) -> bool:
    """Return whether each side holds the same numbers in two rows, of another type."""
    if not (isinstance(made, Matched) and isinstance(row, Matched)):
        return False
    pairs = [*zip(made.values, row.values, strict=True)]
    return any(own.dtype != other.dtype for own, other in pairs) and all(
        own.norm is not None
        and (own.shape, own.max, own.min, own.mean, own.norm)
        == (other.shape, other.max, other.min, other.mean, other.norm)
        for own, other in pairs
    )
