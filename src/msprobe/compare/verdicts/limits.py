# SPDX-License-Identifier: Apache-2.0
"""Limits of number types that mark an element to leave out, such as in attention masks.

``-inf``, ``torch.finfo(dtype).min`` and ``-3.4e38`` mean the same: no softmax tells them apart.
"""

from __future__ import annotations

import math
from typing import Final

from msprobe.compare.model import Matched, Row, Status
from msprobe.dump.records import Statistic
from msprobe.dump.values import Value

# Nothing is computed with numbers so large: the largest of bfloat16 and float32 are 3.4e38.
_HUGE: Final = 1e38
_LARGEST_FLOAT16: Final = 65504.0
# Largest finite numbers; float64's limit marks elements to leave out, and is infinite in these.
_LARGEST: Final = {
    "float16": _LARGEST_FLOAT16,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
}


def is_limit(number: Statistic) -> bool:
    """Return whether a number is infinite, or the largest or least of a floating-point type."""
    if number is None or number != number:
        return False
    size = abs(number)
    return size >= _HUGE or size == _LARGEST_FLOAT16


def are_same_limit(target: Statistic, reference: Statistic) -> bool:
    """Return whether two numbers are limits of types, on the same side of zero."""
    if target is None or reference is None or not (is_limit(target) and is_limit(reference)):
        return False
    return (target > 0) is (reference > 0)


def is_beyond_type(given: Row, result: Row) -> bool:
    """Return whether one side's input is finite, and infinite in the type of its result."""
    if not isinstance(given, Matched) or not isinstance(result, Matched):
        return False
    for value, made in zip(given.values, result.values, strict=True):
        largest = _LARGEST.get(made.dtype)
        ends = [abs(end) for end in (value.max, value.min) if end is not None]
        if largest is not None and any(largest < end < math.inf for end in ends):
            return True
    return False


def differs_in_limit_alone(row: Row) -> bool:
    """Return whether two tensors have another limit in as many elements, and else agree."""
    if not isinstance(row, Matched) or row.status not in (Status.DIFFERS, Status.NONFINITE):
        return False
    target, reference = row.values
    if target.min == reference.min or not are_same_limit(target.min, reference.min):
        return False
    if not (target.is_tensor and reference.is_tensor) or target.has_nan or reference.has_nan:
        return False
    if is_limit(target.max) or is_limit(reference.max):
        return all(value.min == value.max for value in row.values)
    counts = _masked(target), _masked(reference)
    metrics = row.metrics
    if metrics is not None and metrics.mismatches not in counts:
        return False
    return None in counts or counts[0] == counts[1]


def _masked(value: Value) -> int | None:
    """Return how many elements of a tensor are its least one, which is a limit, if known."""
    least, mean = value.min, value.mean
    if least is None or math.isinf(least):
        return value.neg_inf_count
    if mean is None or not math.isfinite(mean):
        return None
    return round(float(mean) / float(least) * math.prod(value.shape or ()))
