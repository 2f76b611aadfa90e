# SPDX-License-Identifier: Apache-2.0
"""Calls by which one side alone draws random numbers: what comes after them draws others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training import random_calls
from msprobe.compare.verdicts.places import Clue, Place, lone_words
from msprobe.compare.verdicts.verdict_classes import VerdictClass


def lone_draw(comparison: RankComparison, before: float = math.inf) -> Clue | None:
    """Return the first call by which one side alone draws random numbers.

    Args:
        comparison: a step and rank.
        before: place in the order of calls, where these have records.
    """
    if comparison.has_modules_only:
        call = random_calls.lone_draw(comparison.facts)
        if call is None:
            return None
        place = Place(comparison.step, "", "", call.source)
        return Clue(f"{call.words}, which draws random numbers", place, call.verdict)
    firsts = [
        each
        for each in (_first_alone(comparison, is_target=side) for side in (True, False))
        if each is not None and each.position < before
    ]
    if not firsts:
        return None
    words = lone_words(comparison, firsts[0])
    if len(firsts) == 2:
        target, reference = (Place.of(comparison, each).words for each in firsts)
        words = f"the target calls {target}, the reference {reference}"
    verdict = VerdictClass.RANDOM if _is_all(comparison, firsts) else VerdictClass.CALL
    return Clue(f"{words}, which draws random numbers", Place.of(comparison, firsts[0]), verdict)


def _is_all(comparison: RankComparison, draws: Sequence[OperationPair]) -> bool:
    """Return whether one side alone makes no other calls than some draws, of these functions."""
    bases = {comparison.parsed(each).base for each in draws}
    return all(
        pair.is_matched or comparison.parsed(pair).base in bases for pair in comparison.pairs
    )


def _first_alone(comparison: RankComparison, *, is_target: bool) -> OperationPair | None:
    """Return the first draw of one side by a function by which it draws more often.

    Where both draw as often, calls that have no partner are out of line.
    """
    side = comparison.side(is_target=is_target)
    lone = (p for p in comparison.pairs if not p.is_matched and (p.reference is None) is is_target)
    for pair in lone:
        if not random_calls.draws_numbers(side, pair.name):
            continue
        own, other = (
            sum(each.parsed(name).base == side.parsed(pair.name).base for name in each.names)
            for each in (side, comparison.side(is_target=not is_target))
        )
        if own > other:
            return pair
    return None
