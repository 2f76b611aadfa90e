# SPDX-License-Identifier: Apache-2.0
"""`find_origins`: separates the originating call from calls that inherit the difference.

The operations are gone through in their order. A difference in an input of a call is traced to
the call that made it (`incoming`, `gradient_flow`). A difference in a result is compared with the
error that the call's inputs and its own rounding explain (`outgoing`, over `arrivals` and
`conditioning`). Calls that one side lacks are judged by the users of their results
(`unmatched_calls`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Mode, Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import IN_OTHER_CALLS
from msprobe.compare.verdicts.arrivals import (
    SAFETY,
)
from msprobe.compare.verdicts.calls import Call, Calls
from msprobe.compare.verdicts.cut_gradients import CutGradients
from msprobe.compare.verdicts.data_flow import DataFlow, OutsideValues
from msprobe.compare.verdicts.excused_calls import ExcusedCalls
from msprobe.compare.verdicts.gradient_flow import GradientFlow
from msprobe.compare.verdicts.incoming import Incoming
from msprobe.compare.verdicts.limits import differs_in_limit_alone
from msprobe.compare.verdicts.origin_state import (
    OriginState,
    StartState,
    lost_gradient,
    mark,
    settle_as_close,
)
from msprobe.compare.verdicts.outgoing import Outgoing
from msprobe.compare.verdicts.read_numbers import read_numbers
from msprobe.compare.verdicts.retract_harmless import USERS, retract_inconsequential
from msprobe.compare.verdicts.same_inputs import doubt_inputs
from msprobe.compare.verdicts.statistics_error import statistics_error
from msprobe.compare.verdicts.unmatched_calls import Blame, UnmatchedCalls
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of
from msprobe.numerics.tolerances import EXACT
from msprobe.operators.operator import Family


def find_origins(comparison: RankComparison) -> None:
    """Fill in the origin of every row that differs; needs `judge_rows` before.

    A difference that turns out to be below the rounding of the call that made it becomes close.
    """
    calls = Calls(comparison)
    rows = comparison.rows
    state = OriginState(
        comparison=comparison,
        start=StartState(comparison),
        calls=calls,
        flow=DataFlow(rows, comparison.reference.names),
        outside=OutsideValues(rows, lambda row: calls.is_model_call(row.pair)),
    )
    _Search(state).run()


class _Search:
    def __init__(self, state: OriginState) -> None:
        self._state = state
        self._unmatched = UnmatchedCalls(state)
        self._excused = ExcusedCalls(state)
        self._cut = CutGradients(state, self._unmatched)
        self._gradients = GradientFlow(state, self._unmatched)
        self._incoming = Incoming(state, self._unmatched, self._gradients)
        self._outgoing = Outgoing(
            state, self._unmatched, self._cut, self._gradients, self._incoming
        )

    def run(self) -> None:
        """Go through all operations."""
        state = self._state
        rows = state.rows
        if state.comparison.mode is Mode.STATISTICS:
            self._see_through_moves()
        seen = 0
        sums: list[Call] = []
        for call in state.calls:
            self._note(rows[seen : call.start])
            seen = call.start + len(call.rows)
            if call.parsed.kind in PARAMETER_GRADIENTS:
                sums.append(call)
                continue
            if not call.is_backward:
                self._judge_sums(sums)
            self._judge(call)
            is_idle = _makes_the_same(call)
            self._note(r for r in call.rows if not (is_idle and r.value.role is Role.INPUT))
        self._judge_sums(sums)
        self._clear_suspects()
        self._blame_parts()
        self._judge_losses()
        state.comparison.kept = frozenset(self._makers_of_kept())
        self._unmatched.settle_rest()
        read = read_numbers(state.calls, state.flow)
        retract_inconsequential(state.calls, state.flow, read)
        doubt_inputs(state)

    def _see_through_moves(self) -> None:
        """Let a value without projections differ as the copy or view of it does that has some."""
        moving = [c for c in self._state.calls if c.operator.family is Family.MOVING]
        for call in reversed(moving):
            taken_in = [row for row in call.inputs if row.holds_tensor]
            if len(taken_in) != 1 or len(call.outputs) != 1:
                continue
            given, made = taken_in[0], call.outputs[0]
            if made.status is not Status.DIFFERS or given.status.is_difference:
                continue
            if any(value.pair is not None for value in given.values):
                continue
            extents = [[(v.max, v.min, v.norm) for v in row.values] for row in (given, made)]
            if extents[0] != extents[1]:
                continue
            common = self._state.flow.makers(given).common
            for row in (given, *([] if common is None else [self._state.rows[common]])):
                row.status, row.error, row.finding = made.status, made.error, made.finding

    def _makers_of_kept(self) -> Iterator[int]:
        """Yield the places of calls that change a buffer or a parameter; blames those of one side.

        Neither the loss nor a gradient of the step need show it.
        """
        state = self._state
        if not state.start.has_kept:
            return
        rows = state.rows
        waiting = [
            index
            for index, row in enumerate(rows)
            if row.status.is_difference
            and row.value.role is Role.OUTPUT
            and state.start.is_kept(row)
        ]
        for index in waiting:
            if not rows[index].pair.is_matched:
                self._unmatched.blame_for(rows[index])
        seen: set[int] = set()
        while waiting:
            call = state.calls.of(rows[waiting.pop()])
            if call.start in seen:
                continue
            seen.add(call.start)
            yield call.pair.position
            for row in call.inputs:
                made = set(state.flow.makers(row).first)
                waiting += [index for index in made if rows[index].status.is_difference]

    def _judge_sums(self, sums: list[Call]) -> None:
        """Judge gradients of parameters, after all that a backward pass hands back.

        The sides may have them complete at other places of it.
        """
        is_first = not self._state.has_difference
        if is_first and any(row.status.is_difference for call in sums for row in call.rows):
            self._judge_losses(until=sums[-1].pair.position)
        for call in sums:
            self._judge(call)
            self._note(call.rows)
        sums.clear()

    def _judge_losses(self, until: float = math.inf) -> None:
        """Blame the calls of one side alone that the first loss that differs is made by.

        The backward pass is the user of their result. Where a difference begins elsewhere, the loss
        may follow from it.

        Args:
            until: place of the last call by which the losses are made.
        """
        if any(row.origin in (Origin.INTRODUCED, Origin.INPUT) for row in self._state.rows):
            return
        target, reference = (self._state.calls.losses(is_target=side) for side in (True, False))
        for both in zip(target, reference, strict=False):
            if any(loss.pair.position > until for loss in both) or self._judge_loss(*both):
                return

    def _judge_loss(self, *both: Call) -> bool:
        """Return whether two losses differ; blames the calls of one side alone that made them."""
        outputs = [loss.outputs for loss in both]
        if [*map(len, outputs)] != [1, 1]:
            return False
        target, reference = (rows[0] for rows in outputs)
        error = statistics_error(target.value, reference.value, EXACT).relative
        epsilon = epsilon_of(reference.value.dtype)
        if error is None or error <= IN_OTHER_CALLS * epsilon:
            return False
        lone = [loss for loss in (target, reference) if not loss.pair.is_matched]
        largest = max(map(self._unmatched.largest_input, lone), default=0.0)
        # It may be the small difference of large numbers.
        if error * (reference.value.norm or 0.0) <= SAFETY * epsilon * largest:
            return False
        for loss in lone:
            if self._unmatched.blame_for(loss) is Blame.CALL:
                self._state.has_difference = self._gradients.has_other_loss = True
        return True

    def _clear_suspects(self) -> None:
        """Clear the arguments whose calls showed no effect of them."""
        for suspects in self._state.suspects.values():
            for row in suspects:
                row.cause = Cause.NO_EFFECT

    def _blame_parts(self) -> None:
        """Blame a part for its input where the module around it makes nothing that differs."""
        calls = self._state.calls
        for parent, row in self._state.blamed_parents.items():
            around = calls.named(parent, is_target=row.pair.target is not None)
            shown = () if around is None else around.rows
            if not any(each.origin is Origin.INTRODUCED for each in shown):
                row.origin = Origin.INTRODUCED

    def _judge(self, call: Call) -> None:
        kind = call.parsed.kind
        for row in call.rows:
            if differs_in_limit_alone(row):
                settle_as_close(row, Cause.SAME_LIMIT)
                row.error = None
        if any(row.value.role is Role.SAVED for row in call.rows):
            self._judge_saved(call)
        elif kind in PARAMETER_GRADIENTS:
            for row in call.rows:
                if row.status.is_difference:
                    self._gradients.judge_parameter_gradient(call, row)
        elif not call.is_matched:
            if call.is_backward:
                self._cut.judge_backward(call)
            self._unmatched.blame_for_nan(call)
        else:
            self._judge_matched(call)

    def _judge_matched(self, call: Call) -> None:
        if self._excused.is_exchanged(call) or self._excused.makes_scale(call):
            for row in call.rows:
                if row.status.is_difference:
                    row.cause, row.subject = Cause.HARMLESS, USERS
            return
        self._incoming.judge(call)
        self._outgoing.judge(call)
        if call.start in self._state.suspects and self._acts_unseen(call):
            self._state.convict(call.start)
        self._excused.excuse_choice(call)

    def _note(self, rows: Iterable[Row]) -> None:
        """Remember the differences of these rows; harmless extra calls do not count."""
        state = self._state
        for row in rows:
            if row.status.is_difference:
                # Nothing but the optimizer uses the gradient of a parameter.
                is_passed_on = row.value.role is not Role.PARAMETER_GRAD
                if row.origin is Origin.INTRODUCED or (is_passed_on and row.origin is not None):
                    state.has_difference = True
                    state.first_different = state.first_different or row.pair
                if row.origin is Origin.INTRODUCED:
                    state.note_blamed(row)
                elif row.origin is Origin.INHERITED and row.cause is not Cause.UNTRACED:
                    state.worst_inherited = max(state.worst_inherited, row.error or 0.0)
            elif row.error is not None and row.error > state.worst_close:
                state.worst_close = row.error

    def _judge_saved(self, call: Call) -> None:
        """Judge values that the user saved: only their order is known."""
        for row in call.rows:
            if not row.status.is_difference:
                continue
            if self._state.has_difference:
                row.origin = Origin.INHERITED
            else:
                mark(row, Origin.INTRODUCED, Cause.FIRST_SAVED)

    def _acts_unseen(self, call: Call) -> bool:
        """Return whether the effect of an argument may be where the record does not show it.

        A call may change a buffer, random state or the graph; calls without a result do nothing
        else.
        """
        shown = [row for row in call.outputs if row.holds_tensor]
        if not shown or (
            any(map(lost_gradient, shown)) and not any(map(lost_gradient, call.inputs))
        ):
            return not (call.parsed.is_module and self._state.calls.has_inner(call))
        names = call.operator.state_arguments
        signature = signature_of(call.parsed.base)
        return any(
            signature.name_of(row.value.argument) in names
            for row in self._state.suspects[call.start]
        )


def _makes_the_same(call: Call) -> bool:
    """Return whether all results of a module are equal, whatever it was given."""
    made = [row for row in call.outputs if row.holds_tensor]
    is_forward = call.parsed.is_module and call.parsed.kind is RecordKind.FORWARD
    return is_forward and bool(made) and all(row.status is Status.EQUAL for row in made)
