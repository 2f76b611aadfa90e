# SPDX-License-Identifier: Apache-2.0
"""Numbers that the program computes of tensors, by code that has no record.

``tolist`` and ``item`` take numbers out of the recorded calls, and what is made of them comes back
as an argument: which queries are matched with which boxes, say. Where only one side makes a call
before, whose result may be one of these, the other number is its consequence.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.outlined_calls import is_computed
from msprobe.compare.verdicts.ranking import Culprit
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.operators.operator import Family


def call_behind_number(culprit: Culprit) -> Culprit | None:
    """Return the first call of one side alone, if a number that differs may follow from it.

    A number that a person wrote is the same whenever its line is run: then it is the cause itself.
    """
    row = culprit.row
    is_number = row.is_argument and all(type(value.value) in (int, float) for value in row.values)
    if not is_number or row.cause is not Cause.ARGUMENT or not isinstance(row, Matched):
        return None
    if len({*_given_at(culprit)}) < 2:
        return None
    lone = next(_alone(culprit.comparison, row.pair.position), None)
    if lone is None:
        return None
    side, record = culprit.comparison.side_of(lone.pair), lone.pair.name
    return dataclasses.replace(
        culprit,
        row=lone,
        module=side.module(record),
        stack=side.frames(record),
        source=side.source_line(record),
    )


def _given_at(culprit: Culprit) -> Iterator[Any]:
    """Yield what the reference's calls of a culprit's line are given in its place."""
    # In the other framework the place may have another name.
    pair, slot = culprit.row.pair, culprit.row.values[-1].slot
    side, own = culprit.comparison.reference, pair.reference or ""
    line, base = side.source_line(own), side.parsed(own).base
    for name in side.names:
        if side.parsed(name).base == base and side.source_line(name) == line:
            yield from (v.value for v in side.values(name) if v.slot == slot)


def gives_computed(culprit: Culprit) -> bool:
    """Return whether both sides give a call real numbers with the digits of results."""
    row = culprit.row
    values = [value.value for value in row.values]
    return row.cause is Cause.ARGUMENT and all(
        isinstance(value, float) and is_computed(repr(value)) for value in values
    )


def computes_alone(culprit: Culprit) -> bool:
    """Return whether one side alone computes before a culprit: it not only takes elements out."""
    comparison = culprit.comparison
    operators = (
        comparison.side_of(row.pair).operator(row.pair.name)
        for row in _alone(comparison, culprit.row.pair.position)
    )
    return any(each.family is not Family.MOVING for each in operators)


def _alone(comparison: RankComparison, end: int) -> Iterator[Row]:
    """Yield results of calls outside of models, before a place, that one side alone makes."""
    for row in itertools.takewhile(lambda row: row.pair.position < end, comparison.rows):
        if row.pair.is_matched or row.value.role is not Role.OUTPUT or row.cause is not None:
            continue
        side, parsed = comparison.side_of(row.pair), comparison.parsed(row.pair)
        is_call = parsed.kind is RecordKind.FORWARD and not parsed.is_module
        if is_call and not side.module(row.pair.name):
            yield row
