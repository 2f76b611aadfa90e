# SPDX-License-Identifier: Apache-2.0
"""Differences of earlier steps of a rank, which explain differences at the start of later ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe.compare.model import Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.values import Role

Parameter = tuple[str, str]
"""A module, and the name of one of its parameters."""


@dataclass(slots=True)
class History:
    """Earlier steps of one rank.

    Attributes:
        inexact: whether any value of them was not exactly equal.
        parameters: whether each was exactly equal when last seen.
        gradients: parameter → whether its gradient was exactly equal, in all steps.
    """

    inexact: bool = False
    parameters: dict[Parameter, bool] = field(default_factory=dict)
    gradients: dict[Parameter, bool] = field(default_factory=dict)

    def add(self, comparison: RankComparison) -> None:
        """Take in a step that was judged."""
        for row in comparison.rows:
            is_equal = row.status is Status.EQUAL
            if not is_equal:
                self.inexact = True
            role = row.value.role
            if role is Role.PARAMETER:
                self.parameters[parameter_of(comparison, row)] = is_equal
            elif role is Role.PARAMETER_GRAD:
                key = parameter_of(comparison, row)
                self.gradients[key] = self.gradients.get(key, True) and is_equal

    def explains(self, key: Parameter) -> bool:
        """Return whether earlier steps explain that a parameter differs now.

        Returns:
            True if it or its gradient was not exactly equal before, or nothing is known of its
            gradient and something else was not.
        """
        if not self.parameters.get(key, True):
            return True
        if key in self.gradients:
            return not self.gradients[key]
        return self.inexact


def parameter_of(comparison: RankComparison, row: Row) -> Parameter:
    """Return the parameter that a row holds, or whose gradient it holds."""
    module = comparison.side_of(row.pair).parsed(row.pair.name).base
    value = row.value
    return module, value.argument if value.role is Role.PARAMETER else value.slot
