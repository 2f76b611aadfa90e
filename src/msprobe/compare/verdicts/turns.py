# SPDX-License-Identifier: Apache-2.0
"""`Turns`: which updates of a training step come before each of its calls.

A step of adversarial training, say, updates a critic several times, then a generator: what one
update changes is seen by the calls that follow it in the same step.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.record_names import RecordKind


@dataclass(frozen=True)
class Turns:
    """The optimizer steps of the target's training step among its calls.

    Attributes:
        ends: place of the first forward call behind each of them; none where there is only one.
        models: places of the models' calls.
        passes: places where backward passes begin.
    """

    ends: Sequence[float] = ()
    models: Sequence[int] = ()
    passes: Sequence[int] = ()

    def of_place(self, position: float) -> int:
        """Return how many optimizer steps come before a call."""
        return bisect_right(self.ends, position)

    def of_model(self, number: int) -> int:
        """Return how many come before a call of a model."""
        return self.of_place(self.models[number]) if number < len(self.models) else 0

    def of_pass(self, number: int) -> int:
        """Return how many come before a backward pass."""
        return self.of_place(self.passes[number]) if number < len(self.passes) else 0


def turns_of(comparison: RankComparison) -> Turns:
    """Return the turns of a comparison; all zero where records do not tell them apart."""
    facts = comparison.facts[0]
    steps = [] if facts is None else facts.outer_steps()
    if len(steps) < 2:
        return Turns()
    places = {p.target: p.position for p in comparison.pairs if p.target is not None}
    starts = [-1 if each.record is None else places.get(each.record) for each in steps]
    known = [each for each in starts if each is not None]
    if len(known) < len(starts):
        return Turns()
    forward = [
        pair.position
        for pair in comparison.pairs
        if pair.target and comparison.parsed(pair).kind is RecordKind.FORWARD
    ]
    side = comparison.target
    return Turns(
        ends=[next(iter(forward[bisect_right(forward, start) :]), math.inf) for start in known],
        models=[places[name] for name in side.names if side.is_model_call(name)],
        passes=list(comparison.starts_of_passes(p for p in comparison.pairs if p.target)),
    )
