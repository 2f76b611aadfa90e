# SPDX-License-Identifier: Apache-2.0
"""Dumps of two levels: operations that one level does not record at all are not missing.

Level ``L0`` records modules, ``L1`` calls of APIs, ``mix`` both, ``debug`` values given to
``save()``. Where levels differ, only records of both levels can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msprobe.compare.model import OperationPair
from msprobe.compare.sides import Side
from msprobe.dump.record_names import RecordKind, RecordName
from msprobe.errors import UsageError

_RECORDS: Final[Mapping[str, Callable[[RecordName], bool]]] = MappingProxyType(
    {
        "L0": lambda name: name.is_module,
        "L1": lambda name: not name.is_module and name.kind is not RecordKind.DEBUG,
        "mix": lambda name: name.kind is not RecordKind.DEBUG,
        "debug": lambda name: name.kind is RecordKind.DEBUG,
    }
)
_WORDS: Final = MappingProxyType({"L0": "modules", "L1": "calls of APIs"})


def recorded_by_both(
    pairs: Sequence[OperationPair], target: Side, reference: Side
) -> tuple[list[OperationPair], str]:
    """Leave out operations that the other side's level does not record.

    Args:
        pairs: all operations of both sides.
        target: the side under test.
        reference: the trusted one.

    Returns:
        The operations that remain, and a note for the user: empty if the levels agree.

    Raises:
        UsageError: the levels record nothing in common.
    """
    levels = target.view.head.level, reference.view.head.level
    if levels[0] == levels[1] or not all(levels):
        return list(pairs), ""
    note = f"captured at different levels: target {levels[0]}, reference {levels[1]}"
    if any(level not in _RECORDS for level in levels):
        return list(pairs), note
    kept = [pair for pair in pairs if _is_comparable(pair, target, reference)]
    if pairs and not kept:
        raise UsageError(
            f"{target.view.records_path} was captured at level {levels[0]} and "
            f"{reference.view.records_path} at level {levels[1]}, which have no record in common "
            f"(L0 records modules, L1 calls of APIs, mix both, debug what was saved by hand); "
            f"capture both at one level"
        )
    left_out = len(pairs) - len(kept)
    if left_out:
        words = _WORDS[levels[0] if levels[0] in _WORDS else levels[1]]
        note += f"; only {words} were compared, {left_out} other operations are left out"
    return kept, note


def _is_comparable(pair: OperationPair, target: Side, reference: Side) -> bool:
    own, other = (reference, target) if pair.target is None else (target, reference)
    return pair.is_matched or _RECORDS[other.view.head.level](own.parsed(pair.name))
