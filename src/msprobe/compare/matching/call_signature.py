# SPDX-License-Identifier: Apache-2.0
"""Likeness of two calls by their values: shapes, types and statistics."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from msprobe.dump.records import Statistic
from msprobe.dump.values import Role, Value

# A value that cannot be told apart from nothing: two records without numbers are half alike.
_UNKNOWN: Final = 0.5
# Two calls whose norms differ by a percent or two fall into one step of 19 % nine times of ten.
_STEPS_PER_OCTAVE: Final = 4


@dataclass(frozen=True, slots=True)
class CallSignature:
    """Facts about a call besides its name.

    Attributes:
        structure: shapes and kinds of its values, whatever their precision.
        values: equal for calls that took and gave the same values; None without any tensor.
        outside: equal for calls that are given the same parameters, say: tensors with different
            elements that no call of the step made. None without any.
        scales: rough sizes of its first and last tensor; equal for most calls with nearly the
            same values. None without numbers.
        first: kind and rank of its first tensor; None without any.
        shapes: shape of each tensor.
        numbers: statistics of each tensor, for likeness.
    """

    structure: Hashable
    values: Hashable
    outside: Hashable
    scales: Hashable
    first: tuple[str, int] | None
    shapes: tuple[tuple[int, ...] | None, ...]
    numbers: tuple[tuple[float, ...], ...]


class HasCalls(Protocol):
    """Records of calls: a side of a comparison."""

    def values(self, name: str) -> list[Value]:
        """Return the values of a record."""

    def source_code(self, name: str) -> str:
        """Return the text of the line that made a call; empty if unknown."""


class CallSignatureReader:
    """Reads the signatures of one side's records, each once."""

    def __init__(self, side: HasCalls) -> None:
        self._side = side
        self.source_code = side.source_code
        self._found: dict[str, CallSignature] = {}

    def __call__(self, name: str) -> CallSignature:
        """Return the signature of a record."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = _signature(self._side.values(name))
        return found


def likeness(first: CallSignature, second: CallSignature) -> float:
    """Return the likeness of two calls of one operation: 0 (unrelated) to 1 (the same values)."""
    if first.values is not None and first.values == second.values:
        return 1.0
    shapes = _shared_part(first.shapes, second.shapes)
    return 0.6 * shapes + 0.4 * numbers_likeness(first, second)


def are_unrelated(first: CallSignature, second: CallSignature) -> bool:
    """Return whether two calls act on another kind of numbers in another number of dimensions."""
    if first.first is None or second.first is None:
        return False
    return all(one != other for one, other in zip(first.first, second.first, strict=True))


def numbers_likeness(first: CallSignature, second: CallSignature) -> float:
    """Return the likeness of the statistics of two calls: 0 to 1, one half if there are none.

    Those of tensors with another number of dimensions are alike by chance.
    """
    counts = [sum(map(len, each.numbers)) for each in (first, second)]
    if not all(counts):
        return _UNKNOWN
    total = 0.0
    tensors = zip(first.shapes, second.shapes, first.numbers, second.numbers, strict=False)
    for shape, other, numbers, others in tensors:
        if len(shape or ()) != len(other or ()):
            continue
        for a, b in zip(numbers, others, strict=False):
            if a == b:
                total += 1.0
            elif math.isfinite(a) and math.isfinite(b):
                total += max(0.0, 1.0 - abs(a - b) / max(abs(a), abs(b)))
    return total / max(counts)


def _signature(values: list[Value]) -> CallSignature:
    tensors = [value for value in values if value.is_tensor]
    shapes = tuple(value.shape for value in tensors)
    facts: Hashable = None
    if tensors:
        known = tuple(_fact(value) for value in values)
        if any(fact is not None for fact in known):
            facts = hash(known)
    numbers = (
        tuple(float(each) for each in (v.max, v.min, v.mean, v.norm) if each is not None)
        for v in tensors
    )
    outside = tuple(_fact(value) for value in tensors if _is_from_outside(value))
    structure = hash(tuple((value.role, _kind(value.dtype), value.shape) for value in values))
    return CallSignature(
        structure=structure,
        values=facts,
        outside=hash(outside) if outside else None,
        scales=_scales(tensors),
        first=(_kind(tensors[0].dtype), len(shapes[0] or ())) if tensors else None,
        shapes=shapes,
        numbers=tuple(numbers),
    )


def _is_from_outside(value: Value) -> bool:
    is_given = value.role is Role.INPUT and value.value_id is None
    return is_given and value.max is not None and value.max != value.min


def _kind(dtype: str) -> str:
    """Return a type without its precision: ``float``, ``int``, ``bool``, ``complex``."""
    return dtype.rstrip("0123456789").removeprefix("b").removeprefix("u") if dtype else ""


def _scales(tensors: list[Value]) -> Hashable:
    found = []
    for value in (tensors[0], tensors[-1]) if tensors else ():
        size = value.max if value.norm is None else value.norm
        if size is None:
            continue
        size = abs(float(size))
        known = 0 < size < math.inf  # and no NaN
        found.append(round(math.log2(size) * _STEPS_PER_OCTAVE) if known else str(size))
    return tuple(found) or None


def _fact(value: Value) -> Hashable:
    if not value.is_tensor:
        return None if value.value is None else str(value.value)
    if value.md5 is not None:
        return value.md5
    statistics = (value.max, value.min, value.mean, value.norm)
    if statistics == (None, None, None, None):
        return None
    return (value.shape, *map(_hashable, statistics))


def _hashable(number: Statistic) -> Hashable:
    # NaN is not equal to itself.
    return "nan" if number != number else number


def _shared_part(
    first: tuple[tuple[int, ...] | None, ...], second: tuple[tuple[int, ...] | None, ...]
) -> float:
    longer = max(len(first), len(second))
    if not longer:
        return 1.0
    return sum(a == b for a, b in zip(first, second, strict=False)) / longer
