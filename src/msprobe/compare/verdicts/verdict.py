# SPDX-License-Identifier: Apache-2.0
"""`Verdict`: the cause of a difference between two runs, in one sentence, and what it rests on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from msprobe.compare.model import Mode
from msprobe.compare.rank_comparison import NoiseJudgement
from msprobe.compare.training.differences import (
    SET_FOR_LATER,
    Effect,
    FactDifference,
    Moment,
    Phase,
)
from msprobe.compare.training.gradient_factors import Meanings
from msprobe.compare.training.history import Apart
from msprobe.compare.training.start import SharedParameters
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.own_error import CulpritKey, OwnErrors
from msprobe.compare.verdicts.places import Clue, Place
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass

_MOST_EVIDENCE: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The place of a cause.

    Attributes:
        step: number of the step.
        rank: the rank's number, or its folder's name.
        record: name of the record that shows it.
        module: path of the module around it.
        source: line of the user's code.
        parameter: name of the parameter.
        phase: part of the training step.
    """

    step: int
    rank: int | str
    record: str | None = None
    module: str | None = None
    source: str | None = None
    parameter: str | None = None
    phase: Phase | None = None

    @classmethod
    def at(cls, place: Place, rank: int | str) -> Where:
        """Return the place of a call."""
        return cls(
            step=place.step,
            rank=rank,
            record=place.record or None,
            module=place.module,
            source=place.source,
            phase=place.phase,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as it is in ``summary.json``."""
        return {**asdict(self), "phase": None if self.phase is None else str(self.phase)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cause of a difference.

    Attributes:
        verdict: its class.
        words: the cause in words, without the class.
        confidence: how well it is founded.
        evidence: what speaks for it, and what else differs.
        where: its place; None where there is none.
        next: what to do now.
        scope: how the two dumps differ in what was recorded; said first.
    """

    verdict: VerdictClass
    words: str
    confidence: Confidence
    evidence: Sequence[str] = ()
    where: Where | None = None
    next: Sequence[str] = ()
    scope: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        said = f"{self.verdict.words}: {self.words}"
        return f"{'; '.join(self.scope)}: {said}" if self.scope else said

    def as_json(self) -> dict[str, Any]:
        """Return it as it is in ``summary.json``."""
        return {
            "class": str(self.verdict),
            "sentence": self.sentence,
            "confidence": str(self.confidence),
            "evidence": list(self.evidence),
            "where": None if self.where is None else self.where.as_json(),
            "next": list(self.next),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that was found in a comparison.

    Attributes:
        counts: status → rows.
        mode: the data by which values were judged.
        culprits: the best one first.
        inputs: names of inputs of the model that differ, in the first step and rank with such.
        has_same_data: the batches of both sides were recorded and are equal.
        split: how the same samples are divided into other micro batches, if nothing else changed.
        is_split_coarse: the gradients of these agree only as far as a coarse type resolves them.
        is_divided: the gradients of these are the same in the first step at least.
        redrawn: how they are divided, if random numbers that models draw may be all that differs.
        facts: differences of the training, in the order in which they take effect.
        steps: what the rows of each step and rank say.
        changed_steps: steps after which a parameter was not exactly equal.
        apart: see `TrainingHistory`.
        unread: see `TrainingHistory`.
        known_after: see `TrainingHistory`.
        has_same_updates: every step left all parameters equal, up to rounding.
        scope: how the two dumps differ in what was recorded.
        paired: operations with a partner, the smaller number of operations of the two sides, and
            how many there are on both together.
        models: how many parameters the models of the first step share, if it tells that.
        noise: what was found by measured noise, for each step and rank that it was measured for.
        meanings: numbers that factors of gradients may come from, by step and rank.
        own_errors: errors of calls against float64, of those that were computed again.
    """

    counts: Mapping[str, int]
    mode: Mode = Mode.STATISTICS
    culprits: Sequence[Culprit] = ()
    inputs: Sequence[str] = ()
    has_same_data: bool = False
    split: str | None = None
    is_split_coarse: bool = False
    is_divided: bool = False
    redrawn: str | None = None
    facts: Sequence[FactDifference] = ()
    steps: Sequence[StepObservations] = ()
    changed_steps: frozenset[int] = frozenset()
    apart: Mapping[int, Apart] = field(default_factory=dict)
    unread: Mapping[int, Apart] = field(default_factory=dict)
    known_after: Collection[tuple[int, int | str]] = ()
    has_same_updates: bool = False
    scope: Sequence[str] = ()
    paired: tuple[int, int, int] = (0, 0, 0)
    models: SharedParameters | None = None
    meanings: Mapping[tuple[int, int | str], Meanings] = field(default_factory=dict)
    own_errors: Mapping[CulpritKey, OwnErrors] = field(default_factory=dict)
    noise: Sequence[NoiseJudgement] = ()

    def conclude(
        self,
        verdict: VerdictClass,
        words: str,
        confidence: Confidence,
        *,
        evidence: Sequence[str] = (),
        chosen: FactDifference | None = None,
        where: Where | None = None,
        next_steps: Sequence[str] = (),
    ) -> Verdict:
        """Return a verdict, with everything else that differs as further evidence.

        Args:
            verdict: its class.
            words: the cause in words.
            confidence: how well it is founded.
            evidence: what speaks for it.
            chosen: the difference of the training that is the cause, if one is.
            where: its place.
            next_steps: what to do now.
        """
        said = (*evidence, *self.other_facts(chosen, words))
        if verdict is VerdictClass.UNEXPLAINED and any(s.has_modules_only for s in self.steps):
            is_loss = chosen is not None and chosen.moment is Moment.LOSS
            unseen = "between the model and its loss" if is_loss else "inside of modules"
            words += f"; recorded at L0, without the calls {unseen}"
        return Verdict(
            verdict=verdict,
            words=words,
            confidence=confidence,
            evidence=list(dict.fromkeys(said))[:_MOST_EVIDENCE],
            where=where,
            next=next_steps,
            scope=self.scope,
        )

    def small_cause(self) -> Clue | None:
        """Return what may be a cause though its effect is as small as rounding.

        Or what moves as a whole in the first step in which anything differs.
        """
        small = next((each.small for each in self.steps if each.small is not None), None)
        differing = [each for each in self.steps if not each.is_exact]
        first = [each for each in differing if each.step == differing[0].step]
        return small or next((each.shifted for each in first if each.shifted is not None), None)

    def numeric_settings(self) -> FactDifference | None:
        """Return the settings that choose kernels or a precision, if they differ."""
        return next(
            (
                fact
                for fact in self.facts
                if fact.verdict is VerdictClass.SETTINGS and fact.effect is Effect.POSSIBLE
            ),
            None,
        )

    def other_facts(self, chosen: FactDifference | None, words: str) -> Iterator[str]:
        """Yield what else differs in the training, the consequences of the cause left out."""
        when = None if chosen is None else chosen.when
        told = set()  # later steps repeat what the first one tells
        for wanted in (True, False):
            for fact in self.facts:
                has_effect = fact.effect is not Effect.NONE
                if has_effect is not wanted or fact.words in words:
                    continue
                if fact.moment is Moment.RANDOM and not has_effect:
                    continue  # no step draws from these generators
                is_state = when is None and (
                    fact.moment <= Moment.MODES or fact.moment in SET_FOR_LATER
                )
                is_before = when is not None and fact.when < when
                what = fact.verdict, fact.moment, fact.parameter, fact.setting, fact.modules
                if (is_state or is_before or not has_effect) and what not in told:
                    told.add(what)
                    yield f"also differs: {fact.words}"
