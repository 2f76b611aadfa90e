# SPDX-License-Identifier: Apache-2.0
"""Gradients that one side clears between micro batches or steps, where the other adds them up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from msprobe.compare.causes import Cause
from msprobe.compare.model import Matched, Missing, Row, Status
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.differences import of_sides
from msprobe.compare.training.fingerprints import Fingerprint
from msprobe.compare.training.gradients import NOT_CLEARED, gradients_of, is_cleared, is_sum
from msprobe.compare.training.loop_order import loop_change
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.history import Parameter, parameter_of
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value

_SAME_MEAN: Final = 1e-4
_MOST: Final = 0.9
_ALIKE: Final = (Status.EQUAL, Status.CLOSE)

_CLEAR: Final = "clear gradients once a step: after the optimizer, before backward"

_TARGET_CLEARS: Final = (
    "the target's gradients are cleared between micro batches: after micro batch {} they are those "
    "of this one alone (step {}, {} gradients)",
    _CLEAR,
)
_REFERENCE_CLEARS: Final = (
    "the target's gradients are not cleared between backward passes, as the reference's are: after "
    "micro batch {} these are those of this one alone (step {}, {} gradients)",
    "clear gradients where the reference does: before each backward pass",
)
_CLEAR_ALIKE: Final = "clear the gradients of the same parameters at the same place in both runs"


def cleared_gradients(comparison: RankComparison) -> tuple[str, str] | None:
    """Return that one side clears its gradients between micro batches, and what to do about it.

    In words; None if neither does. What a micro batch adds is known from the side that sums up:
    means are linear.
    """
    changed = {
        _network(parameter_of(comparison, row))
        for row in comparison.rows
        if row.cause is Cause.ACCUMULATED
    }
    if not changed:
        return None
    gradients = {
        key: sums for key, sums in _gradients(comparison).items() if _network(key) in changed
    }
    for place, (words, advice) in enumerate((_TARGET_CLEARS, _REFERENCE_CLEARS)):
        # A gradient whose mean is zero tells nothing.
        told = [each for sums in gradients.values() if (each := _told(sums, place)) is not None]
        cleared = [number for number in told if number]
        if cleared and len(cleared) >= _MOST * len(told):
            count = str(len(cleared))
            if len(cleared) < len(gradients):
                count = f"at least {count}"
            return words.format(min(cleared), comparison.step, count), advice
    return None


def cleared_elsewhere(comparison: RankComparison) -> tuple[str, str] | None:
    """Return that one side clears gradients at another place of its loop, likewise."""
    facts = facts_of(comparison)
    change = None if facts is None else loop_change(facts)
    is_cleared = change is not None and change.verdict is VerdictClass.GRADIENT
    return (change.words, _CLEAR_ALIKE) if change is not None and is_cleared else None


def left_over(
    comparison: RankComparison, last: Mapping[str, tuple[Fingerprint, Fingerprint]]
) -> tuple[str, str] | None:
    """Return that one side's gradients hold those of the step before, as `cleared_gradients` does.

    What backward leaves is a sum, whatever becomes of it before the optimizer gets it.

    Args:
        comparison: a step and rank.
        last: parameter → what optimizers got of its gradient in the step before.
    """
    rows = [
        (name, row)
        for row in comparison.rows
        if isinstance(row, Matched)
        and comparison.parsed(row.pair).kind is RecordKind.PARAMETERS_GRAD
        and (name := name_of_gradient(comparison, row)) in last
    ]
    agreeing = sum(
        row.status in _ALIKE
        and bool(row.target.norm)
        and is_cleared(_of(row.target), _of(row.reference), last[name])
        for name, row in rows
    )
    changed = [(name, row) for name, row in rows if row.cause is Cause.ACCUMULATED]
    for side, _, own, other in of_sides(0, 1):
        parts = [
            (name, _of(row.values[own]), [_of(row.values[other]), last[name][own]])
            for name, row in changed
        ]
        added = [n for n, whole, two in parts if is_sum(whole, two) and not is_sum(whole, two[:1])]
        if added and len(added) >= _MOST * len(changed):
            names = [*dict.fromkeys(added)]
            words = NOT_CLEARED.format(gradients_of(side, names, agreeing))
            return f"{words} (step {comparison.step})", _CLEAR
    return None


def gradients_behind(
    comparison: RankComparison,
) -> dict[str, tuple[Fingerprint, Fingerprint]]:
    """Return parameter → its gradient after a backward pass of one side alone, for both sides.

    Another model's loss may leave it, behind the step of its own optimizer.
    """
    found = {}
    for row in comparison.rows:
        is_gradient = row.value.role is Role.PARAMETER_GRAD and row.value.is_tensor
        if row.pair.is_matched or not is_gradient:
            continue
        made, nothing = _of(row.value), Fingerprint(row.value.dtype)
        both = (nothing, made) if isinstance(row, Missing) else (made, nothing)
        found[name_of_gradient(comparison, row)] = both
    return found


def _of(value: Value) -> Fingerprint:
    pair = value.pair
    projections = None if pair is None else (pair.real, pair.imag)
    return Fingerprint(value.dtype, norm=value.norm, projections=projections)


def name_of_gradient(comparison: RankComparison, row: Row) -> str:
    """Return the name that facts have for the parameter of a gradient."""
    return f"{comparison.parsed(row.pair).path}.{row.value.slot}".lstrip(".")


def _network(parameter: Parameter) -> str:
    """Return the outermost part of a model that a parameter belongs to."""
    return ".".join(parameter[0].split(".")[:2])


def _gradients(comparison: RankComparison) -> dict[Parameter, dict[int, tuple[Value, Value]]]:
    """Return parameter → micro batch → its gradient so far, on both sides."""
    found: defaultdict[Parameter, dict[int, tuple[Value, Value]]] = defaultdict(dict)
    for row in comparison.rows:
        parsed = comparison.parsed(row.pair)
        if isinstance(row, Matched) and parsed.kind is RecordKind.PARAMETERS_GRAD:
            found[parameter_of(comparison, row)][parsed.index or 0] = row.target, row.reference
    return {key: sums for key, sums in found.items() if len(sums) > 1}


def _told(sums: Mapping[int, tuple[Value, Value]], place: int) -> int | None:
    """Return the first micro batch whose share is all that one side has; 0 if there is none.

    None where the means do not tell.
    """
    found: int | None = None
    for number in sorted(sums):
        if number - 1 not in sums:
            continue
        own, other = sums[number][place], sums[number][1 - place]
        before = sums[number - 1][1 - place]
        if own.mean is None or other.mean is None or before.mean is None or not before.norm:
            continue
        earlier = float(before.mean)
        near = _SAME_MEAN * float(before.norm) / math.sqrt(max(math.prod(before.shape or ()), 1))
        if abs(earlier) <= near:
            continue
        if abs(float(own.mean) - (float(other.mean) - earlier)) <= near:
            return number
        found = 0
    return found
