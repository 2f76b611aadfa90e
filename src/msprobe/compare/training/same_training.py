# SPDX-License-Identifier: Apache-2.0
"""Whether optimizers get the same gradients of the same losses, however these are scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

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

# Of what limited elements make together: nearly all of them.
_LIMITED: Final = 0.99
_REDUCTIONS: Final = {"mean", "sum"}


def has_same_training(
    pair: FactsPair,
    steps: Sequence[StepPair],
    tolerance: float = SAME_GRADIENT,
    resolutions: tuple[float, float] = (0.0, 0.0),
    *,
    is_one_sided: bool = False,
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
        is_one_sided: one side alone computes in such a type.
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
        has_same_gradients(step, tolerance)
        or are_rounded(step, resolutions[0], is_one_sided=is_one_sided)
        for step in steps
    ):
        return False
    if all(step.is_opposed for step in steps):
        totals[0] = -(totals[0] or 0.0)
    if _are_near(*totals, tolerance=max(SAME_GRADIENT, ONCE * resolutions[1])):
        return True
    # A total norm that is a limit itself was left by code of the program, which hides a scale.
    # So does the limit of all elements.
    found = [clip.total_norm for side in clips for clip in side if clip.norm_type is not None]
    left = [total for step in steps for total in total_norms(step.gradients)]
    is_seen = all(total and not limit_of(total) for total in found or left)
    is_seen = is_seen and not any(
        _is_all_limited(*clips[0], *clips[1], step=step) for step in steps
    )
    is_taken_back = any(pair.events(Scaler)) or is_seen
    if not is_taken_back and _reduces_otherwise(pair):
        return False
    return _is_scale(*totals, is_taken_back=is_taken_back)


def adds_up_alike(pair: FactsPair, later: Iterable[FactsPair], tolerance: float) -> bool:
    """Return whether a step without an update adds the same to gradients that agree at the next.

    Args:
        pair: the facts of the step.
        later: those of the steps behind it.
        tolerance: of gradients.
    """
    if any(facts.optimizer_steps() for facts in pair.sides) or not all(pair.passes):
        return False
    losses = [pair]
    for each in later:
        if any(facts.optimizer_steps() for facts in each.sides):
            is_alike = has_same_training(each, each.steps, tolerance)
            return is_alike and all(_are_near(*map(total_loss, p.sides)) for p in losses)
        losses.append(each)
    return False


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


def _is_all_limited(*clips: Clip, step: StepPair) -> bool:
    """Return whether each element of the gradients of a step is as large as it may be."""
    limits = [clip.max for clip in clips if clip.norm_type is None and clip.max is not None]
    elements = sum(map(math.prod, step.columns[0].shape))
    most = min(limits, default=math.inf) * math.sqrt(elements)
    return any(total >= _LIMITED * most for total in total_norms(step.gradients))


def total_loss(facts: Facts) -> float | None:
    """Return the sum of a step's losses; None where one is not known."""
    known = [loss.value for loss in facts.loss if loss.value is not None]
    return math.fsum(known) if known and len(known) == len(facts.loss) else None


def _are_near(
    target: float | None, reference: float | None, *, tolerance: float = SAME_GRADIENT
) -> bool:
    known = target is not None and reference is not None
    return known and math.isclose(target, reference, rel_tol=tolerance)  # type: ignore[arg-type]


def _reduces_otherwise(pair: FactsPair) -> bool:
    """Return whether one side's first loss is a sum, the other's a mean: that is no scale of it."""
    last = []
    for facts in pair.sides:
        names = [text.partition("(")[0] for text in facts.loss[0].made_by]
        last.append(next((name for name in names if name in _REDUCTIONS), ""))
    return {*last} == _REDUCTIONS


def _is_scale(target: float | None, reference: float | None, *, is_taken_back: bool) -> bool:
    """Return whether one loss is the other one times a scale, or divided by a number of samples.

    A half may also be a mistake, which clipping by the program's own code hides from optimizers.
    """
    if not target or not reference or not 0 < target / reference < math.inf:
        return False
    ratio = target / reference
    power = round(math.log2(ratio))
    if math.isclose(ratio, 2.0**power, rel_tol=SAME_GRADIENT):
        return is_taken_back or abs(power) >= LEAST_POWER
    larger = max(ratio, 1 / ratio)
    return is_taken_back and math.isclose(larger, round(larger), rel_tol=SAME_GRADIENT)
