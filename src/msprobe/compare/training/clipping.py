# SPDX-License-Identifier: Apache-2.0
"""Differences in the clipping and in the scaling of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from msprobe.compare.training.differences import Effect, FactDifference, Moment, of_sides, shown
from msprobe.compare.training.facts_pair import FactsPair, clip_coefficient, same
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.training.same_training import total_loss
from msprobe.compare.verdicts.next_steps import CLIP_ALIKE
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Clip, Facts, OptimizerStep, Scaler
from msprobe.plain_text import times_text

_SAME_COEFFICIENT: Final = 1e-6
_KEPT: Final = 1e-2  # gradients of coarse types are rounded when they are scaled
_EUCLIDEAN: Final = 2.0  # order of the norm that all gradients have together here


def clip_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield differences in the clipping of gradients, with their effect on what follows."""
    if not pair.ran_through:
        return
    clips = pair.events(Clip)
    is_alike = len(clips[0]) == len(clips[1]) and not any(map(_clip_words, *clips))
    yield from _early(pair) if is_alike else ()
    for own, other in zip(*clips, strict=False):
        words = _clip_words(own, other)
        if words:
            is_told = _clips_all_trained(pair, own, other)
            effect = Effect.NONE if is_told else _clip_effect(own, other)
            yield _clipping(pair, f"{own.function} {words}", effect)
    for side, lacking, own_clips, others in of_sides(*clips):
        late, early = (_first_after_step(getattr(pair, name)) for name in (side, lacking))
        if late is not None and others and early is None:
            words = (
                f"the {side} calls {late.function} after optimizer.step(), the {lacking} before it"
            )
            yield _clipping(pair, words, _effect_of(late))
        steps = [getattr(pair, name).optimizer_steps() for name in (side, lacking)]
        # A step that was left before its end lacks the optimizer's, too.
        if len(own_clips) > len(others) and bool(steps[0]) is bool(steps[1]):
            event = max(own_clips[len(others) :], key=_strength)
            words = _surplus_words(side, lacking, event, own_clips, len(others))
            # Of micro batches, say: then they are not the last thing before the optimizer.
            moment = Moment.REDUCE if others else Moment.CLIP
            yield _clipping(pair, words, _effect_of(event), moment)


def limits_apart(target: Sequence[Clip], reference: Sequence[Clip]) -> str:
    """Return how two sides limit gradients otherwise, in words; empty if they do alike."""
    for own, other in zip(target, reference, strict=False):
        words = _clip_words(own, other)
        if words:
            return f"{own.function} {words}"
    for side, lacking, own_clips, others in of_sides(target, reference):
        if len(own_clips) > len(others):
            surplus = own_clips[len(others)]
            return _surplus_words(side, lacking, surplus, own_clips, len(others))
    return ""


def _surplus_words(side: str, lacking: str, event: Clip, clips: Sequence[Clip], others: int) -> str:
    """Return that one side limits gradients more often than the other."""
    if others:
        limits = ", ".join(shown(each.max) for each in clips)
        return (
            f"the {side} calls {event.function} {len(clips)} times, the {lacking} "
            f"{times_text(others)}; the limits of the {side} are {limits}"
        )
    norm = f", whose total norm is {shown(event.total_norm)}" if event.total_norm else ""
    return f"only the {side} calls {event.function}, with {shown(event.max)}{norm}"


class _Limited(NamedTuple):
    """A call that limits gradients, and what the optimizers get that step after it.

    Attributes:
        clip: the call.
        total_norm: of the gradients that the optimizers get.
        is_of_all: it was given all of them.
    """

    clip: Clip
    total_norm: float
    is_of_all: bool

    @property
    def is_beyond(self) -> bool:
        """Whether what it was given is beyond its limit."""
        limit = self.clip.max or math.inf
        return self.is_of_all and self.total_norm > limit * (1 + SAME_FACTOR)

    @property
    def left(self) -> float | None:
        """The total norm that the call leaves; None where it is not known."""
        coefficient, norm = clip_coefficient(self.clip), self.clip.total_norm
        return None if coefficient is None or norm is None else coefficient * norm

    @property
    def is_kept(self) -> bool | None:
        """Whether the optimizers get what the call leaves; None where that is not known."""
        left = self.left if self.is_of_all else None
        return math.isclose(self.total_norm, left, rel_tol=_KEPT) if left else None


def _early(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield that one side limits gradients before they are complete.

    Their total norm is another one then than the other side's, and the optimizer gets more than the
    limit allows. Gradients that are only changed after both sides limited them are no such case.
    """
    limited = [[*_limited(pair, side)][::-1] for side in (0, 1)]
    # Other backward passes may add to what was limited.
    adds_up = min(pair.passes) > len(limited[0])
    for both in zip(*limited, strict=True):
        is_same = same(*(each.clip.total_norm for each in both))
        for side, lacking, own, other in () if is_same else of_sides(*both):
            is_early = adds_up or own.clip.total_norm == 0.0
            if is_early and own.is_beyond and not other.is_beyond:
                yield _clipping(pair, _early_words(side, own), Effect.CERTAIN, Moment.REDUCE)
            elif other.is_kept and own.is_kept is False and not own.is_beyond:
                yield _changed_after(pair, own, side, lacking)
        if not is_same or both[0].is_beyond is not both[1].is_beyond:
            return  # what follows is made of it


def _changed_after(pair: FactsPair, own: _Limited, side: str, other: str) -> FactDifference:
    """Return that a side changes gradients after it limited them; a scale is taken back too late.

    Args:
        pair: the facts of a step.
        own: the call of that side.
        side: its name.
        other: that of the side whose optimizers get what is left.
    """
    words = (
        f"the {side} changes gradients after {own.clip.function}: that leaves the total norm "
        f"{shown(own.left)}, and the optimizer gets {shown(own.total_norm)}; in the {other} it "
        "gets what is left"
    )
    scale = _scale_of_loss(pair, side)
    undone = (own.left or 0.0) / (own.total_norm or math.inf)
    takes_back = scale is not None and math.isclose(scale, undone, rel_tol=_KEPT)
    if takes_back:
        words = (
            f"the {side} clips gradients before it takes back the scale of its loss, "
            f"{shown(scale)}: {words}"
        )
    return replace(_clipping(pair, words, Effect.CERTAIN, Moment.REDUCE), takes_back=takes_back)


def _scale_of_loss(pair: FactsPair, side: str) -> float | None:
    """Return how many times the other side's the losses of a side are; None for those it has."""
    own, other = map(total_loss, pair.sides if side == "target" else pair.sides[::-1])
    scale = own / other if own and other else None
    return None if scale is None or same(scale, 1.0) else scale


def _early_words(side: str, limited: _Limited) -> str:
    clip, total = limited.clip, shown(limited.total_norm)
    if clip.total_norm:
        return (
            f"the {side} calls {clip.function} with {shown(clip.max)} before its gradients are "
            f"complete: their total norm is {shown(clip.total_norm)} then, and {total} when the "
            "optimizer gets them"
        )
    return (
        f"the {side} calls {clip.function} with {shown(clip.max)} where there is nothing to limit, "
        f"as before the backward pass: the total norm is 0 then, and {total} when the optimizer "
        "gets the gradients"
    )


def _limited(pair: FactsPair, side: int) -> Iterator[_Limited]:
    """Yield the calls of a side that limit gradients, the last one first."""
    outer = (each for each in pair.steps if not each.is_inner)
    gradients = {id(each.sides[side]): each.gradients[side] for each in outer}
    steps: list[list[float | None]] = []  # the next one last
    for event in reversed(pair.sides[side].events):
        if isinstance(event, OptimizerStep):
            steps.append([each.norm for each in gradients.get(id(event), {}).values()])
        elif isinstance(event, Clip):
            # Of several optimizers it may concern one alone: the next that has as many.
            of_one = [step for step in steps[::-1] if len(step) == event.parameters]
            limited = of_one[:1] or steps
            norms = [norm for step in limited for norm in step]
            # A scaler may skip the optimizer's step, and gradients may be unread.
            known = [norm for norm in norms if norm is not None]
            is_told = event.norm_type == _EUCLIDEAN and 0 < len(known) == len(norms)
            is_all = is_told and event.parameters >= len(norms)
            yield _Limited(event, math.hypot(*known), is_all)
            steps = [step for step in steps if all(step is not each for each in limited)]


def clips_other_parameters(pair: FactsPair) -> bool:
    """Return whether the total norms differ because the optimizers have other parameters."""
    clips = zip(*pair.events(Clip), strict=False)
    return any(_clips_all_trained(pair, own, other) for own, other in clips)


def _clips_all_trained(pair: FactsPair, target: Clip, reference: Clip) -> bool:
    """Return whether both sides limit alike all parameters that they train, and as many others."""
    trained = [
        {name for step in facts.optimizer_steps() for name in step.parameters.name}
        for facts in pair.sides
    ]
    further = target.parameters - reference.parameters
    return (
        target.max == reference.max
        and trained[0] != trained[1]
        and further == len(trained[0]) - len(trained[1])
    )


def _first_after_step(facts: Facts) -> Clip | None:
    """Return the first call that limits gradients, if all optimizers step before it."""
    first: Clip | None = None
    has_step = False
    for event in facts.events:
        if isinstance(event, OptimizerStep):
            if first is not None:
                return None
            has_step = True
        elif isinstance(event, Clip):
            first = first or event
    return first if has_step else None


def _clip_effect(target: Clip, reference: Clip) -> Effect:
    coefficient, expected = clip_coefficient(target), clip_coefficient(reference)
    if (target.norm_type is None) is not (reference.norm_type is None):
        return Effect.CERTAIN  # no limit of elements scales all of them
    if coefficient is None or expected is None or target.parameters != reference.parameters:
        return Effect.POSSIBLE
    is_same = math.isclose(coefficient, expected, rel_tol=_SAME_COEFFICIENT)
    return Effect.NONE if is_same else Effect.CERTAIN


def _clipping(
    pair: FactsPair, words: str, effect: Effect, moment: Moment = Moment.CLIP
) -> FactDifference:
    return pair.difference(
        VerdictClass.CLIPPING,
        moment,
        f"{words} (step {pair.step})",
        effect=effect,
        next=(CLIP_ALIKE,),
    )


def _clip_words(target: Clip, reference: Clip) -> str:
    """Return how two calls differ in what they were given; empty if they do not."""
    if target.function != reference.function:
        return f"is called in the target, {reference.function} in the reference"
    limit = "max_norm" if target.norm_type else "clip_value"
    for name, words in (("max", limit), ("norm_type", "norm_type")):
        numbers = getattr(target, name), getattr(reference, name)
        if not same(*numbers):
            totals = target.total_norm, reference.total_norm
            total = ""
            if None not in totals:
                total = f"; the total norm is {shown(totals[0])}"
                if not same(*totals):
                    total += f" in the target, {shown(totals[1])} in the reference"
            return (
                f"has {words} {shown(numbers[0])} in the target, {shown(numbers[1])} in the "
                f"reference{total}"
            )
    if target.parameters != reference.parameters:
        return (
            f"is given {target.parameters} parameters in the target, {reference.parameters} in "
            "the reference"
        )
    return ""


def _strength(clip: Clip) -> float:
    factor = clip_coefficient(clip)
    return math.inf if factor is None else 1 - factor


def _effect_of(clip: Clip) -> Effect:
    return Effect.CERTAIN if _strength(clip) else Effect.NONE


def scaler_differences(pair: FactsPair, *, had_same_scales: bool) -> Iterator[FactDifference]:
    """Yield steps that a gradient scaler skipped on one side only, and other scales.

    Args:
        pair: the facts.
        had_same_scales: the step before left both sides with the same scales.
    """
    for target, reference in zip(*pair.events(Scaler), strict=False):
        skipped, expected = bool(target.skipped), bool(reference.skipped)
        if not same(target.scale, reference.scale):
            lost = "; both had the same scale after the step before: the scaler's state was lost"
            one = (
                f"; the optimizer's step is skipped in the {'target' if skipped else 'reference'} "
                "alone: a gradient was infinite or NaN"
            )
            yield pair.difference(
                VerdictClass.OPTIMIZER_STATE if had_same_scales else VerdictClass.GRADIENT,
                Moment.LOSS,
                f"the gradient scaler scales by {shown(target.scale)} in the target, "
                f"{shown(reference.scale)} in the reference (step {pair.step})"
                + (lost if had_same_scales else "")
                + (one if skipped is not expected else ""),
                # Unscaling takes it back, or the gradients differ by a factor.
                effect=Effect.CERTAIN
                if had_same_scales or skipped is not expected
                else Effect.NONE,
                next=("save and load the scaler's state_dict with the checkpoint",)
                if had_same_scales
                else ("start the gradient scaler with the same scale and growth interval",),
            )
        elif skipped is not expected:
            side, other = ("target", "reference") if skipped else ("reference", "target")
            yield pair.difference(
                VerdictClass.UPDATE,
                Moment.UPDATE,
                f"the gradient scaler skipped the optimizer's step {pair.step} in the "
                f"{side}, not in the {other} (scale {shown(target.scale)}): "
                "a gradient was infinite or NaN",
            )
