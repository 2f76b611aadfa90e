# SPDX-License-Identifier: Apache-2.0
"""Values that move as a whole by more than their coarse type rounds, though no element is far off.

A factor of 1.01 is as small as the rounding of bfloat16 where elements are held against each other.
But rounding to the nearest moves an element by half a resolution at most, and elements up and
down: the norm and the mean of many stay where they are.
"""

from __future__ import annotations

import math
from typing import Final

from msprobe.compare.model import Matched, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.rounding import HALF, resolution_of, shift_of
from msprobe.compare.training.gradients import shifted_gradient
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.places import Clue, Place, lone_words
from msprobe.dump.values import Role, Value

_FEWEST: Final = 64
# Before it values move by less than this part of what they may.
_STILL: Final = 0.5
# What moves by more units is judged by its size.
_FARTHEST: Final = 8.0


def shifted(comparison: RankComparison) -> Clue | None:
    """Return the first value that moves as a whole, or gradient; what makes it, if known.

    Values that move little by little from call to call are none. In later steps parameters that
    move as a whole are what an optimizer makes of rounding.
    """
    coarsest, largest = 0.0, 0.0
    lone: list[Row] = []
    end = comparison.end_of_forward
    for row in comparison.rows:
        if row.pair.position >= end:
            break
        if not row.holds_tensor:
            continue
        coarsest = max(coarsest, resolution_of(row.values))
        if not row.pair.is_matched and row.value.role is Role.OUTPUT:
            lone.append(row)
        if not isinstance(row, Matched) or row.status is Status.EQUAL or coarsest < HALF:
            continue
        if row.status.is_difference and row.origin is None:
            continue  # another value, without consequence
        shift = _shift(row.target, row.reference)
        if shift > _FARTHEST * coarsest:
            continue
        count = math.prod(row.value.shape or ())
        part = shift / (coarsest * shift_of(count)) if shift else 0.0
        if part > 1.0:
            return _clue(comparison, row, lone, shift) if largest <= _STILL else None
        largest = max(largest, part)
    is_still = largest <= _STILL and coarsest >= HALF
    return _gradient_clue(comparison, coarsest) if is_still else None


def _gradient_clue(comparison: RankComparison, resolution: float) -> Clue | None:
    """Return the first gradient that moves as a whole when an optimizer gets it."""
    facts = facts_of(comparison)
    backward = [pair for pair in comparison.pairs if comparison.is_of_backward(pair)]
    for step in facts.steps if facts is not None and backward else ():
        found = shifted_gradient(step, resolution)
        if found is not None:
            words = f"the gradient of {found[0]} moves as a whole by {found[1]:.2g} of its norm"
            return Clue(words, Place.of(comparison, backward[-1]))
    return None


def _clue(comparison: RankComparison, row: Matched, lone: list[Row], shift: float) -> Clue:
    made = [
        each
        for each in lone
        if each.value.norm in (row.target.norm, row.reference.norm)
        and each.value.shape == row.value.shape
    ]
    if made:
        return Clue(lone_words(comparison, made[-1].pair), Place.of(comparison, made[-1].pair))
    place = Place.of(comparison, row.pair)
    words = f"{row.name}{place.line} moves as a whole by {shift:.2g} of its norm"
    return Clue(words, place)


def _shift(target: Value, reference: Value) -> float:
    """Return how far norm or mean move, relative to the norm; 0 where that tells nothing."""
    count = math.prod(reference.shape or ())
    if count < _FEWEST or target.shape != reference.shape:
        return 0.0
    size, moved = abs(float(reference.norm or 0.0)), 0.0
    for one, other, scale in (
        (target.norm, reference.norm, 1.0),
        (target.mean, reference.mean, math.sqrt(count)),
    ):
        if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
            return 0.0
        moved = max(moved, abs(one - other) * scale)
    return moved / size if size else 0.0
