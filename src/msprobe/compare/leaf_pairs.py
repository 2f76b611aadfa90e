# SPDX-License-Identifier: Apache-2.0
"""The rows of a pair of operations: which value of the one is which value of the other."""

from __future__ import annotations

from collections.abc import Mapping

from msprobe.compare.model import Leaf, OperationPair, Role, Row
from msprobe.compare.sides import Side

_KEYWORDS = "kwargs."


def pair_leaves(target: Side, reference: Side, pair: OperationPair) -> list[Row]:
    """Return one row for each value of two operations, in the target's order.

    Values pair by their place in the record. What one side passed by position and the other by
    keyword pairs too, where only one value on either side is left for it. A value without a partner
    has a row of its own; those of the reference stand behind the last value of their kind.

    Raises:
        DumpFormatError: a record is damaged.
    """
    mine = [] if pair.target is None else target.leaves(pair.target)
    theirs = [] if pair.reference is None else reference.leaves(pair.reference)
    if not theirs:
        return [Row(pair=pair, target=leaf, reference=None) for leaf in mine]
    if not mine:
        return [Row(pair=pair, target=None, reference=leaf) for leaf in theirs]
    if not pair.slots and len(mine) == len(theirs):
        rows = [
            Row(pair=pair, target=a, reference=b)
            for a, b in zip(mine, theirs, strict=True)
            if a.slot == b.slot
        ]
        if len(rows) == len(mine):
            return rows
    partners = _partners(mine, theirs, pair.slots)
    return _rows(pair, mine, theirs, partners)


def _partners(
    mine: list[Leaf], theirs: list[Leaf], slots: Mapping[str, str | None]
) -> dict[int, int]:
    """Return place among `mine` → place among `theirs`."""
    by_key: dict[str, int] = {}
    for place, leaf in enumerate(theirs):
        by_key.setdefault(_key(leaf.slot), place)
    wanted = {_key(slot): found for slot, found in slots.items()}
    partners: dict[int, int] = {}
    taken: set[int] = set()
    excluded: set[int] = set()
    for place, leaf in enumerate(mine):
        key = _key(leaf.slot)
        if key in wanted:
            mapped = wanted[key]
            excluded.add(place)
            if mapped is None:
                continue
            key = _key(mapped)
        elif key in wanted.values():
            continue
        partner = by_key.get(key)
        if partner is not None and partner not in taken:
            partners[place] = partner
            taken.add(partner)
    _pair_leftovers(mine, theirs, partners, taken, excluded)
    return partners


def _pair_leftovers(
    mine: list[Leaf],
    theirs: list[Leaf],
    partners: dict[int, int],
    taken: set[int],
    excluded: set[int],
) -> None:
    """Pair an argument passed by position with the same one passed by keyword."""
    for role in (Role.INPUT, Role.PARAMETER):
        left = [
            place
            for place, leaf in enumerate(mine)
            if leaf.role is role and place not in partners and place not in excluded
        ]
        right = [
            place for place, leaf in enumerate(theirs) if leaf.role is role and place not in taken
        ]
        for place in left:
            alike = [other for other in right if _may_be_same(mine[place], theirs[other])]
            rivals = [other for other in left if _may_be_same(mine[other], mine[place])]
            if len(alike) == 1 and len(rivals) == 1:
                partners[place] = alike[0]
                right.remove(alike[0])


def _may_be_same(a: Leaf, b: Leaf) -> bool:
    return a.is_tensor is b.is_tensor and a.shape == b.shape and (a.is_tensor or a.type == b.type)


def _rows(
    pair: OperationPair, mine: list[Leaf], theirs: list[Leaf], partners: dict[int, int]
) -> list[Row]:
    taken = set(partners.values())
    lonely = [leaf for place, leaf in enumerate(theirs) if place not in taken]
    roles = [leaf.role for leaf in mine]
    rows: list[Row] = []
    for place, leaf in enumerate(mine):
        partner = partners.get(place)
        rows.append(
            Row(pair=pair, target=leaf, reference=None if partner is None else theirs[partner])
        )
        if leaf.role not in roles[place + 1 :]:
            rows += [
                Row(pair=pair, target=None, reference=other)
                for other in lonely
                if other.role is leaf.role
            ]
    rows += [
        Row(pair=pair, target=None, reference=other) for other in lonely if other.role not in roles
    ]
    return rows


def _key(slot: str) -> str:
    """Return a slot in the one form that dumps with and without tensor files share."""
    return f"input.{slot[len(_KEYWORDS) :]}" if slot.startswith(_KEYWORDS) else slot
