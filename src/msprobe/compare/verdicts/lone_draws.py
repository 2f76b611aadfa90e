# SPDX-License-Identifier: Apache-2.0
"""Calls by which one side alone draws random numbers: what comes after them draws others."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from msprobe.compare.model import OperationPair, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training import random_calls
from msprobe.compare.verdicts.places import Clue, Place, lone_around, lone_words
from msprobe.compare.verdicts.program_flow import content_of
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of


def lone_draw(
    comparison: RankComparison, before: float = math.inf, *, is_given: bool = False
) -> Clue | None:
    """Return the first call by which one side alone draws random numbers.

    Args:
        comparison: a step and rank.
        before: place in the order of calls, where these have records.
        is_given: whether it draws from a generator that the program gives it.
    """
    if comparison.has_modules_only:
        call = None if is_given else random_calls.lone_draw(comparison.facts)
        if call is None:
            return None
        place = Place(comparison.step, "", "", call.source)
        return Clue(f"{call.words}, which draws random numbers", place, call.verdict)
    lone = [pair for pair in comparison.pairs if not pair.is_matched and pair.position < before]
    lone = [pair for pair in lone if _draws_from(comparison, pair, is_given=is_given)]
    begin = _last_agreeing(comparison, before, is_given=is_given) if lone else 0
    firsts = [
        each
        for each in (_first_alone(comparison, lone, is_target=side) for side in (True, False))
        if each is not None and each.position > begin
    ]
    if not firsts:
        return None
    outer = lone_around(comparison, firsts[0])
    words = lone_words(comparison, outer)
    if len(firsts) == 2:
        target, reference = (Place.of(comparison, each).words for each in firsts)
        words = f"the target calls {target}, the reference {reference}"
    verdict = VerdictClass.RANDOM if _is_all(comparison, firsts) else VerdictClass.CALL
    return Clue(f"{words}, which draws random numbers", Place.of(comparison, outer), verdict)


def _is_all(comparison: RankComparison, draws: Sequence[OperationPair]) -> bool:
    """Return whether all that one side alone does is to draw, by these functions.

    What it makes of the numbers is no more, if no call of both sides is given it.
    """
    bases = {comparison.parsed(each).base for each in draws}
    lone = [pair for pair in comparison.pairs if not pair.is_matched]
    if all(comparison.parsed(pair).base in bases for pair in lone):
        return True
    if any(comparison.parsed(p).is_module or comparison.side_of(p).module(p.name) for p in lone):
        return False
    for is_target, side in ((True, comparison.target), (False, comparison.reference)):
        names = [pair.name for pair in lone if (pair.reference is None) is is_target]
        made = {_key(v) for name in names for v in side.values(name) if v.role is Role.OUTPUT}
        shared = [p.target if is_target else p.reference for p in comparison.pairs if p.is_matched]
        given = (value for name in shared if name for value in side.values(name) if made)
        if any(value.role is Role.INPUT and _key(value) in made for value in given):
            return False
    return True


def _key(value: Value) -> Hashable:
    """Return what tells a tensor: its number in the step, or else what it holds."""
    return content_of(value) if value.value_id is None else value.value_id


def is_given_generator(comparison: RankComparison, pair: OperationPair) -> bool:
    """Return whether a call draws from a generator that the program gives it."""
    return random_calls.is_given_generator(comparison.side_of(pair), pair.name)


def _draws_from(comparison: RankComparison, pair: OperationPair, *, is_given: bool) -> bool:
    draws = random_calls.draws_numbers(comparison.side_of(pair), pair.name)
    return draws and is_given_generator(comparison, pair) is is_given


def _last_agreeing(comparison: RankComparison, before: float, *, is_given: bool) -> int:
    """Return the place of the last draw of both sides that agrees: nothing before it shifts others.

    Whole numbers agree by chance.
    """
    made = [row for row in comparison.rows if row.value.role is Role.OUTPUT and row.holds_tensor]
    apart = {row.pair.position for row in made if row.status is not Status.EQUAL}
    agreeing = {
        row.pair.position: row.pair
        for row in made
        if row.pair.position < before and epsilon_of(row.value.dtype)
    }
    found = (
        place
        for place, pair in reversed(agreeing.items())
        if place not in apart and _draws_from(comparison, pair, is_given=is_given)
    )
    return next(found, -1)


def _first_alone(
    comparison: RankComparison, lone: list[OperationPair], *, is_target: bool
) -> OperationPair | None:
    """Return the first draw of one side by a function by which it draws more often.

    Where both draw as often, calls that have no partner are out of line.
    """
    side = comparison.side(is_target=is_target)
    for pair in lone:
        if (pair.reference is None) is not is_target:
            continue
        own, other = (
            sum(each.parsed(name).base == side.parsed(pair.name).base for name in each.names)
            for each in (side, comparison.side(is_target=not is_target))
        )
        if own > other:
            return pair
    return None
