# SPDX-License-Identifier: Apache-2.0
"""Differences of the losses of a step: the first one, of what multiple it is, and what makes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from msprobe.compare.rounding import FINE, IN_OTHER_CALLS, IN_SUM, ONCE, after_calls
from msprobe.compare.training.collectives import other_collective
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    of_sides,
    shown,
    shown_apart,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.gradient_factors import SAME_FACTOR, meanings_of
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import (
    difference_behind,
    difference_by_factor,
    difference_of_cuts,
    difference_of_labels,
    difference_of_models,
)
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Loss
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.numerics.number_types import epsilon_of

# What cross entropy ends in where its labels are smoothed: another option, or calls of a program.
_SMOOTHING: Final = ["add", "mul", "mul"]
_SHOWN_OPERATIONS: Final = 3


@dataclass(frozen=True, slots=True)
class OtherLoss:
    """A loss that differs.

    Attributes:
        target: the target's.
        reference: the reference's.
        values: both values in words.
        factor: the target's loss is so many times the reference's; infinite where that is zero.
        meaning: of the factor; empty if it is no known number.
        number: the meaning without what it says of a division that one side alone makes.
    """

    target: Loss
    reference: Loss
    values: str
    factor: float
    meaning: str
    number: str

    @property
    def words(self) -> str:
        """Both values in words, with the meaning."""
        return self.values + (f": the factor is {self.meaning}" if self.meaning else "")

    def multiple(self, *, is_divided: bool) -> str:
        """Return both values in words, with the factor, which calls that are known tell.

        Args:
            is_divided: they are those of one side alone, which divides.
        """
        meaning = self.meaning if is_divided else self.number
        return f"{self.values}: the factor is {meaning or shown(self.factor)}"

    def is_scaled_by(self, ratio: float | None) -> bool:
        """Return whether calls that multiply by another number, so many times, explain it all."""
        is_other = ratio is not None and not math.isclose(ratio, 1.0, rel_tol=SAME_FACTOR)
        return is_other and math.isclose(self.factor, ratio or 1.0, rel_tol=SAME_FACTOR)


def other_loss(
    pair: FactsPair,
    resolution: Callable[[], float] = float,
    scale: Callable[[], float] = float,
) -> OtherLoss | None:
    """Return the first loss of a step that differs by more than rounding; None without one.

    Other calls make other roundings of what a model returns in a coarse type.

    Args:
        pair: the facts.
        resolution: of the type to which these calls round.
        scale: how large the terms are that losses are made of.
    """
    losses = pair.target.loss, pair.reference.loss
    made = [[each.made_by for each in side] for side in losses]
    if made[0][: len(made[1])] != made[1][: len(made[0])] and len(made[0]) != len(made[1]):
        return None  # a pass too many or too few: they are not each other's
    for target, reference in zip(*losses, strict=False):
        value, expected = target.value, reference.value
        if value is None or expected is None or target.micro != reference.micro:
            continue
        if _is_same(target, reference) or _is_same(target, reference, scale()):
            continue
        is_near = abs(value - expected) <= ONCE * resolution() * abs(expected)
        if is_near and not _is_alike(target, reference):
            continue
        # Losses of the same samples are as exact as their type: what is only near is another loss.
        near = after_calls(max(FINE, resolution()))
        factor = value / expected if expected else math.inf
        # Other passes take gradients of something else: a penalty, derivatives of an equation.
        micro = sum(_is_alike(each, reference) for each in losses[1] if each.micro < target.micro)
        of_micro = f", micro batch {micro}" if micro and not pair.evaluates_loss else ""
        texts = shown_apart(value, expected)
        values = (
            f"the loss is {texts[0]} in the target, {texts[1]} in the reference "
            f"(step {pair.step}{of_micro})"
        )
        # A loss that no division is missing in may be multiplied by any number there is.
        meaning = meanings_of(pair, 1).of(factor, near)
        number = meanings_of(pair, _ranks(pair)).of(factor, near, may_lack_division=False)
        return OtherLoss(target, reference, values, factor, meaning, number)
    return None


def _ranks(pair: FactsPair) -> int:
    """Return how many ranks the target was started with, as far as its environment tells."""
    told = pair.target.settings.get("env.WORLD_SIZE", "")
    return int(told) if told.isdecimal() else 1


def _is_alike(loss: Loss, other: Loss) -> bool:
    """Return whether two losses are made by the same functions: those of micro batches are."""
    names = [[text.partition("(")[0] for text in each.made_by] for each in (loss, other)]
    return names[0] == names[1]


def _is_of_another(loss: Loss, pair: FactsPair) -> bool:
    """Return whether a backward pass begins with another value than the last one of its step does.

    What a program computes of its gradients may be a number that the last one is made by.
    """
    last = pair.target.loss[-1]
    return loss.micro < last.micro and not _is_alike(loss, last)


def loss_differences(
    pair: FactsPair, resolution: Callable[[], float], scale: Callable[[int | str], float]
) -> Iterator[FactDifference]:
    """Yield losses that differ; whether the forward pass explains it is told by its values."""
    found = other_loss(pair, resolution, lambda: scale(pair.rank))
    if found is None:
        return
    scaled = difference_by_factor(*pair.sides, found.factor, after_calls(max(FINE, resolution())))
    behind = scaled or difference_behind(*pair.sides)
    if behind is not None and behind.is_computed:
        # Weights of the whole loss, say, by gradients of its terms: what cuts the graph is before.
        is_later = _is_of_another(found.target, pair)
        behind = difference_of_cuts(*pair.sides) or (None if is_later else behind)
    made, verdict = _made_words(found.target.made_by, found.reference.made_by)
    sent = None if behind else other_collective(pair)
    told = behind or difference_of_labels(*pair.sides) or _kept_term(pair)
    if sent is not None and sent.passes <= found.target.micro:
        made, verdict = f"; {sent.words}{sent.more}", VerdictClass.COMMUNICATION
    elif told is not None:
        made, verdict = f"; {told.words}", told.verdict
    if scaled is not None or (found.meaning and behind is None):
        verdict = VerdictClass.GRADIENT
    yield pair.difference(
        verdict,
        # What the optimizer asks for again hangs on what it made of the first answer.
        Moment.LOSS if found.target.micro < pair.first_evaluation else Moment.ASKED_AGAIN,
        (found.words if scaled is None else found.multiple(is_divided=scaled.is_division)) + made,
        effect=Effect.POSSIBLE,
        micro=found.target.micro,
        next=("record the calls between the model's output and backward (level L1 or mix)",),
    )


def _kept_term(pair: FactsPair) -> OutlineDifference | None:
    """Return in which call models differ that may keep a term of the loss: to balance experts, say.

    Their results agree where this is asked for. Types of autocast make other casts everywhere.
    """
    found = difference_of_models(*pair.sides)
    is_told = found is not None and found.verdict is not VerdictClass.PRECISION
    return found if is_told else None


def _made_words(target: Sequence[str], reference: Sequence[str]) -> tuple[str, VerdictClass]:
    """Return by which other calls losses are made, in words, and the class that this is of."""
    if not target or not reference or target == reference:
        return "", VerdictClass.UNEXPLAINED
    both = list(zip_longest(target, reference, fillvalue=""))
    apart = [at for at, (own, other) in enumerate(both) if own != other]
    last = apart[0]
    before = f"before its last {last} call{'s' * (last > 1)} " if last else ""
    calls = (
        f"{', '.join(made[last : last + _SHOWN_OPERATIONS]) or 'no more'} in the {side}"
        for side, _, made, _ in of_sides(target, reference)
    )
    names = [[text.partition("(")[0] for text in made] for made in (target, reference)]
    words = f"; {before}it is made by " + ", by ".join(calls)
    if any(made[last : last + len(_SMOOTHING)] == _SMOOTHING for made in names):
        return words, VerdictClass.UNEXPLAINED
    return words, VerdictClass.ARGUMENT if names[0] == names[1] else VerdictClass.CALL


def _is_same(target: Loss, reference: Loss, scale: float = 0.0) -> bool:
    """Return whether two values are equal up to a few roundings, or neither is finite.

    Those of terms that cancel are as large as the terms.
    """
    value, expected = target.value or 0.0, reference.value or 0.0
    if not (math.isfinite(value) and math.isfinite(expected)):
        return math.isfinite(value) == math.isfinite(expected)
    epsilon = max(epsilon_of(normal_dtype(each.dtype)) for each in (target, reference))
    return abs(value - expected) <= epsilon * max(IN_OTHER_CALLS * abs(expected), IN_SUM * scale)
