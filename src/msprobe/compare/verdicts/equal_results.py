# SPDX-License-Identifier: Apache-2.0
"""The verdict where nothing differs that leads to anything: is it proved, and what was not seen?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msprobe.collectives.calls import is_communication
from msprobe.compare.model import Status
from msprobe.compare.training.differences import Effect, FactDifference
from msprobe.compare.verdicts.observations import StepObservations
from msprobe.compare.verdicts.places import Clue
from msprobe.compare.verdicts.precision_words import precisions_of_agreeing, where_of_precision
from msprobe.compare.verdicts.verdict import Findings, Verdict, Where
from msprobe.compare.verdicts.verdict_classes import Confidence, VerdictClass
from msprobe.dump.record_names import parse_record_name


def equal_results(findings: Findings, unmatched: int, inside: int) -> Verdict:
    """Return the verdict where no difference has a consequence.

    Args:
        findings: of the comparison.
        unmatched: how many values one side alone has.
        inside: how many others differ.
    """
    counts = findings.counts
    close = counts[Status.CLOSE]
    if unmatched and not inside and not counts[Status.EQUAL] + close:
        return _nothing_shared(findings)
    compiled = next((each for each in findings.steps if each.compiled is not None), None)
    if compiled is not None and compiled.compiled is not None:
        return _unseen(findings, compiled, compiled.compiled)
    moved = _read_moved(findings)
    if moved is not None:
        return moved
    evened = _evened(findings)
    broken = next((each for each in findings.steps if each.broken_off is not None), None)
    arguments = sum(each.idle_arguments for each in findings.steps)
    precisions = precisions_of_agreeing(findings, close, inside)
    parts = (
        f"{counts[Status.EQUAL] + close} values agree"
        + (f", {close} of them within the tolerance of their types" if close else ""),
        precisions,
        f"{arguments} arguments differ without consequence" if arguments else "",
        _others(findings, unmatched, inside - arguments),
        ""
        if broken is None
        else f"step {broken.step} of both sides {broken.broken_off}, and no later value is known",
    )
    words = "; ".join(filter(None, parts))
    data = next((each for each in findings.facts if _are_other_data(each)), None)
    if data is not None and (close or inside):
        words = f"{words}; {data.words}"
        return findings.conclude(VerdictClass.EQUAL, words, Confidence.LIKELY, chosen=data)
    # What changes no bit of any value has no effect, however small.
    clue = findings.small_cause() if close or inside else None
    if clue is not None:
        words = f"{words}; {clue.words}, step {clue.place.step}, with as small an effect"
        return findings.conclude(VerdictClass.EQUAL, words, Confidence.LIKELY)
    late = next((each for each in findings.steps if each.late_call and not each.reads_only), None)
    if late is not None and late.late_call is not None and not late.knows_updates:
        return findings.conclude(
            VerdictClass.EQUAL,
            f"{words} that was recorded",
            Confidence.POSSIBLE,
            evidence=[
                f"{late.late_call.words}; whether it changes a gradient or a parameter was not "
                "recorded"
            ],
            next_steps=[
                *late.late_call.place.next,
                'record both runs with "facts": true and an optimizer, or at level mix',
            ],
        )
    blind = next(_blind_ends(findings), None)
    if blind is not None:
        return findings.conclude(
            VerdictClass.EQUAL,
            f"{words}; what step {blind.step} made of the parameters was not recorded",
            Confidence.POSSIBLE if blind.runs_compiled else Confidence.LIKELY,
            next_steps=["record both runs again: parameters are read when a step ends"],
        )
    unused = next((each for each in findings.steps if each.unused is not None), None)
    if unused is None or unused.unused is None:
        more = [] if evened is None else evened.place.next
        if (close or inside) and precisions:
            where = where_of_precision(findings)
            return findings.conclude(
                VerdictClass.PRECISION, words, Confidence.PROVED, where=where, next_steps=more
            )
        return findings.conclude(VerdictClass.EQUAL, words, Confidence.PROVED, next_steps=more)
    # A call of one side alone may be a log; another argument is meant for something.
    is_cause = unused.unused.verdict is VerdictClass.ARGUMENT and not (close or inside)
    found = (
        f"{unused.unused.words}, step {unused.step}, which changes a tensor that no recorded call "
        "uses"
    )
    return findings.conclude(
        VerdictClass.ARGUMENT if is_cause else VerdictClass.EQUAL,
        f"{found}; {words}" if is_cause else f"{words}; {found}",
        Confidence.POSSIBLE,
        where=Where.at(unused.unused.place, unused.rank),
        next_steps=unused.unused.place.next,
    )


def _read_moved(findings: Findings) -> Verdict | None:
    """Return that a call reads parameters before their update on one side alone.

    What it makes is of no model that the recording knows: an average of the weights, say.
    """
    for each in findings.steps:
        clue = each.written
        if clue is not None and clue.verdict is VerdictClass.ORDER:
            return findings.conclude(
                clue.verdict,
                f"{clue.words}, step {each.step}; the gradients that the optimizer gets agree",
                Confidence.LIKELY,
                where=Where.at(clue.place, each.rank),
                next_steps=clue.place.next,
            )
    return None


def _others(findings: Findings, unmatched: int, differing: int) -> str:
    """Return what else differs, in words: values, or calls."""
    if differing > 0:
        evened = _evened(findings)
        words = f"{differing} others differ on the way to results that agree"
        return words if evened is None else f"{words}, first {evened.words}"
    sent = _lone_communication(findings)
    if sent:
        return f"{sent}, without consequence for any value of both sides"
    if unmatched and not any(each.unused for each in findings.steps):
        return "the sides make different calls, without consequence for any value"
    return ""


def _lone_communication(findings: Findings) -> str:
    """Return what one side alone communicates, in words: numbers that are printed, say."""
    for each in findings.steps:
        if each.late_call and is_communication(parse_record_name(each.late_call.place.record)):
            return f"{each.late_call.words} (step {each.step})"
    facts = (each for each in findings.facts if each.verdict is VerdictClass.COMMUNICATION)
    return next((each.words for each in facts), "")


def _evened(findings: Findings) -> Clue | None:
    return next((each.evened for each in findings.steps if each.evened is not None), None)


def _nothing_shared(findings: Findings) -> Verdict:
    """Return what the parameters tell where no call is on both sides."""
    if not findings.has_same_updates:
        words = "no value is on both sides"
        for step, apart in itertools.islice(sorted(findings.apart.items()), 1):
            words += f"; {apart.words(step)}"
        return findings.conclude(VerdictClass.UNEXPLAINED, words, Confidence.PROVED)
    words = "no call is on both sides, and every update leaves the same parameters"
    if findings.changed_steps:
        words = (
            "no call is on both sides, and every update leaves the same parameters within the "
            "tolerance of their types"
        )
    return findings.conclude(VerdictClass.EQUAL, words, Confidence.PROVED)


def _are_other_data(fact: FactDifference) -> bool:
    """Return whether batches differ by more than rounding."""
    is_data = fact.verdict is VerdictClass.DATA and not fact.is_reordered
    return is_data and fact.effect is not Effect.NONE


def _blind_ends(findings: Findings) -> Iterator[StepObservations]:
    """Yield the last step of each rank, if it may have changed parameters and nothing shows how.

    Earlier ones show in the parameters with which the next step starts.
    """
    last = {each.rank: each for each in findings.steps}
    for each in last.values():
        may_change = each.runs_compiled or (each.has_modules_only and each.trains)
        if may_change and (each.step, each.rank) not in findings.known_after and each.has_facts:
            yield each


def _unseen(findings: Findings, observed: StepObservations, compiled: Clue) -> Verdict:
    """Return that compiled code comes to another result, and nothing inside of it was seen."""
    later = [step for step in findings.changed_steps if step >= observed.step]
    changed = f"; the parameters differ after step {min(later)}" if later else ""
    return findings.conclude(
        VerdictClass.UNEXPLAINED,
        f"{compiled.words} (step {observed.step}){changed}; it is compiled, and no rounding "
        "explains what was not recorded inside of it",
        Confidence.POSSIBLE,
        where=Where.at(compiled.place, observed.rank),
        next_steps=[
            *compiled.place.next,
            "record both runs without compiling, or at level mix",
        ],
    )
