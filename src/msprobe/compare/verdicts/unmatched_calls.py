# SPDX-License-Identifier: Apache-2.0
"""Calls that only one side made: which of them matter.

A call too many or too few is a culprit if a differing value was made by it (or by what follows
from it) while everything that it took in itself agrees. Extra casts, views and copies that change
nothing stay harmless, as do all calls inside a module that was compiled on one side.
"""

from __future__ import annotations

from typing import Final

from msprobe.compare.model import Origin, Role, Row
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.operation_families import Family, family_of
from msprobe.compare.verdicts.trail import Trail, mark

# A chain of unmatched calls longer than this is another program, not a slip.
_LONGEST_CHAIN: Final = 200


class UnmatchedCalls:
    """Finds the culprits among calls without a partner."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail
        self._roots: dict[int, tuple[int, ...]] = {}

    def blame_for(self, maker: int) -> bool:
        """Blame the unmatched call that made a value, or those that it got its own values from.

        Args:
            maker: index of the row of the unmatched call that holds the value.

        Returns:
            Whether there was one to blame; False if its inputs already differ.
        """
        roots = self._find_roots(maker)
        for position in roots:
            self._blame(position)
        return bool(roots)

    def settle_rest(self) -> None:
        """Give the rest of the unmatched calls an origin: those fed with differences inherit."""
        for call in self._trail.calls:
            if call.is_matched or any(row.origin is not None for row in call.rows):
                continue
            if self._is_fed_with_difference(call):
                for row in call.rows:
                    if row.status.is_difference:
                        row.origin = Origin.INHERITED

    def _blame(self, index: int) -> None:
        trail = self._trail
        call = trail.calls.of(trail.rows[index])
        side = "target" if call.pair.reference is None else "reference"
        shown = [row for row in call.outputs if row.leaf.is_tensor] or list(call.rows)
        for row in shown:
            if row.origin is not Origin.INTRODUCED:
                mark(
                    row,
                    Origin.INTRODUCED,
                    f"only the {side} makes this call, and what uses its result differs",
                )

    def _find_roots(self, maker: int) -> tuple[int, ...]:
        """Return a row of each unmatched call at which a chain of them begins to matter."""
        trail = self._trail
        chain: dict[int, None] = {}
        waiting = [maker]
        while waiting and len(chain) < _LONGEST_CHAIN:
            index = waiting.pop()
            call = trail.calls.of(trail.rows[index])
            if call.start in chain:
                continue
            chain[call.start] = None
            for row in call.inputs:
                source = self._source(row)
                if source is None:
                    continue
                if trail.calls.of(trail.rows[source]).is_matched:
                    if trail.explains(source):
                        return ()
                else:
                    waiting.append(source)
        calls = [trail.calls.of(trail.rows[start]) for start in sorted(chain)]
        telling = [call for call in calls if not self._only_moves(call)] or calls
        first = self._nearest_first(telling)
        return tuple(call.start for call in first)

    def _nearest_first(self, calls: list[Call]) -> list[Call]:
        """Return the calls that take no value from another one of them."""
        own = {call.start for call in calls}
        first = [call for call in calls if not self._feeds(call) & own]
        return first or calls[:1]

    def _feeds(self, call: Call) -> set[int]:
        """Return the starts of all unmatched calls that a call's values come from."""
        trail = self._trail
        found: set[int] = set()
        waiting = [call]
        while waiting and len(found) < _LONGEST_CHAIN:
            for row in waiting.pop().inputs:
                source = self._source(row)
                if source is None:
                    continue
                maker = trail.calls.of(trail.rows[source])
                if not maker.is_matched and maker.start not in found:
                    found.add(maker.start)
                    waiting.append(maker)
        return found

    def _is_fed_with_difference(self, call: Call) -> bool:
        for row in call.inputs:
            source = self._source(row)
            if source is None:
                continue
            maker = self._trail.rows[source]
            matched = maker.pair.target is not None and maker.pair.reference is not None
            if matched and self._trail.explains(source):
                return True
            if not matched and maker.origin is not None:
                return True
        return False

    def _source(self, row: Row) -> int | None:
        flow = self._trail.flow
        found = (flow.target if row.target is not None else flow.reference).makers(row)
        return found[0] if found else None

    def _only_moves(self, call: Call) -> bool:
        """Return whether a call handed on the same numbers, perhaps at other places."""
        if family_of(call.api) is not Family.MOVING:
            return False
        coming = {_numbers(row) for row in call.inputs}
        return all(_numbers(row) in coming for row in call.outputs if row.leaf.is_tensor)


def _numbers(row: Row) -> object:
    leaf = row.leaf
    key = fingerprint(leaf)
    if leaf.role is Role.PARAMETER or key is None:
        return key
    return (leaf.max, leaf.min, leaf.norm)
