# SPDX-License-Identifier: Apache-2.0
"""Dumps of two recorders, such as msprobe and mindstudio-probe, which record different operations.

It says nothing about the two runs, so it is left out of the comparison, and one note says so.
mindstudio-probe 26.2.0 leaves out functions that reshape or create tensors, the model itself, many
backward records, and gradients of keyword arguments. As gradients of an API's inputs it records
those of the last node that the call put into the graph. It adds norms up in float32. A parameter
that modules share has its gradient recorded with each of them, and the calls inside PyTorch's
optimizers and clipping are recorded one by one, of which msprobe makes facts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from msprobe.compare.model import Added, Matched, OperationPair, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.dump import layout
from msprobe.dump.record_names import PARAMETER_GRADIENTS, RecordKind, RecordName, forward_name
from msprobe.dump.stack_frames import parse_frame
from msprobe.dump.values import Role
from msprobe.operators.lookup import operator_of

_SHOWN_NAMES: Final = 5
_FLOAT32_STEP: Final = 2.0**-23
_UPDATE_FILE: Final = re.compile(r"[/\\]torch[/\\](?:optim|nn[/\\]utils[/\\]clip_grad)")


def have_two_recorders(target: Side, reference: Side) -> bool:
    """Return whether msprobe recorded only one of two dumps of the same framework."""
    return target.framework == reference.framework and _is_own(target) is not _is_own(reference)


def _is_own(side: Side) -> bool:
    """Return whether msprobe recorded a dump: it leaves an account, or a journal when killed."""
    view = side.view
    is_journal = view.records_path.name == layout.JOURNAL
    return is_journal or (view.directory / layout.ACCOUNT_JSON).is_file()


@dataclass(slots=True)
class LeftOut:
    """Counts of operations and gradients left out of comparisons.

    Attributes:
        operations: how many, by function or module.
        gradients: values of operations that stayed.
    """

    operations: Counter[str] = field(default_factory=Counter)
    gradients: int = 0

    def notes(self) -> list[str]:
        """Return one note on it, or none if nothing was left out."""
        if not self.operations and not self.gradients:
            return []
        shown = [name for name, _ in self.operations.most_common(_SHOWN_NAMES)]
        shown += ["…"] if len(self.operations) > len(shown) else []
        which = f" ({', '.join(shown)})" if shown else ""
        return [
            "target and reference were recorded by different programs; left out is what only one "
            "of them records, or records in another way: "
            f"{self.operations.total()} operations{which} and {self.gradients} gradients"
        ]


def leave_out_unrecorded(comparison: RankComparison, left_out: LeftOut) -> None:
    """Take out of a comparison the operations that only one of its two recorders records.

    Args:
        comparison: its rows have a status and no origin yet.
        left_out: counts the operations and gradients taken out.
    """
    for row in comparison.rows:
        if isinstance(row, Matched) and row.status is Status.DIFFERS and _is_norm_rounded(row):
            row.status, row.finding = Status.CLOSE, ""
    recorded = _Recorded(comparison)
    unrecorded = set()
    for pair in comparison.pairs:
        if not pair.is_matched and recorded.is_left_out(pair):
            unrecorded.add(id(pair))
            left_out.operations[comparison.side_of(pair).parsed(pair.name).base] += 1
    comparison.pairs = [pair for pair in comparison.pairs if id(pair) not in unrecorded]
    rows = [row for row in comparison.rows if id(row.pair) not in unrecorded]
    remarked = {id(row.pair) for row in rows if any(value.remark for value in row.values)}
    # One that agrees where it arrives has at most another shape in one of the recorders.
    arriving = {
        _numbers(row) for row in rows if row.value.role is Role.INPUT and row.status.is_difference
    }
    comparison.rows = [
        row
        for row in rows
        if id(row) not in recorded.shared
        and (
            not _is_unjudged(comparison, row, id(row.pair) in remarked)
            or (isinstance(row, Matched) and _numbers(row) in arriving)
        )
    ]
    left_out.gradients += len(rows) - len(comparison.rows)


class _Recorded:
    """The kinds of operations that each side records.

    Attributes:
        shared: ids of rows of parameters whose gradient msprobe recorded with another module.
    """

    def __init__(self, comparison: RankComparison) -> None:
        self._comparison = comparison
        sides = comparison.target, comparison.reference
        parsed = [[side.parsed(name) for name in side.names] for side in sides]
        self._are_own = [_is_own(side) for side in sides]
        self._families = [{_family(name) for name in names} for names in parsed]
        self._called = {
            name.base for names in parsed for name in names if name.kind is RecordKind.FORWARD
        }
        matched = [pair for pair in comparison.pairs if pair.is_matched]
        self._matched = {pair.target: pair for pair in matched}, {p.reference: p for p in matched}
        gradients = [row for row in comparison.rows if row.value.role is Role.PARAMETER_GRAD]
        paired = {
            fingerprint(value)
            for row in gradients
            if isinstance(row, Matched)
            for value in row.values
        } - {None}
        self.shared = {
            id(row)
            for row in gradients
            if not isinstance(row, Matched)
            and self._are_own[isinstance(row, Added)]
            and fingerprint(row.value) in paired
        }
        self._unshared = {id(row.pair) for row in gradients if id(row) not in self.shared}
        # Forward calls whose result requires a gradient on one side only.
        self._cut = {
            id(row.pair)
            for row in comparison.rows
            if row.value.role is Role.OUTPUT
            and {value.requires_grad for value in row.values} == {True, False}
        }

    def is_left_out(self, pair: OperationPair) -> bool:
        """Return whether the side that lacks an operation does not record operations like it."""
        is_missing = pair.target is None
        side = self._comparison.side_of(pair)
        name = side.parsed(pair.name)
        if name.is_module and not name.path:
            return True  # the model itself
        if name.kind in PARAMETER_GRADIENTS:
            # A parameter that another module uses, or shares.
            return name.base not in self._called or id(pair) not in self._unshared
        if not name.is_module and _family(name) not in self._families[not is_missing]:
            return True
        if self._are_own[not is_missing] and _is_of_update(side.view.frames(pair.name)):
            return True
        forward = self._matched[is_missing].get(forward_name(name) or "")
        return forward is not None and id(forward) not in self._cut


def _is_of_update(frames: Iterable[str]) -> bool:
    """Return whether PyTorch's code for optimizers or clipping made a call, given its stack."""
    for frame in map(parse_frame, frames):
        if frame is None or not frame.is_of_framework:
            return False
        if _UPDATE_FILE.search(frame.file):
            return True
    return False


def _family(name: RecordName) -> str:
    return name.base if name.is_module else operator_of(name.prefix, name.path).name


def _is_unjudged(comparison: RankComparison, row: Row, is_remarked: bool) -> bool:
    """Return whether a row differs only because one recorder takes it for another gradient."""
    if not row.pair.is_matched or not row.status.is_difference:
        return False
    name = comparison.side_of(row.pair).parsed(row.pair.name)
    if name.kind is not RecordKind.BACKWARD:
        return False
    # A module's gradients are the same in both, unless the record says that they are not.
    is_comparable = name.is_module and not is_remarked
    return not isinstance(row, Matched) or (row.value.role is Role.OUTPUT and not is_comparable)


def _numbers(row: Row) -> tuple[tuple[float | None, ...], ...]:
    """Return the statistics of both sides.

    Where those of a gradient come into another call, on both sides, it is the one that flows.
    """
    return tuple((value.max, value.min, value.mean, value.norm) for value in row.values)


def _is_norm_rounded(row: Matched) -> bool:
    """Return whether the norms of a tensor differ by what a sum in float32 may lose, and no more.

    Of n elements that is taken for a step of float32 times the root of n: 1.3e-5 was found where
    262,144 equal gradients were added up, 6.1e-5 is allowed there.
    """
    target, reference = row.values
    numbers = target.max, target.min, target.mean, target.norm
    if row.metrics is not None or None in numbers or numbers[:2] != (reference.max, reference.min):
        return False
    changes = [
        abs(abs(one) - abs(other)) if one is not None and other is not None else math.inf
        for one, other in ((target.mean, reference.mean), (target.norm, reference.norm))
    ]
    root = math.sqrt(math.prod(reference.shape or ()))
    allowed = root * _FLOAT32_STEP * abs(reference.norm or 0.0)
    return changes[0] * root <= allowed and changes[1] <= allowed
