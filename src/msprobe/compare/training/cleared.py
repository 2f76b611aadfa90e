# SPDX-License-Identifier: Apache-2.0
"""Calls of ``zero_grad()`` behind a backward pass, on one side alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msprobe.compare.training.differences import are, of_sides, some_of
from msprobe.compare.training.facts_pair import StepPair
from msprobe.dump.facts import Cleared, Facts, OptimizerStep


def cleared_alone(pair: StepPair, names: Collection[str]) -> str:
    """Return that one side clears gradients behind a backward pass, in words; empty if none does.

    Args:
        pair: the optimizer's step before which it does.
        names: the gradients that differ.
    """
    calls = [_behind_passes(*both) for both in zip(pair.pair.sides, pair.sides, strict=True)]
    for side, apart, own, other in of_sides(0, 1):
        if not calls[own] or calls[other]:
            continue
        columns, step = pair.columns[own], pair.pair.step
        rows = zip(columns.name, columns.has_gradient, columns.gradient.norm, strict=False)
        empty = [name for name, has, norm in rows if name in names and not (has and norm)]
        if len(empty) == len(names):
            return cleared_late(side, empty, pair, "zeros" if any(columns.has_gradient) else "none")
        if not empty:
            done, total = max(each.passes for each in calls[own]), pair.pair.passes[own]
            return (
                f"the {side}'s gradients are cleared after {done} of {total} backward passes, "
                f"where the {apart} adds them up (step {step})"
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


def _behind_passes(facts: Facts, step: OptimizerStep) -> list[Cleared]:
    """Return the calls that clear for an optimizer between a backward pass and its step.

    Its number is not known before its first step, nor where a module clears.
    """
    before, count = facts.optimizer_steps().index(step), len(step.parameters.name)
    return [
        each
        for each in facts.cleared
        if each.updates == before
        and each.passes
        and (each.number == step.number or (each.number is None and each.parameters >= count))
    ]
