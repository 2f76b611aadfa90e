# SPDX-License-Identifier: Apache-2.0
"""Calls that show themselves in the flow of data alone: what they change lies within tolerance.

A verdict asks for them where nothing else explains what follows.
"""

from __future__ import annotations

from typing import Final

from msprobe.compare.model import Matched, OperationPair, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.outlines import difference_of_casts
from msprobe.compare.verdicts.calls import is_cast
from msprobe.compare.verdicts.data_flow import DataFlow
from msprobe.compare.verdicts.places import Clue, Place, Size, lone_words
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.compare.verdicts.wiring import is_other_order
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value
from msprobe.numerics.number_types import epsilon_of

# Values no further apart than that may stand for each other without much effect.
_NEAR: Final = 1e-2
_Makers = dict[int | None, OperationPair]


def unnoticed_call(comparison: RankComparison) -> Clue | None:
    """Return the first call with another call's result, or that one side alone makes a cast.

    Both sides make the calls of either result, to values that agree. A call that is given another
    number, too, is another one: their order alone made them a pair.
    """
    coarsest = _coarsest(comparison)
    makers: tuple[_Makers, _Makers] = ({}, {})
    apart: set[int] = set()  # positions of calls with other results
    others = {r.pair.position for r in comparison.rows if r.is_argument and r.status.is_difference}
    for row in comparison.rows:
        pair = row.pair
        if comparison.parsed(pair).kind is not RecordKind.FORWARD:
            continue
        if isinstance(row, Matched) and row.precisions:
            return None  # the sides compute in other types: they cast at other places
        if row.value.role is Role.OUTPUT:
            is_coarse = epsilon_of(row.value.dtype) > coarsest
            if not pair.is_matched and is_coarse and rounds(comparison, row):
                return Clue(
                    _lone_cast(comparison, row), Place.of(comparison, pair), VerdictClass.PRECISION
                )
            if row.status.is_difference:
                apart.add(pair.position)
            for own, value in zip(makers, (row.target, row.reference), strict=True):
                if value is not None and value.value_id is not None:
                    own[value.value_id] = pair
        elif isinstance(row, Matched) and row.error and row.value.role is Role.INPUT:
            made = [own.get(v.value_id) for own, v in zip(makers, row.values, strict=True)]
            known = [each for each in made if each is not None and each.is_matched]
            positions = {each.position for each in known if each.position not in apart}
            if len(known) == len(positions) == len(made) and pair.position not in others:
                place = Place.of(comparison, pair)
                words = (
                    f"{row.value.slot} of {place.words} is fed with the result of "
                    f"{known[0].target} instead of the result of {known[1].reference}"
                )
                is_near = row.status.is_difference and row.error <= _NEAR
                size = Size.SMALL if is_near else Size.LARGE
                return Clue(words, place, _class_of(comparison, row), size)
    return None


def other_cast(comparison: RankComparison) -> str:
    """Return the first cast by which one side alone rounds numbers, in words; empty without one.

    Where calls have no records, their outlines tell. Also to a type in which both sides compute: it
    is a precision of its own where nothing else explains that results are as far apart as its
    rounding. Casts of both sides to one type may be the same ones at other places, and what one
    side alone computes in a finer type is cast back.
    """
    if comparison.has_modules_only:
        found = difference_of_casts(*comparison.facts)
        return "" if found is None else found.words
    shared = {
        row.value.dtype
        for row in comparison.rows
        if isinstance(row, Matched) and row.value.role is Role.OUTPUT and not row.precisions
    }
    lone = [
        row
        for row in comparison.rows
        if not row.pair.is_matched
        and row.value.role is Role.OUTPUT
        and comparison.parsed(row.pair).kind is RecordKind.FORWARD
        and rounds(comparison, row)
        and _given(comparison, row).dtype in shared
        and _changes(comparison, row)
    ]
    sides = [{r.value.dtype for r in lone if (r.pair.target is None) is side} for side in (0, 1)]
    moved = sides[0] & sides[1]
    first = next((row for row in lone if row.value.dtype not in moved), None)
    return "" if first is None else _lone_cast(comparison, first)


def _lone_cast(comparison: RankComparison, row: Row) -> str:
    return f"{lone_words(comparison, row.pair)}, a cast to {row.value.dtype}"


def _given(comparison: RankComparison, row: Row) -> Value:
    """Return the tensor that a cast is given."""
    pair = row.pair
    return next(v for v in comparison.side_of(pair).values(pair.name) if v.is_tensor)


def _changes(comparison: RankComparison, row: Row) -> bool:
    """Return whether a cast changes a number, as far as statistics tell."""
    given, made = _given(comparison, row), row.value
    return (given.max, given.min, given.norm) != (made.max, made.min, made.norm)


def _class_of(comparison: RankComparison, row: Row) -> VerdictClass:
    """Return the class of the cause that a call is given another call's result."""
    flow = DataFlow(comparison.rows, comparison.reference.names)
    given = (r for r in comparison.rows if r.pair is row.pair and r.value.role is Role.INPUT)
    is_order = is_other_order(flow, comparison.rows, flow.makers(row), given)
    return VerdictClass.ORDER if is_order else VerdictClass.ARGUMENT


def _coarsest(comparison: RankComparison) -> float:
    """Return the resolution of the coarsest type in which both sides compute.

    A cast to it, of what one side computes in a finer type, is no other precision.
    """
    made = (row for row in comparison.rows if row.pair.is_matched and row.value.role is Role.OUTPUT)
    return max((min(map(epsilon_of, (v.dtype for v in row.values))) for row in made), default=0.0)


def rounds(comparison: RankComparison, row: Row) -> bool:
    """Return whether a row is what a cast makes of numbers in a finer type."""
    if not is_cast(comparison.parsed(row.pair)):
        return False
    return 0 < epsilon_of(_given(comparison, row).dtype) < epsilon_of(row.value.dtype)
