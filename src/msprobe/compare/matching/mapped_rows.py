# SPDX-License-Identifier: Apache-2.0
"""Pairs of operations by a data mapping: rows of one may lead to several others.

A line of the mapping is about one row. An operation whose rows are all listed goes to the partner
to which most of them lead. Of other operations the listed rows make pairs of their own, and the
rest keeps the partner that it has without the mapping. It follows the listed rows only where
neither operation has another partner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msprobe.compare.matching.data_mapping import MappedOperation
from msprobe.compare.matching.matcher import Matcher
from msprobe.compare.sides import Side


class MappedRows:
    """The pairs that a data mapping makes, by place of the records.

    Attributes:
        slots: target → slots of its own pair.
        shares: target → further pairs that take some of its rows.
    """

    def __init__(self, operations: Iterable[MappedOperation]) -> None:
        """Take the rows of a mapping, by operation."""
        self.slots: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
        self.shares: defaultdict[int, list[MappedOperation]] = defaultdict(list)
        self._given_away: defaultdict[int, set[str]] = defaultdict(set)
        self._operations = sorted(operations, key=lambda found: -len(found.slots))

    def lead(self, matcher: Matcher, target: Side) -> None:
        """Pair the operations whose rows are all listed."""
        listed: defaultdict[int, set[str]] = defaultdict(set)
        for operation in self._operations:
            listed[operation.target] |= operation.slots.keys()
        for operation in self._operations:
            place = operation.target
            if operation.reference is not None and _slots(target, place) <= listed[place]:
                matcher.pair_mapped(place, operation.reference)

    def follow(self, matcher: Matcher) -> None:
        """Give the listed rows to the pairs of their operations, or to pairs of their own."""
        for operation in self._operations:
            target, reference = operation.target, operation.reference
            if reference is None or matcher.pair_mapped(target, reference):
                self.slots[target] |= operation.slots
            else:
                self.shares[target].append(operation)
                self._given_away[reference] |= {slot for slot in operation.slots.values() if slot}

    def target_slots(self, side: Side, place: int) -> frozenset[str] | None:
        """Return the slots that stay in a target's own pair; None for all."""
        if place not in self.shares:
            return None
        return _slots(side, place) - {slot for share in self.shares[place] for slot in share.slots}

    def reference_slots(self, side: Side, place: int) -> frozenset[str] | None:
        """Return the slots of a reference that no share has taken; None for all."""
        if place not in self._given_away:
            return None
        return _slots(side, place) - self._given_away[place]


def _slots(side: Side, place: int) -> frozenset[str]:
    return frozenset(value.slot for value in side.values(side.names[place]))
