# SPDX-License-Identifier: Apache-2.0
"""Differences between the settings, the states and the number of two runs' optimizer steps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, Final

from msprobe.compare.training.buffers import buffer_changes, parameters_after
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    are,
    of_sides,
    shown,
    shown_names,
    some_of,
)
from msprobe.compare.training.facts_pair import (
    EARLY_EPS,
    FactsPair,
    StepPair,
    options_of,
    same,
)
from msprobe.compare.training.fingerprints import at
from msprobe.compare.training.gradient_distances import has_same_gradients
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import WITHOUT_MEANING, Fingerprints, OptimizedParameters
from msprobe.plain_text import times_text

_OF_SCALE: Final = ("loss_scale", "reciprocal_scale", "need_scale")
_BETAS: Final = ("beta1", "beta2", "beta3")


def count_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield optimizers that were called more often on one side."""
    if not pair.ran_through:
        return
    counts = pair.step_counts
    several = sorted(counts[0] | counts[1])
    for number in several:
        numbers = counts[0][number], counts[1][number]
        if numbers[0] == numbers[1]:
            continue
        if 0 in numbers and (words := _by_other_code(pair, number)) is not None:
            if words:
                yield pair.difference(
                    VerdictClass.UPDATE,
                    Moment.UPDATE,
                    words,
                    next=("look at the code that updates the parameters",),
                )
            continue
        longer = pair.sides[numbers[0] < numbers[1]].optimizer_steps()
        lone = [each.number == number and each.call == min(numbers) for each in longer]
        which = f"step() of {_named(pair, number)}" if several[1:] else "optimizer.step()"
        updated = " (parameters are updated twice)" if numbers == (2, 1) else ""
        yield pair.difference(
            VerdictClass.UPDATE,
            Moment.UPDATE,
            f"{which} is called {times_text(numbers[0])} in the target, "
            f"{times_text(numbers[1])} in the reference (step {pair.step}){updated}",
            effect=Effect.NONE if 0 in numbers and _leave_the_same(pair) else Effect.CERTAIN,
            turn=lone.index(True),
            next=("look at the loop around optimizer.step()",),
        )


def _by_other_code(pair: FactsPair, number: int) -> str | None:
    """Return that code of one side updates what an optimizer updates on the other, in words.

    Empty if the parameters are the same afterwards, up to rounding; None if nothing else changes
    them.
    """
    steps = [
        next((each for each in facts.optimizer_steps() if each.number == number), None)
        for facts in pair.sides
    ]
    step = steps[0] or steps[1]
    changes = {} if step is None else buffer_changes(pair)
    found = {n: changes[n] for n in step.parameters.name if n in changes} if step else {}
    side, other = ("reference", "target") if steps[0] else ("target", "reference")
    after = parameters_after(getattr(pair, side))
    starts = pair.starts[side == "reference"]
    moved = [n for n in found if after[n].checksum != starts.get(n, after[n]).checksum]
    if step is None or not moved:
        return None
    worst = max(found, key=lambda name: found[name].relative)
    if all(change.is_rounding for change in found.values()):
        return ""
    name = step.class_name.rpartition(".")[2]
    return (
        f"{some_of(moved, len(found))} {are(moved, 'is', 'are')} updated by {name} in the {other}, "
        f"by other code in the {side}; after step {pair.step} {worst} differs"
        f"{found[worst].ending}"
    )


def _leave_the_same(pair: FactsPair) -> bool:
    """Return whether all parameters are the same after the last update of each side.

    An optimizer that calls others counts their steps, too.
    """
    sides: list[dict[str, str | None]] = [{}, {}]
    for found, facts in zip(sides, pair.sides, strict=True):
        for step in facts.optimizer_steps():
            found.update(zip(step.parameters.name, step.parameters.after.checksum, strict=False))
    return bool(sides[0]) and None not in sides[0].values() and sides[0] == sides[1]


def _named(pair: FactsPair, number: int) -> str:
    """Return an optimizer by its place, class and parameters."""
    steps = (*pair.target.optimizer_steps(), *pair.reference.optimizer_steps())
    step = next(step for step in steps if step.number == number)
    names = shown_names(step.parameters.name)
    return f"optimizer {number}, {step.class_name.rpartition('.')[2]} of {names},"


def setting_differences(pair: StepPair) -> Iterator[FactDifference]:
    """Yield settings that differ, the learning rate apart."""
    target, reference = pair.sides
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
        for key, value, expected in changed_options(
            options[0].get(name, {}), options[1].get(name, {})
        ):
            changed.setdefault((key, shown(value), shown(expected)), []).append(name)
    for (key, value, expected), names in changed.items():
        is_undone = has_same_gradients(pair) and (
            (key == "maximize" and pair.is_opposed)
            or (key in _OF_SCALE and not pair.has_same_scale)
        )
        has_meaning = key not in WITHOUT_MEANING and not is_undone
        yield pair.difference(
            VerdictClass.OPTIMIZER_SETTING,
            Moment.OPTIMIZER_SETTING,
            f"{pair.short_name} {key} is {value} in the target, {expected} in the reference "
            f"(step {pair.pair.step}, {some_of(names, pair.total)})",
            effect=Effect.POSSIBLE if has_meaning else Effect.NONE,
            parameter=names[0],
            setting=(target.number, key),
            next=()
            if key == EARLY_EPS  # the frameworks' rules
            else (f"set {key} of {pair.short_name} alike in both runs",),
        )


def changed_options(
    target: Mapping[str, Any], reference: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name and values of settings that differ, but for ``lr``; betas one by one."""
    for key, value in target.items():
        expected = reference.get(key, value)
        if key in ("lr", "params", "param_names") or same(value, expected):
            continue
        if key == "betas" and isinstance(value, list) and isinstance(expected, list):
            for name, one, other in zip(_BETAS, value, expected, strict=False):
                if not same(one, other):
                    yield name, one, other
        else:
            yield key, value, expected


def _membership(pair: StepPair) -> Iterator[FactDifference]:
    """Yield parameters that only one side's optimizer has, though both models do, or none does."""
    target, reference = set(options_of(pair.target)), set(options_of(pair.reference))
    models = pair.pair.reference.parameters, pair.pair.target.parameters
    for (side, _, own, other), model in zip(of_sides(target, reference), models, strict=True):
        known = own if model is None else own.intersection(model.name)
        # Parameters that are none of the model's.
        strange, outside = (
            {name for name in names if name.startswith("optimizer.")}
            for names in (other - own, own - other)
        )
        alone = sorted(known - other | (outside if own > other else set()))
        by_updates: dict[tuple[str, str], list[str]] = {}
        for name in alone:
            by_updates.setdefault(_updated_by(pair.pair, name), []).append(name)
        for (target_by, reference_by), names in by_updates.items():
            if target_by and reference_by:
                words = (
                    f"{some_of(names, len(own))} {are(names)} updated by {target_by} in the "
                    f"target, by {reference_by} in the reference (step {pair.pair.step})"
                )
            else:
                instead = f"; that of the other side updates {len(strange)} that its model lacks"
                words = (
                    f"only the {side}'s optimizer updates {some_of(names, len(own))} (step "
                    f"{pair.pair.step}){instead if strange else ''}"
                )
            yield pair.difference(
                VerdictClass.UPDATE,
                # What takes the place of a parameter is not unscaled or cleared, either.
                Moment.FROZEN if strange else Moment.OPTIMIZER_SETTING,
                words,
                effect=Effect.POSSIBLE,
                parameter=names[0],
                next=("give the optimizers of both runs the same parameters",),
            )


def _updated_by(pair: FactsPair, parameter: str) -> tuple[str, str]:
    """Return which optimizers update a parameter, for both sides; empty without any."""
    classes = [
        {
            each.number: each.class_name.rpartition(".")[2]
            for each in facts.optimizer_steps()
            if parameter in each.parameters.name
        }
        for facts in pair.sides
    ]
    numbers = classes[0].keys() | classes[1].keys()
    is_told = len({*classes[0].values(), *classes[1].values()}) == len(numbers)
    target, reference = (
        " and ".join(
            name if is_told else f"{name} (optimizer {each})" for each, name in side.items()
        )
        for side in classes
    )
    return target, reference


def state_differences(pair: StepPair, unchanged: Container[str]) -> Iterator[FactDifference]:
    """Yield differences of the optimizer's state before the step.

    Args:
        pair: the step on both sides.
        unchanged: the parameters whose state has no reason to differ: all that it is made of
            agreed to the bit.
    """
    if pair.target.class_name != pair.reference.class_name:
        return
    steps: dict[tuple[str, str], list[str]] = {}
    for name, (here, there) in pair.places.items():
        counts = _count(pair.target.parameters, here), _count(pair.reference.parameters, there)
        if None not in counts and counts[0] != counts[1]:
            steps.setdefault((shown(counts[0]), shown(counts[1])), []).append(name)
    for (count, expected), names in steps.items():
        both = (pair.target, pair.reference)
        is_lost = any(
            text == "0" and _is_empty(step.parameters, place)
            for text, step, place in zip(
                (count, expected), both, pair.places[names[0]], strict=True
            )
        )
        lost = "; the state was lost" if is_lost else ""
        yield _state(
            pair,
            f"the step count in the state of {pair.short_name} is {count} in the target, "
            f"{expected} in the reference (step {pair.pair.step}, {some_of(names, pair.total)})"
            f"{lost}",
            names[0],
            Moment.LOST_STATE,
        )
    if not steps:
        yield from _state_values(pair, unchanged)


def _count(parameters: OptimizedParameters, place: int) -> float | None:
    """Return the step count in the state of a parameter; None for states without one."""
    found = at(parameters.steps, place)
    if found is not None:
        return float(found)
    has_state = any(place in _present(each) for each in parameters.state.values())
    return None if has_state else 0.0


def _is_empty(parameters: OptimizedParameters, place: int) -> bool:
    """Return whether a parameter has no state, or one of zeros."""
    return not any(at(state.norm, place) for state in parameters.state.values())


def _state_values(pair: StepPair, unchanged: Container[str]) -> Iterator[FactDifference]:
    states = [side.state for side in pair.columns]
    for state in sorted(states[0].keys() | states[1].keys()):
        present = [_present(each.get(state)) for each in states]
        lacking = [
            name
            for name, (here, there) in pair.places.items()
            if (here in present[0]) is not (there in present[1]) and name not in pair.pair.sharded
        ]
        if lacking:
            side = "target" if pair.places[lacking[0]][0] not in present[0] else "reference"
            yield _state(
                pair,
                f"the {side}'s {pair.short_name} has no {state} of {some_of(lacking, pair.total)} "
                f"(step {pair.pair.step}); the state was lost",
                lacking[0],
                Moment.LOST_STATE if _are_set_alike(pair) else Moment.OPTIMIZER_STATE,
            )
            continue
        changes = pair.state_changes(state)
        far = [n for n, change in changes.items() if n in unchanged and not change.is_rounding]
        if far:
            yield _state(
                pair,
                f"{state} of {some_of(far, pair.total)} differs before step "
                f"{pair.pair.step}{changes[far[0]].ending}",
                far[0],
                effect=Effect.CERTAIN,
            )


def _are_set_alike(pair: StepPair) -> bool:
    """Return whether all settings but the learning rate agree; they decide which states exist."""
    target, reference = options_of(pair.target), options_of(pair.reference)
    return not any(
        True
        for name in pair.places
        for key, *_ in changed_options(target.get(name, {}), reference.get(name, {}))
        if key not in WITHOUT_MEANING
    )


def _present(column: Fingerprints | None) -> set[int]:
    norms = () if column is None else column.norm
    return {place for place, norm in enumerate(norms) if norm is not None}


def _state(
    pair: StepPair,
    words: str,
    parameter: str,
    moment: Moment = Moment.OPTIMIZER_STATE,
    effect: Effect = Effect.POSSIBLE,
) -> FactDifference:
    return pair.difference(
        VerdictClass.OPTIMIZER_STATE,
        moment,
        words,
        effect=effect,
        parameter=parameter,
        next=("save and load the optimizer's state_dict with the checkpoint",),
    )
