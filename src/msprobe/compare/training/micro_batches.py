# SPDX-License-Identifier: Apache-2.0
"""How often both sides call their models in a step, and whether the samples are the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msprobe.compare.training.data_pairing import (
    are_of_parts,
    distinct,
    models_called,
    other_model,
)
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Data, Loss
from msprobe.plain_text import times_text

SAME_SUM: Final = 1e-6
"""Sums of the same elements in another order agree this far."""
SAME_BATCHES: Final = (
    "feed both runs with the same batches in the same order, then compare again",
)
"""The next step where data differ."""


def other_counts(pair: FactsPair, counts: tuple[int, int], *, same: bool) -> FactDifference:
    """Return that the sides call the model so many times, in micro batches or besides.

    Args:
        pair: the facts of a step.
        counts: how many batches each side has.
        same: they hold the same samples.
    """
    trainings = 0 if same else _trainings(pair, counts)
    if trainings:
        side = "target" if counts[0] > counts[1] else "reference"
        return _difference(
            pair,
            f"step {pair.step} of the {side} holds {trainings} times the batches and the "
            "optimizer steps of the other side: the debugger's step() is not called after each "
            "of them",
            Effect.CERTAIN,
            verdict=VerdictClass.INCOMPLETE,
            next=(f"call step() at the end of each training step, and record the {side} again",),
        )
    passes = 0 if same or len({*pair.passes}) > 1 else pair.passes[0]
    holds_same = not same and distinct(pair.target.data) == distinct(pair.reference.data)
    called = [Counter(models_called(facts)) for facts in pair.sides]
    names = called[0].keys() | called[1].keys()
    # Of micro batches all losses are made alike; a penalty takes gradients of something else.
    made = {tuple(loss.made_by) for loss in max(pair.target.loss, pair.reference.loss, key=len)}
    if (
        not passes
        and not holds_same
        and (same or len(made) < 2)
        and (same or len(names) == 1 or called[0].keys() ^ called[1].keys())
    ):
        # Several models, or one of them several times, may be called for each of them.
        if all(pair.passes) and counts[0] * pair.passes[1] == counts[1] * pair.passes[0]:
            counts = pair.passes
        words = (
            f"step {pair.step} has {counts[0]} micro batch{'es' * (counts[0] > 1)} in the "
            f"target, {counts[1]} in the reference"
            + ("; they hold the same samples" if same else "")
        )
        # That of a micro batch without samples, say: it may have no gradients.
        bad = [any(map(_is_nonfinite, facts.loss)) for facts in pair.sides]
        if same and bad[0] is not bad[1]:
            side = "target" if bad[0] else "reference"
            words += f"; a loss of the {side} is NaN or infinite"
            same = False
        # An optimizer that one side alone calls has forward passes of its own.
        is_consequence = same or pair.has_lone_optimizer
        effect = Effect.NONE if is_consequence else Effect.CERTAIN
        return _difference(pair, words, effect)
    # An optimizer that is another one calls the model, or a part of it is called by itself.
    of_parts = are_of_parts(pair.target.data, pair.reference.data)
    is_consequence = of_parts or pair.asks_otherwise or pair.has_lone_optimizer
    name = ""
    if len(names) > 1:
        name = next(each for each in called[1] | called[0] if called[0][each] != called[1][each])
        counts = called[0][name], called[1][name]
    times = [times_text(count) for count in counts]
    place, other = other_model(pair)
    words = other or (
        f"step {pair.step} calls {name or 'the model'} {times[0]} in the target, "
        f"{times[1]} in the reference, "
    ) + (
        f"with {passes} backward pass{'es' * (passes > 1)} on either side"
        if passes
        else "on the same data"
        if holds_same
        else f"with {pair.passes[0]} backward passes instead of {pair.passes[1]}"
    )
    return _difference(
        pair,
        words,
        Effect.NONE
        if is_consequence
        else Effect.POSSIBLE
        if passes or holds_same
        else Effect.CERTAIN,
        verdict=VerdictClass.CALL,
        moment=Moment.ASKED_AGAIN if holds_same and pair.has_closure else Moment.DATA,
        micro=place,
        next=("look at where the model is called",),
    )


def _difference(pair: FactsPair, words: str, effect: Effect, **more: Any) -> FactDifference:
    told: dict[str, Any] = {
        "verdict": VerdictClass.DATA,
        "moment": Moment.DATA,
        "next": SAME_BATCHES,
    } | more
    return pair.difference(words=words, effect=effect, **told)


def _trainings(pair: FactsPair, counts: tuple[int, int]) -> int:
    """Return how many times one side trained, batches and optimizer steps alike; 0 if it did not.

    Args:
        pair: the facts of a step.
        counts: how many batches each side has.
    """
    steps = [Counter(each.number for each in facts.optimizer_steps()) for facts in pair.sides]
    (few, fewer), (many, more) = sorted(zip(counts, steps, strict=True), key=lambda side: side[0])
    times, rest = divmod(many, few)
    is_repeated = not rest and more == {number: times * n for number, n in fewer.items()}
    return times if times > 1 and fewer and is_repeated else 0


def is_split(target: Sequence[Data], reference: Sequence[Data]) -> bool:
    """Return whether the same samples are only divided into other micro batches."""
    totals = [_totals(side) for side in (target, reference)]
    return totals[0].keys() == totals[1].keys() and all(
        count == totals[1][where][0] and abs(size - totals[1][where][1]) <= SAME_SUM * size
        for where, (count, size) in totals[0].items()
    )


def _totals(data: Sequence[Data]) -> dict[str, tuple[float, float]]:
    """Return place among the arguments → how many elements all batches hold, and their squares."""
    found: dict[str, tuple[float, float]] = {}
    for each in data:
        count, size = found.get(each.where, (0.0, 0.0))
        square = (each.norm or 0.0) ** 2
        if each.shape:
            found[each.where] = count + math.prod(each.shape), size + square
        else:  # a number for all samples
            found[each.where] = 0.0, max(size, square)
    return found


def _is_nonfinite(loss: Loss) -> bool:
    return loss.value is not None and not math.isfinite(loss.value)
