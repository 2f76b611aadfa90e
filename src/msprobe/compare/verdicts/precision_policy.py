# SPDX-License-Identifier: Apache-2.0
"""Tell a run in lower precision from one call that slipped into it.

Whoever compares bfloat16 with float32 knows that values are coarser: the coarser type decides the
tolerance. If only a few calls of their kind are coarser and the others agree in type, these few
are a difference of their own, and are held to the finer type.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from msprobe.compare.model import Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.data_flow import fingerprints
from msprobe.compare.verdicts.operation_families import Family, family_of
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import coarser, epsilon_of
from msprobe.numerics.tolerances import Tolerances

# Up to this share of the calls of one kind, lower precision is the exception.
_EXCEPTION: Final = 0.5
LONE_PRECISION: Final = "alone"
"""What the reason says of such a row."""


def judge_lone_precision(comparison: RankComparison, tolerances: Tolerances) -> None:
    """Turn the close outputs of calls that alone run in lower precision into differences."""
    mixed = [row for row in comparison.rows if _has_two_precisions(row)]
    # A call that was given values of two precisions did not choose its own.
    given = {row.pair.position for row in mixed if not _is_output(row)}
    odd = [row for row in mixed if _is_output(row) and row.pair.position not in given]
    if not odd:
        return
    lowered = Counter(_kind(comparison, row) for row in mixed if _is_output(row))
    totals = Counter(
        kind
        for row in comparison.rows
        if _is_float_output(row) and (kind := _kind(comparison, row)) in lowered
    )
    lone = set()
    for row in odd:
        kind = _kind(comparison, row)
        if not kind or lowered[kind] > _EXCEPTION * totals[kind]:
            continue
        others = f"{totals[kind] - lowered[kind]} other outputs of a {kind} agree in type"
        if _judge_as_finer(row, f"{LONE_PRECISION}: {others}", tolerances):
            lone.add(fingerprints(row))
    if lone:
        for row in comparison.rows:
            if row.status is Status.CLOSE and fingerprints(row) in lone:
                row.status = Status.DIFFERS


def _is_output(row: Row) -> bool:
    return row.value.role is Role.OUTPUT


def _is_float_output(row: Row) -> bool:
    value = row.target
    return (
        value is not None
        and row.reference is not None
        and value.role is Role.OUTPUT
        and value.is_tensor
        and epsilon_of(value.dtype) > 0
    )


def _has_two_precisions(row: Row) -> bool:
    target, reference = row.target, row.reference
    if target is None or reference is None or target.dtype == reference.dtype:
        return False
    return 0 < epsilon_of(target.dtype) != epsilon_of(reference.dtype) > 0


def _kind(comparison: RankComparison, row: Row) -> str:
    """Return what calls a row's call is to be compared with; empty for those that only move."""
    if row.pair.target is None:
        return ""
    parsed = comparison.target.parsed(row.pair.target)
    if parsed.kind is not RecordKind.FORWARD:
        return ""
    name = parsed.class_name or parsed.path
    family = family_of(name)
    if family is Family.MOVING:
        return ""
    what = "module" if parsed.is_module else "call"
    return f"{what} of a sum of products" if family is Family.BILINEAR else f"{what} of {name}"


def _judge_as_finer(row: Row, why: str, tolerances: Tolerances) -> bool:
    """Hold a close row to the finer of its two types; return whether it differs by that."""
    assert row.target is not None
    assert row.reference is not None
    mine, theirs = row.target.dtype, row.reference.dtype
    finer = theirs if coarser(mine, theirs) == mine else mine
    allowed = tolerances.for_row(row.name, finer, finer)
    if row.status is not Status.CLOSE or row.error is None or row.error <= allowed.relative:
        return False
    row.status = Status.DIFFERS
    row.reason = f"{mine} instead of {theirs}, {why}"
    return True
