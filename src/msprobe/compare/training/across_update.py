# SPDX-License-Identifier: Apache-2.0
"""Calls without a record (level L0) that lie on the other side of an optimizer's step."""

from __future__ import annotations

from msprobe.compare.training.call_graph import origins_in
from msprobe.compare.training.facts_pair import FactsPair, StepPair
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlined_calls import calls_in, content_of, made_calls, shown
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.operators.lookup import is_in_place


def write_across_update(pair: FactsPair) -> OutlineDifference | None:
    """Return the program's call that takes in a parameter before its update on one side alone.

    It writes another tensor in place: an average of the weights, say. Both sides make the same
    calls, and one makes some of them ahead of the optimizer's step, the other behind it.
    """
    moved = [(step, *both) for step in pair.steps if (both := _outlined(step))]
    if all(own == other for _, own, other in moved):
        return None
    outlines = made_calls(pair.sides).outlines
    if not outlines or len({(*map(content_of, calls_in(each)),) for each in outlines}) > 1:
        return None
    calls = [*zip(calls_in(outlines[0]), origins_in(outlines[0]), strict=True)]
    for step, own, other in moved:
        updated = {*step.target.parameters.name}
        for call, origins in calls[min(own, other) : max(own, other)]:
            if is_in_place(call.name) and call.source and not updated.isdisjoint(origins[1:]):
                early, late = ("target", "reference") if own > other else ("reference", "target")
                words = (
                    f"{shown(call)} is called before {step.short_name} updates what it reads in "
                    f"the {early}, after it in the {late}"
                )
                return OutlineDifference(VerdictClass.ORDER, words, call.source, takes_tensor=True)
    return None


def _outlined(step: StepPair) -> tuple[int, int] | None:
    own, other = step.target.outlined, step.reference.outlined
    return None if own is None or other is None else (own, other)
