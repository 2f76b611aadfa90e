# SPDX-License-Identifier: Apache-2.0
"""`SameInputs`: do recordings prove that a call was given the same elements in the same order?

Statistics are equal for permuted elements, too. Proof are the elements, a checksum, projections of
elements in one order, or that one call made the value on both sides of inputs that are proved. Of
integers projections are none: those of a few small ones are equal by chance.
"""

from __future__ import annotations

import math

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.mask_differences import hides_its_elements
from msprobe.compare.verdicts.origin_state import OriginState, mark
from msprobe.dump.records import SIGN_BLOCK, SIGN_PERIOD
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of


def doubt_inputs(state: OriginState) -> None:
    """Say of results that nothing explains which input of their call may differ unseen."""
    inputs = SameInputs(state)
    for row in state.rows:
        is_result = row.origin is Origin.INTRODUCED and row.value.role is Role.OUTPUT
        if not is_result or row.status not in (Status.DIFFERS, Status.NONFINITE):
            continue
        if row.cause not in (None, Cause.FINITE_INPUTS) or not row.pair.is_matched:
            continue
        call = state.calls.of(row)
        if call.parsed.is_module or call.is_backward:
            continue
        unproved = inputs.unproved(call)
        if unproved is None:
            continue
        given, reason = unproved
        coarse = next((each for each in call.inputs if _may_round(each, row)), None)
        if coarse is not None:
            mark(coarse, Origin.INTRODUCED)
            mark(row, Origin.INHERITED)
        elif reason.cause is Cause.NO_EFFECT and not reason.holds_tensor:
            # What another argument made of the elements shows here.
            mark(reason, Origin.INTRODUCED, Cause.ARGUMENT)
            mark(row, Origin.INHERITED)
        elif reason.status.is_difference and reason.origin is not None:
            mark(row, Origin.INHERITED)
        else:
            row.cause, row.subject = Cause.UNPROVED_INPUT, given.value.slot


class SameInputs:
    """Which inputs of calls are proved to be the same on both sides."""

    def __init__(self, state: OriginState) -> None:
        self._state = state
        self._known: dict[int, Row | None] = {}

    def unproved(self, call: Call) -> tuple[Row, Row] | None:
        """Return the first input of a call of which no proof was recorded; None if there is none.

        Inputs that are known to differ, or are close, are judged elsewhere.

        Returns:
            The input; and the input of the call that made it, or of one before, that has no proof:
            itself, if none of these is known.
        """
        for row in call.inputs:
            if row.status.is_difference or self._is_proved(row):
                continue
            maker = self._maker(row)
            reason = row if maker is None else self._unproved_of(maker)
            if reason is not None:
                return row, reason
        return None

    def _unproved_of(self, maker: Call) -> Row | None:
        """Return what has no proof of all that a call's results hang on."""
        waiting = [] if maker.start in self._known else [maker]
        while waiting:  # a chain of calls may be longer than Python's stack
            before = self._judge(waiting[-1])
            if before is None:
                waiting.pop()
            else:
                waiting.append(before)
        return self._known[maker.start]

    def _judge(self, call: Call) -> Call | None:
        """Judge a call, or return one that makes an input of it and is to be judged before."""
        self._known[call.start] = None  # until it is known: a call may be fed by itself
        for row in call.inputs:
            if not row.status.is_difference and self._is_proved(row):
                continue
            maker = None if row.status.is_difference else self._maker(row)
            if maker is not None and maker.start not in self._known:
                return maker
            reason = row if maker is None else self._known[maker.start]
            if reason is not None:
                self._known[call.start] = reason
                return None
        return None

    def _is_proved(self, row: Row) -> bool:
        if not isinstance(row, Matched) or shows_elements(row):
            return True
        if not row.holds_tensor:
            return _is_plain(row.value)
        return self._state.start.shows_equal(row)

    def _maker(self, row: Row) -> Call | None:
        """Return the call that makes a value of others on both sides, and draws nothing."""
        source = self._state.flow.makers(row).common if row.holds_tensor else None
        maker = None if source is None else self._state.calls.of(self._state.rows[source])
        if maker is None or not maker.inputs or maker.operator.draws_random:
            return None
        return maker


def shows_elements(row: Matched) -> bool:
    """Return whether a row of two tensors that agree shows that their elements do."""
    target, reference = row.values
    if row.metrics is not None or (target.md5 is not None and target.md5 == reference.md5):
        return True
    if not target.is_tensor or target.is_unread or math.prod(target.shape or ()) <= 1:
        return target.is_tensor
    if target.max is not None and target.max == target.min:
        return True
    is_told = target.pairs_with(reference) is not None and epsilon_of(target.dtype) > 0
    is_told = is_told and not _may_hide_exchange(target)
    return is_told and not hides_its_elements(target)


def _may_hide_exchange(value: Value) -> bool:
    """Return whether parts of a tensor may change places unseen: by whole periods of signs."""
    count = math.prod(value.shape or ())
    return SIGN_PERIOD < count <= SIGN_BLOCK and count % SIGN_PERIOD == 0


def _may_round(given: Row, result: Row) -> bool:
    """Return whether an input of the same numbers in another type explains what a result lacks."""
    if not isinstance(given, Matched) or given.precisions is None or result.error is None:
        return False
    return result.error <= max(epsilon_of(each.dtype) for each in given.values)


def _is_plain(value: Value) -> bool:
    """Return whether an argument that is no tensor was recorded with all that it is."""
    return value.is_null or (value.value is not None and not is_opaque(value))


def is_opaque(value: Value) -> bool:
    """Return whether a value is an object of which only the class was recorded: a cache, say."""
    return isinstance(value.value, str) and value.type != "str" and value.value[:1] == "<"
