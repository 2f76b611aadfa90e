# SPDX-License-Identifier: Apache-2.0
"""`Carried`: which inputs of a model are made of results of the step before, as a carried state.

The program may have set some of their elements to zero since, so one extreme tells enough.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Final

from msprobe.compare.rank_comparison import RankComparison
from msprobe.dump.facts import Data
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Role, Value

_ROUNDED: Final = 2.0**-6  # to a coarse type, several times


class Carried:
    """Results of a rank in the step before."""

    def __init__(self) -> None:
        self._results: tuple[set[Hashable], set[Hashable]] = (set(), set())

    def add(self, comparison: RankComparison) -> None:
        """Take in a step in place of the one before."""
        self._results = set(), set()
        for row in comparison.rows:
            if row.value.role is not Role.OUTPUT:
                continue
            if comparison.parsed(row.pair).kind is RecordKind.FORWARD:
                for known, value in zip(self._results, (row.target, row.reference), strict=True):
                    known.update(_extremes(value))
        # A model may hand on what it is given, which comes again in the next step.
        for known, facts in zip(self._results, comparison.facts, strict=True):
            for data in () if facts is None else facts.data:
                known.difference_update(_extremes(data))

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
