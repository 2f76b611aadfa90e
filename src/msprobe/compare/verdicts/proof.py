# SPDX-License-Identifier: Apache-2.0
"""`Proof`: whether the differences of a step and rank are rounding, and else where they jump.

Rounding is proved if every difference is explained: by the rounding of the call that made it, or by
the differences of its inputs, along the data flow up to values that agree. Everything else is a
*jump*.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from msprobe.compare.causes import Cause
from msprobe.compare.distances import Distance
from msprobe.compare.model import Matched, OperationPair, Origin, Row, Status
from msprobe.compare.rounding import is_far_apart, resolution_of
from msprobe.compare.verdicts.calls import is_cast
from msprobe.compare.verdicts.conditioning import operand_of
from msprobe.compare.verdicts.places import Place
from msprobe.compare.verdicts.statistics_error import distance_of
from msprobe.dump.record_names import parse_record_name
from msprobe.dump.values import Role
from msprobe.numerics.number_types import epsilon_of
from msprobe.operators.operator import Family

if TYPE_CHECKING:
    from msprobe.compare.rank_comparison import RankComparison

_MOST_JUMPS: Final = 20
# Results of these may be small differences of large values; their errors are no larger than theirs.
_CANCELLING: Final = (Family.ADDITIVE, Family.AVERAGING, Family.NORMALISING)
_NEAR: Final = 4.0
# Inherited differences with these causes follow from something that was not recorded.
_UNTRACED: Final = (
    Cause.UNTRACED,
    Cause.UNRECORDED_CODE,
    Cause.OTHER_USERS,
    Cause.LEFT_BEHIND,
    Cause.REORDERED,
    Cause.DOUBTFUL_MASK,
    Cause.CUT_BEFORE,
    Cause.RANDOM_STATE,
)


class JumpKind(StrEnum):
    """Kind of a difference that its inputs do not explain."""

    CALL = "call"
    """The result of a call differs by more than its inputs explain."""
    ARGUMENT = "argument"
    """An argument that is no tensor differs, and the result of its call shows it."""
    PARAMETER = "parameter"
    """A parameter differs, and no earlier step explains it."""
    STEP = "step"
    """A parameter differs by more than its gradients in earlier steps make likely."""
    DATA = "data"
    """The data differ when they come in."""
    UNMATCHED = "unmatched"
    """Only one side makes a call, and values around it differ."""
    STRUCTURE = "structure"
    """A value is missing, or has another shape, type or NaN."""
    CHOICE = "choice"
    """The program may have chosen a number by values that differ."""
    UNTRACED = "untraced"
    """Where the value comes from was not recorded."""
    SIZE = "size"
    """The result of a call is much further apart than rounding gets."""
    ABSORBED = "absorbed"
    """The inputs of a call are equal and its result differs, though nothing made of it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A difference that its inputs do not explain.

    Attributes:
        kind: why it is not explained.
        row: name of the value.
        place: its call.
        order: place of the call in the order of execution.
        distance: relative error, None where it has no size.
        growth: error relative to the largest one of the call's inputs; infinite where these agree,
            None where it is not known.
    """

    kind: JumpKind
    row: str
    place: Place
    order: int
    distance: Distance | None
    growth: float | None


class Furthest(NamedTuple):
    """The result that is furthest apart.

    Attributes:
        distance: the L2 norm of the difference, relative to that of the result.
        epsilon: the resolution of the coarser of its types.
        row: name of the result.
        line: where it was made, in brackets; empty if unknown.
    """

    distance: Distance
    epsilon: float
    row: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Evidence on whether the differences of a step and rank are rounding.

    Attributes:
        jumps: differences that are not explained, in order of execution, at most 20.
        total: how many there are.
        worst: the jump that is furthest beyond its inputs; None if there is none.
        differing: how many values differ with consequence.
        has_two_precisions: whether calls of the sides ran in types of different precision.
        absorbed: the first difference without a reason that has no consequence; None if there is
            none.
        furthest: the result of the forward pass that is furthest apart, in its norm; None if none
            differs.
        excused: the first argument that differs, in words, of those of which an earlier step alone
            tells that nothing comes of them; empty if there is none.
    """

    jumps: tuple[Jump, ...]
    total: int
    worst: Jump | None
    differing: int
    has_two_precisions: bool
    absorbed: Jump | None = None
    furthest: Furthest | None = None
    excused: str = ""

    @property
    def is_rounding(self) -> bool:
        """Whether every difference is explained by rounding, perhaps of a coarser type."""
        return self.total == 0

    def without(self, records: Collection[str]) -> Proof:
        """Return it without the calls of some records, whose results are known to be right."""
        right = [
            jump
            for jump in self.jumps
            if jump.place.record in records and jump.kind in (JumpKind.CALL, JumpKind.SIZE)
        ]
        left = tuple(jump for jump in self.jumps if jump not in right)
        worst = max(left, key=_height, default=None) if self.worst in right else self.worst
        return replace(self, jumps=left, total=self.total - len(right), worst=worst)


def prove(comparison: RankComparison) -> Proof:
    """Return the evidence on a step and rank, after its origins were found."""
    rows = comparison.rows
    found = [row for row in rows if row.origin is not None]
    jumps = [_jump(comparison, row, kind) for row, kind in _jumps(comparison, found)]
    absorbed = next((row for row in rows if row.cause is Cause.ABSORBED), None)
    return Proof(
        jumps=tuple(jumps[:_MOST_JUMPS]),
        total=len(jumps),
        worst=max(jumps, key=_height, default=None),
        differing=sum(row.status.is_difference for row in found),
        has_two_precisions=any(isinstance(row, Matched) and row.precisions for row in rows),
        absorbed=None if absorbed is None else _jump(comparison, absorbed, JumpKind.ABSORBED),
        furthest=_furthest(comparison, found),
        excused=next(_excused(comparison), ""),
    )


def _excused(comparison: RankComparison) -> Iterator[str]:
    """Yield arguments that differ as they did in an earlier step, with what is made of them."""
    argument: Row | None = None
    for row in comparison.rows:
        if row.cause is not Cause.HARMLESS_BEFORE or not row.pair.is_matched:
            continue
        if row.is_argument:
            argument = row
        is_made = row.value.role is Role.OUTPUT and row.status is Status.DIFFERS
        if is_made and argument is not None and argument.pair is row.pair:
            place = Place.of(comparison, row.pair)
            yield (
                f"{argument.value.slot} of {place.words} is {argument.finding}, "
                f"without consequence in step {argument.subject}"
            )


def _furthest(comparison: RankComparison, found: Sequence[Row]) -> Furthest | None:
    end = comparison.end_of_forward if found else 0
    worst = None
    for row in found:
        is_result = row.value.role is Role.OUTPUT and row.pair.position < end
        epsilon = resolution_of(row.values)
        if is_result and epsilon and row.error and (worst is None or row.error > worst[0]):
            worst = row.error, epsilon, row
    if worst is None:
        return None
    error, epsilon, row = worst
    distance = distance_of(row) or Distance(error)
    return Furthest(distance, epsilon, row.name, Place.of(comparison, row.pair).line)


def _jumps(comparison: RankComparison, found: Sequence[Row]) -> Iterator[tuple[Row, JumpKind]]:
    # Gradients and updates may be zero up to rounding, and then differ by any relative size.
    end = comparison.end_of_forward if found else 0
    coarsest = 0.0
    types: set[tuple[str, ...]] = set()
    pair: OperationPair | None = None
    taken_in: list[Row] = []
    for row in comparison.rows if found else ():
        if row.pair is not pair:
            pair, taken_in = row.pair, []
        if row.value.role in (Role.INPUT, Role.PARAMETER):
            taken_in.append(row)
        if row.status is Status.EQUAL:
            continue
        # What was once rounded to a coarse type is not finer in a finer one.
        dtypes = tuple([value.dtype for value in row.values])
        if dtypes not in types:
            types.add(dtypes)
            coarsest = max(coarsest, *map(epsilon_of, dtypes))
        if row.origin is None:
            continue
        kind = _kind_of(comparison, row)
        is_early = row.pair.position < end
        is_result = row.value.role is Role.OUTPUT
        if kind is None and is_early and is_result and is_far_apart(row.error, coarsest):
            # Those that are as far apart were judged where they were made.
            is_fed = any(is_far_apart(each.error, coarsest) for each in taken_in)
            kind = None if is_fed or _is_cancelled(comparison, row, taken_in) else JumpKind.SIZE
        if kind is not None:
            yield row, kind


def _kind_of(comparison: RankComparison, row: Row) -> JumpKind | None:
    """Return why a row with an origin is not explained; None if it is."""
    if row.origin is Origin.INPUT:
        return JumpKind.DATA
    if row.origin is Origin.INTRODUCED:
        return _kind_of_culprit(row)
    if row.origin is Origin.AMPLIFIED:
        return JumpKind.CALL
    if row.cause is Cause.STEP_GROWTH:
        return JumpKind.STEP
    if row.cause is Cause.CHOSEN:
        return JumpKind.CHOICE
    if row.cause in _UNTRACED:
        return JumpKind.UNTRACED
    is_explained = row.cause in (Cause.HARMLESS_BEFORE, Cause.SUM_OF_CLOSE)
    if row.status is Status.DIFFERS or not row.holds_tensor or is_explained:
        return None
    if row.pair.is_matched:
        return JumpKind.STRUCTURE
    # A cast that hands on a difference adds none; what is made of it is judged by itself.
    name = row.pair.name
    is_idle = is_cast(parse_record_name(name)) or comparison.side_of(row.pair).scales_loss(name)
    return None if is_idle else JumpKind.UNMATCHED


def _kind_of_culprit(row: Row) -> JumpKind:
    if row.value.role is Role.PARAMETER:
        return JumpKind.PARAMETER
    if row.cause is Cause.ARGUMENT:
        return JumpKind.ARGUMENT
    return JumpKind.CALL if row.pair.is_matched else JumpKind.UNMATCHED


def _is_cancelled(comparison: RankComparison, row: Row, taken_in: Sequence[Row]) -> bool:
    """Return whether a result is the small difference of values whose errors explain its own."""
    side = comparison.side_of(row.pair)
    if side.operator(row.pair.name).family not in _CANCELLING:
        return False
    result = operand_of(row)
    given = [operand for each in taken_in if (operand := operand_of(each)) is not None]
    if result is None or not given:
        return False
    largest = max(operand.error / math.sqrt(operand.count) for operand in given)
    return result.error / math.sqrt(result.count) <= _NEAR * largest


def _jump(comparison: RankComparison, row: Row, kind: JumpKind) -> Jump:
    growth = comparison.growths.get(id(row))
    if growth is None and row.origin is Origin.INTRODUCED:
        growth = math.inf
    return Jump(
        kind=kind,
        row=row.name,
        place=Place.of(comparison, row.pair),
        order=row.pair.position,
        distance=distance_of(row),
        growth=growth,
    )


def _height(jump: Jump) -> tuple[float, float, int]:
    error = 0.0 if jump.distance is None else jump.distance.value
    return (jump.growth or 0.0, error, -jump.order)
