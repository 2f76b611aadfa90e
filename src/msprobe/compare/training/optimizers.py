# SPDX-License-Identifier: Apache-2.0
"""Differences between the optimizer steps of two runs, and what comes with them: clipping, scaling.

A parameter that differs after a step was either different before, got another gradient or another
state, was updated with another setting, or was updated wrongly. Each is told from the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    shown,
    some_of,
)
from msprobe.compare.training.fingerprints import Change, at, change_of, in_column
from msprobe.compare.training.start import FactsPair
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import (
    Clip,
    Ending,
    Facts,
    Fingerprints,
    OptimizedParameters,
    OptimizerStep,
    Scaler,
)

# Settings that choose an implementation of the same rule, and the scheduler's own memory.
_WITHOUT_MEANING: Final = ("foreach", "fused", "capturable", "differentiable", "initial_lr")
_SAME_NUMBER: Final = 1e-9
_SAME_COEFFICIENT: Final = 1e-6
_BETAS: Final = ("beta1", "beta2", "beta3")


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
        types = self.target.parameters.dtype, self.reference.parameters.dtype
        return {
            name: change_of(
                in_column(target, here, at(types[0], here) or ""),
                in_column(reference, there, at(types[1], there) or ""),
            )
            for name, (here, there) in self.places.items()
        }

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


def clip_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield differences in the clipping of gradients, with their effect on what follows."""
    target, reference = clips_of(pair.target), clips_of(pair.reference)
    if not _ran_to_the_optimizer(pair):
        return
    for own, other in zip(target, reference, strict=False):
        words = _clip_words(own, other)
        if words:
            words = f"{own.function} {words} (step {pair.step})"
            yield _clipping(pair, words, _clip_effect(own, other))
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


def clips_of(facts: Facts) -> list[Clip]:
    """Return the calls that limit gradients, in order."""
    return [event for event in facts.events if isinstance(event, Clip)]


def _clip_effect(target: Clip, reference: Clip) -> Effect:
    coefficient, expected = _coefficient(target), _coefficient(reference)
    if coefficient is None or expected is None or target.parameters != reference.parameters:
        return Effect.POSSIBLE
    is_same = math.isclose(coefficient, expected, rel_tol=_SAME_COEFFICIENT)
    return Effect.NONE if is_same else Effect.CERTAIN


def _ran_to_the_optimizer(pair: FactsPair) -> bool:
    """Return whether neither side was interrupted, so that events that lack are missing."""
    return not any(
        facts.ended is not None and facts.ended.how in (Ending.INTERRUPTED, Ending.KILLED)
        for facts in (pair.target, pair.reference)
    )


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
            return (
                f"has {words} {shown(numbers[0])} in the target, {shown(numbers[1])} in the "
                f"reference; the total norm is {shown(target.total_norm)}"
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


def scaler_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield steps that a gradient scaler skipped on one side only, and other scales."""
    sides = [
        [event for event in facts.events if isinstance(event, Scaler)]
        for facts in (pair.target, pair.reference)
    ]
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
            yield FactDifference(
                verdict=VerdictClass.GRADIENT,
                moment=Moment.LOSS,
                step=pair.step,
                rank=pair.rank,
                words=f"the gradient scaler scales by {shown(target.scale)} in the target, "
                f"{shown(reference.scale)} in the reference (step {pair.step})",
                effect=Effect.NONE,  # unscaling takes it back, or the gradients differ by a factor
            )


def count_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield optimizers that were called more often on one side."""
    if not _ran_to_the_optimizer(pair):
        return
    counts = [_calls(facts.optimizer_steps()) for facts in (pair.target, pair.reference)]
    for number in sorted(counts[0].keys() | counts[1].keys()):
        numbers = counts[0].get(number, 0), counts[1].get(number, 0)
        if numbers[0] == numbers[1]:
            continue
        which = "optimizer.step()" if number == 0 else f"step() of optimizer {number}"
        updated = " (parameters are updated twice)" if numbers == (2, 1) else ""
        yield FactDifference(
            verdict=VerdictClass.UPDATE,
            moment=Moment.UPDATE,
            step=pair.step,
            rank=pair.rank,
            words=f"{which} is called {_times(numbers[0])} in the target, {_times(numbers[1])} in "
            f"the reference (step {pair.step}){updated}",
            next=("look at the loop around optimizer.step()",),
        )


def _calls(steps: Sequence[OptimizerStep]) -> dict[int, int]:
    found: dict[int, int] = {}
    for step in steps:
        found[step.number] = found.get(step.number, 0) + 1
    return found


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def setting_differences(pair: StepPair) -> Iterator[FactDifference]:
    """Yield settings that differ, the learning rate apart."""
    target, reference = pair.target, pair.reference
    if target.class_name != reference.class_name:
        yield pair.difference(
            VerdictClass.OPTIMIZER_SETTING,
            Moment.OPTIMIZER_SETTING,
            f"the optimizer is {target.class_name} in the target, {reference.class_name} in the "
            "reference",
            effect=Effect.POSSIBLE,
        )
        return
    yield from _membership(pair)
    options = options_of(target), options_of(reference)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in pair.places:
        for key, value, expected in _changed_options(
            options[0].get(name, {}), options[1].get(name, {})
        ):
            changed.setdefault((key, shown(value), shown(expected)), []).append(name)
    for (key, value, expected), names in changed.items():
        has_meaning = key not in _WITHOUT_MEANING
        yield pair.difference(
            VerdictClass.OPTIMIZER_SETTING,
            Moment.OPTIMIZER_SETTING,
            f"{pair.short_name} {key} is {value} in the target, {expected} in the reference "
            f"(step {pair.pair.step}, {some_of(names, pair.total)})",
            effect=Effect.POSSIBLE if has_meaning else Effect.NONE,
            parameter=names[0],
            next=(f"set {key} of {pair.short_name} alike in both runs",),
        )


def _changed_options(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and values of the settings that differ, but for ``lr``; betas one by one."""
    for key in sorted(set(target) & set(reference) - {"lr", "params", "param_names"}):
        value, expected = target[key], reference[key]
        if same(value, expected):
            continue
        if key == "betas" and isinstance(value, list) and isinstance(expected, list):
            for name, one, other in zip(_BETAS, value, expected, strict=False):
                if not same(one, other):
                    yield name, one, other
        else:
            yield key, value, expected


def _membership(pair: StepPair) -> Iterator[FactDifference]:
    """Yield parameters that only one side's optimizer has."""
    target, reference = set(options_of(pair.target)), set(options_of(pair.reference))
    for own, other, side in ((target, reference, "target"), (reference, target, "reference")):
        alone = sorted(own - other)
        if alone:
            yield pair.difference(
                VerdictClass.UPDATE,
                Moment.OPTIMIZER_SETTING,
                f"only the {side}'s optimizer updates {some_of(alone, len(own))} (step "
                f"{pair.pair.step})",
                effect=Effect.POSSIBLE,
                parameter=alone[0],
                next=("give the optimizers of both runs the same parameters",),
            )


def state_differences(pair: StepPair, unchanged: bool) -> Iterator[FactDifference]:
    """Yield differences of the optimizer's state before the step.

    Args:
        pair: the step on both sides.
        unchanged: whether everything before agreed to the bit, so that the values of the state
            have no reason to differ.
    """
    if pair.target.class_name != pair.reference.class_name:
        return
    steps: dict[tuple[str, str], list[str]] = {}
    for name, (here, there) in pair.places.items():
        counts = _count(pair.target.parameters, here), _count(pair.reference.parameters, there)
        if None not in counts and counts[0] != counts[1]:
            steps.setdefault((shown(counts[0]), shown(counts[1])), []).append(name)
    for (count, expected), names in steps.items():
        lost = "; the state was lost" if "0" in (count, expected) else ""
        yield _state(
            pair,
            f"the step count in the state of {pair.short_name} is {count} in the target, "
            f"{expected} in the reference (step {pair.pair.step}, {some_of(names, pair.total)})"
            f"{lost}",
            names[0],
        )
    if unchanged and not steps:
        yield from _state_values(pair)


def _count(parameters: OptimizedParameters, place: int) -> float | None:
    """Return the step count in the state of a parameter; None for states without one."""
    found = at(parameters.steps, place)
    if found is not None:
        return float(found)
    has_state = any(place in _present(each) for each in parameters.state.values())
    return None if has_state else 0.0


def _state_values(pair: StepPair) -> Iterator[FactDifference]:
    states = pair.target.parameters.state, pair.reference.parameters.state
    for state in states[0].keys() | states[1].keys():
        present = [_present(each.get(state)) for each in states]
        lacking = [
            name
            for name, (here, there) in pair.places.items()
            if (here in present[0]) is not (there in present[1])
        ]
        if lacking:
            side = "target" if pair.places[lacking[0]][0] not in present[0] else "reference"
            yield _state(
                pair,
                f"the {side}'s {pair.short_name} has no {state} of {some_of(lacking, pair.total)} "
                f"(step {pair.pair.step}); the state was lost",
                lacking[0],
            )
            continue
        changes = pair.state_changes(state)
        far = [name for name, change in changes.items() if not change.is_rounding]
        if far:
            yield _state(
                pair,
                f"{state} of {some_of(far, pair.total)} differs before step {pair.pair.step} "
                f"{changes[far[0]].words}".rstrip(),
                far[0],
            )


def _present(column: Fingerprints | None) -> set[int]:
    norms = () if column is None else column.norm
    return {place for place, norm in enumerate(norms) if norm is not None}


def _state(pair: StepPair, words: str, parameter: str) -> FactDifference:
    return pair.difference(
        VerdictClass.OPTIMIZER_STATE,
        Moment.OPTIMIZER_STATE,
        words,
        effect=Effect.POSSIBLE,
        parameter=parameter,
        next=("save and load the optimizer's state_dict with the checkpoint",),
    )


def is_idle(parameters: OptimizedParameters, place: int) -> bool:
    """Return whether a step left a parameter as it was."""
    before, after = at(parameters.before.checksum, place), at(parameters.after.checksum, place)
    return before is not None and before == after


def same(value: Any, expected: Any) -> bool:
    """Return whether two settings are the same, numbers up to the rounding of a schedule."""
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    numbers = (int, float)
    if isinstance(value, numbers) and isinstance(expected, numbers):
        return math.isclose(value, expected, rel_tol=_SAME_NUMBER)
    return bool(value == expected)
