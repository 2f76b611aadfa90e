# SPDX-License-Identifier: Apache-2.0
"""`read_numbers`: what follows from whole numbers that the program reads from tensors.

``int(torch.randint(...))`` leaves the recorded calls, and comes back as a place, a size or a limit
of a later draw. Where the draw differs, these do, too: the draw is the cause. A bound of a slice
that is a tensor (``x[start : start + 8]``) is not recorded at all.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Origin, Row, Status
from msprobe.compare.verdicts.calls import Call, Calls
from msprobe.compare.verdicts.data_flow import DataFlow
from msprobe.compare.verdicts.origin_state import mark
from msprobe.dump.values import Value
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.operator import Family

_PLACES: Final = ("int", "slice")
_TENSOR: Final = "<torch.Tensor>"
# Numbers before a slice that may be its bounds.
_MOST_BOUNDS: Final = 64


def read_numbers(calls: Calls, flow: DataFlow) -> Mapping[int, Sequence[Call]]:
    """Let arguments and results that were blamed inherit from the numbers that they follow from.

    An argument is as far from the other side's as a number drawn before it: it is that number, or a
    sum or difference with another one. Bounds that are tensors may be any that were made before.

    Returns: of rows of numbers, by identity, the calls that may be given them.
    """
    users: dict[int, list[Call]] = defaultdict(list)
    drawn: dict[int, None] = {}  # rows of what draws made, views of it as well
    numbers: dict[float, Row] = {}  # how far the sides are apart → the latest that was drawn
    bounds: deque[Row] = deque(maxlen=_MOST_BOUNDS)
    for call in calls:
        if call.is_backward or not call.is_matched:
            continue
        for row in _blamed(call):
            makers = [numbers[size] for size in _sizes(row) if size in numbers]
            for maker in makers:
                users[id(maker)].append(call)
            if makers:
                mark(row, Origin.INHERITED, Cause.TAKEN_FROM_TENSOR)
        _inherit_results(call)
        if bounds and _has_tensor_as_bound(call):
            for row in call.outputs:
                if row.origin is Origin.INTRODUCED and row.cause is None:
                    mark(row, Origin.INHERITED)
            for row in bounds:
                users[id(row)].append(call)
        bounds += filter(_is_number, call.outputs)
        if _hands_on(call, flow, drawn):
            drawn |= dict.fromkeys(range(call.start, call.start + len(call.rows)))
            numbers |= {_distance(row): row for row in call.outputs if _is_number(row)}
    return users


def _blamed(call: Call) -> list[Row]:
    return [
        row
        for row in call.inputs
        if row.origin is Origin.INTRODUCED and row.cause is Cause.ARGUMENT and row.is_argument
    ]


def _inherit_results(call: Call) -> None:
    """Let the results of a call follow from its arguments, if all of these inherit."""
    follows = any(row.cause is Cause.TAKEN_FROM_TENSOR for row in call.inputs)
    if follows and not any(row.origin is Origin.INTRODUCED for row in call.inputs):
        for row in call.outputs:
            if row.origin is Origin.INTRODUCED:
                mark(row, Origin.INHERITED)


def _has_tensor_as_bound(call: Call) -> bool:
    """Return whether a call is given a slice whose bounds are tensors, which were not recorded."""
    return any(
        value.type == "slice" and isinstance(value.value, list) and _TENSOR in value.value
        for row in call.inputs
        for value in row.values
    )


def _hands_on(call: Call, flow: DataFlow, drawn: Mapping[int, None]) -> bool:
    """Return whether a call draws numbers, or takes some out of those that were drawn."""
    if call.operator.draws_random:
        return True
    if call.operator.family is not Family.MOVING:
        return False
    tensors = [row for row in call.inputs if row.holds_tensor]
    return bool(tensors) and all(flow.makers(row).common in drawn for row in tensors)


def _is_number(row: Row) -> bool:
    """Return whether a result is one whole number, another one on each side."""
    return (
        isinstance(row, Matched)
        and row.status is Status.DIFFERS
        and all(map(_is_whole, row.values))
        and _distance(row) > 0
    )


def _is_whole(value: Value) -> bool:
    is_single = value.is_tensor and math.prod(value.shape or ()) == 1 and value.max is not None
    return is_single and not epsilon_of(value.dtype)


def _distance(row: Row) -> float:
    target, reference = (value.max or 0 for value in row.values)
    return abs(target - reference)


def _sizes(row: Row) -> Iterator[float]:
    """Yield how far the numbers of an argument are from those of the other side."""
    if not isinstance(row, Matched) or any(value.type not in _PLACES for value in row.values):
        return
    target, reference = (
        value.value if isinstance(value.value, list) else [value.value] for value in row.values
    )
    for own, other in zip(target, reference, strict=False):
        if isinstance(own, int) and isinstance(other, int):
            yield abs(own - other)
