# SPDX-License-Identifier: Apache-2.0
"""`RunFacts`: what the facts of two runs alone tell: the step that parts, and often the cause.

Only ``facts.json`` is read, of all steps and ranks; no record is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from itertools import chain, groupby, pairwise
from operator import attrgetter
from typing import Final

from msprobe.compare.distances import Distance
from msprobe.compare.matching.renamed_modules import renamed_modules
from msprobe.compare.ranks import ViewPair
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.facts_pair import FactsPair, StepPair
from msprobe.compare.training.fingerprints import (
    ROUNDINGS,
    Change,
    Fingerprint,
    at,
    change_of,
    in_column,
    of_parameter,
)
from msprobe.compare.training.history import TrainingHistory
from msprobe.compare.training.shared_names import with_shared_names
from msprobe.compare.verdicts.find_verdict import first_effective_fact
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence
from msprobe.dump.dump_steps import RankKey
from msprobe.dump.facts import Facts, Loss, OptimizedParameters, OptimizerStep
from msprobe.dump.rank_view import RankView
from msprobe.errors import DumpFormatError

# These act in their own step only, and on nothing if its losses and gradients are equal.
_ACT_AT_ONCE: Final = (
    Moment.DATA,
    Moment.RANDOM,
    Moment.MODES,
    Moment.FORWARD,
    Moment.LOSS,
    Moment.FROZEN,
    Moment.BACKWARD,
    Moment.REDUCE,
    Moment.CLIP,
)


_SIDES: Final[Sequence[str]] = ("target", "reference")


class Part(StrEnum):
    """Parts of the facts that say how a step begins."""

    SETTINGS = "settings"
    DATA = "data"
    PARAMETERS = "parameters"
    MODES = "modes"
    RANDOM = "random"


@dataclass(slots=True)
class _Held:
    """In how many steps and ranks both sides hold a part, and which sides lack it somewhere."""

    count: int = 0
    lacking: dict[str, None] = field(default_factory=dict)

    def add(self, target: object, reference: object) -> None:
        self.count += bool(target) and bool(reference)
        for side, part in zip(_SIDES, (target, reference), strict=True):
            if not part:
                self.lacking[side] = None


class Seen(IntEnum):
    """How far facts show two runs apart in a step, the least first."""

    EQUAL = 0
    """Gradients and updated parameters are equal to the bit, and losses where recorded."""
    UNKNOWN = 1
    """The facts do not tell: no gradients or checksums, or no facts."""
    ROUNDING = 2
    """They differ by a few roundings of their types."""
    FAR = 3
    """They differ by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """Differences that facts show in one step, over all ranks.

    Attributes:
        step: the target's step.
        seen: how far the runs are apart.
        is_exact: losses and gradients are known, and equal to the bit.
        words: the values that differ, in words; empty if none is known to.
        size: the largest relative difference; None where it is not known.
        is_amplified: losses and gradients differ by rounding alone, updated parameters by more:
            Adam moves a parameter whose gradient is rounding as far as any other.
    """

    step: int
    seen: Seen
    is_exact: bool = False
    words: str = ""
    size: float | None = None
    is_amplified: bool = False


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of one kind that a step made.

    Attributes:
        what: their kind in words.
        changes: how far they are apart.
    """

    what: str
    changes: Sequence[Change]

    @property
    def moved(self) -> list[Change]:
        """Those that differ."""
        return [change for change in self.changes if not change.is_equal]

    @property
    def far(self) -> list[Change]:
        """Those that differ by more than rounding, as far as their norms tell."""
        return [
            change for change in self.moved if change.distance is None or not change.may_be_rounding
        ]


@dataclass(slots=True)
class _Step:
    """One step while it is looked at."""

    number: int
    pairs: list[FactsPair] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


class RunFacts:
    """The facts of two runs, compared. At most two steps are in memory at a time.

    Attributes:
        count: steps and ranks of which both sides hold facts.
        differences: differences of the training, in the order in which they take effect.
        steps: what is seen of each step, in order.
        lacking: sides without facts in some step: ``target``, ``reference``.
        notes: on damaged files.
    """

    def __init__(self, views: Sequence[ViewPair]) -> None:
        self.count = 0
        self.lacking: dict[str, None] = {}
        self.notes: list[str] = []
        self.steps: list[StepSeen] = []
        self._views = views
        self._renamed: dict[RankKey, dict[str, str]] = {}  # as the first step of a rank tells
        self._held = {part: _Held() for part in Part}
        history = TrainingHistory()
        steps = (self._read(step, of_step) for step, of_step in groupby(views, lambda v: v.step))
        for step, following in pairwise(chain(steps, [None])):
            assert step is not None
            self._count(step)
            seen = _look_at(step, following)
            self.steps.append(seen)
            history.add_data(step.pairs)
            exact = seen.seen is Seen.EQUAL
            history.add(step.pairs, {pair.rank: exact for pair in step.pairs})
        self.differences = history.differences()
        self._changed_steps = frozenset(history.changed_steps)
        self._by_step = {each.step: each for each in self.steps}
        self.cause = self._first_cause()

    def _read(self, number: int, views: Iterable[ViewPair]) -> _Step:
        step = _Step(number)
        for view in views:
            target, reference = self._facts(view.target), self._facts(view.reference)
            step.lacking += [
                side
                for side, facts in zip(_SIDES, (target, reference), strict=True)
                if facts is None
            ]
            if target is not None and reference is not None:
                if view.rank not in self._renamed:
                    self._renamed[view.rank] = renamed_modules(target, reference)
                renamed = self._renamed[view.rank]
                target, reference = with_shared_names(target, reference, renamed=renamed)
                step.pairs.append(
                    FactsPair(step=number, rank=view.rank, target=target, reference=reference)
                )
        return step

    def _count(self, step: _Step) -> None:
        self.count += len(step.pairs)
        self.lacking |= dict.fromkeys(step.lacking)
        for pair in step.pairs:
            for part, held in self._held.items():
                held.add(getattr(pair.target, part), getattr(pair.reference, part))

    def _facts(self, view: RankView) -> Facts | None:
        """Return the facts of a rank, which it forgets: there may be thousands of steps."""
        try:
            return view.facts
        except DumpFormatError as exc:
            self.notes.append(str(exc))
            return None
        finally:
            view.unload()

    def pairs(self, step: int) -> list[FactsPair]:
        """Return the facts of the ranks of a step, which are read again."""
        return self._read(step, [view for view in self._views if view.step == step]).pairs

    @property
    def parting(self) -> StepSeen | None:
        """The first step in which the runs part by more than rounding, else the first at all.

        None where they are not known to part, or where an earlier step is not known.
        """
        for wanted in (Seen.FAR, Seen.ROUNDING):
            for each in self.steps:
                if each.seen is Seen.UNKNOWN:
                    break
                if each.seen is wanted:
                    return each
        return None

    @property
    def is_equal(self) -> bool:
        """Whether losses, gradients and parameters of all steps are equal to the bit."""
        return bool(self.steps) and all(each.seen is Seen.EQUAL for each in self.steps)

    def has_effect(self, fact: FactDifference) -> bool:
        """Return whether a difference may have an effect, as far as facts tell."""
        if fact.effect is Effect.NONE or self.is_equal:
            return False
        own = self._by_step.get(fact.step)
        return not (fact.moment in _ACT_AT_ONCE and own is not None and own.is_exact)

    def seen(self, step: int) -> StepSeen | None:
        """Return what is seen of a step."""
        return self._by_step.get(step)

    def _first_cause(self) -> FactDifference | None:
        parting = self.parting
        if parting is None:
            return None
        last = parting.step if parting.seen is Seen.FAR else math.inf
        facts = [each for each in self.differences if each.step <= last and self.has_effect(each)]
        findings = Findings(counts={}, facts=facts, changed_steps=self._changed_steps)
        return first_effective_fact(findings)

    def verdict(self) -> Verdict | None:
        """Return the verdict that the facts alone justify; None where calls must tell."""
        cause = self.cause
        if cause is None:
            return None
        findings = Findings(counts={}, facts=self.differences)
        before = [each for each in self.steps if each.step <= cause.step]
        is_exact = all(each.is_exact for each in before)
        evidence = []
        if is_exact and cause.moment > Moment.BACKWARD:
            evidence.append(f"losses and gradients are equal to the bit up to step {cause.step}")
        elif (own := self._by_step[cause.step]).words:
            evidence.append(f"in step {own.step} {own.words}")
        is_proved = cause.effect is Effect.CERTAIN or is_exact
        return findings.conclude(
            cause.told_verdict,
            cause.words,
            Confidence.PROVED if is_proved else Confidence.LIKELY,
            evidence=evidence,
            chosen=cause,
            where=Where(
                step=cause.step,
                rank=cause.rank,
                record=cause.record,
                parameter=cause.parameter,
                phase=cause.moment.phase,
            ),
            next_steps=cause.next,
        )

    def holding(self, part: Part) -> tuple[int, list[str]]:
        """Return in how many steps and ranks both sides hold a part, and which sides lack it."""
        held = self._held[part]
        lacking = [side for side in _SIDES if side in self.lacking or side in held.lacking]
        return held.count, lacking


def _look_at(step: _Step, following: _Step | None) -> StepSeen:
    """Return what facts show of a step; buffers are seen when the next one starts."""
    later = {} if following is None else {pair.rank: pair for pair in following.pairs}
    is_next = following is not None and following.number == step.number + 1
    found = [_look_at_rank(pair, later.get(pair.rank) if is_next else None) for pair in step.pairs]
    if step.lacking or not found:
        found.append(StepSeen(step=step.number, seen=Seen.UNKNOWN))
    worst = max(found, key=lambda each: (each.seen, each.size or 0.0))
    return replace(
        worst,
        step=step.number,
        is_exact=all(each.is_exact for each in found),
        is_amplified=all(each.is_amplified or each.seen < Seen.FAR for each in found),
    )


def _look_at_rank(pair: FactsPair, following: FactsPair | None) -> StepSeen:
    optimizers = pair.steps
    uneven = _uneven(pair, optimizers)
    made = [
        _Values("losses", list(_losses(pair))),
        _Values("gradients as the optimizer gets them", _gradients(optimizers)),
        _Values("parameters after the step", _columns(optimizers, "after")),
        _Values("buffers after the step", [] if following is None else _buffers(following)),
    ]
    is_exact = not uneven and _is_known(optimizers) and not (made[0].moved or made[1].moved)
    moved = [change for values in made for change in values.moved]
    if uneven or any(values.far for values in made):
        seen = Seen.FAR
    elif moved:
        seen = Seen.ROUNDING
    else:
        seen = Seen.EQUAL if is_exact else Seen.UNKNOWN
    sizes = [change.relative for change in moved if change.distance is not None]
    return StepSeen(
        step=pair.step,
        seen=seen,
        is_exact=is_exact,
        words=uneven or _words(made),
        size=None if uneven else max(sizes, default=None),
        is_amplified=not (uneven or made[0].far or made[1].far or made[3].far)
        and bool(made[1].moved),
    )


def _uneven(pair: FactsPair, optimizers: Sequence[StepPair]) -> str:
    """Return that the sides made other steps, in words; empty if they made the same ones."""
    target, reference = pair.target, pair.reference
    if len(target.loss) != len(reference.loss):
        return f"the sides have {len(target.loss)} and {len(reference.loss)} losses"
    counts = len(target.optimizer_steps()), len(reference.optimizer_steps())
    if not counts[0] == counts[1] == len(optimizers):
        return f"the sides have {counts[0]} and {counts[1]} optimizer steps"
    for each in optimizers:
        apart = _with_gradient(each.target) ^ _with_gradient(each.reference)
        if apart:
            return f"only one side's optimizer has a gradient of {min(apart)}"
    return ""


def _with_gradient(step: OptimizerStep) -> set[str]:
    parameters = step.parameters
    columns = zip(parameters.name, parameters.has_gradient, strict=False)
    return {name for name, has_gradient in columns if has_gradient}


def _words(made: Sequence[_Values]) -> str:
    """Return the first kind of values that differ beyond rounding, or else at all."""
    far = [values for values in made if values.far]
    for values in far or [values for values in made if values.moved]:
        worst = max(values.moved, key=attrgetter("relative"))
        size = "" if worst.distance is None else f", the furthest by {worst.distance}"
        if worst.not_finite:
            size = f", one of them {worst.not_finite}"
        return f"{len(values.moved)} of {len(values.changes)} {values.what} differ{size}"
    return ""


def _is_known(optimizers: Sequence[StepPair]) -> bool:
    """Return whether checksums of all gradients and updated parameters are there."""
    return bool(optimizers) and all(
        _has_checksums(side.parameters)
        for pair in optimizers
        for side in (pair.target, pair.reference)
    )


def _has_checksums(parameters: OptimizedParameters) -> bool:
    return all(
        not has_gradient
        or None
        not in (at(parameters.gradient.checksum, place), at(parameters.after.checksum, place))
        for place, has_gradient in enumerate(parameters.has_gradient)
    )


def _losses(pair: FactsPair) -> Iterator[Change]:
    for target, reference in zip(pair.target.loss, pair.reference.loss, strict=False):
        yield _loss_change(target, reference)


def _loss_change(target: Loss, reference: Loss) -> Change:
    value, expected = target.value, reference.value
    if value is None or expected is None:
        return Change(value is expected, None, 0.0)
    if math.isfinite(value) and math.isfinite(expected):
        found = change_of(
            Fingerprint(target.dtype, norm=abs(value), projections=(value,)),
            Fingerprint(reference.dtype, norm=abs(expected), projections=(expected,)),
        )
        return found._replace(distance=Distance(found.relative, is_exact=True))
    both_nan = math.isnan(value) and math.isnan(expected)
    return Change(both_nan or value == expected, None, 0.0)


def _columns(optimizers: Sequence[StepPair], column: str) -> list[Change]:
    return [change for pair in optimizers for change in pair.changes(column).values()]


def _gradients(optimizers: Sequence[StepPair]) -> list[Change]:
    """Return how far gradients are apart; those that are noise are held against the largest.

    The gradient of a bias before a normalisation is zero but for rounding.
    """
    found = []
    for pair in optimizers:
        changes = pair.changes("gradient")
        norms = [
            max(in_column(columns.gradient, place, "").norm or 0.0 for columns, place in sides)
            for sides in (zip(pair.columns, pair.places[name], strict=True) for name in changes)
        ]
        largest = max((norm for norm in norms if math.isfinite(norm)), default=0.0)
        found += [
            change._replace(distance=change.distance.scaled(norm / largest))
            if change.distance is not None and norm < ROUNDINGS * change.epsilon * largest
            else change
            for change, norm in zip(changes.values(), norms, strict=True)
        ]
    return found


def _buffers(pair: FactsPair) -> list[Change]:
    target, reference = pair.target.parameters, pair.reference.parameters
    if target is None or reference is None:
        return []
    there: Mapping[str, int] = {name: place for place, name in enumerate(reference.name)}
    return [
        change_of(of_parameter(target, place), of_parameter(reference, there[name]))
        for place, (name, kind) in enumerate(zip(target.name, target.kind, strict=False))
        if kind == "buffer" and name in there
    ]
