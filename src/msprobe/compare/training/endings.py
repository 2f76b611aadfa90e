# SPDX-License-Identifier: Apache-2.0
"""Steps that ended early, or were left out, on one side alone."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msprobe.compare.training.differences import (
    Effect,
    FactDifference,
    Moment,
    of_sides,
    shown_names,
)
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.start import equal_at_start, kinds_of
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Ended, Ending, Facts
from msprobe.dump.record_names import RecordKind, parse_record_name


def ended_differences(pair: FactsPair, last: FactsPair | None) -> Iterator[FactDifference]:
    """Yield a step that ended early, or was begun again, on one side only.

    Args:
        pair: the facts of the step.
        last: those of the step before.
    """
    target, reference = pair.target.ended, pair.reference.ended
    if target is None or reference is None:
        return
    yield from _begun_again(pair, last)
    if target.how is reference.how and pair.is_cut("target") is pair.is_cut("reference"):
        yield from _left_out(pair)
        return
    for side, _, own, other in of_sides(*pair.sides):
        ended = own.ended
        is_cut = pair.is_cut(side)
        may_be_cut = is_cut or (ended is not None and ended.how is not Ending.WHOLE)
        if ended is not None and may_be_cut and _is_whole(other):
            moment = _moment_of(ended) if len(own.loss) >= len(other.loss) else Moment.FORWARD
            yield pair.difference(
                VerdictClass.INCOMPLETE,
                moment if is_cut else Moment.UPDATE,
                f"step {pair.step} of the {side} {ended.words}; that of the other side is whole",
                record=ended.record,
                is_passed_on=ended.is_passed_on,
                next=(f"record the {side} again, and compare whole steps",),
            )


def lacking_steps(
    last: FactsPair, steps_alone: Mapping[str, Sequence[int]]
) -> Iterator[FactDifference]:
    """Yield that a recording ends before steps that it was to have, and that the other side has.

    Args:
        last: the facts of the last step that both sides have.
        steps_alone: side → its steps that the other side lacks.
    """
    for side, other, facts, _ in of_sides(*last.sides):
        later = facts.ended.later if facts.ended is not None else []
        lacking = [step for step in later if step in steps_alone.get(other, ())]
        if lacking:
            numbers = shown_names([*map(str, lacking)])
            yield last.difference(
                VerdictClass.INCOMPLETE,
                Moment.UPDATE,
                f"the {side} ends after step {last.step}; it was to record more: {numbers}",
                next=(f"look for what ended the {side}: a process that is killed tells nobody",),
            )


def first_to_end(found: Sequence[FactDifference]) -> Iterator[FactDifference]:
    """Yield differences; where ranks ended one after the other, those that followed are none."""
    first = {
        each.step
        for each in found
        if each.verdict is VerdictClass.INCOMPLETE and not each.is_passed_on
    }
    for each in found:
        is_later = each.is_passed_on and each.step in first
        yield replace(each, effect=Effect.NONE) if is_later else each


def _is_whole(facts: Facts) -> bool:
    ended = facts.ended
    return ended is not None and ended.how is Ending.WHOLE and ended.stepped


def _left_out(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield a step that trains on one side only: the program may have caught an exception."""
    for side, _, own, other in of_sides(*pair.sides):
        has_work = own.loss or own.events or _reads_parameters(own)
        if other.loss and other.optimizer_steps() and not has_work:
            yield pair.difference(
                VerdictClass.INCOMPLETE,
                Moment.FORWARD,
                f"step {pair.step} of the {side} has no backward pass and no optimizer step, "
                "as the other side has: it was left out, or left early",
                next=(f"look for an exception that the program of the {side} caught",),
            )


def _begun_again(pair: FactsPair, last: FactsPair | None) -> Iterator[FactDifference]:
    """Yield a step that one side alone begins twice: it went on with another batch, say.

    Some programs call ``start`` twice in each step, or for each micro batch. Where anything differs
    before, that is the cause of it.
    """
    before = (None, None) if last is None else tuple(each.ended for each in last.sides)
    both = zip(pair.sides, before, strict=True)
    for side, _, (own, earlier), (other, _) in of_sides(*both):
        again = own.ended.begun_again if own.ended is not None else []
        if not again or other.ended is None or other.ended.begun_again:
            continue
        made = again[-1]
        is_habit = earlier is None or earlier.begun_again
        is_left = made and _calls(own) > _calls(other) and len(own.loss) <= len(other.loss)
        if (is_left or not is_habit) and _agrees_before(pair, again[0]):
            yield pair.difference(
                VerdictClass.INCOMPLETE,
                Moment.SETTINGS,
                f"step {pair.step} of the {side} was left and begun again: debugger.start() was "
                "called without debugger.stop() and debugger.step() before; it had made "
                f"{made or 'no'} call{'s' * (made != 1)} of the model",
                next=(
                    f"look for an exception or a `continue` by which the program of the {side} "
                    "leaves the step, and call debugger.stop() and debugger.step() there, too",
                ),
            )


def _calls(facts: Facts) -> int:
    """Return how many calls of the model were given data."""
    return len({each.micro for each in facts.data})


def _agrees_before(pair: FactsPair, calls: int) -> bool:
    """Return whether the state at the start agrees, and what so many calls were given."""
    sides = (
        [(each.where, each.checksum) for each in facts.data if each.micro < calls]
        for facts in pair.sides
    )
    return all(equal_at_start(pair).values()) and operator.eq(*sides)


def _reads_parameters(facts: Facts) -> bool:
    """Return whether compiled code ran that may have changed parameters: they were read after."""
    after, kinds = facts.buffers_after, kinds_of(facts.parameters)
    return after is not None and any(kinds.get(name) == "parameter" for name in after.name)


def _moment_of(ended: Ended) -> Moment:
    kind = None if ended.record is None else parse_record_name(ended.record).kind
    return Moment.BACKWARD if kind is RecordKind.BACKWARD else Moment.FORWARD
