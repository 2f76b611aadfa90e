# SPDX-License-Identifier: Apache-2.0
"""Updates at another place among the calls of a step: before them on one side, after on the other.

Two optimizers that step one after the other, say, where each stepped behind its own loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msprobe.compare.model import Matched, OperationPair, Row
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.training.across_update import write_across_update
from msprobe.compare.training.differences import of_sides
from msprobe.compare.training.shared_names import facts_of
from msprobe.compare.verdicts.origin_state import lost_gradient
from msprobe.compare.verdicts.places import Clue, Place
from msprobe.compare.verdicts.verdict_classes import VerdictClass
from msprobe.dump.facts import OptimizerStep
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import is_in_place

_SAME_NORM: Final = 1e-6


def moved_update(comparison: RankComparison, first: OperationPair) -> Clue | None:
    """Return the update of a step that lies before a call on one side, and after it on the other.

    The call is given a parameter as it was before the update, and on the other side as after it. A
    copy of it is told as what it is.

    Args:
        comparison: of the step.
        first: the call that differs first.
    """
    if None in comparison.facts or not first.is_matched:
        return None
    base = comparison.parsed(first).base
    if any(not p.is_matched and comparison.parsed(p).base == base for p in comparison.pairs):
        return None  # a further call of one side may stand in for the one after the update
    given = [row for row in comparison.rows if row.pair is first and row.status.is_difference]
    steps = [[] if facts is None else facts.optimizer_steps() for facts in comparison.facts]
    others = {(each.number, each.call): each for each in steps[1]}
    for own in steps[0]:
        other = others.get((own.number, own.call))
        for row in given if other is not None else ():
            if not isinstance(row, Matched) or row.value.role is Role.OUTPUT or other is None:
                continue
            used = [
                _used(value, step) for value, step in zip(row.values, (own, other), strict=True)
            ]
            for late, early, before, after in of_sides(*used):
                if names := sorted(before[0] & after[1]):
                    place = Place.of(comparison, first)
                    kind = own.class_name.rpartition(".")[2]
                    if copy := _copy_of(comparison, row, names[0], is_target=late == "target"):
                        words = (
                            f"{row.value.slot} of {place.words} is {copy} in the {late}, "
                            f"{names[0]} in the {early}"
                        )
                        return Clue(words, place, VerdictClass.ARGUMENT)
                    words = (
                        f"{kind} updates {names[0]} after {place.words} in the {late}, before it "
                        f"in the {early}"
                    )
                    return Clue(words, place, VerdictClass.UPDATE)
    return None


def reads_across_update(comparison: RankComparison, inexact: Sequence[Row]) -> Clue | None:
    """Return the update that lies on one side before a call in place, and after it on the other.

    The first one that reads a parameter otherwise: that of an average of weights, say.
    """
    if comparison.has_modules_only:
        pair = facts_of(comparison)
        found = None if pair is None else write_across_update(pair)
        if found is None:
            return None
        return Clue(found.words, Place(comparison.step, "", "", found.source), found.verdict)
    for row in inexact:
        is_read = row.pair.is_matched and row.value.role is Role.INPUT and row.status.is_difference
        if is_read and is_in_place(comparison.parsed(row.pair).path):
            clue = moved_update(comparison, row.pair)
            is_update = clue is not None and clue.verdict is VerdictClass.UPDATE
            return clue._replace(verdict=VerdictClass.ORDER) if clue and is_update else None
    return None


def _copy_of(comparison: RankComparison, row: Row, name: str, *, is_target: bool) -> str:
    """Return the parameter that one side uses instead, with the same numbers; empty if it is none.

    A copy of the network that follows it, say: another module is called, or it needs no gradient.
    """
    pair, facts = row.pair, comparison.facts[not is_target]
    both = zip(comparison.sides, (pair.target, pair.reference), strict=True)
    is_other = len({side.module(record or "") for side, record in both}) > 1
    start = None if facts is None else facts.parameters
    if start is None or not (is_other or lost_gradient(row)):
        return ""
    value = row.values[not is_target]
    return next(
        (
            each
            for each, shape, norm in zip(start.name, start.shape, start.norm, strict=False)
            if each != name and norm and _is_like(value, shape, norm)
        ),
        "",
    )


def _used(value: Value, step: OptimizerStep) -> tuple[set[str], set[str]]:
    """Return the parameters that a value is before a step, and those that it is after it."""
    columns = step.parameters
    found: list[set[str]] = []
    for norms in (columns.before.norm, columns.after.norm):
        of_column = zip(columns.name, columns.shape, norms, strict=False)
        found.append(
            {name for name, shape, norm in of_column if norm and _is_like(value, shape, norm)}
        )
    return found[0] - found[1], found[1] - found[0]


def _is_like(value: Value, shape: Sequence[int], norm: float) -> bool:
    return value.norm is not None and (
        value.shape == tuple(shape) and math.isclose(float(value.norm), norm, rel_tol=_SAME_NORM)
    )
