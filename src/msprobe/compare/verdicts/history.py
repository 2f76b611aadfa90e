# SPDX-License-Identifier: Apache-2.0
"""What earlier steps of a rank showed: later steps start from what these left behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from msprobe.compare.model import Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.values import Role


@dataclass(slots=True)
class History:
    """Earlier steps of one rank.

    Attributes:
        inexact: whether any value of them was not exactly equal.
        parameters: parameter (module and slot) → whether it was exactly equal when last seen.
        gradients: parameter → whether its gradient was exactly equal, in all steps.
    """

    inexact: bool = False
    parameters: dict[str, bool] = field(default_factory=dict)
    gradients: dict[str, bool] = field(default_factory=dict)

    def add(self, comparison: RankComparison) -> None:
        """Take in a step that was judged."""
        for row in comparison.rows:
            is_equal = row.status is Status.EQUAL
            if not is_equal:
                self.inexact = True
            role = row.value.role
            if role is Role.PARAMETER:
                self.parameters[parameter_key(row.name)] = is_equal
            elif role is Role.PARAMETER_GRAD:
                key = gradient_key(row.name)
                self.gradients[key] = self.gradients.get(key, True) and is_equal

    def explains_parameter(self, name: str) -> bool:
        """Return whether earlier steps explain that a parameter differs now.

        Args:
            name: name of its row.

        Returns:
            True if it or its gradient was not exactly equal before, or nothing is known of its
            gradient and something else was not.
        """
        key = parameter_key(name)
        if not self.parameters.get(key, True):
            return True
        if key in self.gradients:
            return not self.gradients[key]
        return self.inexact


def parameter_key(row_name: str) -> str:
    """Return what names a parameter in all records of its module."""
    record, _, name = row_name.rpartition(".parameters.")
    for direction in (".forward.", ".backward."):
        head, found, _ = record.rpartition(direction)
        if found:
            return f"{head}.{name}"
    return f"{record}.{name}"


def gradient_key(row_name: str) -> str:
    """Return the key of the parameter whose gradient a row holds."""
    for word in (".parameters_grad_reduced.", ".parameters_grad."):
        head, found, tail = row_name.partition(word)
        if found:
            first, _, rest = tail.partition(".")
            return f"{head}.{rest if first.isdigit() and rest else tail}"
    return row_name
