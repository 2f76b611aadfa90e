# SPDX-License-Identifier: Apache-2.0
"""Verdicts where no cause was found: equal, rounding, other data, not explained."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

from msprobe.compare.model import Mode, Status
from msprobe.compare.training.differences import FactDifference, Moment, Phase
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.verdicts.effective_facts import follows_results
from msprobe.compare.verdicts.equal_results import equal_results
from msprobe.compare.verdicts.next_steps import few_inputs, for_inputs
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.places import Clue, Size
from msprobe.compare.verdicts.precision_words import (
    casts_in,
    lone_cast,
    precisions_in,
    where_of_precision,
)
from msprobe.compare.verdicts.proof import Jump, JumpKind
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass


def first_given(findings: Findings) -> StepObservations | None:
    """Return the first step that differs, if the difference comes from outside.

    What comes in on one rank reaches the others within the step.
    """
    differing = [] if findings.is_divided else _differing(findings)
    return next((s for s in differing if s.step == differing[0].step and s.given), None)


def _differing(findings: Findings) -> list[StepObservations]:
    return [each for each in findings.steps if each.forward_differs or each.backward_differs]


def without_cause(findings: Findings) -> Verdict:
    """Return the verdict where neither a call nor the training is the cause."""
    counts = findings.counts
    random = next((each for each in findings.steps if each.random_input), None)
    if random is not None:
        return _of_random(findings, random)
    if findings.inputs and not _has_same_data(findings):
        return _of_inputs(findings)
    given = first_given(findings)
    if given is not None and given.given is not None:
        return _of_given(findings, given, given.given)
    first = next(iter(_differing(findings)), None)
    unmatched = counts[Status.MISSING] + counts[Status.ADDED]
    inside = sum(counts[status] for status in Status if status.is_difference) - unmatched
    unread = counts[Status.UNREAD]
    if unread and not inside and not unmatched:
        total = sum(counts[status] for status in Status)
        return findings.conclude(
            VerdictClass.INCOMPLETE,
            f"{unread} of {total} values could not be read; all others agree",
            Confidence.PROVED,
        )
    if unread or any(each.proof and each.proof.absorbed for each in findings.steps):
        return _unexplained(findings)
    unseen = _unseen_update(findings)
    if unseen is not None:
        return unseen
    if first is None and any(each.loose for each in findings.noise):
        return _within_noise(findings)
    found = None if first is None else _beyond_rounding(findings, first)
    if found is not None:
        return found
    clue = findings.small_cause()
    if clue is not None and clue.size is not Size.WITHIN and not _is_of_types(findings, clue):
        return of_clue(findings, clue)
    if first is not None:
        return _rounding(findings, clue)
    fed = _fed_nearly(findings) if inside else None
    return fed or equal_results(findings, unmatched, inside)


def _far_gradients(findings: Findings, first: StepObservations) -> FactDifference | None:
    """Return that gradients are far apart in the first step that differs, in one precision.

    There nothing has grown yet from step to step, and no rounding makes that of gradients that are
    no noise.
    """
    if precisions_in(findings) or casts_in(findings) or lone_cast(findings):
        return None
    return next((each for each in findings.facts if each.is_far and each.step == first.step), None)


def _has_same_data(findings: Findings) -> bool:
    """Return whether no batch differs but those that calls may have made."""
    data = [each for each in findings.facts if each.moment is Moment.DATA]
    follow = (follows_results(each, findings.steps) for each in data)
    return findings.has_same_data or (bool(data) and all(follow))


def _is_of_types(findings: Findings, clue: Clue) -> bool:
    """Return whether the types of both sides explain as much as a clue without a cause."""
    is_open = clue.verdict in (VerdictClass.UNEXPLAINED, VerdictClass.PRECISION)
    return is_open and clue.size is Size.SMALL and bool(precisions_in(findings))


def _beyond_rounding(findings: Findings, first: StepObservations) -> Verdict | None:
    """Return the verdict where not each difference is rounding; None if each may be."""
    if findings.split is not None:
        return findings.conclude(
            VerdictClass.ROUNDING,
            f"{findings.split}, and the gradients that the optimizer gets agree as far as their "
            "coarse type resolves them"
            if findings.is_split_coarse
            else f"{findings.split}, and the gradients that the optimizer gets agree",
            Confidence.PROVED,
        )
    if findings.redrawn is not None and all(each.draws for each in _differing(findings)):
        return findings.conclude(
            VerdictClass.DATA,
            f"{findings.redrawn}; for these the model draws other random numbers",
            Confidence.LIKELY,
            where=Where(step=first.step, rank=first.rank, phase=Phase.DATA),
            next_steps=["divide the batches alike, or draw nothing: dropout 0 in both runs"],
        )
    if all(each.proof.is_rounding for each in findings.steps if each.proof is not None):
        far = _far_gradients(findings, first)
        return None if far is None else _unexplained(findings, far)
    precisions = precisions_in(findings)
    if not (precisions and _are_outgrown(findings, first.step)):
        return _unexplained(findings)
    return findings.conclude(
        VerdictClass.PRECISION,
        f"{precisions}; it explains every difference of the forward pass of step "
        f"{first.step}, from which the later ones follow",
        Confidence.LIKELY,
        evidence=list(_choices(findings)),
        where=where_of_precision(findings),
    )


def _of_random(findings: Findings, random: StepObservations) -> Verdict:
    step, rank, record = random.step, random.rank, random.random_input
    return findings.conclude(
        VerdictClass.RANDOM,
        f"the state of the generator that {record} draws from differs (step {step})",
        Confidence.LIKELY,
        where=Where(step=step, rank=rank, record=record, phase=Phase.FORWARD),
        next_steps=["seed both runs alike (seed_all) and compare again"],
    )


def _rounding(findings: Findings, clue: Clue | None) -> Verdict:
    """Return the verdict where rounding may explain every difference."""
    more = (
        "" if clue is None else f"; {clue.words}, step {clue.place.step}, with as small an effect"
    )
    proofs = (each.proof for each in findings.steps if each.proof is not None)
    excused = next((proof.excused for proof in proofs if proof.excused), "")
    more += f"; {excused}" if excused else ""
    late = None if more else _late_before_all(findings)
    more += f"; {late.words}, before anything differs, step {late.place.step}" if late else ""
    precisions = precisions_in(findings) or casts_in(findings) or lone_cast(findings)
    return findings.conclude(
        VerdictClass.PRECISION if precisions else VerdictClass.ROUNDING,
        (f"{precisions}; " if precisions else "")
        + f"every difference is explained by the rounding of its call or by its inputs{more}",
        Confidence.LIKELY if more else Confidence.PROVED,
        evidence=_furthest(findings),
        where=where_of_precision(findings),
        next_steps=["compare both runs with one of higher precision to see which is nearer"],
    )


def _late_before_all(findings: Findings) -> Clue | None:
    """Return the call of one side alone behind backward passes that are equal to the bit.

    Nothing that was recorded before it is rounded, so it may be what the rest follows from.
    """
    first = next((each for each in findings.steps if not each.is_exact), None)
    return first.late_call if first is not None and first.is_shared_exact else None


def _choices(findings: Findings) -> Iterator[str]:
    """Yield the first number that the program may have chosen by values that differ, in words."""
    proofs = (each.proof for each in findings.steps if each.proof is not None)
    jumps = (jump for proof in proofs for jump in proof.jumps if jump.kind is JumpKind.CHOICE)
    for jump in itertools.islice(jumps, 1):
        yield f"{jump.row}{jump.place.line} differs, {_JUMPS[jump.kind]}"


def _furthest(findings: Findings) -> list[str]:
    """Return how far apart results get, in words."""
    distances = [
        (each.proof.furthest, each.step)
        for each in findings.steps
        if each.proof is not None and each.proof.furthest is not None
    ]
    if not distances:
        return []
    found, step = max(distances, key=lambda each: each[0].distance.value)
    units = found.distance.scaled(1 / found.epsilon)
    return [
        f"furthest apart is {found.row}{found.line}, step {step}: {found.distance} of its norm, "
        f"{units} times the resolution of its type"
    ]


def _other_behind(first: StepObservations) -> OutlineDifference | None:
    """Return the call behind the models that makes other gradients of results that agree.

    It is fed otherwise or given another number: what one side alone calls may compute the same.
    """
    found = None if first.forward_differs else first.behind
    is_cause = found is not None and (found.is_told or found.verdict is VerdictClass.ORDER)
    return found if is_cause else None


def _of_unrecorded(findings: Findings, first: StepObservations, call: OutlineDifference) -> Verdict:
    is_ahead = call is first.ahead
    return findings.conclude(
        call.verdict,
        f"{call.words}, step {first.step}",
        Confidence.LIKELY,
        where=Where(
            step=first.step,
            rank=first.rank,
            source=call.source,
            phase=Phase.FORWARD if is_ahead else Phase.BACKWARD,
        ),
        next_steps=call.next,
    )


def _of_given(findings: Findings, first: StepObservations, given: Clue) -> Verdict:
    where = Where.at(given.place, first.rank)
    if first.given_samples:
        return findings.conclude(
            VerdictClass.DATA,
            f"{given.words}; it differs when it comes in, though the model is given the same "
            f"(labels, say) (step {first.step})"
            if first.has_same_batches
            else f"{given.words}; it differs when it comes in (step {first.step})",
            Confidence.LIKELY,
            where=where,
            next_steps=[for_inputs([given.place.record])],
        )
    look = given.place.source or given.place.record
    return findings.conclude(
        VerdictClass.ARGUMENT,
        f"{given.words}; a tensor that no recorded call made (step {first.step})",
        Confidence.LIKELY,
        where=where,
        next_steps=[f"look at {look}, and at what makes this tensor"],
    )


def of_clue(findings: Findings, clue: Clue, more: Sequence[str] = ()) -> Verdict:
    """Return the verdict that such a cause is the cause."""
    rank = next(each.rank for each in findings.steps if clue in (each.small, each.shifted))
    words = f"{clue.words}, step {clue.place.step}"
    if clue.size is not Size.LARGE:
        words += "; its own effect is as small as rounding, and nothing else explains what follows"
    return findings.conclude(
        clue.verdict,
        words,
        Confidence.POSSIBLE,
        where=Where.at(clue.place, rank),
        next_steps=[*clue.place.next, *more],
    )


def _are_outgrown(findings: Findings, step: int) -> bool:
    """Return whether types explain the first forward pass; what follows may outgrow them."""
    proofs = [(each.step, each.proof) for each in findings.steps if each.proof is not None]
    jumps = [(number, jump) for number, proof in proofs for jump in proof.jumps]
    return any(proof.has_two_precisions for number, proof in proofs if number == step) and all(
        jump.kind is JumpKind.CHOICE
        or (jump.kind in _GROWTH and (number > step or jump.place.phase is Phase.BACKWARD))
        for number, jump in jumps
    )


def _within_noise(findings: Findings) -> Verdict:
    within = sum(each.within for each in findings.noise)
    loose = sum(each.loose for each in findings.noise)
    precisions = precisions_in(findings)
    return findings.conclude(
        VerdictClass.PRECISION if precisions else VerdictClass.ROUNDING,
        (f"{precisions}; " if precisions else "")
        + f"every difference lies within the noise measured in {findings.noise[0].recordings} "
        f"recordings of the reference ({within} values, {loose} of them beyond the tolerance of "
        "their types)",
        Confidence.PROVED,
        where=where_of_precision(findings),
    )


def _unexplained(findings: Findings, far: FactDifference | None = None) -> Verdict:
    """Return that nothing explains a difference, and where it is largest.

    Args:
        findings: all that is known.
        far: gradients that are far apart, where the values of calls are not.
    """
    first = next(iter(_differing(findings)), None)
    unrecorded = None if first is None else first.ahead or _other_behind(first)
    if first is not None and unrecorded is not None:
        return _of_unrecorded(findings, first, unrecorded)
    jumps = [
        (each, jump)
        for each in findings.steps
        if each.proof is not None and (jump := each.proof.worst or each.proof.absorbed) is not None
    ]
    settings = findings.numeric_settings()
    more = [] if settings is None else list(settings.next)
    words = far.words if far else "values differ more than what comes before them explains"
    where = Where(step=far.step, rank=far.rank, parameter=far.parameter) if far else None
    if jumps:
        # Later steps inherit from the first one that jumps.
        observed, jump = min(jumps, key=lambda pair: pair[0].step)
        lone, proof = observed.lone_call, observed.proof
        if lone and proof and proof.jumps and proof.jumps[0].kind is JumpKind.UNTRACED:
            return findings.conclude(
                VerdictClass.CALL,
                lone.words,
                Confidence.LIKELY,
                where=Where.at(lone.place, observed.rank),
                next_steps=[f"look at {lone.place.source or lone.place.record}"],
            )
        clue = findings.small_cause()
        if clue is not None and clue.place.step <= observed.step:
            return of_clue(findings, clue, more)
        hidden = next((each for each in findings.steps if each.unnoticed is not None), None)
        if hidden is not None and hidden.unnoticed is not None and hidden.step <= observed.step:
            return _of_hidden(findings, hidden, hidden.unnoticed)
        words = f"the difference jumps most in {_jump_words(jump)} (step {observed.step})"
        where = Where.at(jump.place, observed.rank)
        more += jump.place.next
        if findings.mode is not Mode.TENSOR:
            place = jump.place.module or jump.place.record
            more.append(f"record {place} with task tensor in both runs, and compare its elements")
    return findings.conclude(
        VerdictClass.UNEXPLAINED,
        words,
        Confidence.POSSIBLE,
        where=where,
        next_steps=[*more, "record one run twice: is it equal to itself?"],
    )


def _fed_nearly(findings: Findings) -> Verdict | None:
    """Return that a call is fed with another value, which is nearly the same.

    That the results agree whichever of the two it is given does not excuse it.
    """
    for each in findings.steps:
        clue = each.unnoticed  # a cast is no feeding
        is_fed = clue is not None and clue.verdict is not VerdictClass.PRECISION
        if clue is not None and is_fed and clue.size is Size.SMALL:
            return _of_hidden(findings, each, clue)
    return None


def _of_hidden(findings: Findings, observed: StepObservations, clue: Clue) -> Verdict:
    return findings.conclude(
        clue.verdict,
        f"{clue.words} (step {observed.step})",
        Confidence.LIKELY,
        where=Where.at(clue.place, observed.rank),
        next_steps=clue.place.next,
    )


def _of_inputs(findings: Findings) -> Verdict:
    first = next((each for each in findings.steps if each.forward_differs), None)
    names = findings.inputs
    total = f"{len(names)} inputs of the model differ" if len(names) > 1 else f"{names[0]} differs"
    step = "" if first is None else f" (step {first.step})"
    return findings.conclude(
        VerdictClass.DATA,
        f"{total} when they come in" + (f" ({few_inputs(names)})" if len(names) > 1 else "") + step,
        Confidence.LIKELY,
        where=None if first is None else Where(step=first.step, rank=first.rank, phase=Phase.DATA),
        next_steps=[for_inputs(names)],
    )


def _unseen_update(findings: Findings) -> Verdict | None:
    """Return that parameters differ after an update of which nothing was recorded; None if none.

    Where gradients or the calls that make the update were recorded, they tell.
    """
    for step, apart in sorted(findings.unread.items()):
        own = [each for each in findings.steps if each.step == step]
        is_seen = any(each.reads_gradients or each.compiled for each in own)
        if is_seen or not any(each.runs_compiled for each in own):
            continue
        return findings.conclude(
            VerdictClass.UNEXPLAINED,
            f"{apart.words(step)}; compiled code changes it, and no gradient was recorded",
            Confidence.POSSIBLE,
            where=Where(step=step, rank=own[0].rank, parameter=apart.name, phase=Phase.OPTIMIZER),
            next_steps=[
                "record both runs at level L0 or mix, which see gradients in compiled code"
            ],
        )
    return None


def _jump_words(jump: Jump) -> str:
    source = jump.place.line
    size = "" if jump.distance is None else f": its relative error is {jump.distance}"
    if jump.growth is None or not math.isfinite(jump.growth):
        return f"{jump.row}{source}{size}, {_JUMPS[jump.kind]}"
    about = "" if jump.distance is not None and jump.distance.is_exact else "about "
    return f"{jump.row}{source}{size}, {about}{jump.growth:.3g} times that of its inputs"


# Kinds of jumps that differences of earlier steps may grow to.
_GROWTH: Final = {JumpKind.CALL, JumpKind.STEP, JumpKind.UNTRACED, JumpKind.SIZE}
_JUMPS: Final = {
    JumpKind.CALL: "more than its inputs explain",
    JumpKind.ARGUMENT: "the call was given another argument",
    JumpKind.PARAMETER: "a parameter that differs",
    JumpKind.STEP: "more than its gradients in earlier steps make likely",
    JumpKind.DATA: "it differs when it comes in",
    JumpKind.UNMATCHED: "only one side makes the call",
    JumpKind.STRUCTURE: "it is missing, or has another shape or type",
    JumpKind.CHOICE: "which the program may have chosen by values that it read, and that differ",
    JumpKind.UNTRACED: "and where the value comes from was not recorded",
    JumpKind.SIZE: "further apart than rounding gets",
    JumpKind.ABSORBED: "though what it was given is equal; what is made of it agrees again",
}
