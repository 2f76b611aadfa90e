# SPDX-License-Identifier: Apache-2.0
"""`Scope`: how two dumps differ in what was recorded, and how many of their calls have partners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msprobe.compare.rank_comparison import RankComparison

_MOST_STEPS: Final = 3


class Scope:
    """Gathers differences of steps, levels and tasks over all comparisons.

    Attributes:
        paired: operations with a partner, and the smaller number of operations of the two sides.
    """

    def __init__(self) -> None:
        self._words: dict[str, None] = {}
        self.paired = (0, 0)

    def add(self, comparison: RankComparison) -> None:
        """Take in the comparison of a step and rank."""
        target, reference = comparison.target.view, comparison.reference.view
        steps = target.step, reference.step
        if steps[0] != steps[1] and None not in steps:
            self._add(f"step {steps[0]} against step {steps[1]} of the reference")
        for name in ("level", "task"):
            both = getattr(target.head, name), getattr(reference.head, name)
            if both[0] != both[1] and all(both):
                self._add(f"{name} {both[0]} against {both[1]}")
        matched = sum(pair.is_matched for pair in comparison.pairs)
        sides = (
            sum(pair.target is not None for pair in comparison.pairs),
            sum(pair.reference is not None for pair in comparison.pairs),
        )
        self.paired = self.paired[0] + matched, self.paired[1] + min(sides)

    def add_steps_alone(self, steps: Mapping[str, Sequence[int]]) -> None:
        """Take in the steps that one side alone recorded, by side."""
        for side, alone in steps.items():
            if alone:
                numbers = ", ".join(map(str, alone[:_MOST_STEPS]))
                more = " …" if len(alone) > _MOST_STEPS else ""
                self._add(f"only the {side} has step{'s' * (len(alone) > 1)} {numbers}{more}")

    def add_world_sizes(self, target: int, reference: int) -> None:
        """Take in how many ranks both dumps have."""
        if target != reference:
            self._add(f"{target} rank{'s' * (target != 1)} against {reference}")

    def words(self) -> list[str]:
        """Return the differences, in words."""
        return list(self._words)

    def _add(self, words: str) -> None:
        self._words[words] = None
