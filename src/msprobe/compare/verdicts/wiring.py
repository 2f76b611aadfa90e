# SPDX-License-Identifier: Apache-2.0
"""Are calls in another order, where one is given another call's result?

Only then is their order the cause. Else the call is given another tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msprobe.compare.model import Row
from msprobe.compare.verdicts.data_flow import DataFlow, Makers


def is_other_order(
    flow: DataFlow, rows: Sequence[Row], makers: Makers, given: Iterable[Row]
) -> bool:
    """Return whether calls, or what they are given, have changed places.

    Args:
        flow: which call made which value.
        rows: all rows.
        makers: of the value that a call is given otherwise.
        given: all that this call is given.
    """
    return _are_exchanged(flow, rows, makers) or any(_is_made_later(flow, rows, r) for r in given)


def _are_exchanged(flow: DataFlow, rows: Sequence[Row], makers: Makers) -> bool:
    """Return whether another place is given the two values the other way round."""
    if not (makers.target and makers.reference):
        return False
    own, other = rows[makers.target[0]], rows[makers.reference[0]]
    # What made either value on one side, and what is made of it on the other.
    turned = {*flow.target.users(other)} & {*flow.reference.users(own)}
    return any(rows[index].pair.is_matched for index in turned)


def _is_made_later(flow: DataFlow, rows: Sequence[Row], row: Row) -> bool:
    """Return whether one side makes a value before the call that takes it, the other behind it."""
    if not row.pair.is_matched:
        return False
    for side, other in ((flow.target, flow.reference), (flow.reference, flow.target)):
        made = [rows[index] for index in side.makers(row)[:1]]
        if any(each.pair.is_matched and other.is_before(row, each) for each in made):
            return True
    return False
