# SPDX-License-Identifier: Apache-2.0
"""Calls of the program that write parameters: not its optimizer's."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.training.gradient_distances import SAME_GRADIENT
from msprobe.dump.facts import Facts
from msprobe.operators.lookup import is_in_place


def writes_updated(
    comparison: RankComparison, pair: OperationPair, end: float | None = None
) -> bool:
    """Return whether a call changes a parameter in place after an optimizer's step.

    It is known by what it is given: the parameter as the start of the step, or its update, left it.
    Of what is overwritten only the shape is read.

    Args:
        comparison: the step and rank.
        pair: the call.
        end: of the backward pass, which takes a walk over all records to find; None if not known.
    """
    if pair.position <= (comparison.end_of_backward if end is None else end):
        return False
    names = pair.target, pair.reference
    return any(
        name is not None and facts is not None and _writes(side, name, facts)
        for side, name, facts in zip(comparison.sides, names, comparison.facts, strict=True)
    )


def belongs_to_update(comparison: RankComparison, pair: OperationPair) -> bool:
    """Return whether a call, or another one at its line, changes a parameter after its update.

    A copy of parameters, as averages are, is known by those that are the same as the parameter;
    others of its line have been changed before, or hold zeros.
    """
    end, side = comparison.end_of_backward, comparison.side_of(pair)
    if pair.position <= end or not is_in_place(comparison.parsed(pair).path):
        return False
    line = side.source_line(pair.name)
    alike = (
        other
        for other in comparison.pairs
        if other.position > end
        and comparison.side_of(other) is side
        and is_in_place(comparison.parsed(other).path)
        and side.source_line(other.name) == line
    )
    return any(writes_updated(comparison, other, end) for other in (pair, *(alike if line else ())))


def _writes(side: Side, name: str, facts: Facts) -> bool:
    """Return whether a call of one side writes one of its parameters in place."""
    parsed = side.parsed(name)
    if not facts.optimizer_steps() or parsed.is_module or not is_in_place(parsed.path):
        return False
    changed = next((each for each in side.values(name) if each.slot == "input.0"), None)
    return changed is not None and any(
        shape == changed.shape
        and (changed.norm is None or math.isclose(float(changed.norm), norm, rel_tol=SAME_GRADIENT))
        for shape, norm in _parameters(facts)
    )


def _parameters(facts: Facts) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield shapes and norms of parameters: when the step starts, and after their update."""
    columns = [(step.parameters.shape, step.parameters.after) for step in facts.optimizer_steps()]
    start = facts.parameters
    if start is not None:
        kinds = zip(start.shape, start.norm, start.kind, strict=False)
        yield from (
            (tuple(shape), norm) for shape, norm, kind in kinds if norm and kind == "parameter"
        )
    for shapes, values in columns:
        for shape, norm in zip(shapes, values.norm, strict=False):
            if norm:
                yield tuple(shape), norm
