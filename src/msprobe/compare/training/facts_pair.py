# SPDX-License-Identifier: Apache-2.0
"""`FactsPair`: the facts of a step and rank on both sides; `StepPair`: an optimizer step in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from msprobe.compare.training.differences import FactDifference, Moment
from msprobe.compare.training.fingerprints import (
    EQUAL,
    Change,
    Fingerprint,
    at,
    change_of,
    in_column,
    is_part,
    of_parameters,
)
from msprobe.compare.training.first_evaluation import asks_again, repetitions
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import (
    Clip,
    Ending,
    Event,
    Facts,
    Fingerprints,
    Loss,
    OptimizedParameters,
    OptimizerStep,
)
from msprobe.dump.records import STORED_VALUES

_Event = TypeVar("_Event", bound=Event)

EARLY_EPS: Final = "eps_before_bias_correction"
"""Setting of Adam: whether ``eps`` is added to the root before its bias is corrected."""
# Numbers kept as float32, such as a learning rate that is a tensor, are rounded so far.
_SAME_NUMBER: Final = 1.2e-7
_EQUAL: Final = Change(is_equal=True, distance=EQUAL, epsilon=0.0)


@dataclass(frozen=True, kw_only=True)
class FactsPair:
    """The facts of one rank and step, on both sides.

    Attributes:
        step: the target's step.
        rank: the rank's number, or its folder's name.
        target: the facts of the side under test.
        reference: those of the trusted side.
        has_closure: an optimizer is seen to call the program again, which computes the loss.
    """

    step: int
    rank: int | str
    target: Facts
    reference: Facts
    has_closure: bool = False

    @property
    def sides(self) -> tuple[Facts, Facts]:
        """The target's facts and the reference's."""
        return self.target, self.reference

    def difference(
        self, verdict: VerdictClass, moment: Moment, words: str, **more: Any
    ) -> FactDifference:
        """Return a difference of this step and rank."""
        return FactDifference(
            verdict=verdict, moment=moment, step=self.step, rank=self.rank, words=words, **more
        )

    def events(self, kind: type[_Event]) -> tuple[list[_Event], list[_Event]]:
        """Return the events of one kind, of both sides and in order."""
        target, reference = (facts.events for facts in self.sides)
        return (
            [event for event in target if isinstance(event, kind)],
            [event for event in reference if isinstance(event, kind)],
        )

    @cached_property
    def step_counts(self) -> tuple[Counter[int], Counter[int]]:
        """How often each side calls ``step()`` of each optimizer."""
        target, reference = (
            Counter(step.number for step in facts.optimizer_steps()) for facts in self.sides
        )
        return target, reference

    @cached_property
    def steps(self) -> list[StepPair]:
        """The optimizer steps that both sides made, by optimizer and call."""
        others = {(each.number, each.call): each for each in self.reference.optimizer_steps()}
        return [
            StepPair(self, each, others[each.number, each.call])
            for each in self.target.optimizer_steps()
            if (each.number, each.call) in others
        ]

    @cached_property
    def starts(self) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
        """Parameter or buffer → its fingerprint when the step starts, for both sides."""
        target, reference = (of_parameters(facts.parameters) for facts in self.sides)
        return target, reference

    @cached_property
    def turns(self) -> dict[tuple[int, int], int]:
        """Optimizer of the target and its call → how many steps of others end before it begins."""
        keys = [(each.number, each.call) for each in self.target.optimizer_steps()]
        return {key: len(self.outer.intersection(keys[:place])) for place, key in enumerate(keys)}

    @cached_property
    def outer(self) -> frozenset[tuple[int, int]]:
        """Optimizers of the target and their calls that none makes within a step of its own."""
        return frozenset((each.number, each.call) for each in self.target.outer_steps())

    def start_changes(self) -> dict[str, Change]:
        """Return parameter or buffer → how far it is apart when the step starts.

        Those of other shapes are left out.
        """
        target, reference = self.starts
        return {
            name: change_of(found, reference[name])
            for name, found in target.items()
            if name in reference and name not in self.reshaped
        }

    @cached_property
    def reshaped(self) -> dict[str, tuple[Sequence[int], Sequence[int]]]:
        """Parameter or buffer → its shapes on both sides, for those whose shapes differ."""
        target, reference = (
            {}
            if (columns := facts.parameters) is None
            else dict(zip(columns.name, columns.shape, strict=False))
            for facts in self.sides
        )
        return {
            name: (shape, reference[name])
            for name, shape in target.items()
            if reference.get(name, shape) != shape
        }

    @cached_property
    def sharded(self) -> frozenset[str]:
        """The parameters of which one side alone holds a part on each rank."""
        if not isinstance(self.rank, int):
            return frozenset()
        return frozenset(name for name, both in self.reshaped.items() if is_part(*both))

    @cached_property
    def clip_factors(self) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
        """Optimizer and its call → by what clipping scaled its gradients, for both sides."""
        target, reference = map(clip_factors, self.sides)
        return target, reference

    @property
    def passes(self) -> tuple[int, int]:
        """How many backward passes each side made."""
        target, reference = (len({loss.micro for loss in facts.loss}) for facts in self.sides)
        return target, reference

    @property
    def has_lone_optimizer(self) -> bool:
        """Whether an optimizer takes a step on one side alone."""
        numbers = [{each.number for each in facts.optimizer_steps()} for facts in self.sides]
        return all(numbers) and numbers[0] != numbers[1]

    @cached_property
    def evaluates_loss(self) -> bool:
        """Whether an optimizer asks for the loss again within its step, as L-BFGS does."""
        return self.first_evaluation < math.inf

    @cached_property
    def first_evaluation(self) -> float:
        """How many backward passes come before an optimizer asks again.

        Derivatives that a loss is made of are passes, too: it ends with one like the last of all.
        """
        asked = (
            max(passes / repetitions(facts), _first_like_last(facts.loss) + 1)
            for facts, passes in zip(self.sides, self.passes, strict=True)
            if asks_again(facts)
        )
        return min(asked, default=math.inf)

    @property
    def asks_otherwise(self) -> bool:
        """Whether an optimizer that asks for the loss again is another, or is set otherwise."""
        return self.evaluates_loss and any(
            step.target.class_name != step.reference.class_name
            or options_of(step.target) != options_of(step.reference)
            for step in self.steps
        )

    @property
    def ran_through(self) -> bool:
        """Whether neither side was cut off, so that each made all of its events."""
        return not (_is_cut(*self.sides) or _is_cut(*self.sides[::-1]))

    def is_cut(self, side: str) -> bool:
        """Return whether a side, ``target`` or ``reference``, ended early.

        Without a call of ``stop`` or ``step`` it may be whole all the same, unless it trains less.
        """
        return _is_cut(*self.sides[:: 1 if side == "target" else -1])


def _is_cut(facts: Facts, other: Facts) -> bool:
    ended = facts.ended
    if ended is None or (ended.how is Ending.WHOLE and ended.stepped):
        return False
    may_be_whole = ended.how in (Ending.UNSTOPPED, Ending.WHOLE)
    return not may_be_whole or _training(facts) < _training(other)


def _training(facts: Facts) -> tuple[int, int]:
    """Return the numbers of backward passes and of optimizer steps."""
    return len(facts.loss), len(facts.optimizer_steps())


def clip_factors(facts: Facts) -> dict[tuple[int, int], float]:
    """Return the factors of one clipping of all gradients, or of those of single optimizers.

    These are told by how many parameters they were given.
    """
    clips = [event for event in facts.events if isinstance(event, Clip)]
    steps = facts.outer_steps()
    counts = [sum(map(bool, step.parameters.has_gradient)) for step in steps]
    if len(clips) == 1 and clips[0].parameters >= sum(counts):
        both = [(step, clips[0]) for step in steps]
    else:
        both = []
        for count in {*counts}:
            of_count = [step for step, own in zip(steps, counts, strict=True) if own == count]
            given = [clip for clip in clips if clip.parameters == count]
            both += zip(of_count, given, strict=True) if len(given) == len(of_count) else ()
    return {(step.number, step.call): clip_coefficient(clip) or 1.0 for step, clip in both}


def partial_clip_factor(facts: Facts) -> float:
    """Return the factor of a clipping of some gradients of an optimizer, if it is the only one."""
    clips = [event for event in facts.events if isinstance(event, Clip)]
    is_partial = len(clips) == len(facts.outer_steps()) == 1 and not clip_factors(facts)
    return (clip_coefficient(clips[0]) if is_partial else None) or 1.0


def clip_coefficient(clip: Clip) -> float | None:
    """Return the factor by which gradients were scaled; None where it is not known."""
    if clip.norm_type is None or clip.total_norm is None or clip.max is None:
        return None
    # The formula of torch.nn.utils.clip_grad_norm_.
    return min(1.0, clip.max / (clip.total_norm + 1e-6))


def _first_like_last(losses: Sequence[Loss]) -> int:
    """Return the number of the first backward pass whose root is made as that of the last one."""
    made = {tuple(each.made_by): each.micro for each in reversed(losses)}
    return made[tuple(losses[-1].made_by)]


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

    @property
    def sides(self) -> tuple[OptimizerStep, OptimizerStep]:
        """The target's step and the reference's."""
        return self.target, self.reference

    @property
    def columns(self) -> tuple[OptimizedParameters, OptimizedParameters]:
        """The parameters of the target's step and of the reference's."""
        return self.target.parameters, self.reference.parameters

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
        target, reference = self.columns
        return target.name == reference.name and target.dtype == reference.dtype

    @cached_property
    def _found(self) -> dict[tuple[str, bool], Mapping[str, Change]]:
        """Column, or name of a state, and which of both → what was found of it."""
        return {}

    def changes(self, column: str) -> Mapping[str, Change]:
        """Return parameter → how far its values are apart; see `OptimizedParameters`."""
        target, reference = (getattr(side, column) for side in self.columns)
        return self._changes((column, False), target, reference)

    def state_changes(self, name: str) -> Mapping[str, Change]:
        """Return parameter → how far a state of the optimizer is apart."""
        target, reference = (side.state.get(name) for side in self.columns)
        return self._changes((name, True), target, reference)

    def _changes(
        self, key: tuple[str, bool], target: Fingerprints | None, reference: Fingerprints | None
    ) -> Mapping[str, Change]:
        if key not in self._found:
            self._found[key] = self._compared(target, reference)
        return self._found[key]

    def _compared(
        self, target: Fingerprints | None, reference: Fingerprints | None
    ) -> Mapping[str, Change]:
        if target == reference and self._has_same_columns:
            return dict.fromkeys(self.places, _EQUAL)
        types = [side.dtype for side in self.columns]
        return {
            name: change_of(
                in_column(target, here, at(types[0], here) or ""),
                in_column(reference, there, at(types[1], there) or ""),
            )
            for name, (here, there) in self.places.items()
            if name not in self.pair.sharded
        }

    @cached_property
    def has_same_scale(self) -> bool:
        """Whether both optimizers take back the same scale of the loss."""
        return scale_of(self.target) == scale_of(self.reference)

    @cached_property
    def is_opposed(self) -> bool:
        """Whether one side climbs its loss and the other one descends: ``maximize``."""
        climbs = [
            {bool(group.options.get("maximize")) for group in step.groups}
            for step in (self.target, self.reference)
        ]
        return climbs in ([{True}, {False}], [{False}, {True}])

    @cached_property
    def gradients(self) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
        """Parameter → its gradient as the optimizer got it, for both sides.

        Where one side climbs its loss and the other one descends, the target's are negated.
        """
        # A sparse one tells its stored values alone, which may be parts of sums.
        sparse = set.symmetric_difference(*map(_sparse_gradients, self.columns))
        left_out = sparse.union(self.pair.sharded)
        target, reference = (
            {name: each for name, each in _gradients_of(side).items() if name not in left_out}
            for side in self.sides
        )
        return (
            {n: g.scaled(-1.0) for n, g in target.items()} if self.is_opposed else target
        ), reference

    @cached_property
    def unclipped(self) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
        """`gradients` before they were clipped; the same object where nothing is known of that.

        Checksums stay those of what the optimizer got.
        """
        return self._divided(self._clip_factors)

    @cached_property
    def unclipped_part(self) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
        """The same where clipping was given a part of the gradients: it is true of these alone."""
        return self._divided([partial_clip_factor(facts) for facts in self.pair.sides])

    def _divided(
        self, factors: Sequence[float]
    ) -> tuple[dict[str, Fingerprint], dict[str, Fingerprint]]:
        if all(factor == 1.0 for factor in factors):
            return self.gradients
        target, reference = (
            {
                name: gradient.scaled(1 / factor)._replace(checksum=gradient.checksum)
                for name, gradient in side.items()
            }
            for side, factor in zip(self.gradients, factors, strict=True)
        )
        return target, reference

    @property
    def is_clipped_alike(self) -> bool:
        """Whether clipping scales the gradients of both sides by the same number."""
        return same(*self._clip_factors)

    @property
    def _clip_factors(self) -> list[float]:
        return [
            factors.get((step.number, step.call), 1.0)
            for step, factors in zip(self.sides, self.pair.clip_factors, strict=True)
        ]

    @cached_property
    def turn(self) -> int:
        """How many optimizer steps of the target's training step end before it begins."""
        return self.pair.turns[self.target.number, self.target.call]

    @property
    def is_inner(self) -> bool:
        """Whether the target's optimizer steps within the step of another one."""
        return (self.target.number, self.target.call) not in self.pair.outer

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
        return self.pair.difference(verdict, moment, words, turn=self.turn, **more)


def _sparse_gradients(parameters: OptimizedParameters) -> set[str]:
    """Return the parameters that get a sparse gradient."""
    end = " gradient"
    notes = parameters.notes.items()
    return {
        name.removesuffix(end)
        for name, note in notes
        if name.endswith(end) and note == STORED_VALUES
    }


def _gradients_of(step: OptimizerStep) -> dict[str, Fingerprint]:
    """Return the gradients by parameter, without the scale that the optimizer takes back.

    Where there are no projections, some elements take their place: both are linear.
    """
    parameters = step.parameters
    samples = parameters.samples.get("gradient", [])
    scale = scale_of(step)
    found = {}
    for place, name in enumerate(parameters.name):
        gradient = in_column(parameters.gradient, place, at(parameters.dtype, place) or "")
        if gradient.projections is None:
            gradient = gradient._replace(projections=at(samples, place))
        if gradient.norm is not None:
            found[name] = gradient if scale == 1.0 else gradient.scaled(1 / scale)
    return found


def scale_of(step: OptimizerStep) -> float:
    """Return the scale of the loss that the optimizer divides gradients by, as MindSpore's do."""
    scales = {group.options.get("loss_scale") for group in step.groups}
    scale = scales.pop() if len(scales) == 1 else None
    return float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0


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
