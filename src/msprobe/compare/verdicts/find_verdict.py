# SPDX-License-Identifier: Apache-2.0
"""`find_verdict`: which of all findings is the cause.

Causes are looked for where they act first, in the order of a training step: settings, data, the
state it starts with, forward, backward, reduction, clipping, optimizer. Facts about the training
and culprits among the calls compete; what comes after the first cause is its consequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Status
from msprobe.compare.rounding import IN_AUTOCAST
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    Phase,
    are,
    shown_names,
)
from msprobe.compare.training.gradient_factors import SAME_FACTOR, Meanings, limited_words
from msprobe.compare.training.outlines import OutlineDifference
from msprobe.compare.training.random_calls import same_draw
from msprobe.compare.training.start import autocast_epsilon
from msprobe.compare.verdicts.communication import collective_of, on_ranks, ranks_words
from msprobe.compare.verdicts.culprit_classes import (
    class_and_words,
    class_of,
    culprit_call,
    culprit_place,
    culprit_words,
    is_ruled_by_mode,
    is_within,
    is_without_reason,
    may_be_random,
    may_follow_host,
    moment_of,
    unrecorded_call,
)
from msprobe.compare.verdicts.custom_functions import MAY_BE_INSIDE, culprit_inside
from msprobe.compare.verdicts.next_steps import CLIP_ALIKE, for_culprit
from msprobe.compare.verdicts.observations import GradientFactor, StepObservations
from msprobe.compare.verdicts.origin_state import is_lacking
from msprobe.compare.verdicts.own_error import key_of
from msprobe.compare.verdicts.places import Clue, Size
from msprobe.compare.verdicts.ranking import Culprit, culprit_groups
from msprobe.compare.verdicts.scaled_gradients import loss_of, scale_of_calls
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.compare.verdicts.without_cause import (
    are_different_programs,
    different_programs,
    first_given,
    of_clue,
    small_cause,
    without_cause,
)
from msprobe.dump.record_names import RecordKind, parse_record_name

# Gradients that no recorded call of the rank made.
_FOREIGN_GRADIENTS: Final = (Cause.UNEXPLAINED_GRADIENT, Cause.OTHER_START)
# Causes that another argument of a call shows.
_SHOWN_BY_ARGUMENT: Final = (
    VerdictClass.ARGUMENT,
    VerdictClass.DATA,
    VerdictClass.GRADIENT,
    VerdictClass.PARAMETERS,
)


def find_verdict(findings: Findings) -> Verdict:
    """Return the verdict on a comparison."""
    return _Search(findings).run()


def first_effective_fact(findings: Findings) -> FactDifference | None:
    """Return the difference of the training that is the cause, if the facts alone show it.

    None where nothing of the training is a cause, or where the values of calls must tell whether
    an earlier difference has an effect.
    """
    return _Search(findings).first_effective_fact()


class _Search:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._culprit = findings.culprits[0] if findings.culprits else None
        self._observed = {(each.step, each.rank): each for each in findings.steps}
        self._is_exact = all(each.is_exact for each in findings.steps)

    def run(self) -> Verdict:
        facts = [fact for fact in self._findings.facts if self._is_effective(fact)]
        fact = min(facts, key=_order, default=None)
        if fact is not None and fact.moment is Moment.DATA:
            fact = self._other_start(fact) or fact
        if are_different_programs(self._findings) and not (
            fact is not None and fact.verdict is VerdictClass.INCOMPLETE
        ):
            return different_programs(self._findings)
        factor = self._factor()
        if factor is not None and fact is not None and _is_clipping_of(fact, *factor):
            return self._of_fact(fact)
        culprit = self._culprit
        given = first_given(self._findings)
        if given is not None and self._is_before(given, fact, culprit):
            return without_cause(self._findings)
        clue = self._moved_forward(fact)
        if clue is not None:
            return of_clue(self._findings, clue)
        if fact is not None and self._comes_first(fact, culprit, factor):
            return self._of_fact(fact)
        if factor is not None and (
            culprit is None or self._is_later(culprit, factor[0].step, Moment.LOSS)
        ):
            return self._of_factor(*factor)
        moved = self._moved_update()
        if moved is not None:
            return moved
        if culprit is not None:
            return self._of_culprit(culprit)
        return without_cause(self._findings)

    def _moved_forward(self, fact: FactDifference | None) -> Clue | None:
        """Return what is no rounding in a forward pass, if nothing that is known comes before it.

        Gradients follow from it, though each result agrees within the tolerance of its type.
        """
        clue, culprit = small_cause(self._findings), self._culprit
        if (
            clue is None
            or clue.verdict is VerdictClass.UNEXPLAINED
            or clue.size is Size.WITHIN
            or clue.place.phase is not Phase.FORWARD
        ):
            return None
        when = clue.place.step, Moment.FORWARD
        is_first = fact is None or (fact.step, fact.moment) > when
        is_alone = culprit is None or self._is_later(culprit, clue.place.step, Moment.LOSS)
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

    # --- facts

    def first_effective_fact(self) -> FactDifference | None:
        """Return the first difference that is a cause; None if one before it is undecided."""
        for fact in sorted(self._findings.facts, key=lambda each: (each.step, each.moment)):
            if _needs_values(fact):
                return None
            if self._is_effective(fact):
                return fact
        return None

    def _is_effective(self, fact: FactDifference) -> bool:
        """Return whether a difference of the training is the cause of something."""
        if fact.effect is not Effect.POSSIBLE:
            return fact.effect is Effect.CERTAIN and not self._follows_culprit(fact)
        culprit, verdict = self._culprit, fact.verdict
        observed = self._observed.get((fact.step, fact.rank))
        if fact.moment is Moment.DATA:
            is_idle = observed is not None and fact.micro < observed.exact_models
            later = [each for each in self._from(fact) if not each.is_close]
            # Sums over samples or edges that come in another order are rounded otherwise.
            is_idle = is_idle or (
                fact.is_reordered and all(s.proof and s.proof.is_rounding for s in later)
            )
            is_seen = any(s.forward_differs or s.backward_differs for s in later)
            return (not is_idle and is_seen) or self._changes_buffers(fact)
        match verdict:
            case VerdictClass.SETTINGS:
                return False
            case VerdictClass.RANDOM:
                is_drawn = culprit is not None and (
                    may_be_random(culprit) or (fact.is_drawn_by_host and may_follow_host(culprit))
                )
                return is_drawn or any(each.random_input for each in self._findings.steps)
            case VerdictClass.MODE:
                return self._is_of_mode(fact, observed)
            case VerdictClass.PRECISION:
                if culprit is None:
                    return not all(each.is_close for each in self._findings.steps)
                return class_of(culprit) is VerdictClass.PRECISION or _is_of_autocast(culprit)
            case VerdictClass.PARAMETERS:
                return self._are_parameters_used(fact, observed)
            case VerdictClass.COMMUNICATION:
                return self._is_communication_used(fact)
            case VerdictClass.INCOMPLETE:
                return bool(self._findings.counts[Status.MISSING] or self._findings.counts["added"])
        if fact.moment in (Moment.LOSS, Moment.REDUCE) or fact.is_unread:
            return observed is not None and (
                _agrees_until(observed, fact) or self._tells_gradients(fact, observed)
            )
        return self._differs_after(fact)

    def _is_of_mode(self, fact: FactDifference, observed: StepObservations | None) -> bool:
        """Return whether another training flag explains the first difference."""
        if self._culprit is not None:
            return is_ruled_by_mode(self._culprit, fact.modules)
        jumps = observed.proof.jumps if observed is not None and observed.proof is not None else ()
        return any(is_within(each.place.module, fact.modules) for each in jumps[:1])

    def _changes_buffers(self, fact: FactDifference) -> bool:
        """Return whether buffers show that one side calls a model more often."""
        return fact.verdict is VerdictClass.CALL and any(
            each.moment is Moment.UPDATE
            and each.modules
            and (each.step, each.rank) == (fact.step, fact.rank)
            for each in self._findings.facts
        )

    def _tells_gradients(self, fact: FactDifference, observed: StepObservations) -> bool:
        """Return whether a multiple of some gradients is all that differs in a step.

        Calls of one side alone that gradients flow through show them; they compute the same.
        """
        late = None if observed.late_call is None else observed.late_call.place.record
        culprits = [
            each
            for each in self._findings.culprits
            if each.comparison.step <= fact.step and each.row.pair.name != late
        ]
        if any(c.row.cause is not Cause.GRADIENT_CALL for c in culprits):
            return False
        if not self._is_multiple(fact):
            return False
        return bool(culprits) or not (observed.forward_differs or observed.backward_differs)

    def _is_multiple(self, fact: FactDifference) -> bool:
        """Return whether some gradients are a multiple by none of the calls of one side alone."""
        if fact.multiple is None:
            return False
        here = [c.comparison for c in self._findings.culprits if c.comparison.step == fact.step]
        if any(loss_of(each) is not None for each in here[:1]):
            return False  # these calls do not compute the same
        scale = next(map(scale_of_calls, here), 1.0)
        return not math.isclose(scale, fact.multiple, rel_tol=SAME_FACTOR)

    def _other_start(self, data: FactDifference) -> FactDifference | None:
        """Return the parameters with which a step starts, if they explain that batches differ.

        A model that is made in another way leaves the generator in another state, from which the
        batches may be drawn.
        """
        place = data.step, data.rank
        facts = [f for f in self._findings.facts if (f.step, f.rank) == place]
        drawn = [each for each in facts if each.moment is Moment.RANDOM]
        if data.is_partial or not drawn:
            return None
        for each in facts:
            if each.verdict is VerdictClass.PARAMETERS and each.effect is not Effect.NONE:
                words = f"{each.words}; {drawn[0].words}, from which the data may be drawn"
                return replace(each, words=words)
        return None

    def _follows_culprit(self, fact: FactDifference) -> bool:
        """Return whether a model is given a batch after its own or another model's call went wrong.

        What it is given may be made of that call's result.
        """
        culprit = self._culprit
        if fact.moment is not Moment.DATA or not fact.micro or culprit is None:
            return False
        comparison, pair = culprit.comparison, culprit.row.pair
        if (fact.step, fact.rank) != (comparison.step, comparison.rank):
            return False
        side = comparison.side_of(pair)
        models = set(filter(side.is_model_call, side.names))
        if not models:
            return comparison.passes_before(pair.position) < fact.micro
        # A model's record follows those of its parts, and that of its backward pass follows it.
        before = itertools.takewhile(lambda name: name != pair.name, side.names)
        is_backward = comparison.parsed(pair).kind is RecordKind.BACKWARD
        return len(models.intersection(before)) - is_backward < fact.micro

    def _is_communication_used(self, fact: FactDifference) -> bool:
        """Return whether a loss, a gradient or a module differs after another communication."""
        culprit = self._culprit
        if culprit is not None:
            if not self._is_later(culprit, fact.step, fact.moment):
                return False
            is_reduced = culprit.comparison.step == fact.step and (
                moment_of(culprit).phase is Phase.REDUCE
            )
            is_foreign = culprit.row.cause in _FOREIGN_GRADIENTS
            if is_reduced or is_foreign or is_without_reason(culprit):
                return True
        return any(
            each.step == fact.step
            and each.moment > fact.moment
            and each.moment.phase in (Phase.BACKWARD, Phase.REDUCE)
            and self._is_effective(each)
            for each in self._findings.facts
        )

    def _are_parameters_used(self, fact: FactDifference, observed: StepObservations | None) -> bool:
        """Return whether parameters that one side alone has are the cause of something."""
        if observed is not None and observed.replaces_parameters:
            return False
        culprit = self._culprit
        if culprit is None or self._is_later(culprit, fact.step, Moment.LOSS):
            return self._differs_after(fact)
        is_parameter = culprit.kind == "parameter" or culprit.row.cause is Cause.PARAMETER
        return is_parameter or _is_one_sided(culprit)

    def _is_before(
        self, given: StepObservations, fact: FactDifference | None, culprit: Culprit | None
    ) -> bool:
        """Return whether a tensor from outside differs before a fact and a culprit take effect."""
        if fact is not None and (fact.step, fact.moment) <= (given.step, Moment.FORWARD):
            return False
        if culprit is None or culprit.comparison.step > given.step:
            return True
        place = culprit.comparison.step, culprit.comparison.rank
        return place == (given.step, given.rank) and culprit.row.pair.position > given.given_at

    def _is_later(self, culprit: Culprit, step: int, moment: Moment) -> bool:
        """Return whether a culprit does not come before a moment of a step."""
        return (culprit.comparison.step, moment_of(culprit)) >= (step, moment)

    def _from(self, fact: FactDifference) -> Iterator[StepObservations]:
        """Yield the steps from the one of a difference on."""
        return (each for each in self._findings.steps if each.step >= fact.step)

    def _differs_after(self, fact: FactDifference) -> bool:
        """Return whether anything differs after a difference took effect."""
        findings = self._findings
        if any(step >= fact.step for step in findings.changed_steps):
            return True
        is_late = fact.moment > Moment.BACKWARD
        return any(
            not each.is_shared_exact and (each.step > fact.step or not is_late)
            for each in self._from(fact)
        )

    def _comes_first(
        self,
        fact: FactDifference,
        culprit: Culprit | None,
        factor: tuple[StepObservations, GradientFactor] | None,
    ) -> bool:
        when = fact.step, int(fact.moment)
        if culprit is not None and culprit.comparison.step == fact.step:
            is_shown = culprit.row.cause is Cause.GRADIENT_CALL
            if is_shown and self._is_multiple(fact):
                return True
            # Gradients of parameters may be read after they were clipped.
            is_clipped = culprit.row.cause in (Cause.ACCUMULATED, Cause.WRITTEN_GRADIENT)
            if fact.verdict is VerdictClass.CLIPPING and is_clipped:
                return True
            # What the optimizer gets is what a recorded call made of gradients that agree.
            is_limit = class_of(culprit) is VerdictClass.CLIPPING
            if is_limit and fact.verdict is VerdictClass.GRADIENT:
                return False
        if factor is not None and (factor[0].step, int(factor[1].moment)) < when:
            return False
        if culprit is None:
            return True
        if fact.verdict is VerdictClass.INCOMPLETE and fact.step == culprit.comparison.step:
            # A call that ended early has no results.
            return is_lacking(culprit.row)
        return when <= (culprit.comparison.step, int(moment_of(culprit)))

    def _of_fact(self, fact: FactDifference) -> Verdict:
        culprit = self._culprit
        shows = culprit if culprit is not None and culprit.comparison.step == fact.step else None
        record = fact.record
        evidence = list(self._agreement(fact))
        first: Culprit | None = None  # shows what a step starts with
        if shows is not None and fact.moment.phase in (Phase.START, Phase.DATA):
            evidence.insert(0, f"the first call that differs is {culprit_call(shows)}")
            if record is None and moment_of(shows) <= Moment.FORWARD:
                record = shows.row.pair.name
            first = shows if record else None
        elif shows is not None and moment_of(shows) >= fact.moment:
            evidence.append(culprit_words(shows))
        late = self._late_call(fact.step, fact.rank) if fact.moment is Moment.REDUCE else None
        verdict, words = fact.verdict, fact.words
        lone = self._lone_call(fact)
        if lone is not None and fact.verdict is VerdictClass.PARAMETERS:
            words = f"{words}; {lone.words}, step {lone.place.step}"
            record = lone.place.record
        elif lone is not None:
            verdict, words = VerdictClass.CALL, f"{lone.words}, step {lone.place.step}; {words}"
            record = lone.place.record
        elif (
            late is not None
            and not fact.is_scaled
            and is_communication(parse_record_name(late.place.record))
        ):
            verdict, words = VerdictClass.COMMUNICATION, f"{late.words}; {words}"
        elif late is not None:
            evidence.insert(0, late.words)
        return self._findings.conclude(
            verdict,
            words + self._ranks_of(fact),
            Confidence.PROVED
            if fact.effect is Effect.CERTAIN or self._is_alone(fact) or self._is_proved(fact)
            else Confidence.LIKELY,
            evidence=evidence,
            chosen=fact,
            where=Where(
                step=fact.step,
                rank=fact.rank,
                record=record,
                module=None if first is None else first.module,
                source=None if first is None else first.source,
                parameter=fact.parameter,
                phase=fact.moment.phase,
            ),
            next_steps=[
                *(late.place.next if late is not None else []),
                *(lone.place.next if lone is not None else []),
                *fact.next,
            ],
        )

    def _lone_call(self, fact: FactDifference) -> Clue | None:
        """Return the call that changes parameters, or by one side alone gives one a gradient."""
        if fact.verdict is VerdictClass.PARAMETERS:
            written_in = fact.step - (fact.moment is Moment.PARAMETERS)
            before = self._observed.get((written_in, fact.rank))
            return None if before is None else before.written
        now = self._observed.get((fact.step, fact.rank))
        if now is None or fact.moment is not Moment.REDUCE:
            return None
        return now.lone_users.get(fact.parameter or "")

    def _late_call(self, step: int, rank: int | str) -> Clue | None:
        observed = self._observed.get((step, rank))
        return None if observed is None else observed.late_call

    def _ranks_of(self, fact: FactDifference) -> str:
        """Return which ranks a difference concerns, in words; empty where it is all of them."""
        concerned = {
            each.rank
            for each in self._findings.facts
            if (each.verdict, each.moment, each.step) == (fact.verdict, fact.moment, fact.step)
            and each.effect is not Effect.NONE
        }
        # Of the halves of a rank, one has facts.
        is_all = concerned == {each.rank for each in self._findings.steps if each.has_facts}
        return "" if is_all else f"{on_ranks(concerned)} alone"

    def _is_alone(self, fact: FactDifference) -> bool:
        """Return whether all values before a difference of the optimizer are equal."""
        return fact.moment > Moment.BACKWARD and self._is_exact_before(fact.step + 1)

    def _is_proved(self, fact: FactDifference) -> bool:
        """Return whether rounding, in types that differ, explains every difference."""
        return (
            fact.verdict is VerdictClass.PRECISION
            and not self._findings.counts[Status.UNREAD]
            and all(each.proof is None or each.proof.is_rounding for each in self._findings.steps)
        )

    def _agreement(self, fact: FactDifference) -> Iterator[str]:
        """Yield the steps and parts of a step that agree before a difference."""
        is_first = fact.step == min((each.step for each in self._findings.steps), default=fact.step)
        if not is_first and self._is_exact_before(fact.step):
            yield f"every value of the steps before step {fact.step} is equal"
        own = self._observed.get((fact.step, fact.rank))
        if own is not None and own.is_exact and fact.moment > Moment.BACKWARD:
            yield f"forward and backward of step {fact.step} are equal to the bit"

    # --- gradients

    def _factor(self) -> tuple[StepObservations, GradientFactor] | None:
        """Return the first factor of gradients, if no difference comes before it."""
        for each in self._findings.steps:
            if each.factor is not None:
                return each, each.factor
            if not each.is_exact:
                return None
        return None

    def _of_factor(self, observed: StepObservations, found: GradientFactor) -> Verdict:
        value = found.factor.value
        meanings = self._findings.meanings.get((observed.step, observed.rank), Meanings())
        # The numbers that it may come from scale the loss, or what is reduced later.
        is_behind_loss = found.has_same_loss and not found.is_reduced
        alone = found.parameters
        meaning = "" if is_behind_loss or alone else meanings.of(value)
        words = (
            f"the gradient{'s' * (len(alone) > 1)} of {shown_names(alone)} {are(alone)} "
            f"{value:.6g} times the reference's ({found.place.record}, step {observed.step})"
            if alone
            else f"the gradients are {value:.6g} times the reference's from {found.place.record} "
            f"on (step {observed.step}, {found.total} gradient{'s' * (found.total > 1)})"
        )
        limited = "" if meaning or found.totals is None else limited_words(*found.totals)
        if meaning:
            words += f": the factor is {meaning}"
        elif limited:
            words = f"{limited} (step {observed.step})"
        verdict = VerdictClass.CLIPPING if limited else VerdictClass.GRADIENT
        is_proved = found.factor.is_proved and not limited
        is_open = is_behind_loss or not (meaning or alone)
        behind = observed.behind
        # A call that one side alone scales the loss by is that factor; an argument is told as one.
        is_scale = not is_behind_loss and not limited
        if behind and is_scale and behind.is_factor(value):
            words += f"; {behind.words}"
        elif behind is not None and is_open and not limited:
            is_proved = is_proved and is_behind_loss
            verdict, words = behind.verdict, f"{behind.words}; {words}"
        return self._findings.conclude(
            verdict,
            words,
            # A total norm may be near a round number by chance.
            Confidence.PROVED if is_proved else Confidence.LIKELY,
            evidence=[
                "the results of the forward pass agree",
                *(["the loss is the same, and was not scaled"] if is_behind_loss else []),
            ],
            where=replace(
                Where.at(found.place, observed.rank),
                phase=found.moment.phase,
                parameter=next(iter(alone), None),
            ),
            next_steps=[
                *found.place.next,
                CLIP_ALIKE
                if limited
                else "look at the scaling of the loss and at hooks on gradients",
            ],
        )

    # --- calls

    def _of_culprit(self, culprit: Culprit) -> Verdict:
        culprit = collective_of(culprit, self._findings.culprits)
        if class_of(culprit) in MAY_BE_INSIDE:
            culprit = culprit_inside(culprit, self._findings.culprits)
        verdict, words = found = class_and_words(culprit)
        ranks = {each.rank for each in self._findings.steps}
        is_group = verdict is VerdictClass.COMMUNICATION
        words += ranks_words(culprit, self._findings.culprits, ranks, is_group=is_group)
        confidence = Confidence.LIKELY
        next_steps = for_culprit(
            culprit,
            len(culprit_groups(self._findings.culprits)),
            same_seeds=self._has_same_seeds(culprit),
        )
        settings = self._findings.numeric_settings()
        if settings is not None and is_without_reason(culprit):
            verdict, confidence = VerdictClass.SETTINGS, Confidence.POSSIBLE
            words = f"{settings.words}; the first call that differs is {culprit_call(culprit)}"
            next_steps = [*settings.next]
        elif (
            verdict in _SHOWN_BY_ARGUMENT
            and class_of(culprit) is VerdictClass.ARGUMENT
            and self._is_exact_before(culprit.comparison.step)
        ):
            confidence = Confidence.PROVED
        elif verdict in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED):
            confidence = Confidence.POSSIBLE
        moment = moment_of(culprit)
        own = self._findings.own_errors.get(key_of(culprit))
        evidence = []
        inside = unrecorded_call(culprit, found[0]) or self._other_draw(culprit, found[0])
        if inside is not None:
            verdict, confidence = inside.verdict, Confidence.LIKELY
            words = f"{inside.words}; {culprit_words(culprit)}"
            next_steps = [*inside.next, *next_steps]
        if own is not None:
            evidence.append(own.words)
            if own.is_judged and own.at_fault and verdict is not VerdictClass.SETTINGS:
                if verdict is VerdictClass.UNEXPLAINED:
                    verdict = VerdictClass.KERNEL
                words = own.verdict_words(culprit_place(culprit))
                confidence = Confidence.PROVED if own.is_certain else Confidence.LIKELY
        late = None
        if culprit.row.cause is Cause.ACCUMULATED:
            observed = self._observed[culprit.comparison.step, culprit.comparison.rank]
            late = observed.late_call
            if observed.cleared is not None:
                words, advice = observed.cleared
                next_steps = [advice]
        if late is not None:
            next_steps[:0] = late.place.next
            evidence.append(late.words)
        return self._findings.conclude(
            verdict,
            words,
            confidence,
            evidence=evidence,
            where=Where(
                step=culprit.comparison.step,
                rank=culprit.comparison.rank,
                record=culprit.row.pair.name,
                module=culprit.module,
                source=culprit.source,
                parameter=culprit.row.name if culprit.kind == "parameter" else None,
                phase=moment.phase,
            ),
            next_steps=next_steps,
        )

    def _other_draw(self, culprit: Culprit, found: VerdictClass) -> OutlineDifference | None:
        """Return which call of a module draws other numbers; None if none is known to.

        Both sides draw alike from the same state, and from another one in the next step: one of
        them seeds its generator in between.
        """
        comparison, pair = culprit.comparison, culprit.row.pair
        call = same_draw(comparison.sides, (pair.target, pair.reference))
        later = next(
            (
                fact
                for fact in self._findings.facts
                if fact.moment is Moment.RANDOM
                and fact.effect is not Effect.NONE
                and (fact.step, fact.rank) == (comparison.step + 1, comparison.rank)
            ),
            None,
        )
        is_open = found is VerdictClass.UNEXPLAINED and self._has_same_seeds(culprit)
        if call is None or later is None or not is_open:
            return None
        words = f"{call.words}: {later.words}, though both sides draw alike in the step before"
        return replace(call, words=words)

    def _has_same_seeds(self, culprit: Culprit) -> bool:
        """Return whether generators were recorded at the start of the step and agree."""
        comparison = culprit.comparison
        if any(facts is None or not facts.random for facts in comparison.facts):
            return False
        return not any(
            fact.moment is Moment.RANDOM and fact.step == comparison.step
            for fact in self._findings.facts
        )

    def _is_exact_before(self, step: int) -> bool:
        return all(each.is_exact for each in self._findings.steps if each.step < step)


def _is_of_autocast(culprit: Culprit) -> bool:
    """Return whether a call that nothing else explains may compute in a type of autocast inside."""
    error, both = culprit.row.error, culprit.comparison.facts
    epsilon = max(0.0 if facts is None else autocast_epsilon(facts) for facts in both)
    is_near = error is not None and error <= IN_AUTOCAST * epsilon
    return is_near and (is_without_reason(culprit) or may_be_random(culprit))


def _is_clipping_of(fact: FactDifference, step: StepObservations, found: GradientFactor) -> bool:
    """Return whether gradients that were read after the step show what clipping made of them."""
    is_there = (fact.step, fact.rank) == (step.step, step.rank)
    return is_there and found.is_reduced and fact.verdict is VerdictClass.CLIPPING


def _agrees_until(observed: StepObservations, fact: FactDifference) -> bool:
    """Return whether everything agrees until the loss, or until gradients are reduced."""
    if fact.moment is Moment.REDUCE or fact.is_unread:
        return observed.is_shared_exact or fact.parameter in observed.updated_exactly
    has_factor = fact.verdict is VerdictClass.GRADIENT
    return observed.exact_passes > fact.micro or (
        has_factor and observed.agreeing_passes > fact.micro
    )


def _order(fact: FactDifference) -> tuple[int, int, bool]:
    """Return a key for the order in which differences act; of several at once the certain one."""
    return fact.step, fact.moment, fact.effect is not Effect.CERTAIN


def _needs_values(fact: FactDifference) -> bool:
    """Return whether only the values of calls tell if a difference has an effect."""
    by_calls = VerdictClass.RANDOM, VerdictClass.MODE, VerdictClass.PRECISION
    is_open = fact.effect is Effect.POSSIBLE and fact.moment is not Moment.DATA
    return is_open and (
        fact.verdict in (*by_calls, VerdictClass.INCOMPLETE, VerdictClass.COMMUNICATION)
        or fact.moment in (Moment.LOSS, Moment.REDUCE)
    )


def _is_one_sided(culprit: Culprit) -> bool:
    """Return whether a culprit is a value or a call that only one side has."""
    return (
        culprit.row.status in (Status.ADDED, Status.MISSING)
        or culprit.row.cause is Cause.OTHER_PARAMETER
    )
