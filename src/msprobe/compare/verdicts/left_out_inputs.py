# SPDX-License-Identifier: Apache-2.0
"""Inputs that one side alone gives to a call of both sides: a mask, and the calls it is made by."""

from __future__ import annotations

from msprobe.compare.model import OperationPair, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.values import Role


def left_out_input(comparison: RankComparison, lone: OperationPair) -> Row | None:
    """Return the input of a module that a call inside alone takes in, or that it makes for a call.

    Args:
        comparison: a step and rank.
        lone: a call of one side alone.
    """
    is_target = lone.reference is None
    side = comparison.side(is_target=is_target)
    around = set(side.around(lone.name))
    taken, made = (
        {each.value_id for each in side.values(lone.name) if each.role is role} - {None}
        for role in (Role.INPUT, Role.OUTPUT)
    )
    of_one_side = Status.ADDED if is_target else Status.MISSING
    within: list[Row] = []
    fed: list[Row] = []
    for row in comparison.rows:
        is_input = row.value.role is Role.INPUT and row.holds_tensor and row.pair.is_matched
        if not is_input or row.status is not of_one_side or row.pair.position < lone.position:
            continue
        if _is_part(comparison, row, is_target=is_target):
            continue
        given = {each.value_id for each in row.values}
        if (row.pair.target if is_target else row.pair.reference) in around:
            within += [row] if taken & given else []
        elif made & given:
            fed.append(row)
    return next(iter(within or fed), None)


def _is_part(comparison: RankComparison, row: Row, *, is_target: bool) -> bool:
    """Return whether an input is a part of one that both sides give: of a packed sequence, say."""
    other = comparison.side(is_target=not is_target)
    name = row.pair.reference if is_target else row.pair.target
    given = (each for each in other.values(name or "") if each.is_tensor)
    return row.value.argument.partition(".")[0] in {
        each.argument.partition(".")[0] for each in given
    }
