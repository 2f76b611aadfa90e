# SPDX-License-Identifier: Apache-2.0
"""Whether optimizers get the same gradients of the same losses, however these are scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.compare.rounding import ONCE
from msprobe.compare.training.facts_pair import FactsPair, StepPair, clip_coefficient
from msprobe.compare.training.gradient_distances import (
    SAME_GRADIENT,
    are_rounded,
    has_same_gradients,
    total_norms,
)
from msprobe.compare.training.gradient_factors import LEAST_POWER, limit_of
from msprobe.dump.facts import Clip, Facts, Scaler


def has_same_training(
    pair: FactsPair,
    steps: Sequence[StepPair],
    tolerance: float = SAME_GRADIENT,
    resolutions: tuple[float, float] = (0.0, 0.0),
) -> bool:
    """Return whether optimizers get the same gradients of the same losses.

    The losses of micro batches may add up to the same, and all of them may be scaled for the
    backward pass, if the gradients are not any more. So must be what clipping hides from an
    optimizer: norms of gradients.

    Args:
        pair: the facts of a step.
        steps: its optimizer steps.
        tolerance: of gradients.
        resolutions: of the coarse types to whose roundings gradients and losses may be apart; 0
            without one.
    """
    totals = [total_loss(facts) for facts in pair.sides]
    if len(pair.target.loss) != len(pair.reference.loss) and not _are_near(*totals):
        # Losses of inner updates (MAML) come before the one that the optimizer's gradients are of.
        totals = [facts.loss[-1].value if facts.loss else None for facts in pair.sides]
    clips = pair.events(Clip)
    rounded = max(SAME_GRADIENT, ONCE * resolutions[0])
    if None in totals or not _limit_alike(*clips, tolerance=rounded):
        return False
    if not steps or not all(
        has_same_gradients(step, tolerance) or are_rounded(step, resolutions[0]) for step in steps
    ):
        return False
    if all(step.is_opposed for step in steps):
        totals[0] = -(totals[0] or 0.0)
    if _are_near(*totals, tolerance=max(SAME_GRADIENT, ONCE * resolutions[1])):
        return True
    # A total norm that is a limit itself was left by code of the program, which hides a scale.
    found = [clip.total_norm for side in clips for clip in side]
    if not found:
        found = [total for step in steps for total in total_norms(step.gradients)]
    is_seen = all(total and not limit_of(total) for total in found)
    is_taken_back = any(pair.events(Scaler)) or is_seen
    return _is_scale(*totals, parts=max(pair.passes), is_taken_back=is_taken_back)


def _limit_alike(target: Sequence[Clip], reference: Sequence[Clip], *, tolerance: float) -> bool:
    """Return whether clipping does the same to the gradients of both sides.

    Gradients that are divided after they were clipped have another norm then, and another limit.
    What one side clips besides, before, shows itself in the total norms of the last.
    """
    active = [
        [clip for clip in side if clip_coefficient(clip) != 1.0] for side in (target, reference)
    ]
    few, many = sorted(map(len, active))
    if few < many and not few:
        return False
    for both in zip(*(side[len(side) - few :] for side in active), strict=True):
        coefficients = [clip_coefficient(clip) for clip in both]
        norms = [clip.total_norm or 0.0 for clip in both]
        limits = norms if None in coefficients else coefficients
        is_alike = _are_near(*limits, tolerance=tolerance)
        if not is_alike or (few < many and not _are_near(*norms, tolerance=tolerance)):
            return False
    return True


def total_loss(facts: Facts) -> float | None:
    """Return the sum of a step's losses; None where one is not known."""
    known = [loss.value for loss in facts.loss if loss.value is not None]
    return math.fsum(known) if known and len(known) == len(facts.loss) else None


def _are_near(
    target: float | None, reference: float | None, *, tolerance: float = SAME_GRADIENT
) -> bool:
    known = target is not None and reference is not None
    return known and math.isclose(target, reference, rel_tol=tolerance)  # type: ignore[arg-type]


def _is_scale(
    target: float | None, reference: float | None, *, parts: int, is_taken_back: bool
) -> bool:
    """Return whether one loss is the other one times a scale, or divided by the micro batches.

    A half may also be a mistake, which clipping by the program's own code hides from optimizers.
    """
    if not target or not reference or not 0 < target / reference < math.inf:
        return False
    power = round(math.log2(target / reference))
    scales = [2.0**power] if is_taken_back or abs(power) >= LEAST_POWER else []
    scales += [float(parts), 1 / parts] if is_taken_back else []
    return any(math.isclose(target / reference, s, rel_tol=SAME_GRADIENT) for s in scales)
