# SPDX-License-Identifier: Apache-2.0
"""Steps that ended early, or were left out, on one side alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msprobe.compare.training.differences import Effect, FactDifference, Moment, of_sides
from msprobe.compare.training.facts_pair import FactsPair
from msprobe.compare.training.start import kinds_of
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import Ended, Ending, Facts
from msprobe.dump.record_names import RecordKind, parse_record_name


def ended_differences(pair: FactsPair) -> Iterator[FactDifference]:
    """Yield a step that ended early on one side only."""
    target, reference = pair.target.ended, pair.reference.ended
    if target is None or reference is None:
        return
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


def _reads_parameters(facts: Facts) -> bool:
    """Return whether compiled code ran that may have changed parameters: they were read after."""
    after, kinds = facts.buffers_after, kinds_of(facts.parameters)
    return after is not None and any(kinds.get(name) == "parameter" for name in after.name)


def _moment_of(ended: Ended) -> Moment:
    kind = None if ended.record is None else parse_record_name(ended.record).kind
    return Moment.BACKWARD if kind is RecordKind.BACKWARD else Moment.FORWARD
