# SPDX-License-Identifier: Apache-2.0
"""The culprits of a comparison, best one first."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Origin, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.record_names import RecordKind
from msprobe.dump.stack_frames import called_at
from msprobe.dump.values import Role

# A culprit whose own difference is this much smaller than the largest one is not the best guess,
# even if it comes first: it may be an effect of another library or device.
_NEGLIGIBLE: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One operation that introduced a difference.

    Attributes:
        comparison: the step and rank.
        row: the row that shows it best.
        kind: ``parameter``, ``forward``, ``backward``, ``parameter_grad`` or ``saved``.
        place: where in the order of execution it takes effect.
        size: how large its difference is, relative; infinite where it has no size.
        module: the innermost module around it.
        stack: the frames of the user's code that led to it.
        source: where in the user's code it was called.
    """

    comparison: RankComparison
    row: Row
    kind: str
    place: int
    size: float
    module: str
    stack: list[str]
    source: str | None

    @property
    def called_at(self) -> str:
        """The line of the user's own code, and that of a library beside it."""
        return called_at(self.stack, self.source)


def rank_culprits(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Return culprits in another order, the best one first.

    Causes come before effects: earlier steps first, then order of execution (a parameter counts
    where its module is called), ranks in the order given. Negligible ones come last.
    """
    sizes = (culprit.size for culprit in culprits if math.isfinite(culprit.size))
    largest = max(sizes, default=0.0)
    return sorted(
        culprits,
        key=lambda culprit: (
            culprit.size < _NEGLIGIBLE * largest,
            culprit.comparison.step,
            culprit.place,
        ),
    )


def may_divide_data(culprit: Culprit) -> bool:
    """Return whether a culprit is a number that a call outside of modules is given.

    Batches are divided by a place or a number of parts, and so are losses.
    """
    row = culprit.row
    is_number = row.is_argument and row.value.type in ("int", "float", "slice")
    return is_number and not culprit.module and row.cause is Cause.ARGUMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class CulpritGroup:
    """Culprits that are one mistake: same line, kind, argument, and difference.

    Attributes:
        culprits: the best one first.
        kind: as in `Culprit`.
        call: the API or the class of the module, such as ``Tensor.mul_``.
        argument: place of the value in its call, such as ``input.1``.
        source: line of the user's code.
    """

    culprits: tuple[Culprit, ...]
    kind: str
    call: str
    argument: str
    source: str | None

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.culprits)


def culprit_groups(culprits: Sequence[Culprit]) -> list[CulpritGroup]:
    """Return culprits grouped by source line, kind, cause, call and argument."""
    found: dict[Hashable, list[Culprit]] = {}
    for culprit in culprits:
        found.setdefault(_group_key(culprit), []).append(culprit)
    return [_group(each) for each in found.values()]


def _group_key(culprit: Culprit) -> Hashable:
    row = culprit.row
    return (
        culprit.source,
        culprit.kind,
        row.cause,
        _call_name(culprit),
        row.value.slot,
        # Two different numbers in one line are two mistakes.
        row.finding if row.is_argument else "",
    )


def _call_name(culprit: Culprit) -> str:
    parsed = culprit.comparison.parsed(culprit.row.pair)
    return parsed.class_name or f"{parsed.prefix}.{parsed.path}"


def _group(culprits: Sequence[Culprit]) -> CulpritGroup:
    first = culprits[0]
    return CulpritGroup(
        culprits=tuple(culprits),
        kind=first.kind,
        call=_call_name(first),
        argument=first.row.value.slot,
        source=first.source,
    )


def culprits_of(comparison: RankComparison) -> list[Culprit]:
    """Return all operations of a step and rank with a row that was introduced."""
    by_operation: dict[int, list[Row]] = {}
    for row in comparison.rows:
        if row.origin is Origin.INTRODUCED:
            by_operation.setdefault(row.pair.position, []).append(row)
    if not by_operation:
        return []
    begins: dict[str, int] | None = None
    found = []
    for rows in by_operation.values():
        row = _telling_row(rows)
        kind = kind_of_row(comparison, row)
        position = row.pair.position
        # A parameter is in the record of its module, which ends after its inner calls.
        place = position
        if kind == "parameter":
            begins = _begins(comparison) if begins is None else begins
            place = begins.get(row.pair.name, position)
        size = max(_size(each) for each in rows)
        side, record = comparison.side_of(row.pair), row.pair.name
        found.append(
            Culprit(
                comparison=comparison,
                row=row,
                kind=kind,
                place=place,
                size=size,
                module=side.module(record),
                stack=side.frames(record),
                source=side.source_line(record),
            )
        )
    return found


def _telling_row(rows: Sequence[Row]) -> Row:
    """Return the row to name: a parameter or argument before the results that it spoiled."""
    for row in rows:
        if row.value.role is Role.PARAMETER:
            return row
    for row in rows:
        if row.value.role is Role.INPUT:
            return row
    return rows[0]


def _size(row: Row) -> float:
    # Of all kinds of difference only that of two finite values has a size.
    return math.inf if row.status is not Status.DIFFERS or row.error is None else row.error


def kind_of_row(comparison: RankComparison, row: Row) -> str:
    """Return the kind of a row: ``parameter``, ``forward``, ``backward``, ``parameter_grad``,
    ``saved``.
    """
    role = row.value.role
    if role in (Role.PARAMETER, Role.PARAMETER_GRAD, Role.SAVED):
        return str(role)
    is_backward = comparison.parsed(row.pair).kind is RecordKind.BACKWARD
    return "backward" if is_backward else "forward"


def _begins(comparison: RankComparison) -> dict[str, int]:
    """Return record → the place of the first call inside it."""
    first: dict[str, int] = {}
    for pair in comparison.pairs:
        for parent in comparison.side_of(pair).around(pair.name):
            if parent in first:
                break
            first[parent] = pair.position
    return first
