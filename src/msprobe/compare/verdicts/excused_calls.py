# SPDX-License-Identifier: Apache-2.0
"""`ExcusedCalls`: calls that differ by a choice of the program, not by an error.

Generated code converts the parameters of a layer in another order, and programs choose by values
that they read.
"""

from __future__ import annotations

from functools import cached_property

from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Row, Status
from msprobe.compare.rounding import FINE, resolution_of
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.origin_state import OriginState, mark
from msprobe.dump.values import Role


class ExcusedCalls:
    """Tells which calls are excused."""

    def __init__(self, state: OriginState) -> None:
        self._state = state
        self._flows = state.flow.target, state.flow.reference

    def is_exchanged(self, call: Call) -> bool:
        """Return whether a call is another parameter's, and what uses its result gets its own.

        Generated code converts the parameters of a layer in another order. Calls of one side alone
        that use it show their effect in their results.
        """
        state, outside = self._state, self._state.outside
        swapped = [
            pair
            for row in call.inputs
            if row.status.is_difference and (pair := outside.swapped_parameters(row))
        ]
        if call.is_backward or not swapped or not self._exchanges.issuperset(swapped):
            return False
        after = call.start + len(call.rows)
        uses = [
            state.rows[index]
            for row in call.outputs
            for flow in self._flows
            for index in flow.users(row, by_content=True)
            if index >= after
        ]
        return bool(uses) and not any(
            row.pair.is_matched and row.status.is_difference and outside.parameter_of(row) is None
            for row in uses
        )

    def makes_scale(self, call: Call) -> bool:
        """Return whether a gradient scaler makes its scale, which it takes back by itself.

        Where it does not, the facts of the optimizer's step tell.
        """
        if call.is_backward or any(row.holds_tensor for row in call.inputs):
            return False
        return self._state.comparison.side_of(call.pair).scales_loss(call.pair.name)

    @cached_property
    def _exchanges(self) -> set[tuple[int, int]]:
        """Pairs of parameters that calls exchange: one call has the first, another the second."""
        outside = self._state.outside
        found = {
            pair
            for row in self._state.rows
            if row.value.role is Role.INPUT and row.status.is_difference
            if (pair := outside.swapped_parameters(row))
        }
        return {pair for pair in found if pair[::-1] in found}

    def excuse_choice(self, call: Call) -> None:
        """Let numbers of which a call makes a tensor follow what the program read before.

        A program chooses by values that it reads (`.numpy()`, `.tolist()`): which box belongs to
        which object, say. Where these differ by the rounding of a coarse type, however little, it
        may choose otherwise.
        """
        blamed = [row for row in call.rows if row.origin is Origin.INTRODUCED]
        given = [row for row in blamed if row.is_argument]
        chosen = [row for row in given if all(isinstance(v.value, int) for v in row.values)]
        if not chosen or call.is_backward or any(row.holds_tensor for row in call.inputs):
            return
        if len(chosen) == len(given) and self._read_before(call):
            for row in blamed:
                mark(row, Origin.INHERITED, Cause.CHOSEN)

    def _read_before(self, call: Call) -> bool:
        """Return whether a result before a call differs by what it is made of and is left to the
        program: no recorded call takes it in, and no gradient flows back.
        """
        state = self._state
        before = state.rows[: call.start]
        return resolution_of(value for row in before for value in row.values) > FINE and any(
            (row.status is Status.CLOSE or _differs_by_others(row))
            and row.value.role is Role.OUTPUT
            and row.holds_tensor
            and all(value.requires_grad is False for value in row.values)
            and not any(flow.users(row) for flow in self._flows)
            for row in before
        )


def _differs_by_others(row: Row) -> bool:
    return row.status is Status.DIFFERS and row.origin is Origin.INHERITED
