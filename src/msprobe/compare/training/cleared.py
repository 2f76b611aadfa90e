# SPDX-License-Identifier: Apache-2.0
"""Calls of ``zero_grad()`` behind a backward pass, on one side alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msprobe.compare.training.differences import are, of_sides, some_of
from msprobe.compare.training.facts_pair import StepPair
from msprobe.dump.facts import Facts, OptimizerStep


class Accumulated(NamedTuple):
    """What a side has added up since an optimizer stepped last, in earlier steps of the run.

    Attributes:
        passes: how many backward passes.
        cleared: after how many of them it cleared gradients last; 0 if it did not.
    """

    passes: int = 0
    cleared: int = 0

    def after(self, facts: Facts) -> Accumulated:
        """Return the same after a step of the run."""
        if facts.optimizer_steps():
            return Accumulated()
        passes = len({loss.micro for loss in facts.loss})
        cleared = (self.passes + each.passes for each in facts.cleared)
        return Accumulated(self.passes + passes, max(self.cleared, *cleared, 0))


def cleared_alone(
    pair: StepPair, names: Collection[str], before: tuple[Accumulated, Accumulated]
) -> str:
    """Return that one side clears gradients behind a backward pass, in words; empty if none does.

    Args:
        pair: the optimizer's step before which it does.
        names: the gradients that differ.
        before: what both sides have added up in earlier steps.
    """
    cleared = [
        _cleared_behind(*both) for both in zip(pair.pair.sides, pair.sides, before, strict=True)
    ]
    totals = [each.passes + count for each, count in zip(before, pair.pair.passes, strict=True)]
    for side, apart, own, other in of_sides(0, 1):
        columns, step = pair.columns[own], pair.pair.step
        rows = zip(columns.name, columns.has_gradient, columns.gradient.norm, strict=False)
        empty = [name for name, has, norm in rows if name in names and not (has and norm)]
        is_last = 0 < totals[own] <= cleared[own]
        if is_last and cleared[other] < totals[other] and len(empty) == len(names):
            return cleared_late(side, empty, pair, "zeros" if any(columns.has_gradient) else "none")
        if cleared[own] and not cleared[other] and not empty:
            return (
                f"the {side}'s gradients are cleared after {cleared[own]} of {totals[own]} "
                f"backward passes, where the {apart} adds them up (step {step})"
            )
    return ""


def cleared_late(side: str, names: Sequence[str], pair: StepPair, left: str = "none") -> str:
    """Return in words that a side clears gradients between backward and an optimizer's step.

    Args:
        side: ``target`` or ``reference``.
        names: the parameters.
        pair: the step.
        left: what is left of their gradients.
    """
    return (
        f"the {side}'s gradients are cleared after backward, before the optimizer's step: "
        f"{some_of(names, pair.total)} {are(names, 'gets', 'get')} {left} (step {pair.pair.step})"
    )


def _cleared_behind(facts: Facts, step: OptimizerStep, before: Accumulated) -> int:
    """Return after how many backward passes since the last update gradients are cleared last.

    0 if they are not. The number of an optimizer is not known before its first step, nor where a
    module clears.
    """
    updates, count = facts.optimizer_steps().index(step), len(step.parameters.name)
    earlier = Accumulated() if updates else before
    found = [
        earlier.passes + each.passes
        for each in facts.cleared
        if each.updates == updates
        and (each.number == step.number or (each.number is None and each.parameters >= count))
    ]
    return max(earlier.cleared, *found, 0)
