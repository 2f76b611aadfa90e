# SPDX-License-Identifier: Apache-2.0
"""Distinguish a run in lower precision from a single call that slipped into it.

A comparison of bfloat16 with float32 expects coarser values: the coarser type decides the
tolerance. If only a few calls of their kind are coarser and the others agree in type, these few
are a difference of their own, and are held to the finer type. A model that runs as a whole under
autocast is no such exception, even beside others that do not, such as a teacher.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.verdicts.data_flow import DataFlow, fingerprints
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
    models = _Models(comparison)
    lone = set()
    for row in odd:
        kind = _kind(comparison, row)
        if not kind or lowered[kind] > _EXCEPTION * totals[kind]:
            continue
        if _differs_by_finer(row, tolerances) and not models.lowers_all_around(row.pair.position):
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


class _Models:
    """Sums of products that depend on each other, and which of them are in lower precision."""

    def __init__(self, comparison: RankComparison) -> None:
        self._comparison = comparison

    def lowers_one(self) -> bool:
        """Return whether a model is in lower precision as a whole, or most sums are."""
        lowered, others = self._sums
        return len(lowered) > _EXCEPTION * (len(lowered) + len(others)) or any(
            map(self.lowers_all_around, lowered)
        )

    def lowers_all_around(self, position: int) -> bool:
        """Return whether all sums that depend on a call's result, or it on theirs, are lowered."""
        lowered, others = self._sums
        if position not in lowered:
            return False
        users, makers = self._edges
        after = _reached(position, users)
        around = after | _reached(position, makers)
        return not lowered.isdisjoint(after) and others.isdisjoint(around)

    @cached_property
    def _sums(self) -> tuple[set[int], set[int]]:
        """The sums of products that have two precisions, and those that have one."""
        found: tuple[set[int], set[int]] = set(), set()
        for row in self._comparison.rows:
            if isinstance(row, Matched) and _is_float_output(row) and _sums(self._comparison, row):
                found[0 if _has_two_precisions(row) else 1].add(row.pair.position)
        return found

    @cached_property
    def _edges(self) -> tuple[Mapping[int, set[int]], Mapping[int, set[int]]]:
        """The calls that use a call's results, and those whose results it uses."""
        rows = self._comparison.rows
        flow = DataFlow(rows).target
        users: defaultdict[int, set[int]] = defaultdict(set)
        makers: defaultdict[int, set[int]] = defaultdict(set)
        for row in rows:
            if row.target is not None and row.value.role is Role.INPUT:
                for index in flow.makers(row)[:1]:
                    users[rows[index].pair.position].add(row.pair.position)
                    makers[row.pair.position].add(rows[index].pair.position)
        return users, makers


def _reached(start: int, edges: Mapping[int, set[int]]) -> set[int]:
    """Return the calls that a call leads to."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        for each in edges.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def is_in_other_precision(comparison: RankComparison) -> bool:
    """Return whether the sums of products of a step have another precision on the two sides.

    Most of them, or all of a model among others: those that depend on each other.
    """
    return _Models(comparison).lowers_one()


def _sums(comparison: RankComparison, row: Matched) -> bool:
    """Return whether a row belongs to a call of the forward pass that sums products."""
    return _kind(comparison, row) in (_CALL_OF_SUMS, _MODULE_OF_SUMS)


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
