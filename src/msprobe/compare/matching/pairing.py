# SPDX-License-Identifier: Apache-2.0
"""`pair_operations`: every operation of two sides, with its partner where it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msprobe.compare.matching.call_pairs import pair_calls, read_call_pairs
from msprobe.compare.matching.data_mapping import mapped_operations, read_data_mapping
from msprobe.compare.matching.decompositions import argument_slots
from msprobe.compare.matching.identities import SharedNames, shared_names
from msprobe.compare.matching.mapped_rows import MappedRows
from msprobe.compare.matching.matcher import Matcher
from msprobe.compare.matching.sequences import merged_order
from msprobe.compare.model import Match, OperationPair
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
from msprobe.dump.record_names import RecordKind
from msprobe.dump.values import Value


def pair_operations(target: Side, reference: Side, options: CompareOptions) -> list[OperationPair]:
    """Pair the operations of two sides.

    Returns:
        Every operation of either side, in the order of execution; those without a partner at the
        place where they ran.

    Raises:
        ConfigError: a mapping file cannot be used.
        DumpFormatError: a dump is damaged.
    """
    if target.names == reference.names and not _needs_more_than_names(options):
        return [
            OperationPair(position=place, target=name, reference=name, match=Match.EXACT)
            for place, name in enumerate(target.names)
        ]
    names = shared_names(target, reference, options)
    if options.layer_mapping is not None or options.cell_mapping is not None:
        target.mapped_modules, reference.mapped_modules = names.target.paths, names.reference.paths
    matcher = Matcher(target, reference, names=names, align=options.align)
    rows = _mapped_rows(matcher, target, reference, options)
    rows.lead(matcher, target)
    if options.call_pairs is not None:
        pair_calls(read_call_pairs(options.call_pairs), matcher, target, reference)
    matcher.match()
    rows.follow(matcher)
    return _as_pairs(matcher, names, rows, target, reference)


def _needs_more_than_names(options: CompareOptions) -> bool:
    return options.align == "always" or any(each is not None for each in options.mappings)


def _mapped_rows(
    matcher: Matcher, target: Side, reference: Side, options: CompareOptions
) -> MappedRows:
    if options.data_mapping is None:
        return MappedRows(())
    mapping = read_data_mapping(options.data_mapping)
    places = (matcher.target.place, matcher.reference.place)
    return MappedRows(mapped_operations(mapping, target, reference, places))


def _as_pairs(
    matcher: Matcher, names: SharedNames, rows: MappedRows, target: Side, reference: Side
) -> list[OperationPair]:
    pairs: list[OperationPair] = []
    order = merged_order(len(target.names), len(reference.names), matcher.partners)
    for t, r in order:
        own = _own_pair(matcher, names, rows, target, reference, t, r)
        if own is not None:
            own.position = len(pairs)
            pairs.append(own)
        for share in () if t is None else rows.shares.get(t, ()):
            assert share.reference is not None  # rows without a partner stay in the own pair
            pairs.append(
                OperationPair(
                    position=len(pairs),
                    target=target.names[share.target],
                    reference=reference.names[share.reference],
                    match=Match.MAPPED,
                    slots=share.slots,
                    target_slots=frozenset(share.slots),
                    reference_slots=frozenset(slot for slot in share.slots.values() if slot),
                )
            )
    return pairs


def _own_pair(
    matcher: Matcher,
    names: SharedNames,
    rows: MappedRows,
    target: Side,
    reference: Side,
    t: int | None,
    r: int | None,
) -> OperationPair | None:
    """Return the pair of two places; None if all its rows went to other pairs."""
    pair = OperationPair(
        position=0,
        target=None if t is None else target.names[t],
        reference=None if r is None else reference.names[r],
        match=Match.UNMATCHED,
        confidence=0.0,
    )
    if t is not None:
        pair.target_slots = rows.target_slots(target, t)
        if t in rows.slots:
            pair.slots = rows.slots[t]
    if r is not None:
        pair.reference_slots = rows.reference_slots(reference, r)
    if t is not None and r is not None:
        pair.match, pair.confidence = matcher.grounds[t]
        by_table = names.slots(matcher.target.parsed[t], matcher.reference.parsed[r])
        if by_table:
            pair.slots = {**by_table, **pair.slots}
        _compare_tensors_of_joined(pair, matcher.target.parsed[t].kind, target, reference)
    shares = [slots for slots in (pair.target_slots, pair.reference_slots) if slots is not None]
    has_all_of_a_side = (t is not None and pair.target_slots is None) or (
        r is not None and pair.reference_slots is None
    )
    return None if shares and not any(shares) and not has_all_of_a_side else pair


def _compare_tensors_of_joined(
    pair: OperationPair, kind: RecordKind, target: Side, reference: Side
) -> None:
    """Leave out arguments that joined calls do not have: all that are no tensors."""
    assert pair.target is not None
    assert pair.reference is not None
    if pair.target in target.joined:
        pair.slots, pair.reference_slots = _shared_slots(
            target, pair.target, kind, reference.values(pair.reference)
        )
    elif pair.reference in reference.joined:
        slots, pair.target_slots = _shared_slots(
            reference, pair.reference, kind, target.values(pair.target)
        )
        pair.slots = {other: slot for slot, other in slots.items()}


def _shared_slots(
    side: Side, joined: str, kind: RecordKind, values: Sequence[Value]
) -> tuple[Mapping[str, str], frozenset[str]]:
    """Return slots of joined calls → slots of the partner, and which of the partner to compare."""
    slots = argument_slots(side.operator(joined), kind, values)
    taken = {_argument(slots.get(value.slot, value.slot)) for value in side.values(joined)}
    return slots, frozenset(
        value.slot for value in values if value.is_tensor or _argument(value.slot) in taken
    )


def _argument(slot: str) -> tuple[str, ...]:
    """Return which argument holds a slot: one that a side has a list for, the other a number."""
    return tuple(slot.split(".")[:2])
