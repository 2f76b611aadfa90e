# SPDX-License-Identifier: Apache-2.0
"""`EffectiveFacts`: which differences of the training are the cause of something.

Some show their effect themselves; of others the values of calls tell whether they have one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Status
from msprobe.compare.rounding import IN_AUTOCAST
from msprobe.compare.training.differences import Effect, FactDifference, Moment, Phase
from msprobe.compare.training.gradient_factors import SAME_FACTOR
from msprobe.compare.training.modes import autocast_epsilon
from msprobe.compare.verdicts.culprit_classes import (
    class_and_words,
    class_of,
    is_ruled_by_mode,
    is_within,
    is_without_reason,
    may_be_random,
    may_follow_host,
    moment_of,
)
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.scaled_gradients import loss_of, scale_of_calls
from msprobe.compare.verdicts.verdict import Findings
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind

# Gradients that no recorded call of the rank made.
_FOREIGN_GRADIENTS: Final = (Cause.UNEXPLAINED_GRADIENT, Cause.OTHER_START)


def follows_results(fact: FactDifference, steps: Iterable[StepObservations]) -> bool:
    """Return whether a model is given a batch after values of an earlier call or step differ.

    The batch may be made of these, by code that was not recorded: a state that is carried over, or
    what the program does in a world. Rounding makes no other batch.
    """
    if fact.moment is not Moment.DATA:
        return False
    own = [each for each in steps if each.rank == fact.rank]
    is_of_data = fact.verdict is VerdictClass.DATA
    follows_call = any(s.step == fact.step and s.agreeing_models < fact.micro for s in own)
    return (is_of_data and follows_call) or any(
        s.step < fact.step and s.forward_differs and s.proof and not s.proof.is_rounding
        for s in own
    )


class EffectiveFacts:
    """Judges the differences of the training beside the first culprit."""

    def __init__(self, findings: Findings) -> None:
        """Take in the findings of a comparison."""
        self._findings = findings
        self._culprit = findings.culprits[0] if findings.culprits else None
        self._observed = {(each.step, each.rank): each for each in findings.steps}

    def all(self) -> list[FactDifference]:
        """Return the differences that are causes, in the order in which they act."""
        facts = filter(self._is_effective, self._findings.facts)
        return sorted(facts, key=lambda fact: (*self.when(fact), fact.effect is not Effect.CERTAIN))

    def first_decided(self) -> FactDifference | None:
        """Return the first difference that is a cause; None if one before it is undecided."""
        for fact in sorted(self._findings.facts, key=self.when):
            if _needs_values(fact):
                return None
            if self._is_effective(fact):
                return fact
        return None

    def when(self, fact: FactDifference) -> tuple[int, int, Moment]:
        """Return when a difference takes effect: step, optimizer step in it, and moment."""
        observed = self._observed.get((fact.step, fact.rank))
        if observed is not None and fact.moment is Moment.DATA:
            return fact.step, observed.turns.of_model(fact.micro), fact.moment
        if observed is not None and fact.moment is Moment.LOSS:
            return fact.step, observed.turns.of_pass(fact.micro), fact.moment
        return fact.when

    def when_seen(self, culprit: Culprit) -> tuple[int, int, Moment]:
        """Return when a culprit takes effect, likewise."""
        comparison = culprit.comparison
        observed = self._observed.get((comparison.step, comparison.rank))
        turn = 0 if observed is None else observed.turns.of_place(culprit.row.pair.position)
        return comparison.step, turn, moment_of(culprit)

    @staticmethod
    def is_later(culprit: Culprit, step: int, moment: Moment) -> bool:
        """Return whether a culprit does not come before a moment of a step."""
        return (culprit.comparison.step, moment_of(culprit)) >= (step, moment)

    def is_multiple(self, fact: FactDifference) -> bool:
        """Return whether some gradients are a multiple by none of the calls of one side alone."""
        if fact.multiple is None:
            return False
        here = [c.comparison for c in self._findings.culprits if c.comparison.step == fact.step]
        if any(loss_of(each) is not None for each in here[:1]):
            return False  # these calls do not compute the same
        scale = next(map(scale_of_calls, here), 1.0)
        return not math.isclose(scale, fact.multiple, rel_tol=SAME_FACTOR)

    def _is_effective(self, fact: FactDifference) -> bool:
        """Return whether a difference of the training is the cause of something."""
        follows = self._follows_culprit(fact) or follows_results(fact, self._findings.steps)
        return not follows and self._has_effect(fact) and not self._may_be_grown(fact)

    def _may_be_grown(self, fact: FactDifference) -> bool:
        """Return whether what an optimizer asks for again may differ as its line search lets it.

        It makes much of rounding.
        """
        observed = self._observed.get((fact.step, fact.rank))
        is_exact = observed is not None and observed.asked_exactly
        return fact.moment is Moment.ASKED_AGAIN and not is_exact

    def _has_effect(self, fact: FactDifference) -> bool:
        if fact.effect is not Effect.POSSIBLE:
            is_read = fact.effect is Effect.IF_READ and self._differs_after(fact)
            return is_read or fact.effect is Effect.CERTAIN
        culprit, verdict = self._culprit, _acts_as(fact)
        observed = self._observed.get((fact.step, fact.rank))
        if fact.moment is Moment.DATA:
            # Which of a model's calls is one too many is not known.
            is_idle = _is_of_exact_model(fact, observed)
            later = [each for each in self._from(fact) if not each.is_close]
            # Sums over samples or edges that come in another order are rounded otherwise.
            is_idle = is_idle or (
                fact.is_reordered and all(s.proof and s.proof.is_rounding for s in later)
            )
            is_idle = is_idle or self._is_of_later_mode(fact, observed)
            is_seen = any(s.forward_differs or s.backward_differs for s in later)
            return (not is_idle and is_seen) or self._changes_buffers(fact)
        match verdict:
            case VerdictClass.SETTINGS:
                return False
            case VerdictClass.RANDOM:
                is_drawn = culprit is not None and (
                    may_be_random(culprit)
                    or (fact.is_drawn_by_host and may_follow_host(culprit))
                    or self._may_be_drawn_inside(culprit, fact, observed)
                )
                is_shown = any(each.random_input for each in self._findings.steps)
                is_moved = culprit is None and self._follows_draw(fact)
                return is_drawn or is_shown or is_moved or self._fills_buffers(fact)
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
                return self._is_end_seen(fact)
        if fact.moment in (Moment.LOSS, Moment.REDUCE) or fact.is_unread:
            return observed is not None and (
                _agrees_until(observed, fact)
                or self._tells_gradients(fact, observed)
                or self._is_made_otherwise(fact, observed)
            )
        return self._differs_after(fact)

    @staticmethod
    def _may_be_drawn_inside(
        culprit: Culprit, fact: FactDifference, observed: StepObservations | None
    ) -> bool:
        """Return whether a module's code without records may draw what a culprit is given.

        What another rank draws may come by its communication.
        """
        comparison = culprit.comparison
        if culprit.row.cause is not Cause.SURROUNDING_CODE or comparison.step != fact.step:
            return False
        is_own = comparison.rank == fact.rank
        communicates = any(facts is not None and facts.communication for facts in comparison.facts)
        return observed is not None and observed.draws and (is_own or communicates)

    def _follows_draw(self, fact: FactDifference) -> bool:
        """Return whether models draw by a generator that a draw of one side alone has moved."""
        before = self._observed.get((fact.step - 1, fact.rank))
        return (
            before is not None
            and before.lone_draw is not None
            and any(
                each.draws and (each.forward_differs or each.backward_differs)
                for each in self._from(fact)
            )
        )

    def _is_end_seen(self, fact: FactDifference) -> bool:
        """Return whether values tell that a step ended early, or was begun with another batch."""
        if fact.moment is Moment.SETTINGS:
            later = self._from(fact)
            return any(each.forward_differs or each.backward_differs for each in later)
        return bool(self._findings.counts[Status.MISSING] or self._findings.counts[Status.ADDED])

    def _fills_buffers(self, fact: FactDifference) -> bool:
        """Return whether all that differs are buffers of models that draw random numbers."""
        return self._culprit is None and any(
            each.verdict is VerdictClass.UPDATE
            and each.modules
            and each.rank == fact.rank
            and each.step >= fact.step
            and (observed := self._observed.get((each.step, each.rank))) is not None
            and observed.draws
            for each in self._findings.facts
        )

    def _is_of_mode(self, fact: FactDifference, observed: StepObservations | None) -> bool:
        """Return whether another training flag explains the first difference."""
        if self._culprit is not None:
            return is_ruled_by_mode(self._culprit, fact.modules)
        jumps = observed.proof.jumps if observed is not None and observed.proof is not None else ()
        return any(is_within(each.place.module, fact.modules) for each in jumps[:1])

    def _is_of_later_mode(self, fact: FactDifference, observed: StepObservations | None) -> bool:
        """Return whether a further call of a model leaves its step as it is, but not its flags.

        A validation after which the model stays in evaluation: what differs in a later step first
        is ruled by these.
        """
        culprit = self._culprit
        is_harmless = (
            fact.verdict is VerdictClass.CALL and observed is not None and observed.is_shared_exact
        )
        return (
            is_harmless
            and culprit is not None
            and culprit.comparison.step > fact.step
            and fact.step not in self._findings.changed_steps
            and any(
                each.verdict is VerdictClass.MODE
                and (each.step, each.rank) == (culprit.comparison.step, culprit.comparison.rank)
                and is_ruled_by_mode(culprit, each.modules)
                for each in self._findings.facts
            )
        )

    def _changes_buffers(self, fact: FactDifference) -> bool:
        """Return whether buffers show that one side calls a model more often."""
        return fact.verdict is VerdictClass.CALL and any(
            each.moment is Moment.UPDATE
            and each.modules
            and (each.step, each.rank) == (fact.step, fact.rank)
            for each in self._findings.facts
        )

    def _is_made_otherwise(self, fact: FactDifference, observed: StepObservations) -> bool:
        """Return whether a loss that one side makes by other calls comes before what is blamed.

        Where nothing is, its terms may cancel.
        """
        culprit = self._culprit
        is_blamed = culprit is not None and culprit.comparison.step == fact.step
        is_of_calls = fact.verdict is VerdictClass.CALL and fact.moment is Moment.LOSS
        return is_blamed and is_of_calls and observed.agreeing_passes > fact.micro

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
        if not self.is_multiple(fact):
            return False
        return bool(culprits) or not (observed.forward_differs or observed.backward_differs)

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
            if not self.is_later(culprit, fact.step, fact.moment):
                return False
            is_reduced = culprit.comparison.step == fact.step and (
                moment_of(culprit).phase is Phase.REDUCE
            )
            is_foreign = culprit.row.cause in _FOREIGN_GRADIENTS
            if is_without_reason(culprit):
                # A module that is made with other options sends other tensors.
                return class_and_words(culprit)[0] is not VerdictClass.ARGUMENT
            if is_reduced or is_foreign:
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
        if culprit is None or self.is_later(culprit, fact.step, Moment.LOSS):
            return self._differs_after(fact)
        is_parameter = culprit.kind == "parameter" or culprit.row.cause is Cause.PARAMETER
        return is_parameter or _is_one_sided(culprit)

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


def _acts_as(fact: FactDifference) -> VerdictClass:
    """Return the class of what a difference changes: other modules hold other parameters."""
    is_of_models = fact.verdict in (VerdictClass.CALL, VerdictClass.DIFFERENT_PROGRAMS)
    is_of_modules = is_of_models and fact.moment is Moment.PARAMETERS
    return VerdictClass.PARAMETERS if is_of_modules else fact.verdict


def _is_of_exact_model(fact: FactDifference, observed: StepObservations | None) -> bool:
    """Return whether all agrees behind the call of a model that a fact is of.

    Which of a model's calls is one too many is not known.
    """
    if observed is None or fact.micro >= observed.exact_models:
        return False
    differs = observed.forward_differs or observed.backward_differs
    return fact.verdict is not VerdictClass.CALL or not differs


def _is_of_autocast(culprit: Culprit) -> bool:
    """Return whether a call that nothing else explains may compute in a type of autocast inside.

    Or whether it uses a parameter that differs as little: what gradients of that type update, and
    averages of weights, are used again within the step.
    """
    error, both = culprit.row.error, culprit.comparison.facts
    epsilon = max(0.0 if facts is None else autocast_epsilon(facts) for facts in both)
    is_near = error is not None and error <= IN_AUTOCAST * epsilon
    is_parameter = culprit.kind == "parameter" and culprit.row.cause is Cause.PARAMETER
    return is_near and (is_without_reason(culprit) or may_be_random(culprit) or is_parameter)


def _agrees_until(observed: StepObservations, fact: FactDifference) -> bool:
    """Return whether everything agrees until the loss, or until gradients are reduced."""
    if fact.moment is Moment.REDUCE or fact.is_unread:
        return observed.is_shared_exact or fact.parameter in observed.updated_exactly
    has_factor = fact.verdict is VerdictClass.GRADIENT
    return observed.exact_passes > fact.micro or (
        has_factor and observed.agreeing_passes > fact.micro
    )


def _needs_values(fact: FactDifference) -> bool:
    """Return whether only the values of calls tell if a difference has an effect."""
    by_calls = VerdictClass.RANDOM, VerdictClass.MODE, VerdictClass.PRECISION
    if fact.effect is Effect.IF_READ:
        return True
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
