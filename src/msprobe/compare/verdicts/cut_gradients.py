# SPDX-License-Identifier: Apache-2.0
"""`CutGradients`: gradients that one side lacks, as its forward pass cut the graph before them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Row, Status
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.data_flow import Makers, fingerprints
from msprobe.compare.verdicts.origin_state import OriginState, is_lacking, lost_gradient, mark
from msprobe.compare.verdicts.unmatched_calls import UnmatchedCalls
from msprobe.compare.verdicts.wiring import is_other_order

# What shows that a gradient is without consequence.
NEEDS_GRADIENT: Final = "what needs a gradient"
# Calls to look at behind an input without a gradient.
_FARTHEST: Final = 200


class CutGradients:
    """Judges gradients that one side lacks."""

    def __init__(self, state: OriginState, unmatched: UnmatchedCalls) -> None:
        self._state = state
        self._unmatched = unmatched

    def judge_backward(self, call: Call) -> None:
        """Judge a backward record that one side lacks though both made the forward call."""
        state = self._state
        forward = state.calls.forward_of(call)
        if forward is None or not forward.is_matched:
            return
        cut = any(lost_gradient(row) for row in forward.outputs)
        lost_before = self._lost_before(forward)
        lost = next((row for row in forward.inputs if lost_gradient(row)), None)
        explained = state.has_difference and not cut
        is_idle = lost is not None and cut and not self._leads_to_leaf(forward.inputs)
        for row in call.rows:
            if not row.status.is_difference:
                continue
            if is_idle:
                row.cause, row.subject = Cause.HARMLESS, NEEDS_GRADIENT
            elif explained or lost_before:
                row.origin = Origin.INHERITED
            elif cut and lost is not None:
                self._mark_lost(row, forward, lost)
            elif cut:
                mark(row, Origin.INTRODUCED, Cause.CUT_HERE)
            elif self._unmatched.blame_users(forward, is_target=call.pair.target is not None):
                row.origin = Origin.INHERITED
            elif row.value.is_tensor:
                is_later = self._is_later(call, forward)
                cause = Cause.LATER_GRADIENT if is_later else Cause.NO_GRADIENT
                mark(row, Origin.INTRODUCED, cause)

    def is_idle(self, call: Call, row: Row) -> bool:
        """Return whether a gradient that one side lacks would lead to nothing that needs one.

        All behind it is frozen, though a hook makes a value there ask for a gradient, as adapters
        do for gradient checkpointing.
        """
        given = self._given(call, row) if is_lacking(row) else ()
        return any(map(lost_gradient, given)) and not self._leads_to_leaf(given)

    def _leads_to_leaf(self, rows: Iterable[Row]) -> bool:
        """Return whether values come from one that needs a gradient and that no call made."""
        state = self._state
        waiting = [row for row in rows if row.holds_tensor]
        seen: set[int] = set()
        while waiting and len(seen) < _FARTHEST:
            row = waiting.pop()
            found = state.flow.makers(row)
            makers = {*found.target, *found.reference}
            needs_gradient = any(value.requires_grad is not False for value in row.values)
            if not makers and needs_gradient:
                return True
            for maker in (state.calls.of(state.rows[index]) for index in makers):
                if maker.is_backward and needs_gradient:
                    return True  # a derivative needs the gradients of what it is taken of
                if maker.start not in seen:
                    seen.add(maker.start)
                    waiting += [each for each in maker.inputs if each.holds_tensor]
        return bool(waiting)

    def explains_missing(self, call: Call, row: Row) -> bool:
        """Return whether a gradient is None because the forward pass cut the graph before.

        Blames an unmatched call that did it.
        """
        state = self._state
        for incoming in self._given(call, row):
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

    def blame_lost(self, call: Call, row: Row) -> bool:
        """Blame what a forward call was given without a gradient on one side, if a gradient shows.

        Such a call may be given it twice: its gradient is the sum for both places then.
        """
        forward, given = self._state.calls.forward_of(call), self._given(call, row)
        if forward is None:
            return False
        same = {*map(fingerprints, given)}
        for each in forward.inputs:
            if lost_gradient(each) and (each in given or fingerprints(each) in same):
                self._mark_lost(row, forward, each)
                return True
        return False

    def _mark_lost(self, row: Row, forward: Call, lost: Row) -> None:
        """Blame a gradient's input that requires one on one side alone, for the gradient.

        Nothing detached it where the sides give the call the results of other calls.
        """
        for each in filter(lost_gradient, forward.inputs):
            makers = self._state.flow.makers(each)
            fed = [self._state.rows[index].pair for index in makers.first]
            if len({id(pair) for pair in fed}) > 1 and all(pair.is_matched for pair in fed):
                words = " instead of ".join(f"the result of {pair.name}" for pair in fed)
                mark(each, Origin.INTRODUCED, self._cause_of(forward, makers), words)
                each.status = Status.DIFFERS
                mark(row, Origin.INHERITED)
                return
        mark(row, Origin.INTRODUCED, self._how_lost(lost), _side_without(lost))

    def _how_lost(self, lost: Row) -> Cause:
        """Return how a side takes the gradient from a value, as far as its maker tells."""
        if self._is_gradient(lost):
            return Cause.NOT_DERIVED
        maker = self._state.flow.makers(lost).common
        made = None if maker is None else self._state.rows[maker]
        side = None if made is None else made.reference if lost.value.requires_grad else made.target
        is_made_with_one = side is not None and side.requires_grad is True
        return Cause.DETACHED_BEHIND if is_made_with_one else Cause.DETACHED

    def _is_gradient(self, row: Row) -> bool:
        """Return whether a backward pass made a value."""
        calls, rows = self._state.calls, self._state.rows
        return any(
            calls.of(rows[index]).is_backward for index in self._state.flow.makers(row).first
        )

    def _is_later(self, call: Call, forward: Call) -> bool:
        """Return whether an earlier backward pass reaches the same call on both sides."""
        calls = self._state.calls
        firsts = [calls.backward_of(forward, is_target=side) for side in (True, False)]
        return calls.parse(call.pair).backward_pass > 0 and None not in firsts

    def _cause_of(self, forward: Call, makers: Makers) -> Cause:
        state = self._state
        is_order = is_other_order(state.flow, state.rows, makers, forward.inputs)
        return Cause.OTHER_ORDER if is_order else Cause.OTHER_VALUE

    def _given(self, call: Call, row: Row) -> list[Row]:
        """Return what a call was given where its backward record hands back a gradient."""
        forward, place = self._state.calls.forward_of(call), row.value.argument
        return [] if forward is None else [e for e in forward.inputs if e.value.argument == place]

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


def _side_without(lost: Row) -> str:
    """Return the side on which a value requires no gradient."""
    return "reference" if lost.value.requires_grad else "target"
