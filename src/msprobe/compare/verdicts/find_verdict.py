# SPDX-License-Identifier: Apache-2.0
"""`find_verdict`: which of all findings is the cause.

Causes are looked for where they act first, in the order of a training step: settings, data, the
state it starts with, forward, backward, reduction, clipping, optimizer. Facts about the training
and culprits among the calls compete; what comes after the first cause is its consequence.
"""

from __future__ import annotations

from dataclasses import replace

from msprobe.compare.causes import Cause
from msprobe.compare.training.differences import Effect, FactDifference, Moment, Phase
from msprobe.compare.verdicts.conclusions import Conclusions
from msprobe.compare.verdicts.culprit_classes import class_and_words, class_of
from msprobe.compare.verdicts.effective_facts import EffectiveFacts
from msprobe.compare.verdicts.observations import GradientFactor, StepObservations
from msprobe.compare.verdicts.origin_state import is_lacking
from msprobe.compare.verdicts.other_programs import are_different_programs, different_programs
from msprobe.compare.verdicts.places import Clue, Place, Size
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.scaled_gradients import scaled_words
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.compare.verdicts.without_cause import (
    first_given,
    of_clue,
    without_cause,
)


def find_verdict(findings: Findings) -> Verdict:
    """Return the verdict on a comparison."""
    return _Search(findings).run()


def first_effective_fact(findings: Findings) -> FactDifference | None:
    """Return the difference of the training that is the cause, if the facts alone show it.

    None where nothing of the training is a cause, or where the values of calls must tell whether
    an earlier difference has an effect.
    """
    return EffectiveFacts(findings).first_decided()


class _Search:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._culprit = findings.culprits[0] if findings.culprits else None
        self._facts = EffectiveFacts(findings)
        self._conclusions = Conclusions(findings, self._facts)

    def run(self) -> Verdict:
        fact = next(iter(self._facts.all()), None)
        if fact is not None and fact.moment is Moment.DATA:
            fact = self._other_start(fact) or fact
        if are_different_programs(self._findings) and not (
            fact is not None and fact.verdict is VerdictClass.INCOMPLETE
        ):
            return different_programs(self._findings)
        factor = self._factor()
        if factor is not None and fact is not None and _is_clipping_of(fact, *factor):
            return self._conclusions.of_fact(fact)
        culprit = self._culprit
        late = self._taken_back_late(fact)
        if late is not None:
            return self._conclusions.of_fact(late)
        given = first_given(self._findings)
        if given is not None and self._is_before(given, fact, culprit):
            return without_cause(self._findings)
        clue = self._moved_forward(fact)
        if clue is not None:
            return of_clue(self._findings, clue)
        if fact is not None and self._comes_first(fact, culprit, factor):
            return self._conclusions.of_fact(fact)
        if factor is not None and (
            culprit is None or self._facts.is_later(culprit, factor[0].step, Moment.LOSS)
        ):
            return self._conclusions.of_factor(*factor)
        moved = self._moved_update()
        if moved is not None:
            return moved
        if culprit is not None:
            return self._conclusions.of_culprit(culprit)
        return without_cause(self._findings)

    def _taken_back_late(self, fact: FactDifference | None) -> FactDifference | None:
        """Return that a scale is taken back after clipping, if nothing but the scale comes before.

        By itself the scale of a loss has no effect.
        """
        late = next((each for each in self._facts.all() if each.takes_back), None)
        if late is None or fact is None or (fact.step, fact.moment) < (late.step, Moment.LOSS):
            return None
        culprit = self._culprit
        if culprit is None or culprit.comparison.step > late.step:
            return late
        if fact.moment is Moment.LOSS and fact.verdict is VerdictClass.GRADIENT:
            return replace(late, words=f"{late.words}; {fact.words}")
        if culprit.comparison.step < late.step or not scaled_words(culprit):
            return None
        return replace(late, words=f"{late.words}; {class_and_words(culprit)[1]}")

    def _moved_forward(self, fact: FactDifference | None) -> Clue | None:
        """Return what is no rounding in a forward pass, if nothing that is known comes before it.

        Gradients follow from it, though each result agrees within the tolerance of its type.
        """
        clue, culprit = self._findings.small_cause(), self._culprit
        if (
            clue is None
            or clue.verdict is VerdictClass.UNEXPLAINED
            or clue.size is Size.WITHIN
            or clue.place.phase is not Phase.FORWARD
        ):
            return None
        when = clue.place.step, Moment.FORWARD
        is_first = fact is None or (fact.step, fact.moment) > when
        is_alone = culprit is None or (
            self._facts.is_later(culprit, clue.place.step, Moment.LOSS)
            and not _is_made_before(culprit, clue.place)
        )
        return clue if is_first and is_alone else None

    def _moved_update(self) -> Verdict | None:
        """Return that the first call that differs gets what an update left on one side alone."""
        steps = self._findings.steps
        first = next((s for s in steps if s.forward_differs or s.backward_differs), None)
        if first is None or first.moved is None:
            return None
        place, culprit = first.moved.place, self._culprit
        if culprit is not None and (culprit.comparison.step, culprit.row.pair.name) != place[:2]:
            return None
        where, is_update = Where.at(place, first.rank), first.moved.verdict is VerdictClass.UPDATE
        return self._findings.conclude(
            first.moved.verdict,
            f"{first.moved.words} (step {first.step})",
            Confidence.PROVED if is_update else Confidence.LIKELY,
            where=replace(where, phase=Phase.OPTIMIZER) if is_update else where,
            next_steps=place.next,
        )

    def _other_start(self, data: FactDifference) -> FactDifference | None:
        """Return the parameters with which a step starts, if they explain that batches differ.

        A model that is made in another way leaves the generator in another state, from which the
        batches may be drawn.
        """
        place = data.step, data.rank
        facts = [f for f in self._findings.facts if (f.step, f.rank) == place]
        drawn = [each for each in facts if each.moment is Moment.RANDOM]
        started = [
            each
            for each in facts
            if each.moment is Moment.PARAMETERS
            and each.verdict in (VerdictClass.PARAMETERS, VerdictClass.CALL)
            and each.effect is not Effect.NONE
        ]
        if not drawn or not started:
            return None
        # Those that differ are told with the ones that a side alone has.
        first = min(started, key=lambda each: each.effect is not Effect.CERTAIN)
        words = f"{first.words}; {drawn[0].words}, from which the data may be drawn"
        return replace(first, words=words)

    def _is_before(
        self, given: StepObservations, fact: FactDifference | None, culprit: Culprit | None
    ) -> bool:
        """Return whether a tensor from outside differs before a fact and a culprit take effect."""
        when = given.step, given.turns.of_place(given.given_at), Moment.FORWARD
        if fact is not None and self._facts.when(fact) <= when:
            return False
        if culprit is None or culprit.comparison.step > given.step:
            return True
        place = culprit.comparison.step, culprit.comparison.rank
        return place == (given.step, given.rank) and culprit.row.pair.position > given.given_at

    def _comes_first(
        self,
        fact: FactDifference,
        culprit: Culprit | None,
        factor: tuple[StepObservations, GradientFactor] | None,
    ) -> bool:
        when = self._facts.when(fact)
        if culprit is not None and culprit.comparison.step == fact.step:
            is_shown = culprit.row.cause is Cause.GRADIENT_CALL
            if is_shown and self._facts.is_multiple(fact):
                return True
            # Gradients of parameters may be read after they were clipped.
            is_clipped = culprit.row.cause in (Cause.ACCUMULATED, Cause.WRITTEN_GRADIENT)
            if fact.verdict is VerdictClass.CLIPPING and is_clipped:
                return True
            # What the optimizer gets is what a recorded call made of gradients that agree.
            is_limit = class_of(culprit) is VerdictClass.CLIPPING
            if is_limit and fact.verdict is VerdictClass.GRADIENT:
                return False
        if factor is not None and (factor[0].step, 0, factor[1].moment) < when:
            return False
        if culprit is None:
            return True
        is_cut = fact.verdict is VerdictClass.INCOMPLETE and fact.moment is not Moment.SETTINGS
        if is_cut and fact.step == culprit.comparison.step:
            # A call that ended early has no results.
            return is_lacking(culprit.row)
        return when <= self._facts.when_seen(culprit)

    def _factor(self) -> tuple[StepObservations, GradientFactor] | None:
        """Return the first factor of gradients, if no difference comes before it."""
        for each in self._findings.steps:
            if each.factor is not None:
                return each, each.factor
            if not each.is_exact:
                return None
        return None


def _is_made_before(culprit: Culprit, place: Place) -> bool:
    """Return whether a culprit comes before a call: in a backward pass in between, say."""
    comparison = culprit.comparison
    position = comparison.places.get(place.record, -1)
    return comparison.step == place.step and culprit.row.pair.position < position


def _is_clipping_of(fact: FactDifference, step: StepObservations, found: GradientFactor) -> bool:
    """Return whether gradients that were read after the step show what clipping made of them."""
    is_there = (fact.step, fact.rank) == (step.step, step.rank)
    return is_there and found.is_reduced and fact.verdict is VerdictClass.CLIPPING
