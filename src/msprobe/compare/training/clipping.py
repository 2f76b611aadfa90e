# SPDX-License-Identifier: Apache-2.0
"""Differences in the clipping and in the scaling of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from msprobe.compare.training.differences import Effect, FactDifference, Moment, shown
from msprobe.compare.training.start import FactsPair
from msprobe.compare.training.step_pairs import both_ran_through, same
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Clip, Facts, OptimizerStep, Scaler

_SAME_COEFFICIENT: Final = 1e-6


def clip_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield differences in the clipping of gradients, with their effect on what follows."""
    target, reference = clips_of(pair.target), clips_of(pair.reference)
    if not both_ran_through(pair):
        return
    for own, other in zip(target, reference, strict=False):
        words = _clip_words(own, other)
        if words:
            words = f"{own.function} {words} (step {pair.step})"
            is_told = _clips_all_trained(pair, own, other)
            yield _clipping(pair, words, Effect.NONE if is_told else _clip_effect(own, other))
    yield from _late_clips(pair)
    common = min(len(target), len(reference))
    for extra, there, lacking in (
        (target[common:], "target", "reference"),
        (reference[common:], "reference", "target"),
    ):
        if extra:
            event = max(extra, key=_strength)
            norm = f", whose total norm is {shown(event.total_norm)}" if event.total_norm else ""
            yield _clipping(
                pair,
                f"the {lacking} does not clip; the {there} calls {event.function} with "
                f"{shown(event.max)}{norm} (step {pair.step})",
                Effect.CERTAIN if _strength(event) else Effect.NONE,
            )


def clips_other_parameters(pair: FactsPair) -> bool:
    """Return whether the total norms differ because the optimizers have other parameters."""
    clips = zip(clips_of(pair.target), clips_of(pair.reference), strict=False)
    return any(_clips_all_trained(pair, own, other) for own, other in clips)


def _clips_all_trained(pair: FactsPair, target: Clip, reference: Clip) -> bool:
    """Return whether both sides limit alike all parameters that they train, of the same model."""
    trained = [
        {name for step in facts.optimizer_steps() for name in step.parameters.name}
        for facts in (pair.target, pair.reference)
    ]
    models = [facts.parameters for facts in (pair.target, pair.reference)]
    return (
        target.max == reference.max
        and trained[0] != trained[1]
        and [target.parameters, reference.parameters] == [len(names) for names in trained]
        and all(m is not None and (trained[0] ^ trained[1]).issubset(m.name) for m in models)
    )


def _late_clips(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield clipping that comes after the optimizer's step on one side alone."""
    sides = (pair.target, "target"), (pair.reference, "reference")
    for (late, side), (early, other) in (sides, sides[::-1]):
        clip = _first_after_step(late)
        if clip is not None and clips_of(early) and _first_after_step(early) is None:
            yield _clipping(
                pair,
                f"the {side} calls {clip.function} after optimizer.step(), the {other} before it "
                f"(step {pair.step})",
                Effect.CERTAIN if _strength(clip) else Effect.NONE,
            )


def _first_after_step(facts: Facts) -> Clip | None:
    """Return the first call that limits gradients, if all optimizers step before it."""
    kinds = [type(event) for event in facts.events if isinstance(event, Clip | OptimizerStep)]
    if OptimizerStep not in kinds or Clip not in kinds:
        return None
    is_late = OptimizerStep not in kinds[kinds.index(Clip) :]
    return clips_of(facts)[0] if is_late else None


def clips_of(facts: Facts) -> list[Clip]:
    """Return the calls that limit gradients, in order."""
    return [event for event in facts.events if isinstance(event, Clip)]


def _clip_effect(target: Clip, reference: Clip) -> Effect:
    coefficient, expected = _coefficient(target), _coefficient(reference)
    if coefficient is None or expected is None or target.parameters != reference.parameters:
        return Effect.POSSIBLE
    is_same = math.isclose(coefficient, expected, rel_tol=_SAME_COEFFICIENT)
    return Effect.NONE if is_same else Effect.CERTAIN


def _clipping(pair: FactsPair, words: str, effect: Effect) -> FactDifference:
    return FactDifference(
        verdict=VerdictClass.CLIPPING,
        moment=Moment.CLIP,
        step=pair.step,
        rank=pair.rank,
        words=words,
        effect=effect,
        next=("clip gradients alike in both runs",),
    )


def _clip_words(target: Clip, reference: Clip) -> str:
    """Return how two calls differ in what they were given; empty if they do not."""
    if target.function != reference.function:
        return f"is called in the target, {reference.function} in the reference"
    limit = "max_norm" if target.norm_type else "clip_value"
    for name, words in (("max", limit), ("norm_type", "norm_type")):
        numbers = getattr(target, name), getattr(reference, name)
        if not same(*numbers):
            total = target.total_norm
            return (
                f"has {words} {shown(numbers[0])} in the target, {shown(numbers[1])} in the "
                "reference" + (f"; the total norm is {shown(total)}" if total is not None else "")
            )
    if target.parameters != reference.parameters:
        return (
            f"is given {target.parameters} parameters in the target, {reference.parameters} in "
            "the reference"
        )
    return ""


def _coefficient(clip: Clip) -> float | None:
    """Return the factor by which gradients were scaled; None where it is not known."""
    if clip.norm_type is None or clip.total_norm is None or clip.max is None:
        return None
    # The formula of torch.nn.utils.clip_grad_norm_.
    return min(1.0, clip.max / (clip.total_norm + 1e-6))


def _strength(clip: Clip) -> float:
    factor = _coefficient(clip)
    return math.inf if factor is None else 1 - factor


def scalers_of(facts: Facts) -> list[Scaler]:
    """Return the updates of gradient scalers, in order."""
    return [event for event in facts.events if isinstance(event, Scaler)]


def scaler_differences(pair: FactsPair, *, had_same_scales: bool) -> Iterator[FactDifference]:
    """Yield steps that a gradient scaler skipped on one side only, and other scales.

    Args:
        pair: the facts.
        had_same_scales: the step before left both sides with the same scales.
    """
    sides = scalers_of(pair.target), scalers_of(pair.reference)
    for target, reference in zip(*sides, strict=False):
        if bool(target.skipped) is not bool(reference.skipped):
            side, other = ("target", "reference") if target.skipped else ("reference", "target")
            yield FactDifference(
                verdict=VerdictClass.UPDATE,
                moment=Moment.UPDATE,
                step=pair.step,
                rank=pair.rank,
                words=f"the gradient scaler skipped the optimizer's step {pair.step} in the "
                f"{side}, not in the {other} (scales {shown(target.scale)}, "
                f"{shown(reference.scale)}): a gradient was infinite or NaN",
            )
        elif not same(target.scale, reference.scale):
            lost = "; both had the same scale after the step before: the scaler's state was lost"
            yield FactDifference(
                verdict=VerdictClass.OPTIMIZER_STATE if had_same_scales else VerdictClass.GRADIENT,
                moment=Moment.LOSS,
                step=pair.step,
                rank=pair.rank,
                words=f"the gradient scaler scales by {shown(target.scale)} in the target, "
                f"{shown(reference.scale)} in the reference (step {pair.step})"
                + (lost if had_same_scales else ""),
                # Unscaling takes it back, or the gradients differ by a factor.
                effect=Effect.CERTAIN if had_same_scales else Effect.NONE,
                next=("save and load the scaler's state_dict with the checkpoint",)
                if had_same_scales
                else (),
            )
