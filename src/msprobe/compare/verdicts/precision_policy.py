# SPDX-License-Identifier: Apache-2.0
"""Distinguish a run in lower precision from a single call that slipped into it.

A comparison of bfloat16 with float32 expects coarser values: the coarser type decides the
tolerance. If only a few calls of their kind are coarser and the others agree in type, these few
are a difference of their own, and are held to the finer type. A model that runs as a whole under
autocast is no such exception, even beside others that do not, such as a teacher.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import IN_AUTOCAST
from msprobe.compare.verdicts.data_flow import DataFlow, fingerprints
from msprobe.dump.formats.dtypes import normal_dtype
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role
from msprobe.numerics.number_types import coarser, epsilon_of
from msprobe.numerics.tolerances import Tolerances
from msprobe.operators.operator import Family

# Up to this share of the calls of one kind, lower precision is the exception.
_EXCEPTION: Final = 0.5
_MODULE_OF_SUMS: Final = "module of a sum of products"
_CALL_OF_SUMS: Final = "call of a sum of products"
_DIRECTIONS: Final = (RecordKind.FORWARD, RecordKind.BACKWARD)


def judge_lone_precision(comparison: RankComparison, tolerances: Tolerances) -> None:
    """Turn the close outputs of calls that alone run in lower precision into differences."""
    if autocast_alone(comparison):
        return  # it lowers calls on its own
    matched = [row for row in comparison.rows if isinstance(row, Matched)]
    mixed = [row for row in matched if row.precisions]
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
    kinds = [(row, _kind(comparison, row)) for row in odd if _differs_by_finer(row, tolerances)]
    few = [
        (row, kind) for row, kind in kinds if kind and lowered[kind] <= _EXCEPTION * totals[kind]
    ]
    together = _lowered_together(comparison) if few else set()
    lone = set()
    for row, kind in few:
        if row.pair.position not in together:
            row.status, row.cause = Status.DIFFERS, Cause.LONE_PRECISION
            target, reference = row.target.dtype, row.reference.dtype
            others, agree = lowered[kind] - 1, totals[kind] - lowered[kind]
            row.finding = (
                f"{target} instead of {reference}, as {others} other outputs of a {kind}, where "
                f"{agree} agree in type"
                if others
                else f"{target} instead of {reference}, alone: {agree} other outputs of a {kind} "
                "agree in type"
            )
            lone.add(fingerprints(row))
    if lone:
        for row in matched:
            if row.status is Status.CLOSE and fingerprints(row) in lone:
                row.status = Status.DIFFERS


def autocast_alone(comparison: RankComparison) -> float:
    """Return the resolution of autocast if one side alone runs under it, or in another type; or 0.

    That of the coarser type.
    """
    types = [{} if facts is None else facts.autocast_types() for facts in comparison.facts]
    found = (epsilon_of(normal_dtype(each)) for side in types for each in side.values())
    return max(found, default=0.0) if types[0] != types[1] else 0.0


def judge_inside_autocast(comparison: RankComparison) -> None:
    """Accept the roundings of kernels that compute in autocast's type and return a finer one.

    No type tells so: those of cells of recurrent networks, say.
    """
    resolution = autocast_alone(comparison)
    for row in comparison.rows if resolution else ():
        if row.status is not Status.DIFFERS or row.value.role is not Role.OUTPUT:
            continue
        parsed = comparison.parsed(row.pair)
        if parsed.is_module or parsed.kind not in _DIRECTIONS:
            continue
        if not isinstance(row, Matched) or row.precisions or row.error is None:
            continue
        family = comparison.side_of(row.pair).operator(row.pair.name).family
        if family is Family.COMPOSITE and row.error <= IN_AUTOCAST * resolution:
            row.status, row.cause = Status.CLOSE, Cause.ROUNDING
            row.finding = "computed in the type of autocast on one side"


def is_in_other_precision(comparison: RankComparison) -> bool:
    """Return whether the sums of products of a step have another precision on the two sides.

    Most of them, or all of a model among others: those that depend on each other. Autocast of one
    side alone is one, too.
    """
    if autocast_alone(comparison):
        return True
    lowered, others = _sums_by_precision(comparison)
    is_most = len(lowered) > _EXCEPTION * (len(lowered) + len(others))
    return is_most or bool(_lowered_together(comparison))


def _lowered_together(comparison: RankComparison) -> set[int]:
    """Return lowered sums of products whose whole model is lowered, by the places of their calls.

    They lead to another such sum, and no sum that is not lowered leads to them or depends on them.
    """
    lowered, others = _sums_by_precision(comparison)
    rows = comparison.rows
    flow = DataFlow(rows).target
    makers: defaultdict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.target is not None and row.value.role is Role.INPUT:
            makers[row.pair.position].update(rows[at].pair.position for at in flow.makers(row)[:1])
    after_others: set[int] = set()
    before_others: set[int] = set()
    before_lowered: set[int] = set()
    in_order = sorted(makers)  # a value is made before it is used
    for position in in_order:
        if any(one in others or one in after_others for one in makers[position]):
            after_others.add(position)
    for position in reversed(in_order):
        if position in others or position in before_others:
            before_others |= makers[position]
        if position in lowered or position in before_lowered:
            before_lowered |= makers[position]
    return (lowered & before_lowered) - after_others - before_others


def _sums_by_precision(comparison: RankComparison) -> tuple[set[int], set[int]]:
    """Return the places of forward sums of products with two precisions, and of those with one."""
    found: tuple[set[int], set[int]] = set(), set()
    for row in comparison.rows:
        if (
            isinstance(row, Matched)
            and _is_float_output(row)
            and _kind(comparison, row) in (_CALL_OF_SUMS, _MODULE_OF_SUMS)
        ):
            found[0 if row.precisions else 1].add(row.pair.position)
    return found


def _is_output(row: Matched) -> bool:
    return row.value.role is Role.OUTPUT


def _is_float_output(row: Matched) -> bool:
    return _is_output(row) and row.target.is_tensor and epsilon_of(row.target.dtype) > 0


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
