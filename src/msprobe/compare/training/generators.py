# SPDX-License-Identifier: Apache-2.0
"""Differences of the states of random generators when steps start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    shown_names,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Facts

_OF_HOST: Final = frozenset({"python", "numpy"})


def differing_generators(target: Facts, reference: Facts) -> list[str]:
    """Return the generators whose states differ when a step starts, but those that nobody uses."""
    unused = {*target.undrawn} & {*reference.undrawn}
    return [
        name
        for name, state in target.random.items()
        if state is not None
        and reference.random.get(name) not in (None, state)
        and name not in unused
    ]


class RandomHistory:
    """The states of one rank's generators, step after step."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, str | None], dict[str, str | None]] = ({}, {})
        self._drawn: set[str] = set()
        self._steps = 0
        self._names: dict[int, list[str]] = {}

    def differences(self, pair: FactsPair) -> Iterator[FactDifference]:
        """Yield the generators whose state differs when a step starts, as one difference."""
        sides = pair.target.random, pair.reference.random
        self._steps += 1
        for last, now in zip(self._last, sides, strict=True):
            self._drawn.update(name for name in last if last[name] != now.get(name))
        self._last = sides
        names = differing_generators(pair.target, pair.reference)
        if names:
            self._names[pair.step] = names
            yield pair.difference(
                VerdictClass.RANDOM,
                Moment.RANDOM,
                _generator_words(pair.step, names),
                effect=Effect.POSSIBLE,
                next=("seed both runs alike (seed_all) and compare again",),
            )

    @property
    def has_drawn(self) -> bool:
        """Whether a generator is drawn from between the starts of two steps."""
        return bool(self._drawn)

    def drawn(self, fact: FactDifference) -> FactDifference:
        """Return a difference without the generators from which no step draws; after all steps.

        A generator whose state is the same in all steps is not drawn from, on either side.
        """
        names = self._names.get(fact.step, [])
        drawn = [name for name in names if name in self._drawn]
        if self._steps == 1:
            return fact
        if not drawn:
            return replace(fact, effect=Effect.NONE)
        return replace(
            fact,
            words=_generator_words(fact.step, drawn),
            is_drawn_by_host=not _OF_HOST.isdisjoint(drawn),
        )


def drawn_within(
    facts: Iterable[FactDifference], step: int, rank: int | str
) -> FactDifference | None:
    """Return that Python's or NumPy's generator is drawn from otherwise within a step.

    Its state is the same when the step starts, and another one when the next one does.

    Args:
        facts: all differences.
        step: the step.
        rank: its rank.
    """
    found = [
        each
        for each in facts
        if each.moment is Moment.RANDOM and each.rank == rank and each.effect is not Effect.NONE
    ]
    first = min(found, key=lambda each: each.step, default=None)
    if first is None or first.step != step + 1 or not first.is_drawn_by_host:
        return None
    return replace(first, words=f"{first.words}, though not when step {step} does")


def _generator_words(step: int, names: list[str]) -> str:
    return (
        f"the {are(names, 'state', 'states')} of the {are(names, 'generator', 'generators')} "
        f"{shown_names(names)} {are(names, 'differs', 'differ')} when step {step} starts"
    )
