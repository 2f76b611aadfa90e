# SPDX-License-Identifier: Apache-2.0
"""Rows of a call of MindSpore and one of PyTorch: arguments in terms that both frameworks have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from msprobe.compare.model import Matched, Missing, Row
from msprobe.dump.record_names import RecordName
from msprobe.dump.values import Role, Value
from msprobe.operators.lookup import default_in_mindspore, operator_of, parameter_name

_STRIDE: Final = 3  # place among the arguments of a convolution
_SAME: Final = "same"
_VALID: Final = "valid"


def in_shared_terms(rows: Sequence[Row], name: RecordName) -> list[Row]:
    """Return the rows without settings that one framework alone has as arguments.

    Args:
        rows: of a call of each framework.
        name: of a function of either.
    """
    found = [_with_default(row, name) for row in rows if not _is_setting(row)]
    return [_with_number(row, found) for row in found]


def parameter_of(value: Value) -> str:
    """Return PyTorch's name of the parameter that a value is."""
    return parameter_name(value.slot.rpartition(".")[2])


def one_for_all_axes(values: list[Value]) -> list[Value]:
    """Return values with one number in place of a list of equal ones: a stride for each axis."""
    lists: defaultdict[tuple[Role, str], list[Value]] = defaultdict(list)
    for value in values:
        around, _, place = value.slot.rpartition(".")
        if place.isdigit() and "." in around and type(value.value) is int:
            lists[value.role, around].append(value)
    found = []
    for value in values:
        around = value.slot.rpartition(".")[0]
        parts = lists.get((value.role, around), [])
        if not parts or any(one.value != value.value for one in parts) or value not in parts:
            found.append(value)
        elif value is parts[0]:
            found.append(msgspec.structs.replace(value, slot=around, path=value.path[:-1]))
    return found


def _is_setting(row: Row) -> bool:
    """Return whether a value has no partner because the frameworks keep it otherwise.

    A primitive of MindSpore has arguments of PyTorch's as its attributes, or further ones, and a
    cell has PyTorch's buffers as parameters.
    """
    if isinstance(row, Matched):
        return False
    if row.value.role is Role.PARAMETER:
        return parameter_of(row.value).startswith("running_")
    if row.value.role is not Role.INPUT or row.value.is_tensor:
        return False
    records = row.pair.target, row.pair.reference
    return any(record is not None and record.startswith("Primitive.") for record in records)


def _with_default(row: Row, name: RecordName) -> Row:
    """Return the row of an argument of PyTorch's, beside what MindSpore takes where it is left out.

    Args:
        row: of two frameworks; unchanged where both take the same.
        name: of a function of either framework.
    """
    value = row.value
    if isinstance(row, Matched) or value.role is not Role.INPUT or value.is_tensor:
        return row
    default = default_in_mindspore(operator_of(name.prefix, name.path), value.argument)
    if default is None or value.value == default:
        return row
    other = msgspec.structs.replace(value, value=default)
    both = (other, value) if isinstance(row, Missing) else (value, other)
    return Matched(pair=row.pair, target=both[0], reference=both[1])


def _with_number(row: Row, rows: Sequence[Row]) -> Row:
    """Return the row of a padding with the number of elements in place of MindSpore's word for it.

    Where a convolution moves by one element, "same" is one number for both ends, that of PyTorch if
    the results have one shape.
    """
    if not isinstance(row, Matched) or row.holds_tensor:
        return row
    words = [value.value for value in row.values if value.value in (_SAME, _VALID)]
    numbers = [value.value for value in row.values if type(value.value) is int]
    if len(words) != 1 or len(numbers) != 1:
        return row
    number = 0 if words[0] == _VALID else numbers[0]
    if words[0] == _SAME and not _moves_by_one(rows):
        return row
    target, reference = (
        msgspec.structs.replace(value, value=number) if value.value == words[0] else value
        for value in row.values
    )
    return Matched(pair=row.pair, target=target, reference=reference)


def _moves_by_one(rows: Sequence[Row]) -> bool:
    matched = [row for row in rows if isinstance(row, Matched)]
    strides = [row.values for row in matched if row.value.slot == f"input.{_STRIDE}"]
    results = [row.values for row in matched if row.value.role is Role.OUTPUT]
    return all(each.value == 1 for both in strides for each in both) and all(
        own.shape == other.shape for own, other in results
    )
