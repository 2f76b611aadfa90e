# SPDX-License-Identifier: Apache-2.0
"""Status of rows: `judge_rows` fills in status, error and finding.

Elements decide where they were read, else checksums, else the statistics. Everything is
relative to the size of the tensor, so tiny gradients are judged as sharply as large activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.matching.signatures import signature_of
from msprobe.compare.model import Match, Matched, Missing, Mode, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.arguments import judge_arguments
from msprobe.compare.verdicts.precision_policy import judge_inside_autocast, judge_lone_precision
from msprobe.compare.verdicts.statistics_error import (
    Nonfinite,
    describe_statistics,
    is_plain,
    nonfinite_of,
    plain_statistics_error,
    statistics_equal,
    statistics_error,
)
from msprobe.dump.layout import INNER_PARAMETERS
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.number_types import coarser, kind_of
from msprobe.numerics.tolerances import EXACT, RowTolerance, Tolerances

# Statistics of integers are sums of integers in float64; frameworks differ in the last digits.
_INTEGER_STATISTICS: Final = RowTolerance(rtol=1e-6)
# How near statistics of the same numbers are that were rounded on another way.
_SAME_LAYOUT: Final = 1e-5
_HANDED_THROUGH: Final = (
    "not compared: one side returns its input as it is, with all of its gradient"
)
_SPARSE: Final = "not compared: one side is sparse, and its numbers are those of its stored values"
_UNREAD: Final = "the call does not read it: what the memory held before means nothing"


def judge_rows(comparison: RankComparison, tolerances: Tolerances) -> None:
    """Fill in status, error and finding of every row.

    Args:
        comparison: its rows; `Row.metrics` must be there for values that were read.
        tolerances: the allowed errors.
    """
    is_md5 = comparison.mode is Mode.MD5
    for row in comparison.rows:
        judge_row(row, tolerances, is_md5=is_md5)
    _pass_one_sided(comparison.rows)
    judge_lone_precision(comparison, tolerances)
    judge_inside_autocast(comparison)


def _pass_one_sided(rows: Sequence[Row]) -> None:
    """Take back differences of calls that return their input as it is on one side alone.

    ``x.to(torch.float32)`` does so for a float32 `x`. There it has no node in the graph, and its
    gradients are those of all uses of the input; elsewhere they are those of its own result.
    """
    one_sided = {
        id(row.pair)
        for row in rows
        if isinstance(row, Matched)
        and row.target.note != row.reference.note
        and row.target.is_handed_through is not row.reference.is_handed_through
    }
    for row in rows if one_sided else ():
        if id(row.pair) in one_sided and row.status in (Status.DIFFERS, Status.NONFINITE):
            row.status, row.error, row.finding = Status.EQUAL, None, _HANDED_THROUGH


def mark_unread(comparison: RankComparison) -> None:
    """Give the status `UNREAD` to rows that agree as far as is known, but were not read.

    Comes after everything that changes statuses. Equal checksums are proof enough.
    """
    for row in comparison.rows:
        if row.problem and row.metrics is None and not row.status.is_difference:
            row.status = row.status if _has_equal_checksums(row) else Status.UNREAD


def _has_equal_checksums(row: Row) -> bool:
    if not isinstance(row, Matched) or row.target.md5 is None:
        return False
    return row.target.md5 == row.reference.md5 and row.target.dtype == row.reference.dtype


def judge_row(row: Row, tolerances: Tolerances, *, is_md5: bool = False) -> None:
    """Fill in status, error and finding of one row by itself."""
    if not isinstance(row, Matched):
        _judge_alone(row)
    elif row.target.is_tensor and row.reference.is_tensor:
        _judge_tensors(row, tolerances, is_md5)
    else:
        judge_arguments(row)
    if row.problem:
        _add_finding(row, row.problem)


def _judge_alone(row: Row) -> None:
    """Judge a value without a partner."""
    is_missing = isinstance(row, Missing)
    row.status = Status.MISSING if is_missing else Status.ADDED
    if not row.pair.is_matched:
        return
    if not row.value.is_tensor and row.value.value is None:
        # Left out means the same as None for every optional argument that frameworks have.
        row.status = Status.EQUAL
    elif row.value.role is Role.INPUT and _is_default(row):
        row.status = Status.EQUAL
        row.finding = "the default, which the other side leaves out"
    elif row.value.path[0] == INNER_PARAMETERS:
        row.status = Status.EQUAL
        row.finding = "the other recorder does not record it"
    else:
        side = "reference" if is_missing else "target"
        shown = "" if row.value.is_tensor else f" ({row.value.value})"
        row.finding = f"only the {side} has it{shown}"


def _is_default(row: Row) -> bool:
    """Return whether an argument has the function's default value."""
    value = row.value
    if value.is_tensor:
        return False
    name = row.pair.reference if isinstance(row, Missing) else row.pair.target
    function = parse_record_name(name or "").base
    return signature_of(function).is_default(value.argument, value.value)


def shape_words(row: Matched) -> str:
    """Return the shapes of both values in words."""
    return f"shape {list(row.target.shape or ())} instead of {list(row.reference.shape or ())}"


def _judge_tensors(row: Matched, tolerances: Tolerances, is_md5: bool) -> None:
    target, reference = row.target, row.reference
    if not target.has_shape_of(reference):
        row.status = Status.CLOSE if _is_other_layout(row) else Status.SHAPE
        row.finding = shape_words(row)
        if row.status is Status.CLOSE:
            row.cause = Cause.OTHER_LAYOUT
        return
    same_type = target.dtype == reference.dtype
    if target.is_unread or reference.is_unread:
        row.status, row.error = Status.EQUAL, None
        if target.is_unread is not reference.is_unread:
            row.finding = _UNREAD
    elif row.metrics is not None:
        _judge_elements(row, row.metrics)
    elif target.md5 is not None and reference.md5 is not None and same_type:
        _judge_checksums(row, tolerances, is_md5)
    else:
        _judge_statistics(row, tolerances)
    if not same_type:
        _judge_types(row)
    if target.shape != reference.shape:
        _add_finding(row, "equal up to dimensions of size 1 in their shapes")
    if (
        target.requires_grad is not reference.requires_grad
        and target.requires_grad is not None
        and reference.requires_grad is not None
    ):
        _add_finding(
            row,
            f"requires_grad is {target.requires_grad} instead of {reference.requires_grad}",
        )


def _is_other_layout(row: Matched) -> bool:
    """Return whether another API takes or makes the same numbers with dimensions in another order.

    MindSpore's LSTM has the sequence first, for example, where PyTorch's has the batch first.
    """
    target, reference = row.target, row.reference
    if row.pair.match is not Match.ALIAS:
        return False
    if sorted(target.squeezed_shape) != sorted(reference.squeezed_shape):
        return False
    numbers = [(value.max, value.min, value.mean, value.norm) for value in row.values]
    if not all(isinstance(number, int | float) for each in numbers for number in each):
        return False
    nothing = _SAME_LAYOUT * max(abs(float(end or 0)) for end in numbers[1][:2])
    return all(
        math.isclose(float(one or 0), float(other or 0), rel_tol=_SAME_LAYOUT, abs_tol=nothing)
        for one, other in zip(*numbers, strict=True)
    )


def _judge_types(row: Matched) -> None:
    target, reference = row.target, row.reference
    if kind_of(target.dtype) is not kind_of(reference.dtype):
        values = "equal" if row.status is Status.EQUAL else "different"
        row.status = Status.DTYPE
        row.finding = f"{target.dtype} instead of {reference.dtype}; the values are {values}"
    else:
        _add_finding(
            row,
            f"{target.dtype} against {reference.dtype}, judged as "
            f"{coarser(target.dtype, reference.dtype)}",
        )


def _judge_elements(row: Row, metrics: ElementMetrics) -> None:
    if metrics.is_equal:
        row.status, row.error = Status.EQUAL, 0.0
        return
    row.error = relative_error(metrics)
    target, reference = _nonfinite(metrics)
    if metrics.first_nonfinite_mismatch is not None or target != reference:
        row.status, row.error = Status.NONFINITE, None
        at_places = ", at other places than in the reference"
        end = at_places if target == reference else f" instead of {reference.words()}"
        row.finding = target.words() + end
    elif metrics.mismatches == 0:
        row.status = Status.CLOSE if metrics.unequal else Status.EQUAL
    else:
        row.status = Status.DIFFERS
        row.finding = (
            f"{metrics.mismatches} of {metrics.count} elements beyond the tolerance, at worst "
            f"{_number(metrics.max_abs_target)} instead of {_number(metrics.max_abs_reference)}"
        )


def relative_error(metrics: ElementMetrics) -> float | None:
    """Return the L2 norm of the difference relative to the larger of reference and, where that is
    zero, target; None where no element is finite.
    """
    error = metrics.relative_l2
    if error is not None and math.isfinite(error):
        return error
    return None if error is None or math.isnan(error) else 1.0


def _nonfinite(metrics: ElementMetrics) -> tuple[Nonfinite, Nonfinite]:
    return (
        Nonfinite(metrics.target_nan, metrics.target_pos_inf, metrics.target_neg_inf),
        Nonfinite(metrics.reference_nan, metrics.reference_pos_inf, metrics.reference_neg_inf),
    )


def _judge_checksums(row: Matched, tolerances: Tolerances, is_md5: bool) -> None:
    if row.target.md5 == row.reference.md5:
        row.status, row.error = Status.EQUAL, 0.0
        return
    _judge_statistics(row, tolerances)
    if is_md5 or row.status is Status.EQUAL:
        # Checksums answer whether values are the same to the bit, as the user asked.
        row.status = Status.DIFFERS if is_md5 else Status.CLOSE
        row.finding = "the checksums differ" + (f"; {row.finding}" if row.finding else "")
        if row.error == 0.0:
            row.error = None


def _judge_statistics(row: Matched, tolerances: Tolerances) -> None:
    target, reference = row.target, row.reference
    if target.is_sparse is not reference.is_sparse:
        # An element may be stored in several parts, and zeros not at all.
        row.status, row.error, row.finding = Status.EQUAL, None, _SPARSE
        return
    if statistics_equal(target, reference):
        row.status, row.error = Status.EQUAL, 0.0
        return
    plain = is_plain(target) and is_plain(reference)
    if not plain:
        after, before = nonfinite_of(target, reference)
        if after != before:
            row.status, row.error = Status.NONFINITE, None
            row.finding = f"{after.words()} instead of {before.words()}"
            return
    name = row.name if tolerances.has_rules else ""
    allowed = tolerances.for_row(name, target.dtype, reference.dtype)
    is_exact = allowed is EXACT
    measure = plain_statistics_error if plain else statistics_error
    error = measure(target, reference, _INTEGER_STATISTICS if is_exact else allowed)
    row.error = error.relative
    if error.relative is None:
        row.status = Status.EQUAL
        row.finding = "one side has no statistics to compare" if error.is_one_sided else ""
    elif error.relative == 0:
        row.status = Status.EQUAL  # apart from NaN and infinities, which agree
    elif error.is_beyond or (is_exact and error.some_differ):
        row.status = Status.DIFFERS
        row.finding = describe_statistics(target, reference, error.worst)
    else:
        row.status = Status.CLOSE


def _add_finding(row: Row, text: str) -> None:
    row.finding = f"{row.finding}; {text}" if row.finding else text


def _number(value: float | complex | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
