# SPDX-License-Identifier: Apache-2.0
"""Distinguish a run in lower precision from a single call that slipped into it.

A comparison of bfloat16 with float32 expects coarser values: the coarser type decides the
tolerance. If only a few calls of their kind are coarser and the others agree in type, these few
are a difference of their own, and are held to the finer type.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.data_flow import fingerprints
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import coarser, epsilon_of
from msprobe.numerics.tolerances import Tolerances
from msprobe.operators.operator import Family

# Up to this share of the calls of one kind, lower precision is the exception.
_EXCEPTION: Final = 0.5
_MODULE_OF_SUMS: Final = "module of a sum of products"
_CALL_OF_SUMS: Final = "call of a sum of products"


def judge_lone_precision(comparison: RankComparison, tolerances: Tolerances) -> None:
    """Turn the close outputs of calls that alone run in lower precision into differences."""
    matched = [row for row in comparison.rows if isinstance(row, Matched)]
    mixed = [row for row in matched if _has_two_precisions(row)]
    # A call that was given values of two precisions did not choose its own.
    given = {row.pair.position for row in mixed if not _is_output(row)}
    odd = [row for row in mixed if _is_output(row) and row.pair.position not in given]
    if not odd:
        return
    lowered = Counter(_kind(comparison, row) for row in mixed if _is_output(row))
    totals = Counter(
        kind
        for row in matched
        if _is_float_output(row) and (kind := _kind(comparison, row)) in lowered
    )
    lone = set()
    for row in odd:
        kind = _kind(comparison, row)
        if not kind or lowered[kind] > _EXCEPTION * totals[kind]:
            continue
        if _differs_by_finer(row, tolerances):
            others = totals[kind] - lowered[kind]
            row.status, row.cause = Status.DIFFERS, Cause.LONE_PRECISION
            row.finding = (
                f"{row.target.dtype} instead of {row.reference.dtype}, alone: {others} other "
                f"outputs of a {kind} agree in type"
            )
            lone.add(fingerprints(row))
    if lone:
        for row in matched:
            if row.status is Status.CLOSE and fingerprints(row) in lone:
                row.status = Status.DIFFERS


def is_in_other_precision(comparison: RankComparison) -> bool:
    """Return whether most sums of products of a step have another precision on the two sides."""
    sums = [
        _has_two_precisions(row)
        for row in comparison.rows
        if isinstance(row, Matched)
        and _is_float_output(row)
        and _kind(comparison, row) in (_CALL_OF_SUMS, _MODULE_OF_SUMS)
    ]
    return sum(sums) > _EXCEPTION * len(sums)


def _is_output(row: Matched) -> bool:
    return row.value.role is Role.OUTPUT


def _is_float_output(row: Matched) -> bool:
    return _is_output(row) and row.target.is_tensor and epsilon_of(row.target.dtype) > 0


def _has_two_precisions(row: Matched) -> bool:
    target, reference = row.target.dtype, row.reference.dtype
    return target != reference and 0 < epsilon_of(target) != epsilon_of(reference) > 0


def _kind(comparison: RankComparison, row: Matched) -> str:
    """Return a key of the calls to compare a row's call with; empty for calls that move data."""
    parsed = comparison.target.parsed(row.pair.name)
    if parsed.kind is not RecordKind.FORWARD:
        return ""
    family = comparison.target.operator(row.pair.name).family
    if family is Family.MOVING:
        return ""
    if family.sums_products:
        return _MODULE_OF_SUMS if parsed.is_module else _CALL_OF_SUMS
    return f"module of {parsed.class_name}" if parsed.is_module else f"call of {parsed.path}"


def _differs_by_finer(row: Matched, tolerances: Tolerances) -> bool:
    """Return whether a close row differs when it is held to the finer of its two types."""
    target, reference = row.target.dtype, row.reference.dtype
    finer = reference if coarser(target, reference) == target else target
    allowed = tolerances.for_row(row.name, finer, finer).relative
    return row.status is Status.CLOSE and row.error is not None and row.error > allowed
