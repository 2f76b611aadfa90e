# SPDX-License-Identifier: Apache-2.0
"""A culprit in words: its call, its place, and how it differs."""

from __future__ import annotations

from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Match, Matched, Missing, OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import MINDSPORE
from msprobe.compare.training.gradient_factors import multiple_words
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.calls import is_cast
from msprobe.compare.verdicts.communication import group_words, is_of_group
from msprobe.compare.verdicts.places import is_alone, lone_around, lone_words
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.compare.verdicts.statistics_error import distance_of
from msprobe.dump.record_names import RecordKind, RecordName, parse_record_name
from msprobe.dump.stack_frames import parse_frame, user_frames
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of
from msprobe.plain_text import times_text

# Why a gradient does not get to a call.
_CUTS: Final = (
    Cause.CUT_HERE,
    Cause.DETACHED,
    Cause.DETACHED_BEHIND,
    Cause.NOT_DERIVED,
    Cause.LATER_GRADIENT,
)
# Calls of one side alone that are looked at behind the first.
_MOST_OF_RUN: Final = 200


def culprit_words(culprit: Culprit) -> str:
    """Return a culprit as a cause in words."""
    return "; ".join(filter(None, (_pass_words(culprit), _own_words(culprit))))


def _own_words(culprit: Culprit) -> str:
    row = culprit.row
    where = culprit_place(culprit)
    slot = named_slot(culprit)
    reason = row.reason
    times = multiple_words(row) if culprit.kind == "forward" else ""
    if times:
        reason += f"; {times}"
    if not row.pair.is_matched:
        sides = ("target", "reference")
        own, other = sides if row.pair.reference is None else sides[::-1]
        if row.cause is Cause.NAN_CALL:
            return f"only the {own} calls {where}, which makes NaN"
        if culprit.kind == "backward":
            why = f": {reason}" if row.cause in _CUTS else ""
            return f"no gradient gets to {where}, in the {other}{why}"
        if culprit.kind == "parameter_grad":
            return f"{row.value.slot} of {where} gets no gradient in the {other}"
        if is_lone_cast(culprit):
            return f"only the {own} calls {where}, a cast to {row.value.dtype}"
        return _lone_module(culprit) or f"only the {own} calls {where}{_line_words(culprit, own)}"
    if is_of_group(row):
        return group_words([row], where)
    other = other_call(culprit)
    if other:
        return f"the target calls {where}, the reference {other}"
    if reason:
        return f"{slot} of {where}: {reason}" if slot else f"{where}: {reason}"
    distance = distance_of(row)
    size = "" if distance is None else f" by {distance}"
    return f"{slot} of {where} differs{size}, though what the call was given agrees"


def _lone_module(culprit: Culprit) -> str:
    """Return the module around a call of one side alone that this side calls once more, in words.

    Empty without one, or where a call within it has a partner.
    """
    comparison, pair = culprit.comparison, culprit.row.pair
    outer = lone_around(comparison, pair)
    if outer is pair or not is_alone(comparison, outer):
        return ""
    words = f"{lone_words(comparison, outer)}, step {comparison.step}"
    return f"{words}; the first call in it is {culprit_call(culprit)}"


def _line_words(culprit: Culprit, own: str) -> str:
    """Return the line further out, if any, that makes a call among others of its side alone."""
    comparison, pair = culprit.comparison, culprit.row.pair
    frames = comparison.side_of(pair).view.frames
    outer = user_frames(frames(pair.name))[1:]
    is_target = pair.reference is None
    run = lone_run(comparison, pair.position, is_target=is_target) if outer else []
    made = [user_frames(frames(each.name)) for each in run]
    begun = {each[0] for each in made if each}
    line = next((text for text in reversed(outer) if text in begun), "")
    frame = parse_frame(line)
    if frame is None:
        return ""
    # Like calls elsewhere may have taken the partners of some: how many there are is not known.
    return f"; one of the calls that {frame.place} makes in the {own} alone"


def lone_run(comparison: RankComparison, begin: int, *, is_target: bool) -> list[OperationPair]:
    """Return the calls of one side alone from a place on, to the next that both sides make."""
    found: list[OperationPair] = []
    for place in range(begin, len(comparison.pairs)):
        each = comparison.pairs[place]
        parsed = comparison.parsed(each)
        if parsed.kind is not RecordKind.FORWARD or parsed.is_module:
            continue
        if each.is_matched or len(found) == _MOST_OF_RUN:
            break
        if (each.reference is None) is is_target:
            found.append(each)
    return found


def _pass_words(culprit: Culprit) -> str:
    """Return how often each side goes backward, where that tells why a gradient is not there."""
    row = culprit.row
    is_lacking = culprit.kind == "backward" and not row.pair.is_matched
    facts = facts_of(culprit.comparison) if is_lacking or row.cause is Cause.GRADIENT_CALL else None
    if facts is None or facts.passes[0] == facts.passes[1]:
        return ""
    target, reference = map(times_text, facts.passes)
    return f"backward is called {target} in the target, {reference} in the reference"


def named_slot(culprit: Culprit) -> str:
    """Return a value's place in its call, an argument with its name: ``input.3.0 (stride)``."""
    row, record = culprit.row, parsed_name(culprit)
    value, argument = row.value, row.value.argument
    if value.role is not Role.INPUT or culprit.kind != "forward":
        return value.slot
    sides = culprit.comparison.target, culprit.comparison.reference
    if sides[isinstance(row, Missing)].framework == MINDSPORE:
        if not isinstance(row, Matched) or sides[1].framework == MINDSPORE:
            return value.slot
        # Signatures are PyTorch's, whose call is the other one.
        argument, record = row.reference.argument, parse_record_name(row.pair.reference or "")
    name = signature_of(record.base).name_of(argument.partition(".")[0])
    is_known = name.isdigit() or name in (value.argument.partition(".")[0], Role.INPUT)
    return value.slot if is_known else f"{value.slot} ({name})"


def culprit_place(culprit: Culprit) -> str:
    """Return a culprit's record, its source line and its step, in words."""
    return f"{culprit_call(culprit)}, step {culprit.comparison.step}"


def culprit_call(culprit: Culprit) -> str:
    """Return a culprit's record and its source line, in words."""
    source = f" ({culprit.called_at})" if culprit.called_at else ""
    return f"{culprit.row.pair.name}{source}"


def other_call(culprit: Culprit) -> str:
    """Return the reference's record if it is of another API or class than the target's."""
    pair = culprit.row.pair
    if pair.target is None or pair.reference is None or culprit.kind != "forward":
        return ""
    # Two functions have not the same arguments at one place, either.
    row = culprit.row
    is_shown = row.value.role is Role.OUTPUT or row.cause is Cause.ARGUMENT
    if not is_shown or pair.match is Match.MAPPED:
        return ""
    target = culprit.comparison.target.operator(pair.target)
    reference = culprit.comparison.reference.operator(pair.reference)
    return pair.reference if target.name != reference.name else ""


def is_lone_cast(culprit: Culprit) -> bool:
    """Return whether only one side casts numbers that have a precision to another floating type.

    Integers and truth values have none: a mask, a count.
    """
    row = culprit.row
    if row.pair.is_matched or not is_cast(parsed_name(culprit)):
        return False
    given = culprit.comparison.side_of(row.pair).values(row.pair.name)
    cast = next((each.dtype for each in given if each.is_tensor), row.value.dtype)
    return min(epsilon_of(cast), epsilon_of(row.value.dtype)) > 0


def parsed_name(culprit: Culprit) -> RecordName:
    """Return the name of a culprit's record, taken apart."""
    return parse_record_name(culprit.row.pair.name)
