# SPDX-License-Identifier: Apache-2.0
"""`GradientShares`: the gradients that add up to that of a value or a parameter.

The sum is made inside the autograd engine, where no call is recorded. So the consumers are looked
up in the forward pass, and what their backward calls returned is held against the sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from msprobe.compare.model import Matched, Row
from msprobe.compare.rounding import IN_SUM, after_calls, resolution_of
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import operand_of
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.origin_state import OriginState, is_lacking, lost_gradient
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of

# Two sums are one where they are nearer to each other than this part of a summand of one alone.
_LITTLE: Final = 0.125


class GradientShares:
    """Finds the shares of gradients."""

    def __init__(self, state: OriginState) -> None:
        self._state = state
        # Gradients that are parts of one sum: place of the record, and argument.
        self._summed: set[tuple[int, object]] = set()

    def is_summed_elsewhere(self, call: Call, row: Row) -> bool:
        """Return whether a gradient that one side lacks is part of another one, or holds it.

        A call may be given one value twice: how its gradient is split between the two is a matter
        of how the call is run.
        """
        if (row.pair.position, row.value.argument) in self._summed or self._is_cast_once(call, row):
            return True
        parts = self._of_same_value(call, row)
        # Of a call that stands for several, two parameters may have one number.
        if len({part.value.argument for part in parts}) > 1 and _have_same_sum(parts):
            self._summed |= {(part.pair.position, part.value.argument) for part in parts}
            return True
        shares = self._of_input(call, row) if is_lacking(row) else []
        for parts in _sums(shares):
            if _is_one_sum(parts):
                self._summed |= {(part.pair.position, part.value.argument) for part in parts}
        return (row.pair.position, row.value.argument) in self._summed

    def _is_cast_once(self, call: Call, row: Row) -> bool:
        """Return whether one side alone casts what a gradient is of, for all calls that share it.

        So does autocast with a parameter: the first of them is then seen to hand back the gradients
        of all, and the others hand back none.
        """
        forward = self._state.calls.forward_of(call)
        if forward is None or not forward.is_matched:
            return False
        given = next((e for e in forward.inputs if e.value.argument == row.value.argument), None)
        if given is None or not isinstance(given, Matched) or lost_gradient(given):
            return False
        made = [each.values for each in forward.outputs if isinstance(each, Matched)]
        casts = [
            0 < epsilon_of(value.dtype) < resolution_of(values[side] for values in made)
            for side, value in enumerate(given.values)
        ]
        if casts[0] == casts[1]:
            return False
        flow = self._state.flow.target if casts[0] else self._state.flow.reference
        users = (
            self._state.calls.of(self._state.rows[i]) for i in flow.users(given, by_content=True)
        )
        return len({user.start for user in users if not user.parsed.is_module}) > 1

    def _of_same_value(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that a call hands back for one value that it is given twice."""
        forward = self._state.calls.forward_of(call)
        given = {} if forward is None else {r.value.argument: r for r in forward.inputs}
        own = given.get(row.value.argument)
        keys = [] if own is None else [fingerprint(value) for value in own.values]
        if not keys or None in keys:
            return []
        return [
            each
            for each in call.outputs
            if (used := given.get(each.value.argument)) is not None
            and [fingerprint(value) for value in used.values] == keys
        ]

    def _of_input(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that all calls hand back for what this call hands back one for."""
        state = self._state
        forward = state.calls.forward_of(call)
        used = [] if forward is None else [e for e in forward.inputs if e.value.requires_grad]
        incoming = next((each for each in used if each.value.argument == row.value.argument), None)
        if incoming is None or lost_gradient(incoming):
            return []
        return self._of_users(incoming, by_content=True)

    def of_output(self, call: Call, row: Row, *, by_content: bool = False) -> list[Row] | None:
        """Return the gradients that consumers of a value handed back; None if not known.

        Args:
            call: the backward call.
            row: the gradient that came in.
            by_content: where values carry no identity (MindSpore), take those for consumers whose
                input holds the same. There may be others, of which no record is left.
        """
        state = self._state
        forward = state.calls.forward_of(call)
        if forward is None:
            return None
        place = row.value.slot.replace("input.", "output.", 1)
        made = next((out for out in forward.outputs if out.value.slot == place), None)
        if made is None:
            return None
        is_unknown = made.value.value_id is None
        if is_unknown and not (by_content and fingerprint(made.value) is not None):
            return None
        shares = self._of_users(made, by_content=is_unknown)
        return [share for share in shares if share.pair.position < row.pair.position]

    def _of_users(self, made: Row, *, by_content: bool) -> list[Row]:
        state = self._state
        found: dict[int, Row] = {}
        for is_target, flow in ((True, state.flow.target), (False, state.flow.reference)):
            for index in flow.users(made, by_content=by_content):
                share = self.handed_back(state.rows[index], is_target)
                if share is not None:
                    found[id(share)] = share
        return list(found.values())

    def handed_back(self, used: Row, is_target: bool) -> Row | None:
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

    @staticmethod
    def is_sum_of(row: Row, shares: Iterable[Row]) -> bool:
        """Return whether errors of the shares, and the rounding of a sum, explain a difference."""
        result = operand_of(row)
        if result is None:
            return False
        operands = [operand for operand in map(operand_of, shares) if operand is not None]
        errors = sum(operand.error for operand in operands)
        sizes = sum(operand.size for operand in operands)
        return result.error <= IN_SUM * (errors + 2 * result.epsilon * sizes)

    @staticmethod
    def are_all_of(row: Row, shares: Sequence[Row]) -> bool:
        """Return whether shares may be all that a gradient is the sum of, on one side at least.

        Where gradients are differentiated again, others are made inside of that, unseen.
        """
        given = [share for share in shares if share.holds_tensor]
        sums = _sums_of_sides(row, given) if given else [False]
        return not sums or any(sums)

    def of_parameter(self, call: Call, row: Row) -> list[Row]:
        """Return the gradients that calls inside a module handed back for a parameter.

        A module around it may use the parameter itself, as an attention does that of its last
        projection: then what a call there handed back for it, if that was seen once.
        """
        shape = row.value.squeezed_shape
        own = self._gradients_by_module[call.parsed.path]
        return [
            share
            for share in own or self._as_before(call, row)
            if share.value.squeezed_shape == shape and share.pair.position < row.pair.position
        ]

    def _as_before(self, call: Call, row: Row) -> Iterator[Row]:
        """Yield what the calls hand back of which one made this gradient earlier in the step."""
        calls, rows = self._state.calls, self._state.rows
        made = {
            (calls.parse(maker.pair).base, calls.module(maker.pair), maker.value.slot)
            for each in self.accumulated_before(call, row)
            for maker in (rows[index] for index in self._state.flow.makers(each).first)
        }
        for base, module, slot in made:
            for share in self._gradients_by_module[module]:
                if share.value.slot == slot and calls.parse(share.pair).base == base:
                    yield share

    def accumulated_before(self, call: Call, row: Row) -> list[Row]:
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
        for row in self._state.rows:
            if row.value.role is Role.OUTPUT:
                parsed = calls.parse(row.pair)
                if parsed.kind is RecordKind.BACKWARD and not parsed.is_module:
                    found[calls.module(row.pair)].append(row)
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
        if not is_lacking(share):
            if len(parts) > 1:
                yield parts
            parts = []


def _is_one_sum(parts: Sequence[Row]) -> bool:
    """Return whether gradients that one side lacks in part add up to the same."""
    missing = [v.norm or 0.0 for p in parts if is_lacking(p) for v in p.values if v.is_tensor]
    return _distance(parts) <= _LITTLE * math.hypot(*missing)


def _have_same_sum(parts: Sequence[Row]) -> bool:
    """Return whether gradients of one call add up to the same, as far as its types resolve it."""
    values = [value for part in parts for value in part.values if value.is_tensor]
    size = math.hypot(*(value.norm or 0.0 for value in values))
    return _distance(parts) <= after_calls(resolution_of(values)) * size


def _distance(parts: Sequence[Row]) -> float:
    """Return how far two sums of gradients are apart, as all that adds up tells; NaN if it fails.

    Projections of a gradient with equal elements may be zero.
    """
    apart: complex = 0.0
    means = 0.0
    for part in parts:
        for value, sign in ((part.target, 1), (part.reference, -1)):
            if value is not None and value.is_tensor:
                apart += sign * (math.nan if value.pair is None else value.pair)
                root = math.sqrt(math.prod(value.shape or ()))
                means += sign * root * (math.nan if value.mean is None else value.mean)
    return math.hypot(abs(apart), means)


def add_up(row: Row, shares: Sequence[Row]) -> bool:
    """Return whether a gradient is the sum of its shares on both sides, as projections tell."""
    sums = _sums_of_sides(row, shares)
    return bool(sums) and all(sums)


def _sums_of_sides(row: Row, shares: Sequence[Row]) -> list[bool]:
    """Return for both sides whether a gradient is the sum of its shares; empty if not known."""
    if not isinstance(row, Matched) or not all(isinstance(each, Matched) for each in shares):
        return []
    operands = [each for each in map(operand_of, (row, *shares)) if each is not None]
    if len(operands) < len(shares) + 1:
        return []
    rounding = IN_SUM * operands[0].epsilon * sum(each.size for each in operands)
    found = []
    for total, parts in zip(
        row.values, zip(*(each.values for each in shares), strict=True), strict=True
    ):
        pairs = [total.pairs_with(part) for part in parts]
        if None in pairs:
            return []
        apart = abs((total.pair or 0) - sum(p[1] for p in pairs if p))
        found.append(apart <= rounding)
    return found
