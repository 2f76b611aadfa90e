# SPDX-License-Identifier: Apache-2.0
"""What a step does around its models, in order: one call that comes elsewhere, or more often.

Backward passes, ``zero_grad()``, clipping, and steps of optimizers. Where several optimizers step,
or one does several times, as in training by turns, what each gets does not tell which it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from msprobe.compare.training.differences import FactDifference
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Clip, Facts, OptimizerStep
from msprobe.plain_text import times_text

_BACKWARD: Final = "backward()"
_CLEAR: Final = "zero_grad()"
_STEP: Final = "optimizer.step()"
# What may be the one call elsewhere, the likeliest first.
_CLASSES: Final = {
    _CLEAR: VerdictClass.GRADIENT,
    "clip_grad_norm_": VerdictClass.CLIPPING,
    "clip_grad_value_": VerdictClass.CLIPPING,
    "clip_grads_with_norm_": VerdictClass.CLIPPING,
    _STEP: VerdictClass.UPDATE,
    _BACKWARD: VerdictClass.GRADIENT,
}


class LoopCall(NamedTuple):
    """A call of a training loop.

    Attributes:
        name: of the function.
        of: what tells it from others of its name: an optimizer's number, or how many parameters.
    """

    name: str
    of: int | None = None


class LoopChange(NamedTuple):
    """The call of a training loop that differs.

    Attributes:
        verdict: class of the cause that it is.
        words: the difference in words.
        is_early: what limits gradients comes before a backward pass on one side.
        is_step_early: an optimizer's step does.
    """

    verdict: VerdictClass
    words: str
    is_early: bool = False
    is_step_early: bool = False

    def before(self, fact: FactDifference) -> FactDifference:
        """Return a difference of gradients that follows from it."""
        words = f"{self.words}; {fact.words}"
        return replace(fact, verdict=self.verdict, words=words, if_exact="")


def loop_change(pair: FactsPair) -> LoopChange | None:
    """Return the one kind of call that a side makes elsewhere, or more often; None without one.

    Where an optimizer steps once, what it gets tells, but for a step before the backward pass. None
    where the recordings do not tell the order.
    """
    loops = [list(_calls(facts)) for facts in pair.sides]
    steps = max(sum(call.name == _STEP for call in loop) for loop in loops)
    if not all(loops) or loops[0] == loops[1]:
        return None
    found = _change_of(*loops)
    if found is None or (steps < 2 and not found.is_step_early):
        return None
    return found._replace(words=f"{found.words} (step {pair.step})")


def _change_of(target: Sequence[LoopCall], reference: Sequence[LoopCall]) -> LoopChange | None:
    loops = target, reference
    counts = [Counter(loop) for loop in loops]
    apart = [call for call in {*target, *reference} if counts[0][call] != counts[1][call]]
    for name, verdict in _CLASSES.items():
        kinds = {call for loop in loops for call in loop if call.name == name}
        for kind in sorted(kinds, key=lambda call: call.of or 0):
            left = [[call for call in loop if call != kind] for loop in loops]
            if left[0] != left[1]:
                continue
            if apart:
                return LoopChange(verdict, _often(kind, counts))
            words, other = _elsewhere(kind, *loops)
            is_behind = other.name == _BACKWARD
            return LoopChange(
                verdict,
                words,
                is_early=is_behind and verdict is VerdictClass.CLIPPING,
                is_step_early=is_behind and name == _STEP,
            )
        left = [[call for call in loop if call.name != name] for loop in loops]
        if left[0] == left[1] and len(apart) == 2:
            return LoopChange(verdict, _exchanged(name, counts, apart))
    return None


def _calls(facts: Facts) -> Iterator[LoopCall]:
    """Yield the calls of a step in order; nothing where a recording does not tell it."""
    events = [each for each in facts.events if isinstance(each, Clip | OptimizerStep)]
    if any(each.passes is None for each in events):
        return
    passes, updates = 0, 0
    cleared = sorted(facts.cleared, key=lambda each: (each.passes, each.updates))
    for event in (*events, None):
        until = len(facts.loss) if event is None else event.passes or 0
        while True:
            while cleared and (cleared[0].passes, cleared[0].updates) <= (passes, updates):
                yield LoopCall(_CLEAR, cleared.pop(0).parameters)
            if passes >= until:
                break
            passes += 1
            yield LoopCall(_BACKWARD)
        if isinstance(event, Clip):
            yield LoopCall(event.function, event.parameters)
        elif event is not None:
            updates += 1
            yield LoopCall(_STEP, event.number)


def _words(call: LoopCall, among: Sequence[LoopCall]) -> str:
    """Return a call in words, with what tells it from others of its name."""
    if not any(each.name == call.name and each.of != call.of for each in among):
        return call.name
    if call.name == _STEP:
        return f"{call.name} of optimizer {call.of}"
    return f"{call.name} of {call.of} parameters"


def _often(kind: LoopCall, counts: Sequence[Counter[LoopCall]]) -> str:
    known = [*counts[0], *counts[1]]
    target, reference = (times_text(each[kind]) for each in counts)
    return f"{_words(kind, known)} is called {target} in the target, {reference} in the reference"


def _exchanged(name: str, counts: Sequence[Counter[LoopCall]], apart: Sequence[LoopCall]) -> str:
    """Return that a side calls a function for something else, as often."""
    more, fewer = sorted(apart, key=lambda call: counts[1][call] - counts[0][call])
    return (
        f"{_words(more, apart)} is called in the target where the reference calls "
        f"{_words(fewer, apart)}"
    )


def _elsewhere(
    kind: LoopCall, target: Sequence[LoopCall], reference: Sequence[LoopCall]
) -> tuple[str, LoopCall]:
    """Return that a call comes before another one on one side, after it on the other; and that."""
    place = next(
        i for i, both in enumerate(zip(target, reference, strict=True)) if both[0] != both[1]
    )
    known = [*target, *reference]
    early, late = ("target", "reference") if target[place] == kind else ("reference", "target")
    other = (reference if early == "target" else target)[place]
    words = (
        f"{_words(kind, known)} is called before {_words(other, known)} in the {early}, after it "
        f"in the {late}"
    )
    return words, other
