# SPDX-License-Identifier: Apache-2.0
"""Learning rates of two runs over all compared steps: by how many steps they are apart."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    of_sides,
    shown,
    some_of,
    steps_ahead,
)
from msprobe.compare.training.facts_pair import FactsPair, StepPair, options_of, same
from msprobe.compare.training.optimizers import changed_options
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Event, OptimizerStep, Schedule
from msprobe.plain_text import times_text

# Schedulers move these beside the learning rate; others are moved by the program itself.
_CYCLED: Final = ("beta1", "momentum")
# Schedulers keep these with a group; its optimizer does not read them.
_KEPT: Final = ("swa_lr", "max_lr", "min_lr", "max_momentum", "base_momentum")
_NEXT: Final = (
    "look at the scheduler: its settings, its state after a resume, where step() is called",
)
# Of recordings: of schedulers, and of those that call a function of the program.
_SETTINGS: Final = "schedule."
_LAMBDAS: Final = "lr_lambda"


@dataclass(slots=True)
class _Rates:
    """Learning rates of one group of parameters, step after step.

    Attributes:
        base: `initial_lr` of both sides.
        is_cycled: a scheduler chose that, too, as OneCycleLR does of its `max_lr`.
    """

    optimizer: str
    names: list[str]
    total: int
    steps: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    target: list[float | None] = field(default_factory=list)
    reference: list[float | None] = field(default_factory=list)
    base: tuple[float | None, float | None] = (None, None)
    is_cycled: bool = False


class _Around(NamedTuple):
    """Numbers of optimizers whose steps come before a scheduler's first one, and behind it."""

    before: Sequence[int]
    behind: Sequence[int]


class _Calls(NamedTuple):
    """Steps of schedulers in a step, on both sides.

    Attributes:
        optimizers: those of the steps that come before a side's first one, and behind it.
    """

    step: int
    target: Sequence[Schedule]
    reference: Sequence[Schedule]
    optimizers: tuple[_Around, _Around]


class ScheduleHistory:
    """The learning rates and schedulers of one rank."""

    def __init__(self, rank: int | str) -> None:
        self._rank = rank
        self._rates: dict[tuple[int, str], _Rates] = {}
        self._schedules: list[_Calls] = []
        self._before: dict[tuple[int, str], OptimizerStep] = {}
        self._moving: dict[str, set[tuple[int, str]]] = {"target": set(), "reference": set()}
        self._are_alike = False  # the schedulers, as far as their settings tell

    def add(self, pair: FactsPair, steps: Sequence[StepPair]) -> None:
        """Take in the learning rates of a step."""
        if not (self._rates or self._schedules):
            self._are_alike = _are_set_alike(pair)
        schedules = pair.events(Schedule)
        if any(schedules):
            around = _around_first(pair.target.events), _around_first(pair.reference.events)
            self._schedules.append(_Calls(pair.step, *schedules, around))
        for step in steps:
            for side, moving in self._moving.items():
                self._note_moving(getattr(step, side), side, moving)
            if step.target.class_name != step.reference.class_name:
                continue
            by_rates: dict[tuple[float | None, float | None], list[str]] = {}
            options = options_of(step.target), options_of(step.reference)
            for name in step.places:
                both = _number(options[0], name, "lr"), _number(options[1], name, "lr")
                by_rates.setdefault(both, []).append(name)
            for both, names in by_rates.items():
                key = (step.target.number, names[0])
                rates = self._rates.get(key)
                if rates is None:
                    base = [_number(each, names[0], "initial_lr") for each in options]
                    is_cycled = any("max_lr" in each.get(names[0], ()) for each in options)
                    rates = self._rates[key] = _Rates(
                        step.short_name,
                        names,
                        step.total,
                        base=(base[0], base[1]),
                        is_cycled=is_cycled,
                    )
                rates.steps.append(pair.step)
                rates.turns.append(step.turn)
                rates.target.append(both[0])
                rates.reference.append(both[1])

    def _note_moving(self, step: OptimizerStep, side: str, moving: set[tuple[int, str]]) -> None:
        """Remember the settings that change from step to step on a side."""
        before = self._before.get((step.number, side))
        self._before[step.number, side] = step
        for old, new in zip(() if before is None else before.groups, step.groups, strict=False):
            names = (name for name, *_ in changed_options(new.options, old.options))
            moving.update((step.number, name) for name in names)

    def of_scheduler(self, fact: FactDifference) -> FactDifference:
        """Return a difference of a setting as that of a schedule, if a scheduler moves it."""
        moving = [fact.setting in each for each in self._moving.values()]
        name = None if fact.setting is None else fact.setting[1]
        is_moved = all(moving) or (any(moving) and name in _CYCLED)
        if name not in _KEPT and not (self._schedules and is_moved):
            return fact
        return replace(fact, verdict=VerdictClass.SCHEDULE, moment=Moment.SCHEDULE, next=_NEXT)

    def differences(self) -> Iterator[FactDifference]:
        """Yield how learning rates differ; once for groups that differ alike."""
        alike: dict[Hashable, list[tuple[int, _Rates]]] = {}
        for (optimizer, _), rates in self._rates.items():
            key = (tuple(rates.steps), tuple(rates.target), tuple(rates.reference))
            alike.setdefault(key, []).append((optimizer, rates))
        apart: list[tuple[_Rates, int]] = []
        for found in alike.values():
            names = [name for _, each in found for name in each.names]
            # An optimizer may hand its parameters, or some, on to another one inside of it.
            own = [*dict.fromkeys(names)]
            total = sum({optimizer: each.total for optimizer, each in found}.values())
            rates = replace(found[0][1], names=own, total=total - (len(names) - len(own)))
            place = _first_difference(rates)
            if place is not None:
                apart.append((rates, place))
        for rates, place in apart:
            yield self._difference(rates, place, len(apart) - 1)

    def _difference(self, rates: _Rates, place: int, others: int) -> FactDifference:
        numbers = rates.target[place], rates.reference[place]
        is_schedule = self._is_schedule(rates)
        name = "learning rate" if is_schedule else f"{rates.optimizer} lr"
        words = (
            f"{'the ' * is_schedule}{name} is {shown(numbers[0])} in the target, "
            f"{shown(numbers[1])} in the reference (step {rates.steps[place]}, "
            f"{some_of(rates.names, rates.total)})"
        )
        if others:
            words += f"; rates of {others} other group{'s' * (others > 1)} differ, too"
        if is_schedule:
            words += self._calls_words(rates, place) or self._shift_words(rates)
        elif self._is_set_by_program(rates):
            words += ", though the schedulers are set alike"
        return FactDifference(
            verdict=VerdictClass.SCHEDULE if is_schedule else VerdictClass.OPTIMIZER_SETTING,
            moment=Moment.SCHEDULE if is_schedule else Moment.OPTIMIZER_SETTING,
            step=rates.steps[place],
            turn=rates.turns[place],
            rank=self._rank,
            words=words,
            effect=Effect.POSSIBLE,
            parameter=rates.names[0],
            next=_NEXT if is_schedule else (f"set lr of {rates.optimizer} alike in both runs",),
        )

    def _is_schedule(self, rates: _Rates) -> bool:
        if rates.is_cycled:
            return True
        if None not in rates.base and not same(*rates.base):
            return False
        if self._is_set_by_program(rates):
            return False
        # Rates that fall by one factor are one ratio and a shift: the schedulers' counters decide.
        apart = self._epochs_apart() if self._schedules else self._apart(rates)
        if rates.base == (None, None) and not apart and _has_one_ratio(rates):
            return False
        is_constant = len({*rates.target}) == len({*rates.reference}) == 1
        return bool(self._schedules) or not is_constant or rates.base != (None, None)

    def _is_set_by_program(self, rates: _Rates) -> bool:
        """Return whether one side begins with another rate, though the schedulers are alike.

        One that parts later was changed as a schedule changes it: by a floor, say.
        """
        if not self._are_alike or None in rates.base or _first_difference(rates) != 0:
            return False
        return not (self._calls_words(rates, 0) or self._apart(rates))

    def _calls_words(self, rates: _Rates, place: int) -> str:
        """Return how schedulers are stepped otherwise before rates differ; empty where alike."""
        for step, target, reference, optimizers in self._schedules:
            if step > rates.steps[place]:
                break
            if target and reference and target[0].class_name != reference[0].class_name:
                return (
                    f"; the scheduler is {target[0].class_name} in the target, "
                    f"{reference[0].class_name} in the reference"
                )
            if bool(target) is not bool(reference):
                side = "target" if target else "reference"
                return f"; only the {side} calls scheduler.step() in step {step}"
            if len(target) != len(reference):
                return (
                    f"; scheduler.step() is called {times_text(len(target))} in the target, "
                    f"{times_text(len(reference))} in the reference (step {step})"
                )
            moved = _moved_words(*optimizers)
            if moved:
                return f"; {moved} (step {step})"
        return ""

    def _shift_words(self, rates: _Rates) -> str:
        """Return by how many steps a schedule is off; empty where another one is followed."""
        shift, unit = self._apart(rates), "step"
        if not shift:
            return ""
        # Of updates, where a recorded step makes several.
        each = len(rates.steps) // len({*rates.steps})
        if each > 1 and self._updates_apart(rates):
            shift, unit = (shift // each, unit) if not shift % each else (shift, "update")
        count = f"{abs(shift)} {unit}{'s' * (abs(shift) > 1)}"
        return f"; the target is {count} {'ahead' if shift > 0 else 'behind'}"

    def _apart(self, rates: _Rates) -> int:
        """Return by how many steps the target's rates are ahead; 0 where no shift explains them.

        A scheduler moves all groups: where another one agrees, it is not ahead.
        """
        if any(_first_difference(each) is None for each in self._rates.values()):
            return 0
        return self._updates_apart(rates) or self._epochs_apart()

    @staticmethod
    def _updates_apart(rates: _Rates) -> int:
        return steps_ahead(rates.target, rates.reference, same)

    def _epochs_apart(self) -> int:
        """Return how far the counters of the schedulers are apart."""
        for calls in self._schedules:
            if calls.target and calls.reference:
                counts = calls.target[-1].last_epoch, calls.reference[-1].last_epoch
                if counts[0] is not None and counts[1] is not None:
                    return counts[0] - counts[1]
        return 0


def _are_set_alike(pair: FactsPair) -> bool:
    """Return whether both sides have schedulers of the same settings, and at the same place.

    What a function of the program computes is not told by these.
    """
    target, reference = (
        {name: value for name, value in facts.settings.items() if name.startswith(_SETTINGS)}
        for facts in pair.sides
    )
    return bool(target) and target == reference and not any(_LAMBDAS in name for name in target)


def _number(options: Mapping[str, Mapping[str, Any]], name: str, key: str) -> float | None:
    value = options.get(name, {}).get(key)
    return value if isinstance(value, (int, float)) else None


def _around_first(events: Sequence[Event]) -> _Around:
    """Return which optimizers step before any scheduler does, and which behind it."""
    steps = [each for each in events if isinstance(each, Schedule | OptimizerStep)]
    first = next((i for i, each in enumerate(steps) if isinstance(each, Schedule)), len(steps))
    before, behind = (
        [each.number for each in part if isinstance(each, OptimizerStep)]
        for part in (steps[:first], steps[first:])
    )
    return _Around(before, behind)


def _moved_words(target: _Around, reference: _Around) -> str:
    """Return the step of an optimizer that a scheduler's comes before on one side alone."""
    for side, other, own, others in of_sides(target, reference):
        late = [number for number in own.behind if number in others.before]
        if late and len(own.before) < len(others.before):
            if len({*own.before, *own.behind}) == 1:
                return f"only the {side} calls scheduler.step() before the optimizer's step"
            return (
                f"the {side} calls scheduler.step() before the step of optimizer {late[0]}, "
                f"the {other} after it"
            )
    return ""


def _first_difference(rates: _Rates) -> int | None:
    pairs = enumerate(zip(rates.target, rates.reference, strict=True))
    return next((place for place, numbers in pairs if not same(*numbers)), None)


def _has_one_ratio(rates: _Rates) -> bool:
    """Return whether the rates of several steps are the same multiples of the reference's."""
    pairs = [(a, b) for a, b in zip(rates.target, rates.reference, strict=True) if a and b]
    first = pairs[0] if pairs else (0.0, 0.0)
    is_known = len(pairs) == len(rates.steps) > 1
    return is_known and all(same(a * first[1], b * first[0]) for a, b in pairs)
