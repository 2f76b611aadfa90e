# SPDX-License-Identifier: Apache-2.0
"""`TrainingHistory`: all differences between the training of two runs, step after step."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from msprobe.compare.training.batches import Made
from msprobe.compare.training.buffers import buffer_changes, buffer_differences
from msprobe.compare.training.clipping import (
    clip_differences,
    clips_other_parameters,
    scaler_differences,
)
from msprobe.compare.training.collectives import collective_differences
from msprobe.compare.training.data import DataHistory
from msprobe.compare.training.differences import Effect, FactDifference, Moment
from msprobe.compare.training.endings import ended_differences, first_to_end, lacking_steps
from msprobe.compare.training.facts_pair import FactsPair, StepPair
from msprobe.compare.training.fingerprints import Change, Fingerprint
from msprobe.compare.training.generators import RandomHistory, drawn_within
from msprobe.compare.training.gradient_distances import (
    SAME_GRADIENT,
    are_rounded,
    farthest_gradient,
    farthest_told,
    gradient_distances,
    has_same_gradients,
)
from msprobe.compare.training.gradient_factors import Meanings, meanings_of
from msprobe.compare.training.gradients import (
    GradientHistory,
    total_norm_differences,
    unreduced,
)
from msprobe.compare.training.loop_order import loop_change
from msprobe.compare.training.losses import loss_differences
from msprobe.compare.training.micro_batches import is_split
from msprobe.compare.training.modes import mode_differences, settings_differences
from msprobe.compare.training.optimizers import (
    count_differences,
    setting_differences,
    state_differences,
)
from msprobe.compare.training.same_training import has_same_training, total_loss
from msprobe.compare.training.schedules import ScheduleHistory
from msprobe.compare.training.shards import ShardHistory
from msprobe.compare.training.start import (
    SharedParameters,
    equal_at_start,
    frozen_in_both,
    kinds_of,
    parameter_differences,
    shared_parameters,
)
from msprobe.compare.training.updates import earlier_changes, update_differences
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Scaler

# What an optimizer's step makes of rounding in gradients, where they stay the same; a change that
# is larger than the second of these was not made of it.
_GROWTH: Final = 100.0
_JUMP: Final = 1000.0
_LEAST_JUMP: Final = 1e-3
# Gradients of coarse types are as near as this part of their norms in later steps.
_COARSE_JUMP: Final = 0.25
# What dropout draws changes the losses of a step by less.
_NEAR_LOSS: Final = 0.1


class Apart(NamedTuple):
    """A parameter that is further apart after a step than rounding gets.

    Attributes:
        change: how far.
        name: its name.
    """

    change: Change
    name: str

    @property
    def order(self) -> tuple[float, str]:
        """The key of the one that is furthest apart."""
        return self.change.relative, self.name

    def words(self, step: int) -> str:
        """Return it in words."""
        return f"{self.name} differs after step {step}{self.change.ending}"


@dataclass(slots=True)
class _RankHistory:
    """Earlier steps of one rank."""

    data: DataHistory
    schedules: ScheduleHistory
    gradients: GradientHistory = field(default_factory=GradientHistory)
    random: RandomHistory = field(default_factory=RandomHistory)
    is_exact: bool = True
    last: FactsPair | None = None
    after: dict[str, bool] = field(default_factory=dict)
    updated: dict[str, bool] = field(default_factory=dict)
    settings: frozenset[str] = frozenset()
    has_same_scales: bool = False
    distances: dict[str, float] = field(default_factory=dict)
    told: float = 0.0  # how far a gradient was apart at most that is no noise
    alike_since: float = math.inf  # the step from which both sides train alike

    @property
    def farthest(self) -> float:
        """How far a gradient was apart at most."""
        return max(self.distances.values(), default=0.0)

    @property
    def agreeing(self) -> set[str]:
        """The parameters that, with their gradients, were equal to the bit in every update."""
        return {
            name
            for name, differed in self.updated.items()
            if not differed and self.distances.get(name) == 0.0
        }


class TrainingHistory:
    """Compares the facts of all ranks, step after step.

    Attributes:
        found: the differences so far, without those that need all steps.
        changed_steps: steps after which a parameter was not exactly equal.
        apart: step → the parameter that was furthest apart after it, by more than rounding.
        unread: the same of those that code changed whose gradients no optimizer was seen to get.
        known_after: step and rank in which parameters were read after both sides' updates.
        meanings: numbers that factors of gradients may come from, by step and rank.
        is_coarse: gradients of divided samples agree only as far as a coarse type resolves them.
        models: how many parameters the models share, of the first step that tells it.
    """

    def __init__(self) -> None:
        self.found: list[FactDifference] = []
        self.changed_steps: set[int] = set()
        self.apart: dict[int, Apart] = {}
        self.unread: dict[int, Apart] = {}
        self.known_after: set[tuple[int, int | str]] = set()
        self.meanings: dict[tuple[int, int | str], Meanings] = {}
        self._ranks: dict[int | str, _RankHistory] = {}
        self._shards = ShardHistory()
        self.is_coarse = False
        self.models: SharedParameters | None = None
        self._has_same_gradients = self._has_near_losses = False
        self._jump: float = math.inf

    @property
    def is_split(self) -> bool:
        """Whether any rank divides the same samples into other micro batches."""
        return any(history.data.split for history in self._ranks.values())

    @property
    def has_same_updates(self) -> bool:
        """Whether every step left all parameters equal, up to rounding."""
        ranks = self._ranks.values()
        return bool(ranks) and not self.apart and all(rank.updated for rank in ranks)

    def add_data(
        self,
        pairs: Sequence[FactsPair],
        made_inside: Mapping[int | str, Made] = MappingProxyType({}),
    ) -> None:
        """Take in the batches of a step.

        Args:
            pairs: the facts of its ranks.
            made_inside: rank → inputs of models that calls of the step made.
        """
        if self._are_divided_otherwise(pairs):
            words = f"the same samples are divided among the {len(pairs)} ranks in another way"
            for pair in pairs:
                self._rank(pair.rank).data.divide(pair.step, words)
            return
        for pair in pairs:
            self._rank(pair.rank).data.add(pair, made_inside.get(pair.rank))

    def _are_divided_otherwise(self, pairs: Sequence[FactsPair]) -> bool:
        """Return whether ranks share the same samples in another way, and gradients are the same.

        Strided or in blocks, say: what all ranks reduce is the same sum.
        """
        sides = [[each for pair in pairs for each in pair.sides[side].data] for side in (0, 1)]
        return (
            len(pairs) > 1
            and all(sides)
            and is_split(*sides)
            and not all(is_split(*(facts.data for facts in pair.sides)) for pair in pairs)
            and all(
                pair.steps
                and all(has_same_gradients(s, self.same_gradient(pair.rank)) for s in pair.steps)
                for pair in pairs
            )
        )

    def add(
        self,
        pairs: Sequence[FactsPair],
        exact: Mapping[int | str, bool],
        close: Mapping[int | str, Container[str]] = MappingProxyType({}),
        resolution: Callable[[], float] = float,
        scale: Callable[[int | str], float] = lambda _: 0.0,
    ) -> None:
        """Take in a step, after its data.

        Args:
            pairs: the facts of its ranks.
            exact: rank → whether every recorded value of the step is equal.
            close: the ranks whose values agree up to rounding of the same types → modules that are
                given other values without consequence for what they make of them.
            resolution: returns that of the coarsest type in which both sides compute.
            scale: returns how large the terms are that the losses of a rank are made of.
        """
        made: list[list[StepPair]] = []
        later: list[FactDifference] = []
        for pair in pairs:
            self.models = self.models or shared_parameters(pair)
            history = self._rank(pair.rank)
            steps = pair.steps
            made.append(steps)
            if history.last is None:
                read = any(any(step.gradients) for step in steps)
                self._has_same_gradients = read and all(map(has_same_gradients, steps))
                losses = [total_loss(facts) or math.nan for facts in pair.sides]
                self._has_near_losses = math.isclose(*losses, rel_tol=_NEAR_LOSS)
                if read and self.is_split and not self._has_same_gradients:
                    self.is_coarse = all(are_rounded(step, resolution()) for step in steps)
                    self._has_same_gradients = self.is_coarse
            elif self._jumps(history, steps, resolution() if self.is_coarse else 0.0):
                self._jump = min(self._jump, pair.step)
            is_exact = exact.get(pair.rank, True)
            found = [*self._of_step(pair, steps, history, len(pairs), resolution, scale)]
            if is_exact or pair.rank in close:
                fed = close.get(pair.rank, ())
                found += buffer_differences(pair, equal_at_start(pair), fed, is_exact=is_exact)
            # Settings that differ do so in every step.
            known = history.settings
            history.settings = known.union(
                each.words for each in found if each.verdict is VerdictClass.SETTINGS
            )
            later += [each for each in found if each.words not in known]
            self._remember(pair, steps, history, is_exact, found)
            history.gradients.end(pair)
        if made and all(len(steps) == len(made[0]) for steps in made):
            for same_step in zip(*made, strict=True):
                # It says more than that the gradients differ.
                self.found += unreduced(same_step)
        self.found += self._shards.differences(pairs)
        self.found += later

    @staticmethod
    def _jumps(history: _RankHistory, steps: Sequence[StepPair], coarse: float) -> bool:
        """Return whether gradients are apart by more than rounding of the steps before makes.

        Args:
            history: of the rank.
            steps: its optimizer steps.
            coarse: resolution of the coarse type in which gradients agreed so far; 0 without one.
        """
        most = _COARSE_JUMP if coarse else math.inf
        limit = min(max(_LEAST_JUMP, _JUMP * history.farthest), most)
        return any(limit < farthest_gradient(step, coarse) < math.inf for step in steps)

    def same_gradient(self, rank: int | str) -> float:
        """Return how far gradients that are the same may be apart in the next step.

        An optimizer's step enlarges the rounding that the steps before left.
        """
        told = self._known(rank).told
        return max(SAME_GRADIENT, _GROWTH * told if told <= SAME_GRADIENT else 0.0)

    def told(self, rank: int | str) -> float:
        """Return how far a gradient that is no noise was apart at most, in the steps before."""
        return self._known(rank).told

    def _known(self, rank: int | str) -> _RankHistory:
        return self._ranks.get(rank) or _RankHistory(DataHistory(rank), ScheduleHistory(rank))

    def _rank(self, rank: int | str) -> _RankHistory:
        return self._ranks.setdefault(rank, self._known(rank))

    def updated(self, rank: int | str) -> Mapping[str, bool]:
        """Return parameter → whether it differed after an optimizer step of the rank so far."""
        return self._known(rank).updated

    def distances(self, rank: int | str) -> Mapping[str, float]:
        """Return parameter → how far the gradients that its optimizer got were apart at most."""
        return self._known(rank).distances

    def last_gradients(self, rank: int | str) -> Mapping[str, tuple[Fingerprint, Fingerprint]]:
        """Return parameter → what optimizers got of its gradient in the step before."""
        return self._known(rank).gradients.last

    def has_same_data(self, rank: int | str | None = None) -> bool:
        """Return whether the batches of a rank, or of all, were recorded and are equal so far."""
        ranks = [each for each in self._ranks if rank in (None, each)]
        return bool(ranks) and all(self._ranks[each].data.is_same for each in ranks)

    @property
    def split(self) -> str | None:
        """How the same samples are divided into other micro batches, if the gradients agree.

        The gradients of the first step show it: what an optimizer gets is the same sum. Those of
        later steps may only be apart by what becomes of rounding.
        """
        if not self.is_divided or self._jump < math.inf:
            return None
        return next(history.data.split for history in self._ranks.values())

    @property
    def is_divided(self) -> bool:
        """Whether all ranks divide the same samples otherwise, and first get the same gradients."""
        splits = [history.data.split for history in self._ranks.values()]
        return bool(splits) and None not in splits and self._has_same_gradients

    @property
    def redrawn(self) -> str | None:
        """How the same samples are divided, if other random numbers may be all that follows.

        Numbers are drawn, and the losses of the first step are near: another program's are not.
        """
        splits = [history.data.split for history in self._ranks.values()]
        draws = all(history.random.has_drawn for history in self._ranks.values())
        is_other = draws and self._has_near_losses and not self._has_same_gradients
        return next(iter(splits), None) if is_other and None not in splits else None

    def divides(self, step: int) -> bool:
        """Return whether optimizers get the same gradients of divided samples until a step."""
        return self.is_divided and step < self._jump

    def divide(self, words: str) -> None:
        """Take in that the sides have other numbers of ranks, which may share the same samples.

        The gradients that the optimizer first gets show it: those of all samples are the same,
        however many ranks share them.
        """
        for history in self._ranks.values() if self._has_same_gradients else ():
            history.data.divide_all(words)

    def end_early(self, steps_alone: Mapping[str, Sequence[int]]) -> None:
        """Take in the steps that one side alone recorded, by side; the other may have wanted them.

        A process that is killed between two steps leaves whole ones.
        """
        pairs = (history.last for history in self._ranks.values())
        last = max((each for each in pairs if each), key=attrgetter("step"), default=None)
        if last is not None:
            self.found += lacking_steps(last, steps_alone)

    def differences(self) -> list[FactDifference]:
        """Return all differences, in the order in which they take effect."""
        found: list[FactDifference] = []
        for history in self._ranks.values():
            found += map(self._with_jump, history.data.differences(history.alike_since))
            found += history.schedules.differences()
        others = [self._with_history(each) for each in self.found]
        found = [_drawn(each, others) for each in found] + others
        found = list(first_to_end([*_shown_by_state(found)]))
        return sorted(found, key=attrgetter("when"))

    def _with_jump(self, fact: FactDifference) -> FactDifference:
        """Return that batches are divided in another way with its effect in later steps."""
        is_split = fact.words in (history.data.split for history in self._ranks.values())
        if not is_split or not self._has_same_gradients or self._jump == math.inf:
            return fact
        words = f"the gradients that the optimizer gets differ from step {self._jump} on"
        return replace(
            fact, step=int(self._jump), words=f"{fact.words}; {words}", effect=Effect.CERTAIN
        )

    def _with_history(self, fact: FactDifference) -> FactDifference:
        """Return a difference of one step, judged again after all steps."""
        history = self._known(fact.rank)
        if fact.moment is Moment.RANDOM:
            return history.random.drawn(fact)
        return history.schedules.of_scheduler(fact)

    def _of_step(
        self,
        pair: FactsPair,
        steps: Sequence[StepPair],
        history: _RankHistory,
        ranks: int,
        resolution: Callable[[], float],
        scale: Callable[[int | str], float],
    ) -> Iterator[FactDifference]:
        meanings = self.meanings[pair.step, pair.rank] = meanings_of(pair, ranks)
        history.schedules.add(pair, steps)
        yield from settings_differences(pair)
        trains_alike = has_same_training(pair, steps, self.same_gradient(pair.rank))
        history.alike_since = min(history.alike_since, pair.step) if trains_alike else math.inf
        history.data.note_training(pair.step, is_alike=trains_alike)
        unchanged = _unchanged(pair, history)
        # Of gradients in a coarse type one that is held as several is rounded otherwise.
        is_same = trains_alike or (
            unchanged is None and has_same_training(pair, steps, resolutions=(resolution(),) * 2)
        )
        yield from parameter_differences(pair, unchanged, history.last, trains_alike=is_same)
        yield from history.random.differences(pair)
        yield from mode_differences(pair)
        yield from scaler_differences(pair, had_same_scales=history.has_same_scales)
        if not trains_alike:
            yield from loss_differences(pair, resolution, scale)
        yield from ended_differences(pair, history.last)
        yield from collective_differences(pair)
        clips = list(clip_differences(pair))
        is_known = any(each.gradients[0] for each in steps)
        if is_known and all(map(has_same_gradients, steps)):
            # The other side clips by its own code, or the limit is not reached.
            clips = [replace(each, effect=Effect.NONE) for each in clips]
        moved_call = loop_change(pair)
        if moved_call is not None and not moved_call.is_early:
            # What clipping is given then tells nothing.
            clips = [
                replace(each, verdict=moved_call.verdict, words=moved_call.words) for each in clips
            ]
        if not trains_alike:
            yield from total_norm_differences(pair, meanings)
        yield from clips
        gradients = list(history.gradients.differences(steps, meanings, resolution()))
        if pair.has_closure:  # they are those of the last time
            gradients = [replace(each, moment=Moment.ASKED_AGAIN) for each in gradients]
        if moved_call is not None:
            gradients = [moved_call.before(each) for each in gradients]
        is_told = pair.asks_otherwise or clips_other_parameters(pair)
        if all(each.effect is Effect.NONE for each in clips) and not is_told:
            yield from gradients
        yield from count_differences(pair)
        moved: set[str] = set()
        for step in steps:
            yield from earlier_changes(step)
            yield from setting_differences(step)
            agreeing = set(step.places) if history.is_exact else history.agreeing
            yield from state_differences(step, agreeing - moved)
            yield from update_differences(step)
            # What a step makes of other gradients is the state of the next one.
            both = [step.changes(column).items() for column in ("gradient", "after")]
            moved |= {name for each in both for name, change in each if not change.is_equal}

    def _remember(
        self,
        pair: FactsPair,
        steps: Sequence[StepPair],
        history: _RankHistory,
        is_exact: bool,
        found: Sequence[FactDifference],
    ) -> None:
        history.last = pair
        for step in steps:
            distances = gradient_distances(step)
            for name, distance in distances.items():
                history.distances[name] = max(history.distances.get(name, 0.0), distance)
            history.told = max(history.told, farthest_told(step, distances))
        scales = [[each.new_scale for each in side] for side in pair.events(Scaler)]
        history.has_same_scales = bool(scales[0]) and scales[0] == scales[1]
        changes: dict[str, Change] = {}
        read: set[str] = set()
        for step in steps:
            changes |= step.changes("after")
            read.update(*step.gradients)
        history.updated |= {n: True for n, each in changes.items() if not each.is_equal}
        # Of parts only the norms are compared, over all ranks.
        history.updated |= dict.fromkeys(pair.sharded if steps else (), True)
        for name in changes:
            history.updated.setdefault(name, False)
        of_others = buffer_changes(pair)
        kinds = kinds_of(pair.target.parameters)
        changes |= {n: each for n, each in of_others.items() if kinds.get(n) == "parameter"}
        others = {name: change.is_equal for name, change in of_others.items()}
        after = {name: change.is_equal for name, change in changes.items()}
        if after:
            self.known_after.add((pair.step, pair.rank))
        if not all(after.values()):
            self.changed_steps.add(pair.step)
        for name, change in changes.items():
            if not change.is_rounding:
                found_apart = Apart(change.largest_of(len(changes)), name)
                for kept in (self.apart,) if name in read else (self.apart, self.unread):
                    before = kept.get(pair.step, found_apart)
                    kept[pair.step] = max(found_apart, before, key=attrgetter("order"))
        history.is_exact = (
            history.is_exact
            and is_exact
            and all(after.values())
            and not any(each.effect is Effect.CERTAIN for each in found)
        )
        # Nothing but the program's own code changes what is frozen: averages, targets, teachers.
        frozen = frozen_in_both(pair) if after and all(after.values()) else ()
        history.after = {
            **{name: equal for name, equal in equal_at_start(pair).items() if name in frozen},
            **others,
            **after,
        }


def _shown_by_state(found: Sequence[FactDifference]) -> Iterator[FactDifference]:
    """Yield differences; settings with their effect where a later state of optimizers shows it."""
    last: dict[int | str, int] = {}
    for each in found:
        if each.moment is Moment.OPTIMIZER_STATE and each.effect is Effect.CERTAIN:
            last[each.rank] = max(each.step, last.get(each.rank, -1))
    for each in found:
        is_open = each.moment is Moment.OPTIMIZER_SETTING and each.effect is Effect.POSSIBLE
        is_shown = is_open and each.step < last.get(each.rank, -1)
        yield replace(each, effect=Effect.CERTAIN) if is_shown else each


def _drawn(fact: FactDifference, others: Sequence[FactDifference]) -> FactDifference:
    """Return a difference of the data with the generators that they may be drawn from."""
    own = drawn_within(others, fact.step, fact.rank) if fact.may_be_drawn else None
    if own is not None:
        words = f"{fact.words}; {own.words}"
        return replace(fact, verdict=VerdictClass.RANDOM, words=words, next=own.next)
    for each in others:
        may_draw = each.moment is Moment.RANDOM and each.effect is not Effect.NONE
        is_before = each.rank == fact.rank and each.step <= fact.step
        # A program that draws by its host's generator may make other calls before the model.
        is_branch = each.is_drawn_by_host and (
            fact.verdict is VerdictClass.CALL or fact.may_be_drawn
        )
        is_needed = (
            fact.is_partial
            or is_branch
            or (fact.is_unknown and (fact.is_drawn or each.is_drawn_by_host))
        )
        if may_draw and is_before and is_needed:
            words = f"{each.words}, and {fact.words}"
            return replace(fact, verdict=VerdictClass.RANDOM, words=words, next=each.next)
    return fact


def _unchanged(pair: FactsPair, history: _RankHistory) -> dict[str, bool] | None:
    """Return parameter → whether both sides agreed before the step; None in the first step."""
    if history.last is None:
        return None
    columns = pair.target.parameters
    names = () if columns is None else columns.name
    is_next = history.last.step + 1 == pair.step
    return {
        name: history.after.get(name, history.is_exact) if is_next else history.is_exact
        for name in names
    }
