# SPDX-License-Identifier: Apache-2.0
"""`troubled_calls`: the calls of a step in which NaN, Inf, or a jump of a norm begins."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordName, parse_record_name
from msprobe.dump.values import Role, Value

_MOST: Final = 50
_MOST_STEPS: Final = 8  # as many earlier steps say what is usual
_JUMP: Final = 4.0


class _Trouble(IntEnum):
    """Reasons to show a value; the worst last."""

    NONE = 0
    ONLY_MINUS_INF = 1
    JUMP = 2
    NONFINITE = 3


def troubled_calls(step: RankView, earlier: Sequence[RankView]) -> list[str]:
    """Return the calls in which a trouble begins, first ones first; at most 50.

    A value is in trouble if it holds NaN or +Inf (-Inf alone may be a mask), or if its norm is more
    than four times its usual one: the median of the earlier steps. A call begins it if a result is
    and no input. Those with NaN or +Inf come first, and then the last one before them that made
    -Inf. Before them all comes a call that was given NaN or Inf before any call had made one.

    Args:
        step: the step.
        earlier: the steps before; the newest ones are read.

    Returns:
        Names up to the direction, with a dot at the end: ``Functional.softmax.3.``. Empty where
        nothing stands out.
    """
    earlier = earlier[-_MOST_STEPS:]
    begins: dict[str, None] = {}
    jumps: dict[str, None] = {}
    came_in: dict[str, None] = {}  # one at most
    masks: dict[str, None] = {}  # the last one before NaN begins
    records = step.records
    for name in records:
        inputs: list[_Trouble] = []
        results: list[_Trouble] = []
        for value in records.values_of(name):
            if not value.is_tensor or value.is_unread:
                continue
            usual = _usual_norm(earlier, name, value)
            side = results if value.role is Role.OUTPUT else inputs
            side.append(_trouble_of(value, usual))
        call = _call_of(records.parsed(name))
        before, after = max(inputs, default=_Trouble.NONE), max(results, default=_Trouble.NONE)
        if after is _Trouble.NONFINITE and before is not after:
            begins[call] = None
        elif after is _Trouble.ONLY_MINUS_INF and not (before or begins):
            masks = {call: None}
        elif after is _Trouble.JUMP and not before:
            jumps[call] = None
        elif before is _Trouble.NONFINITE and not (begins or came_in):
            came_in[call] = None
    ended = None if step.facts is None else step.facts.ended
    if ended is not None and ended.record is not None:
        return [_call_of(parse_record_name(ended.record))]
    if begins:
        jumps = begins | masks | jumps
    return list(came_in | jumps)[:_MOST]


def _call_of(name: RecordName) -> str:
    """Return the part of a name that all records of a call share; of a module, of all its calls."""
    if name.is_module or name.index is None:
        return f"{name.base}."
    return f"{name.base}.{name.index}."


def _trouble_of(value: Value, usual: float | None) -> _Trouble:
    if value.has_nan or value.pos_inf_count or value.max == math.inf:
        return _Trouble.NONFINITE
    if value.has_inf:
        return _Trouble.ONLY_MINUS_INF
    norm = value.norm
    has_jumped = usual is not None and norm is not None and float(norm) > _JUMP * usual > 0
    return _Trouble.JUMP if has_jumped else _Trouble.NONE


def _usual_norm(earlier: Sequence[RankView], name: str, value: Value) -> float | None:
    norms = [
        float(other.norm)
        for view in earlier
        if name in view.records
        for other in view.records.values_of(name)
        if other.slot == value.slot and other.norm is not None
    ]
    return statistics.median(norms) if norms else None
