# SPDX-License-Identifier: Apache-2.0
"""Calls that only one side made: which of them matter.

A call too many or too few is a culprit if a differing value was made by it (or by what follows
from it) while everything that it took in itself agrees. Extra casts, views and copies that change
nothing stay harmless, as do all calls inside a module that was compiled on one side.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

from msprobe.compare.model import Origin, Role, Row
from msprobe.compare.verdicts.calls import Call
from msprobe.compare.verdicts.data_flow import fingerprint
from msprobe.compare.verdicts.operation_families import Family, family_of, reorders
from msprobe.compare.verdicts.trail import Trail, mark

# A chain of unmatched calls longer than this is another program, not a slip.
_LONGEST_CHAIN: Final = 200
# How many calls upstream a change of order is looked for.
_FARTHEST: Final = 60


class Blame(Enum):
    """What is to blame for a value that an unmatched call made."""

    CALL = "that call, or one before it without a partner"
    EARLIER = "what it was given already differs"
    CONSTANT = "nobody: it is a new constant, and what counts is who uses it"


class UnmatchedCalls:
    """Finds the culprits among calls without a partner."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def blame_for(self, maker: int) -> Blame:
        """Blame the unmatched call that made a value, or those that it got its own values from.

        Args:
            maker: index of the row of the unmatched call that holds the value.
        """
        roots = self._find_roots(maker)
        if roots is None:
            return Blame.EARLIER
        for position in roots:
            self._blame(position)
        return Blame.CALL if roots else Blame.CONSTANT

    def blame_cut(self, makers: Iterable[int]) -> bool:
        """Blame the unmatched call among those that hold a value that took its gradient away.

        Returns:
            Whether there is one.
        """
        for index in makers:
            call = self._trail.calls.of(self._trail.rows[index])
            if not call.is_matched and not self._trail.rows[index].leaf.requires_grad:
                self._blame(index, "cuts the graph: no gradient flows back through it")
                return True
        return False

    def blame_hidden(self, call: Call) -> bool:
        """Blame an unmatched call upstream that put the elements of a value into another order.

        Statistics do not see such a change; what is made of the value shows it further on.

        Args:
            call: the first call whose result differs, though its inputs have equal statistics.

        Returns:
            Whether there is one.
        """
        trail = self._trail
        seen: set[int] = set()
        waiting = [call]
        while waiting and len(seen) < _FARTHEST:
            for row in waiting.pop(0).inputs:
                makers = trail.flow.makers(row)
                for index in {*makers.target[:1], *makers.reference[:1]}:
                    maker = trail.calls.of(trail.rows[index])
                    if not maker.is_matched and reorders(maker.api):
                        self._blame(index)
                        return True
                    if maker.start not in seen:
                        seen.add(maker.start)
                        waiting.append(maker)
        return False

    def settle_rest(self) -> None:
        """Give the rest of the unmatched calls an origin: those fed with differences inherit."""
        for call in self._trail.calls:
            if call.is_matched or any(row.origin is not None for row in call.rows):
                continue
            if self._is_fed_with_difference(call):
                for row in call.rows:
                    if row.status.is_difference:
                        row.origin = Origin.INHERITED

    def _blame(self, index: int, why: str = "what uses its result differs") -> None:
        trail = self._trail
        call = trail.calls.of(trail.rows[index])
        side = "target" if call.pair.reference is None else "reference"
        shown = [row for row in call.outputs if row.leaf.is_tensor] or list(call.rows)
        for row in shown:
            if row.origin is not Origin.INTRODUCED:
                mark(
                    row,
                    Origin.INTRODUCED,
                    f"only the {side} makes this call, and {why}",
                )

    def _find_roots(self, maker: int) -> tuple[int, ...] | None:
        """Return a row of each unmatched call at which a chain of them begins to matter.

        None if the chain itself takes in a difference.
        """
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
                        return None
                else:
                    waiting.append(source)
        calls = [trail.calls.of(trail.rows[start]) for start in sorted(chain)]
        # A constant means nothing by itself: what counts is the call that takes it in.
        made = [call for call in calls if any(row.leaf.is_tensor for row in call.inputs)]
        telling = [call for call in made if not self._only_moves(call)] or made
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
