# SPDX-License-Identifier: Apache-2.0
"""What a data mapping makes of operations: rows of one may lead to several others.

The partner to which most of an operation's rows lead is its partner altogether, and rows that are
not listed follow. The other rows make pairs of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msprobe.compare.matching.data_mapping import MappedOperation
from msprobe.compare.sides import Side


class MappedRows:
    """The pairs that a data mapping makes, by place of the records.

    Attributes:
        partners: target → reference.
        slots: target → slots of its own pair.
        shares: target → further pairs that take some of its rows.
    """

    def __init__(self, operations: Iterable[MappedOperation]) -> None:
        self.partners: dict[int, int] = {}
        self.slots: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
        self.shares: defaultdict[int, list[MappedOperation]] = defaultdict(list)
        self._given_away: defaultdict[int, set[str]] = defaultdict(set)
        taken: set[int] = set()
        for operation in sorted(operations, key=lambda found: -len(found.slots)):
            target, reference = operation.target, operation.reference
            if reference is None:
                self.slots[target] |= operation.slots
            elif target in self.partners or reference in taken:
                self.shares[target].append(operation)
                self._given_away[reference] |= {slot for slot in operation.slots.values() if slot}
            else:
                self.partners[target] = reference
                self.slots[target] |= operation.slots
                taken.add(reference)

    def target_slots(self, side: Side, place: int) -> frozenset[str] | None:
        """Return the slots that stay in a target's own pair; None for all."""
        if place not in self.shares:
            return None
        moved = {slot for share in self.shares[place] for slot in share.slots}
        return frozenset(value.slot for value in side.values(side.names[place])) - moved

    def reference_slots(self, side: Side, place: int) -> frozenset[str] | None:
        """Return the slots of a reference that no share has taken; None for all."""
        if place not in self._given_away:
            return None
        found = frozenset(value.slot for value in side.values(side.names[place]))
        return found - self._given_away[place]
