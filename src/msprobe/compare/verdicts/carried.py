# SPDX-License-Identifier: Apache-2.0
"""`Carried`: which inputs of a model are made of results of the step before, as a carried state.

The program may have set some of their elements to zero since, so one extreme tells enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Set
from typing import Final

from msprobe.compare.model import OperationPair
from msprobe.compare.rank_comparison import RankComparison
from msprobe.compare.sides import Side
from msprobe.compare.verdicts.program_flow import ProgramFlow
from msprobe.dump.facts import Data
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value

LOADER_FILE: Final = re.compile(r"torch[/\\]utils[/\\]data[/\\]")
"""In the frames of what a data loader calls."""
_ROUNDED: Final = 2.0**-6  # to a coarse type, several times


class Carried:
    """Results of a rank in the step before."""

    def __init__(self) -> None:
        self._results: tuple[set[Hashable], set[Hashable]] = (set(), set())

    def add(self, comparison: RankComparison) -> None:
        """Take in a step in place of the one before."""
        self._results = set(), set()
        facts = [each for each in comparison.facts if each is not None]
        shapes = {tuple(data.shape) for each in facts for data in each.data}
        for row in comparison.rows:
            if row.value.role is not Role.OUTPUT:
                continue
            if tuple(row.value.shape or ()) in shapes and _is_loaded(comparison, row.pair):
                continue
            if comparison.parsed(row.pair).kind is RecordKind.FORWARD:
                for known, value in zip(self._results, (row.target, row.reference), strict=True):
                    known.update(_extremes(value))
        # A model may hand on what it is given, which comes again in the next step.
        for known, side in zip(self._results, comparison.sides, strict=True):
            known.difference_update(*map(_extremes, _entering(side, known)))

    def of(self, both: tuple[Data, Data]) -> tuple[bool, bool]:
        """Return for the inputs of both sides whether they are made of such results.

        What is near one that is, is one that was rounded.
        """
        target, reference = (
            not known.isdisjoint(_extremes(data))
            for known, data in zip(self._results, both, strict=True)
        )
        is_any = target or reference
        return (is_any, is_any) if _are_near(*both) else (target, reference)


def _is_loaded(comparison: RankComparison, pair: OperationPair) -> bool:
    """Return whether a data loader makes a call: for a batch of the next step, perhaps."""
    side = comparison.side_of(pair)
    return side.parent(pair.name) is None and any(
        LOADER_FILE.search(frame) for frame in side.view.frames(pair.name)
    )


def _entering(side: Side, results: Set[Hashable]) -> Iterator[Data]:
    """Yield what models are given, but for what a call before has made of their results.

    Only of what comes after the first call of a model, and may be such a result, that is asked.
    """
    flow: ProgramFlow | None = None
    for data in () if side.view.facts is None else side.view.facts.data:
        if data.micro and not results.isdisjoint(_extremes(data)):
            flow = flow or ProgramFlow(side)
            if any(map(flow.is_result, flow.makers_of(data))):
                continue
        yield data


def _are_near(target: Data, reference: Data) -> bool:
    pairs = (target.max, reference.max), (target.min, reference.min)
    return target.shape == reference.shape and all(
        a is not None and b is not None and math.isclose(a, b, rel_tol=_ROUNDED) for a, b in pairs
    )


def _extremes(value: Value | Data | None) -> Iterator[Hashable]:
    """Yield the shape with an extreme that is no whole number, which others share by chance."""
    if value is None:
        return
    for extreme in (value.max, value.min):
        if isinstance(extreme, float) and not extreme.is_integer():
            yield tuple(value.shape or ()), extreme
