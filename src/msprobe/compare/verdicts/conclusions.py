# SPDX-License-Identifier: Apache-2.0
"""`Conclusions`: the verdict that one of the findings is the cause, with what it rests on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from msprobe.collectives.calls import is_communication
from msprobe.compare.causes import Cause
from msprobe.compare.model import Status
from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    Phase,
    are,
    shown_names,
)
from msprobe.compare.training.generators import drawn_within
from msprobe.compare.training.gradient_factors import Meanings, limited_words
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.random_calls import same_draw
from msprobe.compare.verdicts.communication import (
    collective_of,
    group_words,
    is_of_group,
    of_all_ranks,
    on_ranks,
    ranks_words,
)
from msprobe.compare.verdicts.computed_numbers import gives_computed
from msprobe.compare.verdicts.culprit_classes import (
    class_and_words,
    class_of,
    is_without_reason,
    moment_of,
    unrecorded_call,
)
from msprobe.compare.verdicts.culprit_words import culprit_call, culprit_place, culprit_words
from msprobe.compare.verdicts.custom_functions import MAY_BE_INSIDE, culprit_inside
from msprobe.compare.verdicts.effective_facts import EffectiveFacts
from msprobe.compare.verdicts.lone_draws import is_given_generator, lone_draw
from msprobe.compare.verdicts.next_steps import CLIP_ALIKE, for_culprit
from msprobe.compare.verdicts.observations import GradientFactor, StepObservations
from msprobe.compare.verdicts.own_error import key_of
from msprobe.compare.verdicts.places import Clue
from msprobe.compare.verdicts.ranking import Culprit, culprit_groups
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.record_names import parse_record_name
from msprobe.plain_text import times_text

# Causes that another argument of a call shows.
_SHOWN_BY_ARGUMENT: Final = (
    VerdictClass.ARGUMENT,
    VerdictClass.DATA,
    VerdictClass.GRADIENT,
    VerdictClass.PARAMETERS,
)
_OTHER_WHEN_ASKED: Final = (
    "the optimizer asks for the loss again with other parameters (step {}), though the first loss, "
    "its settings and its state agree: the gradients that it got may be left over or changed"
)
_LOOK_AT_CLOSURE: Final = ("look at the closure: are gradients cleared, and not changed?",)


class Conclusions:
    """Makes verdicts of the findings of a comparison."""

    def __init__(self, findings: Findings, facts: EffectiveFacts) -> None:
        """Take in the findings, and the differences of the training that are causes."""
        self._findings = findings
        self._facts = facts
        self._culprit = findings.culprits[0] if findings.culprits else None
        self._observed = {(each.step, each.rank): each for each in findings.steps}

    def of_fact(self, fact: FactDifference) -> Verdict:
        """Return that a difference of the training is the cause."""
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
        verdict = fact.told_verdict
        words = own = self._on_its_ranks(fact, self._words_of(fact))
        lone = self._lone_call(fact)
        if lone is not None and fact.verdict is VerdictClass.PARAMETERS:
            words = f"{words}; {lone.words}, step {lone.place.step}"
            record = lone.place.record
            # A call of both sides at another place is no difference of what it writes.
            verdict = lone.verdict if lone.verdict is VerdictClass.ORDER else verdict
        elif lone is not None:
            verdict, words = VerdictClass.CALL, f"{lone.words}, step {lone.place.step}; {words}"
            record = lone.place.record
        elif late is not None:
            verdict, words = self._with_late_call(fact, own, late)
            if words is own:
                evidence.insert(0, late.words)
        drawn = self._drawn_before(fact)
        if drawn is not None:
            verdict, words = drawn.verdict, f"{drawn.words}, step {drawn.place.step}; {words}"
        if fact.moment is Moment.ASKED_AGAIN:
            verdict, words = (
                VerdictClass.GRADIENT,
                f"{_OTHER_WHEN_ASKED.format(fact.step)}; {words}",
            )
        changed = None if lone or late else self._changed_behind(fact)
        if changed is not None and fact.multiple is not None:
            words, changed = f"{words}; {changed.words}", None  # it is what multiplies them
        elif changed is not None:
            verdict, words = changed.verdict, f"{changed.words}; {words}"
        return self._findings.conclude(
            verdict,
            words,
            Confidence.LIKELY
            if changed is not None
            else Confidence.PROVED
            if self._is_certain(fact) or self._is_alone(fact) or self._is_proved(fact)
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
                *(drawn.place.next if drawn is not None else []),
                *(changed.next if changed is not None else ()),
                *(_LOOK_AT_CLOSURE if fact.moment is Moment.ASKED_AGAIN else fact.next),
            ],
        )

    def _words_of(self, fact: FactDifference) -> str:
        """Return a difference in words, closer where backward hands out the same gradients."""
        own = self._observed.get((fact.step, fact.rank))
        is_same = own is not None and own.is_exact and own.reads_gradients
        return fact.if_exact if is_same and fact.if_exact else fact.words

    def _lone_call(self, fact: FactDifference) -> Clue | None:
        """Return the call that changes parameters, or by one side alone gives one a gradient."""
        if fact.verdict is VerdictClass.PARAMETERS:
            written_in = fact.step - (fact.moment is Moment.PARAMETERS)
            before = self._observed.get((written_in, fact.rank))
            return None if before is None else before.written
        now = self._observed.get((fact.step, fact.rank))
        if now is None or fact.moment is not Moment.REDUCE:
            return None
        # All that differs is the gradients of what these calls read.
        readers = [now.lone_readers.get(name) for name in fact.gradients]
        known = readers[0] if readers and all(readers) else None
        return known or now.lone_users.get(fact.parameter or "")

    def _drawn_before(self, fact: FactDifference) -> Clue | None:
        """Return the draw of one side alone that leaves a generator in another state.

        None where the generators differ already when the step of the draw starts.
        """
        before = self._observed.get((fact.step - 1, fact.rank))
        is_of_framework = fact.verdict is VerdictClass.RANDOM and not fact.is_drawn_by_host
        if before is None or not is_of_framework:
            return None
        differed = any(
            each.moment is Moment.RANDOM and (each.step, each.rank) == (before.step, fact.rank)
            for each in self._findings.facts
            if each.effect is not Effect.NONE
        )
        return None if differed else before.lone_draw

    def _changed_behind(self, fact: FactDifference) -> OutlineDifference | None:
        """Return the call without a record that differs where all of a step agrees but gradients.

        The program changes them after the backward pass. Or buffers, by another number that it
        gives: a call of one side alone may be one of many that change none.
        """
        own = self._observed.get((fact.step, fact.rank))
        if own is None or own.behind is None or not own.is_exact:
            return None
        is_of_gradients = fact.moment is Moment.REDUCE and fact.effect is Effect.POSSIBLE
        is_of_buffers = fact.moment is Moment.UPDATE and bool(fact.modules)
        is_open = is_of_gradients or (is_of_buffers and own.behind.is_told)
        return own.behind if is_open else None

    def _late_call(self, step: int, rank: int | str) -> Clue | None:
        observed = self._observed.get((step, rank))
        return None if observed is None else observed.late_call

    def _with_late_call(
        self, fact: FactDifference, own: str, late: Clue
    ) -> tuple[VerdictClass, str]:
        """Return class and words of other gradients, with a call that may have changed them.

        The words are the fact's `own` where values differ before.
        """
        is_sent = is_communication(parse_record_name(late.place.record))
        if is_sent and not fact.is_scaled:
            return VerdictClass.COMMUNICATION, f"{late.words}; {own}"
        if late.verdict is VerdictClass.PRECISION and not fact.is_scaled:
            return VerdictClass.PRECISION, f"{late.words}; {own}"
        if self._is_exact_until_reduced(fact):
            return fact.verdict, f"{own}; {late.words}"
        return fact.verdict, own

    def _is_exact_until_reduced(self, fact: FactDifference) -> bool:
        """Return whether all calls of both sides agree to the bit until a step's backward ends."""
        observed = self._observed.get((fact.step, fact.rank))
        return observed is not None and observed.is_shared_exact

    def _on_its_ranks(self, fact: FactDifference, told: str) -> str:
        """Return a difference in words with the ranks that it concerns; without, if it is all.

        What comes behind its first part explains it, and may be of other ranks as well.
        """
        concerned = {
            each.rank
            for each in self._findings.facts
            if (each.verdict, each.moment, each.step) == (fact.verdict, fact.moment, fact.step)
            and each.effect is not Effect.NONE
        }
        # Of the halves of a rank, one has facts.
        is_all = concerned == {each.rank for each in self._findings.steps if each.has_facts}
        if is_all:
            return told
        first, *more = told.split("; ")
        return "; ".join((f"{first}{on_ranks(concerned)} alone", *more))

    def _is_certain(self, fact: FactDifference) -> bool:
        """Return whether a difference shows its effect, and is none of what came before.

        A program may make a batch of results.
        """
        if fact.effect is not Effect.CERTAIN or fact.moment is not Moment.DATA:
            return fact.effect is Effect.CERTAIN
        own = self._observed.get((fact.step, fact.rank))
        is_first = not fact.micro or (own is not None and own.exact_models >= fact.micro)
        # A data set that holds another sample differs in each step that takes any out of it.
        return is_first and all(
            each.is_exact or (each.proof is not None and not each.proof.differing)
            for each in self._findings.steps
            if each.step < fact.step
        )

    def _is_alone(self, fact: FactDifference) -> bool:
        """Return whether all values before a difference of the optimizer are equal."""
        return fact.moment > Moment.BACKWARD and self._is_exact_before(fact.step + 1)

    def _is_proved(self, fact: FactDifference) -> bool:
        """Return whether rounding, in types that differ, explains every difference.

        Not beside another fact, an argument or a draw that is a cause by itself.
        """
        return (
            fact.verdict is VerdictClass.PRECISION
            and not self._findings.counts[Status.UNREAD]
            and all(each.proof is None or each.proof.is_rounding for each in self._findings.steps)
            and all(each.verdict is fact.verdict for each in self._facts.all())
            and not any(each.small or each.has_other_numbers for each in self._findings.steps)
        )

    def _agreement(self, fact: FactDifference) -> Iterator[str]:
        """Yield the steps and parts of a step that agree before a difference."""
        is_first = fact.step == min((each.step for each in self._findings.steps), default=fact.step)
        if not is_first and self._is_exact_before(fact.step):
            yield f"every value of the steps before step {fact.step} is equal"
        own = self._observed.get((fact.step, fact.rank))
        if own is not None and own.is_exact and fact.moment > Moment.BACKWARD:
            yield f"forward and backward of step {fact.step} are equal to the bit"

    def of_factor(self, observed: StepObservations, found: GradientFactor) -> Verdict:
        """Return that gradients are multiplied."""
        value = found.factor.value
        meanings = self._findings.meanings.get((observed.step, observed.rank), Meanings())
        # The numbers that it may come from scale the loss, or what is reduced later.
        is_behind_loss = found.has_same_loss and not found.is_reduced
        alone = found.parameters
        meaning = "" if is_behind_loss or alone or found.passes else meanings.of(value)
        words = (
            f"the gradient{'s' * (len(alone) > 1)} of {shown_names(alone)} {are(alone)} "
            f"{value:.6g} times the reference's ({found.place.record}, step {observed.step})"
            if alone
            else f"the gradients are {value:.6g} times the reference's from {found.place.record} "
            f"on (step {observed.step}, {found.total} gradient{'s' * (found.total > 1)})"
        )
        if found.passes is not None:
            target, reference = map(times_text, found.passes)
            words = (
                f"step {observed.step} runs backward {target} in the target, {reference} in the "
                f"reference: {words}"
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

    def _with_ranks(self, culprit: Culprit, verdict: VerdictClass, words: str) -> str:
        """Return a culprit in words, with the ranks on which the same call is one."""
        ranks = {each.rank for each in self._findings.steps}
        same = of_all_ranks(culprit, self._findings.culprits)
        is_group = verdict is VerdictClass.COMMUNICATION
        if is_group and is_of_group(culprit.row):
            rows = [each.row for each in same.values() if is_of_group(each.row)]
            words = group_words(rows, culprit_place(culprit))
        return words + ranks_words(same, ranks, is_group=is_group)

    def of_culprit(self, culprit: Culprit) -> Verdict:
        """Return that a call is the cause."""
        culprit = collective_of(culprit, self._findings.culprits)
        if class_of(culprit) in MAY_BE_INSIDE:
            culprit = culprit_inside(culprit, self._findings.culprits)
        verdict, words = found = class_and_words(culprit)
        words = self._with_ranks(culprit, *found)
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
            and culprit.row.cause is not Cause.OTHER_VALUE
            and self._is_exact_before(culprit.comparison.step)
            and _is_first(culprit)
        ):
            confidence = Confidence.PROVED
        elif verdict in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED):
            confidence = Confidence.POSSIBLE
        moment = moment_of(culprit)
        own = self._findings.own_errors.get(key_of(culprit))
        evidence = []
        inside = self._call_behind(culprit, found[0])
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
                verdict = VerdictClass.GRADIENT
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

    def _call_behind(self, culprit: Culprit, found: VerdictClass) -> OutlineDifference | None:
        """Return the call that makes a culprit differ, if it is another one."""
        return (
            self._drawn_ahead(culprit, found)
            or unrecorded_call(culprit, found)
            or self._other_draw(culprit, found)
        )

    def _drawn_ahead(self, culprit: Culprit, found: VerdictClass) -> OutlineDifference | None:
        """Return the draw of one side alone before a call that draws other numbers.

        Which order of samples is drawn is data, also where the other side draws one more.
        """
        comparison, pair = culprit.comparison, culprit.row.pair
        is_given = is_given_generator(comparison, pair)
        if culprit.row.cause is not Cause.RANDOM_NUMBERS:
            return None
        if not (is_given or self._has_same_seeds(culprit)):
            return None
        draw = lone_draw(comparison, before=pair.position, is_given=is_given)
        if draw is None and is_given:  # facts tell the states of others when the step starts
            before = self._observed.get((comparison.step - 1, comparison.rank))
            draw = None if before is None else before.own_draw
        if draw is None:
            return None
        base = comparison.parsed(pair).base
        if found is VerdictClass.DATA and parse_record_name(draw.place.record).base == base:
            return None
        words = f"{draw.words}, step {draw.place.step}"
        return OutlineDifference(draw.verdict, words, draw.place.source, takes_tensor=False)

    def _other_draw(self, culprit: Culprit, found: VerdictClass) -> OutlineDifference | None:
        """Return which call of a module draws other numbers, or that the program itself does.

        Both sides draw alike from the same state, and from another one in the next step: one of
        them seeds its generator in between. None if no call is known to.
        """
        comparison, pair = culprit.comparison, culprit.row.pair
        own = drawn_within(self._findings.facts, comparison.step, comparison.rank)
        if own is not None and gives_computed(culprit):
            return OutlineDifference(VerdictClass.RANDOM, own.words, None, takes_tensor=False)
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


def _is_first(culprit: Culprit) -> bool:
    """Return whether both sides make the same calls before a culprit's, with equal tensors."""
    place = culprit.row.pair.position
    before = itertools.takewhile(lambda row: row.pair.position < place, culprit.comparison.rows)
    return all(
        row.pair.is_matched and (row.status is Status.EQUAL or not row.holds_tensor)
        for row in before
    )
