# SPDX-License-Identifier: Apache-2.0
"""Values that move as a whole by more than their coarse type rounds, though no element is far off.

A factor of 1.01 is as small as the rounding of bfloat16 where elements are held against each other.
But rounding to the nearest moves an element by half a resolution at most, and elements up and
down: the norm and the mean of many stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msprobe.compare.distances import Distance
from msprobe.compare.model import Matched, OperationPair, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import (
    FINE,
    HALF,
    IN_OTHER_CALLS,
    IN_SUM,
    LARGEST_SHIFT,
    OF_ONE_NUMBER,
    resolution_of,
    shift_of,
)
from msprobe.compare.training.gradient_distances import shifted_gradient
from msprobe.compare.training.outline_differences import OutlineDifference
from msprobe.compare.training.outlines import (
    difference_before,
    difference_inside,
    difference_of_models,
)
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.training.start import equal_at_start
from msprobe.compare.verdicts.calls import is_cast
from msprobe.compare.verdicts.limits import is_limit
from msprobe.compare.verdicts.places import Clue, Place, Size, lone_words
from msprobe.compare.verdicts.proof import JumpKind
from msprobe.compare.verdicts.statistics_error import estimated_difference
from msprobe.compare.verdicts.unnoticed import rounds
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import forward_name, parse_record_name
from msprobe.dump.values import Role, Value
from msprobe.operators.operator import Family

_EQUAL: Final = Status.EQUAL
_FEWEST: Final = 64
_TOKENS: Final = 2  # leading dimensions of a value that tell samples, or parts of one, apart


def shifted(comparison: RankComparison) -> Clue | None:
    """Return the first value that moves as a whole, or gradient; what makes it, if known.

    In later steps parameters that move as a whole are what an optimizer makes of rounding.
    """
    end = comparison.end_of_forward
    rows = [r for r in comparison.rows if r.holds_tensor and r.pair.position < end]
    # What moves by more is another value, or is judged by its size.
    resolution = max((resolution_of(row.values) for row in rows), default=0.0)
    if resolution < HALF or not _starts_alike(comparison):
        return None
    coarsest = 0.0
    lone: list[Row] = []
    errors = _Errors()
    far: Clue | None = None
    for row in rows:
        coarsest = max(coarsest, resolution_of(row.values))
        is_module = comparison.parsed(row.pair).is_module
        if not row.pair.is_matched and row.value.role is Role.OUTPUT:
            lone.append(row)
        is_given = row.value.role is not Role.OUTPUT
        is_rounded = is_module and row.status is not _EQUAL
        is_retyped = isinstance(row, Matched) and row.precisions is not None
        if is_given or is_rounded or is_retyped or not row.pair.is_matched:
            errors.add_rounded(row, is_module=is_module)
        if not isinstance(row, Matched) or row.status is _EQUAL:
            continue
        if coarsest >= HALF:
            is_new = errors.is_new(comparison, row)
            own = errors.add(comparison, row, coarsest)
            shape, new = row.value.shape or (), own if is_new else None
            units = errors.allowed(shape, new, is_one_sided=row.precisions is not None)
            is_close = row.status is Status.CLOSE and comparison.has_modules_only
            if is_new and far is None and own > IN_SUM and is_close:
                far = _far_clue(comparison, row, Distance(own * coarsest))
        else:  # before autocast, or before the first cast
            units = IN_OTHER_CALLS
        if row.status.is_difference and row.origin is None and not is_module:
            continue  # of a module that agrees, another value perhaps
        shift = _shift(row.target, row.reference)
        if units * coarsest < shift <= LARGEST_SHIFT * resolution:
            return _clue(comparison, row, lone, shift)
    moved = _gradient_clue(comparison, resolution)
    return (
        moved
        if moved is not None and moved.verdict is not VerdictClass.UNEXPLAINED
        else far or moved
    )


def _starts_alike(comparison: RankComparison) -> bool:
    """Return whether all parameters agree to the bit when the step begins, as far as is known."""
    facts = facts_of(comparison)
    return facts is None or all(equal_at_start(facts).values())


class _Errors:
    """The errors of the values before one, and how far it may move as a whole after them.

    Elements of a value that is made of equal ones are rounded by themselves. Errors of what comes
    before go into many elements each, but not into those of other rows: samples, or their parts.
    """

    def __init__(self) -> None:
        self._squares = 0.0
        self._count = 0
        self._fewest = math.inf
        self._finer: dict[int, int] = {}  # place of a call -> elements of the smallest finer input
        self._given: set[int] = set()  # places of calls that are given what differs
        self._around: set[str] = set()  # records inside which something differs

    def add_rounded(self, row: Row, *, is_module: bool) -> None:
        """Take in what one side alone rounds: results of its calls, and what they are given.

        Within a module calls may differ that were not recorded.
        """
        resolution, count = resolution_of(row.values), max(math.prod(row.value.shape or ()), 1)
        place = row.pair.position
        if row.value.role is not Role.OUTPUT:
            if 0.0 < resolution <= FINE:
                self._finer[place] = min(count, self._finer.get(place, count))
        elif resolution >= HALF:
            made = math.inf if is_module else count
            self._fewest = min(self._fewest, made, self._finer.get(place, math.inf))

    def add(self, comparison: RankComparison, row: Matched, resolution: float) -> float:
        """Take in a value that is not equal; return its own error in units, 0 if not known."""
        if row.value.role is not Role.OUTPUT:
            self._given.add(row.pair.position)
        self._around.update(comparison.side_of(row.pair).around(row.pair.name))
        error, norm = estimated_difference(row.target, row.reference), row.reference.norm
        if not error or not norm:
            return 0.0
        own = error / abs(float(norm)) / resolution
        self._squares += own**2
        self._count += 1
        return own

    def is_new(self, comparison: RankComparison, row: Row) -> bool:
        """Return whether a value is the first that differs, or made of equal ones."""
        if not self._around and not self._given:
            return True
        is_result = row.value.role is Role.OUTPUT
        return (
            is_result and row.pair.position not in self._given and row.pair.name not in self._around
        )

    def allowed(self, shape: Sequence[int], own: float | None, *, is_one_sided: bool) -> float:
        """Return by how many units a value of a shape may move as a whole.

        Args:
            shape: its shape.
            own: its own error, where it is new.
            is_one_sided: one side alone computes it in a coarse type. Then it alone rounds weights:
                of each of them all rows have the same error, which later calls add up.
        """
        count = math.prod(shape)
        if own is not None:
            return shift_of(count, own, self._fewest)
        rows = math.prod(shape[:-1][:_TOKENS]) if len(shape) > 1 else count
        typical = math.sqrt(self._squares / self._count) if self._count else 0.0
        most = shift_of(max(rows, 1), typical, self._fewest)
        return most + OF_ONE_NUMBER if is_one_sided else most


def _gradient_clue(comparison: RankComparison, resolution: float) -> Clue | None:
    """Return the first gradient that moves as a whole when an optimizer gets it."""
    facts = facts_of(comparison)
    backward = [pair for pair in comparison.pairs if comparison.is_of_backward(pair)]
    for step in facts.steps if facts is not None and backward else ():
        found = shifted_gradient(step, resolution)
        if found is not None:
            words = f"the gradient of {found[0]} moves as a whole by {found[1]:.2g} of its norm"
            size = Size.LARGE if found[1] > LARGEST_SHIFT * resolution else Size.SMALL
            lone = _lone_call(comparison)
            if lone is not None:
                words = f"{lone_words(comparison, lone)}; {words}"
                return Clue(words, Place.of(comparison, lone), size=size)
            call = difference_of_models(*comparison.facts)
            return _with_call(words, Place.of(comparison, backward[-1]), call, size)
    return None


def _lone_call(comparison: RankComparison) -> OperationPair | None:
    """Return the first call of one side alone through which gradients flow without explanation."""
    jumps = comparison.proof.jumps if comparison.proof is not None else ()
    records = {each.place.record for each in jumps if each.kind is JumpKind.UNMATCHED}
    forward = {forward_name(parse_record_name(each)) or each for each in records}
    return next((p for p in comparison.pairs if p.name in forward and not p.is_matched), None)


def _clue(comparison: RankComparison, row: Matched, lone: list[Row], shift: float) -> Clue:
    made = [
        each
        for each in lone
        if each.value.norm in (row.target.norm, row.reference.norm)
        and each.value.shape == row.value.shape
    ] or [each for each in lone if _computes(comparison, each) or rounds(comparison, each)][:1]
    place = Place.of(comparison, row.pair)
    words = f"{row.name}{place.line} moves as a whole by {shift:.2g} of its norm"
    if made:
        call, found = lone_words(comparison, made[-1].pair), VerdictClass.CALL
        if rounds(comparison, made[-1]):
            call, found = f"{call}, a cast to {made[-1].value.dtype}", VerdictClass.PRECISION
        return Clue(f"{call}; {words}", Place.of(comparison, made[-1].pair), found, Size.SMALL)
    return _with_call(words, place, _made_by(comparison, row), Size.SMALL)


def _with_call(words: str, place: Place, call: OutlineDifference | None, size: Size) -> Clue:
    """Return a clue with the call without a record that may explain it."""
    if call is None:
        return Clue(words, place, VerdictClass.UNEXPLAINED, size)
    is_cast = call.verdict is VerdictClass.PRECISION
    words = f"{words}; {call.words}"
    return Clue(words, place, call.verdict, Size.WITHIN if is_cast else size)


def _computes(comparison: RankComparison, row: Row) -> bool:
    """Return whether a call makes other numbers, not the same ones in another form or type."""
    side, name = comparison.side_of(row.pair), row.pair.name
    return not is_cast(side.parsed(name)) and side.operator(name).family is not Family.MOVING


def _far_clue(comparison: RankComparison, row: Matched, distance: Distance) -> Clue:
    """Return that a value is further apart than the roundings of a few calls, of equal values."""
    place = Place.of(comparison, row.pair)
    words = f"{row.name}{place.line} differs by {distance} of its norm, of values that agree"
    call = _made_by(comparison, row)
    if call is not None:
        words = f"{words}; {call.words}"
    return Clue(words, place, VerdictClass.UNEXPLAINED, Size.LARGE)


def _made_by(comparison: RankComparison, row: Matched) -> OutlineDifference | None:
    """Return the call without a record that makes a value otherwise."""
    makes = difference_inside if row.value.role is Role.OUTPUT else difference_before
    return makes(comparison.sides, (row.pair.target, row.pair.reference))


def _shift(target: Value, reference: Value) -> float:
    """Return how far norm or mean move, relative to the norm; 0 where that tells nothing."""
    count = math.prod(reference.shape or ())
    if count < _FEWEST or target.shape != reference.shape:
        return 0.0
    if any(map(is_limit, (*target.finite_ends, *reference.finite_ends))):
        return 0.0  # those of two types are one mark in masks
    size, moved = abs(float(reference.norm or 0.0)), 0.0
    for one, other, scale in (
        (target.norm, reference.norm, 1.0),
        (target.mean, reference.mean, math.sqrt(count)),
    ):
        if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
            return 0.0
        moved = max(moved, abs(one - other) * scale)
    return moved / size if size else 0.0
