# SPDX-License-Identifier: Apache-2.0
"""`Verdict`: the cause of a difference between two runs, in one sentence.

Causes are looked for where they act first, in the order of a training step: settings, data, the
state it starts with, forward, backward, reduction, clipping, optimizer. Facts about the training
and culprits among the calls compete; what comes after the first cause is its consequence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Status
from msprobe.compare.training.differences import Effect, FactDifference, Moment, Phase
from msprobe.compare.training.gradient_factors import Meanings
from msprobe.compare.verdicts.culprit_classes import (
    class_of,
    culprit_words,
    is_ruled_by_mode,
    is_without_reason,
    may_be_random,
    moment_of,
)
from msprobe.compare.verdicts.next_steps import for_culprit, for_inputs
from msprobe.compare.verdicts.observations import GradientFactor, StepObservations
from msprobe.compare.verdicts.proof import Jump, JumpKind
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.record_names import RecordKind, parse_record_name

_MOST_EVIDENCE: Final = 6
# Where a smaller share of the calls has partners, the two are different programs.
_LEAST_PAIRED: Final = 1 / 3
_FEW_CALLS: Final = 6


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

    def as_json(self) -> dict[str, Any]:
        """Return it as it is in ``summary.json``."""
        return {
            "step": self.step,
            "rank": self.rank,
            "record": self.record,
            "module": self.module,
            "source": self.source,
            "parameter": self.parameter,
            "phase": None if self.phase is None else str(self.phase),
        }


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
        culprits: the best one first.
        inputs: names of inputs of the model that differ, some of them if there are many.
        has_same_data: the batches of both sides were recorded and are equal.
        split: how the same samples are divided into other micro batches, if nothing else changed.
        facts: differences of the training, in the order in which they take effect.
        steps: what the rows of each step and rank say.
        changed_steps: steps after which a parameter was not exactly equal.
        scope: how the two dumps differ in what was recorded.
        paired: operations with a partner, and the smaller number of operations of the two sides.
        meanings: numbers that factors of gradients may come from, by step and rank.
    """

    counts: Mapping[str, int]
    culprits: Sequence[Culprit] = ()
    inputs: Sequence[str] = ()
    has_same_data: bool = False
    split: str | None = None
    facts: Sequence[FactDifference] = ()
    steps: Sequence[StepObservations] = ()
    changed_steps: frozenset[int] = frozenset()
    scope: Sequence[str] = ()
    paired: tuple[int, int] = (0, 0)
    meanings: Mapping[tuple[int, int | str], Meanings] = field(default_factory=dict)


def find_verdict(findings: Findings) -> Verdict:
    """Return the verdict on a comparison."""
    return _Search(findings).run()


class _Search:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._culprit = findings.culprits[0] if findings.culprits else None
        self._observed = {(each.step, each.rank): each for each in findings.steps}
        self._is_exact = all(each.is_exact for each in findings.steps)

    def run(self) -> Verdict:
        facts = [fact for fact in self._findings.facts if self._is_effective(fact)]
        fact = min(facts, key=lambda each: (each.step, each.moment), default=None)
        if self._are_different_programs() and not _is_end(fact):
            return self._different_programs()
        factor = self._factor()
        culprit = self._culprit
        if fact is not None and self._comes_first(fact, culprit, factor):
            return self._of_fact(fact)
        if factor is not None and (
            culprit is None or _is_later(culprit, factor[0].step, Moment.LOSS)
        ):
            return self._of_factor(*factor)
        if culprit is not None:
            return self._of_culprit(culprit)
        return self._without_cause()

    # --- facts

    def _is_effective(self, fact: FactDifference) -> bool:
        """Return whether a difference of the training is the cause of something."""
        if fact.effect is not Effect.POSSIBLE:
            return fact.effect is Effect.CERTAIN
        culprit, verdict = self._culprit, fact.verdict
        observed = self._observed.get((fact.step, fact.rank))
        match verdict:
            case VerdictClass.SETTINGS:
                return False
            case VerdictClass.RANDOM:
                is_drawn = culprit is not None and may_be_random(culprit)
                return is_drawn or any(each.random_input for each in self._findings.steps)
            case VerdictClass.MODE:
                return culprit is not None and is_ruled_by_mode(culprit, fact.modules)
            case VerdictClass.PRECISION:
                if culprit is None:
                    return not self._is_exact
                return class_of(culprit) is VerdictClass.PRECISION
            case VerdictClass.PARAMETERS:
                if culprit is None or _is_later(culprit, fact.step, Moment.LOSS):
                    return self._differs_after(fact)
                return culprit.kind == "parameter" or _is_one_sided(culprit)
            case VerdictClass.INCOMPLETE:
                return bool(self._findings.counts[Status.MISSING] or self._findings.counts["added"])
        if fact.moment is Moment.LOSS:
            has_factor = verdict is VerdictClass.GRADIENT
            return observed is not None and (
                observed.is_forward_exact or (has_factor and not observed.forward_differs)
            )
        if fact.moment is Moment.REDUCE:
            return observed is not None and observed.is_exact
        return self._differs_after(fact)

    def _differs_after(self, fact: FactDifference) -> bool:
        """Return whether anything differs after a difference took effect."""
        findings = self._findings
        if any(step >= fact.step for step in findings.changed_steps):
            return True
        is_late = fact.moment > Moment.BACKWARD
        return any(
            not each.is_exact
            and (each.step > fact.step or (each.step == fact.step and not is_late))
            for each in findings.steps
        )

    def _comes_first(
        self,
        fact: FactDifference,
        culprit: Culprit | None,
        factor: tuple[StepObservations, GradientFactor] | None,
    ) -> bool:
        when = fact.step, int(fact.moment)
        if factor is not None and (factor[0].step, int(factor[1].moment)) < when:
            return False
        if culprit is None:
            return True
        if fact.verdict is VerdictClass.INCOMPLETE and fact.step == culprit.comparison.step:
            # A call that ended early has no results.
            return culprit.row.status in (Status.MISSING, Status.ADDED)
        return when <= (culprit.comparison.step, int(moment_of(culprit)))

    def _of_fact(self, fact: FactDifference) -> Verdict:
        culprit = self._culprit
        shows = culprit if culprit is not None and culprit.comparison.step == fact.step else None
        explained = shows is not None and moment_of(shows) <= Moment.FORWARD
        is_start = fact.moment.phase in (Phase.START, Phase.DATA)
        record = fact.record
        if record is None and shows is not None and is_start and explained:
            record = shows.row.pair.name
        evidence = list(self._agreement(fact))
        if shows is not None and is_start:
            evidence.insert(0, f"the first call that differs is {_call_words(shows)}")
        elif shows is not None and moment_of(shows) >= fact.moment:
            evidence.append(culprit_words(shows))
        evidence += self._other_facts(fact)
        return self._verdict(
            fact.verdict,
            fact.words,
            Confidence.PROVED
            if fact.effect is Effect.CERTAIN or self._is_alone(fact)
            else Confidence.LIKELY,
            evidence=evidence,
            where=Where(
                step=fact.step,
                rank=fact.rank,
                record=record,
                module=shows.module if shows is not None and record and is_start else None,
                source=shows.source if shows is not None and record and is_start else None,
                parameter=fact.parameter,
                phase=fact.moment.phase,
            ),
            next_steps=fact.next,
        )

    def _is_alone(self, fact: FactDifference) -> bool:
        """Return whether all values before a difference of the optimizer are equal."""
        before = [each for each in self._findings.steps if each.step <= fact.step]
        return fact.moment > Moment.BACKWARD and all(each.is_exact for each in before)

    def _agreement(self, fact: FactDifference) -> Iterator[str]:
        """Yield the steps and parts of a step that agree before a difference."""
        earlier = [each for each in self._findings.steps if each.step < fact.step]
        if earlier and all(each.is_exact for each in earlier):
            yield f"every value of the steps before step {fact.step} is equal"
        own = self._observed.get((fact.step, fact.rank))
        if own is not None and own.is_exact and fact.moment > Moment.BACKWARD:
            yield f"forward and backward of step {fact.step} are equal to the bit"

    def _other_facts(self, chosen: FactDifference | None) -> Iterator[str]:
        """Yield what else differs in the training, the consequences of the cause left out."""
        when = None if chosen is None else (chosen.step, chosen.moment)
        for wanted in (True, False):
            for fact in self._findings.facts:
                has_effect = fact.effect is not Effect.NONE
                if has_effect is not wanted or (chosen and fact.words == chosen.words):
                    continue
                is_state = when is None and fact.moment <= Moment.MODES
                is_before = when is not None and (fact.step, fact.moment) < when
                if is_state or is_before or not has_effect:
                    yield f"also differs: {fact.words}"

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
        meaning = meanings.of(value)
        words = (
            f"the gradients are {value:.6g} times the reference's from {found.record} on "
            f"(step {observed.step}, {found.total} gradients)"
        )
        return self._verdict(
            VerdictClass.GRADIENT,
            words + (f": the factor is {meaning}" if meaning else ""),
            Confidence.PROVED if found.factor.residual is not None else Confidence.LIKELY,
            evidence=["the forward pass agrees", *self._other_facts(None)],
            where=Where(
                step=observed.step,
                rank=observed.rank,
                record=found.record,
                module=found.module,
                source=found.source,
                phase=found.moment.phase,
            ),
            next_steps=[
                *([f"look at {found.source}"] if found.source else []),
                "look at the scaling of the loss and at hooks on gradients",
            ],
        )

    # --- calls

    def _of_culprit(self, culprit: Culprit) -> Verdict:
        verdict, confidence = class_of(culprit), Confidence.LIKELY
        words = culprit_words(culprit)
        evidence = list(self._other_facts(None))
        next_steps = for_culprit(
            culprit,
            len({each.row.pair.name for each in self._findings.culprits}),
            same_seeds=self._has_same_seeds(culprit),
        )
        settings = self._numeric_settings()
        if settings is not None and is_without_reason(culprit):
            verdict, confidence = VerdictClass.SETTINGS, Confidence.POSSIBLE
            words = f"{settings.words}; the first call that differs is {_call_words(culprit)}"
            evidence.remove(f"also differs: {settings.words}")
            next_steps = [*settings.next]
        elif verdict is VerdictClass.ARGUMENT and self._is_exact_before(culprit):
            confidence = Confidence.PROVED
        elif verdict in (VerdictClass.KERNEL, VerdictClass.UNEXPLAINED):
            confidence = Confidence.POSSIBLE
        moment = moment_of(culprit)
        return self._verdict(
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

    def _numeric_settings(self) -> FactDifference | None:
        return next(
            (
                fact
                for fact in self._findings.facts
                if fact.verdict is VerdictClass.SETTINGS and fact.effect is Effect.POSSIBLE
            ),
            None,
        )

    def _has_same_seeds(self, culprit: Culprit) -> bool:
        """Return whether generators were recorded at the start of the step and agree."""
        comparison = culprit.comparison
        sides = comparison.target.view.facts, comparison.reference.view.facts
        if any(facts is None or not facts.random for facts in sides):
            return False
        return not any(
            fact.verdict is VerdictClass.RANDOM and fact.step == comparison.step
            for fact in self._findings.facts
        )

    def _is_exact_before(self, culprit: Culprit) -> bool:
        return all(
            each.is_exact for each in self._findings.steps if each.step < culprit.comparison.step
        )

    # --- no cause

    def _without_cause(self) -> Verdict:
        counts = self._findings.counts
        random = next((each for each in self._findings.steps if each.random_input), None)
        if random is not None:
            return self._verdict(
                VerdictClass.RANDOM,
                f"the state of the generator that {random.random_input} draws from differs "
                f"(step {random.step})",
                Confidence.LIKELY,
                evidence=list(self._other_facts(None)),
                where=Where(
                    step=random.step,
                    rank=random.rank,
                    record=random.random_input,
                    phase=Phase.FORWARD,
                ),
                next_steps=["seed both runs alike (seed_all) and compare again"],
            )
        if self._findings.inputs and not self._findings.has_same_data:
            return self._of_inputs()
        differing = sum(counts[status] for status in Status if status.is_difference)
        if not differing and counts[Status.UNREAD]:
            return self._verdict(
                VerdictClass.INCOMPLETE,
                f"{counts[Status.UNREAD]} values could not be read; all others agree",
                Confidence.PROVED,
                evidence=list(self._other_facts(None)),
            )
        if not any(each.forward_differs or each.backward_differs for each in self._findings.steps):
            return self._equal(differing)
        if self._findings.split is not None:
            return self._verdict(
                VerdictClass.ROUNDING,
                f"{self._findings.split}, and the gradients that the optimizer gets agree",
                Confidence.LIKELY,
                evidence=list(self._other_facts(None)),
            )
        if counts[Status.UNREAD] or not all(
            each.proof.is_rounding for each in self._findings.steps if each.proof is not None
        ):
            return self._unexplained()
        precisions = self._precisions()
        return self._verdict(
            VerdictClass.PRECISION if precisions else VerdictClass.ROUNDING,
            (f"{precisions}; " if precisions else "")
            + "every difference is explained by the rounding of its call or by its inputs",
            Confidence.PROVED,
            evidence=list(self._other_facts(None)),
            next_steps=["compare both runs with one of higher precision to see which is nearer"],
        )

    def _precisions(self) -> str:
        """Return the floating types that differ most often, in words; empty if none do."""
        total: Counter[tuple[str, str]] = Counter()
        for each in self._findings.steps:
            total.update(each.precisions)
        if not total:
            return ""
        (types, count), *_ = total.most_common(1)
        return f"{count} values are {types[0]} in the target, {types[1]} in the reference"

    def _of_inputs(self) -> Verdict:
        first = next((each for each in self._findings.steps if each.forward_differs), None)
        names = self._findings.inputs
        total = (
            f"{len(names)} inputs of the model differ" if len(names) > 1 else f"{names[0]} differs"
        )
        return self._verdict(
            VerdictClass.DATA,
            f"{total} when they come in" + (f" ({', '.join(names)})" if len(names) > 1 else ""),
            Confidence.LIKELY,
            evidence=list(self._other_facts(None)),
            where=None
            if first is None
            else Where(step=first.step, rank=first.rank, phase=Phase.DATA),
            next_steps=[for_inputs(names, len(names))],
        )

    def _equal(self, unmatched: int) -> Verdict:
        counts = self._findings.counts
        close = counts[Status.CLOSE]
        words = f"{counts[Status.EQUAL] + close} values agree"
        if close:
            words += f", {close} of them within the tolerance of their types"
        precisions = self._precisions()
        if precisions:
            words += f"; {precisions}"
        if unmatched:
            words += "; the sides make different calls, without consequence for any value"
        return self._verdict(
            VerdictClass.EQUAL,
            words,
            Confidence.PROVED,
            evidence=list(self._other_facts(None)),
        )

    def _unexplained(self) -> Verdict:
        jumps = [
            (each, each.proof.worst)
            for each in self._findings.steps
            if each.proof is not None and each.proof.worst is not None
        ]
        settings = self._numeric_settings()
        more = [] if settings is None else list(settings.next)
        words = "values differ more than what comes before them explains"
        where = None
        if jumps:
            # Later steps inherit from the first one that jumps.
            observed, jump = min(jumps, key=lambda pair: pair[0].step)
            words = f"the difference jumps most in {_jump_words(jump)} (step {observed.step})"
            where = _where_of(observed, jump)
            more.append(
                f"record {jump.module or jump.record} with task tensor in both runs, and compare "
                "its elements"
            )
        return self._verdict(
            VerdictClass.UNEXPLAINED,
            words,
            Confidence.POSSIBLE,
            evidence=list(self._other_facts(None)),
            where=where,
            next_steps=[*more, "record one run twice: is it equal to itself?"],
        )

    def _are_different_programs(self) -> bool:
        paired, total = self._findings.paired
        return total >= _FEW_CALLS and paired < _LEAST_PAIRED * total

    def _different_programs(self) -> Verdict:
        paired, total = self._findings.paired
        return self._verdict(
            VerdictClass.DIFFERENT_PROGRAMS,
            f"only {paired} of {total} calls have a partner on the other side",
            Confidence.LIKELY,
            evidence=list(self._other_facts(None)),
            next_steps=["compare two runs of the same model, or map their names (--help)"],
        )

    def _verdict(
        self,
        verdict: VerdictClass,
        words: str,
        confidence: Confidence,
        *,
        evidence: Sequence[str],
        where: Where | None = None,
        next_steps: Sequence[str] = (),
    ) -> Verdict:
        return Verdict(
            verdict=verdict,
            words=words,
            confidence=confidence,
            evidence=list(dict.fromkeys(evidence))[:_MOST_EVIDENCE],
            where=where,
            next=next_steps,
            scope=self._findings.scope,
        )


def _is_end(fact: FactDifference | None) -> bool:
    return fact is not None and fact.verdict is VerdictClass.INCOMPLETE


def _is_one_sided(culprit: Culprit) -> bool:
    """Return whether a culprit is a value or a call that only one side has."""
    return (
        culprit.row.status in (Status.ADDED, Status.MISSING)
        or culprit.row.cause is Cause.OTHER_PARAMETER
    )


def _is_later(culprit: Culprit, step: int, moment: Moment) -> bool:
    """Return whether a culprit does not come before a moment of a step."""
    return (culprit.comparison.step, moment_of(culprit)) >= (step, moment)


def _call_words(culprit: Culprit) -> str:
    source = f" ({culprit.source})" if culprit.source else ""
    return f"{culprit.row.pair.name}{source}"


def _jump_words(jump: Jump) -> str:
    source = f" ({jump.source})" if jump.source else ""
    size = "" if jump.error is None else f": its relative error is {jump.error:.2g}"
    if jump.growth is None or not math.isfinite(jump.growth):
        return f"{jump.row}{source}{size}, {_JUMPS[jump.kind]}"
    return f"{jump.row}{source}{size}, {jump.growth:.3g} times that of its inputs"


_JUMPS: Final = {
    JumpKind.CALL: "more than its inputs explain",
    JumpKind.ARGUMENT: "the call was given another argument",
    JumpKind.PARAMETER: "a parameter that differs",
    JumpKind.STEP: "more than its gradients in earlier steps make likely",
    JumpKind.DATA: "it differs when it comes in",
    JumpKind.UNMATCHED: "only one side makes the call",
    JumpKind.STRUCTURE: "it is missing, or has another shape or type",
    JumpKind.UNTRACED: "and where the value comes from was not recorded",
    JumpKind.SIZE: "further apart than rounding gets",
}


def _where_of(observed: StepObservations, jump: Jump) -> Where:
    is_forward = parse_record_name(jump.record).kind is RecordKind.FORWARD
    return Where(
        step=observed.step,
        rank=observed.rank,
        record=jump.record,
        module=jump.module,
        source=jump.source,
        phase=Phase.FORWARD if is_forward else Phase.BACKWARD,
    )
