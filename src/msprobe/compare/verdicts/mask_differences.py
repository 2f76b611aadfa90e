# SPDX-License-Identifier: Apache-2.0
"""Differences that statistics hide: masks that look the same and are not.

Of true and false values statistics keep only the largest and the least. Two masks with both kinds
of element look equal, wherever these are. The inputs of the call that made them tell more.
"""

from __future__ import annotations

from typing import Final

from msprobe.compare.model import Matched, Row
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.origin_state import OriginState
from msprobe.dump.values import Value

# How many calls upstream the origin of a mask is looked for.
_FARTHEST: Final = 60


def has_doubtful_mask(state: OriginState, call: Call) -> bool:
    """Return whether a mask that a call takes in may differ, since the inputs of its maker do.

    Args:
        state: of the search, in a comparison by statistics.
        call: a call whose inputs seem to agree.
    """
    seen: set[int] = {call.start}
    waiting = [call]
    while waiting and len(seen) < _FARTHEST:
        for row in waiting.pop(0).inputs:
            if not _is_mask(row):
                continue
            source = state.flow.makers(row).common
            if source is None:
                continue
            maker = state.calls.of(state.rows[source])
            # Of an argument that differs statistics of the mask show nothing.
            if state.convict(maker.start) or any(_matters(each) for each in maker.inputs):
                return True
            if maker.start not in seen:
                seen.add(maker.start)
                waiting.append(maker)
    return False


def _is_mask(row: Row) -> bool:
    return isinstance(row, Matched) and all(map(_hides_its_elements, row.values))


def _hides_its_elements(value: Value) -> bool:
    return value.is_tensor and value.dtype == "bool" and value.norm is None and value.md5 is None


def _matters(row: Row) -> bool:
    """Return whether a difference is one of values: of a tensor, or an argument at fault."""
    if not row.status.is_difference:
        return False
    return row.holds_tensor or row.origin is not None
