# SPDX-License-Identifier: Apache-2.0
"""`Arrivals`: how the inputs of a call differ, and the error of its result that they explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from msprobe.compare.model import Matched, Mode, Row, Status
from msprobe.compare.rounding import is_near, resolution_of
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.conditioning import (
    Bound,
    Operand,
    backward_bound,
    forward_bound,
    operand_of,
    quotient_error,
)
from msprobe.compare.verdicts.origin_state import OriginState
from msprobe.dump.values import Value
from msprobe.operators.operator import Family

# How far beyond a first-order bound an error must be to be more than rounding.
SAFETY: Final = 4.0
# Statistics see only a part of an error, of inputs and outputs not the same part.
_SAFETY_OF_STATISTICS: Final = 30.0


class Arrivals:
    """Summary of the inputs of a call.

    Attributes:
        differs: something differs beyond its tolerance.
        is_inexact: something is not exactly equal.
        is_broken: something differs in shape or kind, or is missing, or holds other whole numbers.
        has_nonfinite: something is NaN or infinite on one side only.
        suspect: call with an argument, no tensor, that may be at fault: index of its first row.
        worst_error: largest relative error.
    """

    def __init__(
        self, own: Sequence[Row], saved: Sequence[Row], suspect: int | None = None
    ) -> None:
        self._own = own
        self._saved = saved
        self.differs = False
        self.is_inexact = False
        self.is_broken = False
        self.has_nonfinite = False
        self.worst_error = 0.0
        self.suspect = suspect
        for rows in (own, saved):
            for row in rows:
                if row.status is not Status.EQUAL:
                    self._take_inexact(row)

    @classmethod
    def of(cls, state: OriginState, call: Call) -> Arrivals:
        """Return the summary of the inputs of a call."""
        if not call.is_backward:
            return cls(call.inputs, (), call.start if call.start in state.suspects else None)
        forward = state.calls.forward_of(call)
        if forward is None:
            return cls(call.inputs, ())
        suspect = forward.start if forward.start in state.suspects else None
        return cls(call.inputs, forward.rows, suspect)

    @cached_property
    def incoming(self) -> list[Operand]:
        """Tensors that came in: gradients, for a backward record."""
        return [operand for operand in map(operand_of, self._own) if operand is not None]

    @cached_property
    def saved(self) -> list[Operand]:
        """Tensors of the forward call, for a backward record."""
        return [operand for operand in map(operand_of, self._saved) if operand is not None]

    def is_near(self, row: Row) -> bool:
        """Return whether a result is hardly further apart than what came in."""
        return is_near(row, self.worst_error)

    @property
    def reaches_zero(self) -> bool:
        """Whether an input that differs reaches zero on one side alone: a divisor, a root."""
        return any(
            row.status is Status.DIFFERS
            and isinstance(row, Matched)
            and _has_zero_between(row.target) is not _has_zero_between(row.reference)
            for row in self._own
        )

    def _take_inexact(self, row: Row) -> None:
        if not row.holds_tensor:
            self.differs |= row.origin is not None
            return
        self.is_inexact = True
        if row.status.is_difference:
            self.differs = True
            self.has_nonfinite |= row.status is Status.NONFINITE
            # Other whole numbers pick other elements: what is made of these may be anything.
            self.is_broken |= row.status is not Status.DIFFERS or not resolution_of(row.values)
        if row.error is not None and math.isfinite(row.error):
            self.worst_error = max(self.worst_error, row.error)


def safety_in(mode: Mode) -> float:
    """Return how far beyond its bound an error that is passed on may be."""
    return SAFETY if mode is Mode.TENSOR else _SAFETY_OF_STATISTICS


def explained_error(bound: Bound, safety: float) -> float:
    """Return the error of a result that rounding and the inputs explain.

    Args:
        bound: to first order.
        safety: see `safety_in`.
    """
    return SAFETY * bound.own + safety * bound.passed_on


def error_bound(
    call: Call, row: Row, incoming: Arrivals, result: Operand, *, has_inner: bool, safety: float
) -> Bound:
    """Return the error of a result to first order: of its own rounding, and passed on.

    Args:
        call: makes the result.
        row: the result.
        incoming: the inputs.
        result: the result as an operand.
        has_inner: whether calls inside it are recorded.
        safety: as in `explained_error`.
    """
    family = Family.COMPOSITE if has_inner else call.operator.family
    if call.is_backward:
        return backward_bound(family, incoming.incoming, incoming.saved, result)
    bound = forward_bound(family, incoming.incoming, result)
    if call.operator.divisor is None or result.error <= explained_error(bound, safety):
        return bound
    return Bound(bound.own, bound.passed_on + _quotient_error(call, row, result))


def _quotient_error(call: Call, row: Row, result: Operand) -> float:
    """Return the error of a division by tiny elements; 0 where it is not known."""
    divisor = call.operator.divisor
    assert divisor is not None
    place = row.value.argument.rpartition(".")[2]
    found = {}
    for position in (divisor - 1, divisor, divisor + 1):
        names = (str(position), f"{position}.{place}")
        found[position] = next((each for each in call.inputs if each.value.argument in names), None)
    numerator, by = (
        None if (each := found[position]) is None else operand_of(each)
        for position in (divisor - 1, divisor)
    )
    if numerator is None or by is None:
        return 0.0
    return quotient_error(numerator, by, _factor(call, found[divisor + 1]), result) or 0.0


def _factor(call: Call, row: Row | None) -> float:
    """Return the number by which a quotient is multiplied: the step size of an optimizer."""
    named = row or next((each for each in call.inputs if each.value.argument == "value"), None)
    number = None if named is None else named.value.value
    return float(number) if isinstance(number, (int, float)) else 1.0


def _has_zero_between(value: Value) -> bool:
    return value.max is not None and value.min is not None and value.min <= 0 <= value.max
