# SPDX-License-Identifier: Apache-2.0
"""Random generators whose states differ when a step starts, and whether they are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from msprobe.compare.training.differences import Effect, FactDifference, Moment, shown_names
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass

_OF_HOST: Final = frozenset({"python", "numpy"})


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
        names = [
            name
            for name, state in sides[0].items()
            if state is not None and sides[1].get(name) not in (None, state)
        ]
        if names:
            self._names[pair.step] = names
            yield pair.difference(
                VerdictClass.RANDOM,
                Moment.RANDOM,
                _words(pair.step, names),
                effect=Effect.POSSIBLE,
                next=("seed both runs alike (seed_all) and compare again",),
            )

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
            words=_words(fact.step, drawn),
            is_drawn_by_host=not _OF_HOST.isdisjoint(drawn),
        )


def _words(step: int, names: list[str]) -> str:
    several = len(names) > 1
    return (
        f"the state{'s' if several else ''} of the generator{'s' if several else ''} "
        f"{shown_names(names)} differ{'' if several else 's'} when step {step} starts"
    )
