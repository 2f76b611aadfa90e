# SPDX-License-Identifier: Apache-2.0
"""`StepPair`: one optimizer step on both sides, and how far its values are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from msprobe.compare.training.differences import FactDifference, Moment
from msprobe.compare.training.fingerprints import Change, at, change_of, in_column
from msprobe.compare.training.start import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Ending, Facts, Fingerprints, OptimizedParameters, OptimizerStep

EARLY_EPS: Final = "eps_before_bias_correction"
"""Setting of Adam: whether ``eps`` is added to the root before its bias is corrected."""
# Numbers kept as float32, such as a learning rate that is a tensor, are rounded so far.
_SAME_NUMBER: Final = 1.2e-7
_EQUAL: Final = Change(is_equal=True, relative=0.0, epsilon=0.0)


def options_of(step: OptimizerStep) -> dict[str, Mapping[str, Any]]:
    """Return parameter → the settings of its group."""
    names = step.parameters.name
    return {
        names[place]: group.options
        for group in step.groups
        for place in group.parameters
        if 0 <= place < len(names)
    }


@dataclass(frozen=True)
class StepPair:
    """The same call of ``optimizer.step()`` on both sides.

    Attributes:
        pair: the facts that hold it.
        target: the target's.
        reference: the reference's.
    """

    pair: FactsPair
    target: OptimizerStep
    reference: OptimizerStep

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Parameter → its place in the columns of both sides, for those that both have."""
        there = {name: place for place, name in enumerate(self.reference.parameters.name)}
        return {
            name: (place, there[name])
            for place, name in enumerate(self.target.parameters.name)
            if name in there
        }

    @cached_property
    def _has_same_columns(self) -> bool:
        """Whether both sides have the same parameters in the same order."""
        sides = self.target.parameters, self.reference.parameters
        return sides[0].name == sides[1].name and sides[0].dtype == sides[1].dtype

    def changes(self, column: str) -> dict[str, Change]:
        """Return parameter → how far its values are apart; see `OptimizedParameters`."""
        sides = self.target.parameters, self.reference.parameters
        return self._changes(getattr(sides[0], column), getattr(sides[1], column))

    def state_changes(self, name: str) -> dict[str, Change]:
        """Return parameter → how far a state of the optimizer is apart."""
        sides = self.target.parameters.state, self.reference.parameters.state
        return self._changes(sides[0].get(name), sides[1].get(name))

    def _changes(
        self, target: Fingerprints | None, reference: Fingerprints | None
    ) -> dict[str, Change]:
        if target == reference and self._has_same_columns:
            return dict.fromkeys(self.places, _EQUAL)
        types = self.target.parameters.dtype, self.reference.parameters.dtype
        return {
            name: change_of(
                in_column(target, here, at(types[0], here) or ""),
                in_column(reference, there, at(types[1], there) or ""),
            )
            for name, (here, there) in self.places.items()
        }

    @cached_property
    def is_opposed(self) -> bool:
        """Whether one side climbs its loss and the other one descends: ``maximize``."""
        climbs = [
            {bool(group.options.get("maximize")) for group in step.groups}
            for step in (self.target, self.reference)
        ]
        return climbs in ([{True}, {False}], [{False}, {True}])

    @property
    def short_name(self) -> str:
        """Name of the target's class without its module."""
        return self.target.class_name.rpartition(".")[2]

    @property
    def total(self) -> int:
        """How many parameters both have."""
        return len(self.places)

    def difference(
        self, verdict: VerdictClass, moment: Moment, words: str, **more: Any
    ) -> FactDifference:
        """Return a difference of this step."""
        return FactDifference(
            verdict=verdict,
            moment=moment,
            step=self.pair.step,
            rank=self.pair.rank,
            words=words,
            **more,
        )


def step_pairs(pair: FactsPair) -> list[StepPair]:
    """Return the optimizer steps that both sides made, by optimizer and call."""
    others = {(each.number, each.call): each for each in pair.reference.optimizer_steps()}
    return [
        StepPair(pair, each, others[each.number, each.call])
        for each in pair.target.optimizer_steps()
        if (each.number, each.call) in others
    ]


def has_lone_optimizer(pair: FactsPair) -> bool:
    """Return whether an optimizer takes a step on one side alone."""
    sides = [
        {each.number for each in facts.optimizer_steps()} for facts in (pair.target, pair.reference)
    ]
    return all(sides) and sides[0] != sides[1]


def evaluates_loss(pair: FactsPair) -> bool:
    """Return whether an optimizer asks for the loss again within its step, as L-BFGS does."""
    sides = pair.target, pair.reference
    passes = [{loss.micro for loss in facts.loss} for facts in sides]
    return any(
        bool(steps := facts.optimizer_steps()) and len(own) > len(steps)
        for facts, own in zip(sides, passes, strict=True)
    ) and any(map(_repeats_batch, sides))


def asks_otherwise(pair: FactsPair) -> bool:
    """Return whether an optimizer that asks for the loss again is another, or is set otherwise."""
    return evaluates_loss(pair) and any(
        step.target.class_name != step.reference.class_name
        or options_of(step.target) != options_of(step.reference)
        for step in step_pairs(pair)
    )


def _repeats_batch(facts: Facts) -> bool:
    batches: dict[int, list[str | None]] = {}
    for each in facts.data:
        batches.setdefault(each.micro, []).append(each.checksum)
    keys = [tuple(batch) for batch in batches.values() if None not in batch]
    return len({*keys}) < len(keys)


def both_ran_through(pair: FactsPair) -> bool:
    """Return whether neither side was interrupted, so that each made all of its events."""
    return not any(
        facts.ended is not None and facts.ended.how in (Ending.INTERRUPTED, Ending.KILLED)
        for facts in (pair.target, pair.reference)
    )


def is_idle(parameters: OptimizedParameters, place: int) -> bool:
    """Return whether a step left a parameter as it was."""
    before, after = at(parameters.before.checksum, place), at(parameters.after.checksum, place)
    return before is not None and before == after


def same(value: Any, expected: Any) -> bool:
    """Return whether two settings are the same, numbers up to rounding to float32."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    numbers = (int, float)
    if isinstance(value, numbers) and isinstance(expected, numbers):
        return math.isclose(value, expected, rel_tol=_SAME_NUMBER)
    return bool(value == expected)
