# SPDX-License-Identifier: Apache-2.0
"""Severity of a single record, by its statistics alone."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

from msprobe.dump.record_views import Record
from msprobe.dump.values import Value
from msprobe.overflow.examined import Badness, Examined, badness_of, examine

NORM_GROWTH: Final = 100.0
"""Outputs whose norm exceeds that of the inputs by more than this factor are graded high."""


class Severity(StrEnum):
    """Grade of a record."""

    CRITICAL = "critical"
    """The arguments are finite and the results are not."""
    HIGH = "high"
    """Both are not finite, or the largest norm grew by more than `NORM_GROWTH`."""
    MEDIUM = "medium"
    """The arguments are not finite and the results are."""


def classify(record: Record) -> Severity | None:
    """Return the grade of a record; None without NaN, Inf or a large growth of the norm.

    Raises:
        DumpFormatError: the record is damaged.
    """
    return classify_examined(examine(record))


def classify_examined(examined: Examined) -> Severity | None:
    """Return the grade of an examined record."""
    arguments = examined.arguments
    if examined.name.path == "masked_fill_":
        # The filled tensor is often attention scores that hold -inf from the previous mask.
        arguments = arguments[1:]
    given = any(map(badness_of, arguments))
    made = examined.worst_result > Badness.FINITE
    if made:
        return Severity.HIGH if given else Severity.CRITICAL
    if given:
        return Severity.MEDIUM
    grew = _largest_norm(examined.results) > NORM_GROWTH * _largest_norm(arguments) > 0
    return Severity.HIGH if grew else None


def _largest_norm(values: tuple[Value, ...]) -> float:
    norms = (value.norm for value in values)
    return max(
        (float(norm) for norm in norms if norm is not None and math.isfinite(norm)), default=0.0
    )
