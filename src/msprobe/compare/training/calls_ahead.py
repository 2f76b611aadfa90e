# SPDX-License-Identifier: Apache-2.0
"""`CallsAhead`: calls without records that programs make before a model, step after step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Final

from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.outline_differences import OutlineDifference, first_difference
from msprobe.compare.training.outlined_calls import (
    COPIES,
    MadeCalls,
    is_ahead_of,
    line_of,
    made_calls,
    operator_name,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OutlinedCall

_OF_CALLS: Final = (VerdictClass.CALL, VerdictClass.ORDER, VerdictClass.PRECISION)
# They take the data and put it together, whatever is made of it.
_TAKING: Final = ("gather", "getitem", "index_select", "narrow", "select", "take", "unbind")
_JOINING: Final = ("as_tensor", "cat", "constant_pad_nd", "pad", "pad_sequence", "stack", "tensor")
_OF_DATA: Final = COPIES.union(_TAKING, _JOINING)
_Calls = Sequence[tuple[str | None, str]]


class CallsAhead:
    """What both sides call before their models.

    Lines that run equally often in each of several steps are not chosen by the data: where the
    calls that they make differ, it is the program that does.
    """

    def __init__(self) -> None:
        # For each step of a side, the lines and operators of its calls.
        self._steps: tuple[list[_Calls], list[_Calls]] = ([], [])
        self._first = MadeCalls()

    def add(self, pair: FactsPair, names: Sequence[str | None]) -> None:
        """Take in a step.

        Args:
            pair: its facts.
            names: the forward records of the model that is called first, on both sides.
        """
        made = made_calls(pair.sides, *map(is_ahead_of, names)).only(_computes)
        self._first = self._first if any(self._steps) else made
        for steps, calls in zip(self._steps, made, strict=True):
            steps.append([(line_of(call), operator_name(call)) for call in calls])

    @property
    def difference(self) -> OutlineDifference | None:
        """The first call that differs; None where the data may choose it."""
        lines = set().union(*map(_steady_lines, self._steps))
        both = [{_operators(calls, lines) for calls in steps} for steps in self._steps]
        is_steady = len(self._steps[0]) > 1 and all(len(each) == 1 for each in both)
        if not is_steady or both[0] == both[1]:
            return None
        found = first_difference(self._first.only(lambda call: line_of(call) in lines))
        return found if found is not None and found.verdict in _OF_CALLS else None


def _computes(call: OutlinedCall) -> bool:
    return operator_name(call) not in _OF_DATA


def _steady_lines(steps: Sequence[_Calls]) -> set[str | None]:
    """Return the lines of the program that make equally many calls in each step."""
    counts = [Counter(line for line, _ in calls) for calls in steps]
    every = set().union(*counts) - {None}
    return {line for line in every if len({count[line] for count in counts}) == 1}


def _operators(calls: _Calls, lines: Container[str | None]) -> Sequence[str]:
    return tuple(operator for line, operator in calls if line in lines)
