# SPDX-License-Identifier: Apache-2.0
"""The flow of data through a step: the call that made each value, on each side.

Values that msprobe recognised carry a `value_id`. Others (parameters, data, dumps of other
programs) are recognised by a fingerprint of type, shape, statistics, checksum and projections,
which tell one order of elements from another.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Final

from msprobe.compare.model import Matched, Row
from msprobe.dump.values import Role, Value

# Such values turn up everywhere and tell nothing about where they come from.
_COMMON_NUMBERS: Final = (0.0, 1.0, -1.0, 0.5, 2.0)
# A value that is handed on unchanged has several makers; more than so many are not looked at.
_MOST_MAKERS: Final = 16

Fingerprint = Hashable

_target_value: Final[Callable[[Row], Value | None]] = attrgetter("target")
_reference_value: Final[Callable[[Row], Value | None]] = attrgetter("reference")
_position: Final[Callable[[Row], int]] = attrgetter("pair.position")
_value_id: Final[Callable[[Value], int | None]] = attrgetter("value_id")


def fingerprint(value: Value | None) -> Fingerprint | None:
    """Return a key by which a value is recognised; None if there is none, or nothing special."""
    if value is None:
        return None
    if not value.is_tensor:
        number = value.value
        if isinstance(number, float) and math.isfinite(number) and number not in _COMMON_NUMBERS:
            return number
        return None
    largest, least = value.max, value.min
    if largest is None and value.md5 is None:
        return None
    if largest != largest and value.md5 is None:
        # With NaN in it all statistics are NaN; the finite values may tell.
        finite = (value.finite_max, value.finite_min, value.nan_count)
        return None if None in finite else (value.dtype, value.shape, finite)
    if largest == least and value.md5 is None:
        is_single = math.prod(value.shape or ()) == 1
        if not is_single or largest in _COMMON_NUMBERS:
            return None
    numbers = (largest, least, value.mean, value.norm, value.md5, value.pair)
    return (value.dtype, value.shape, *numbers)


def _content(value: Value) -> Hashable:
    """Return a key that equal values have in common; others may have it, too."""
    numbers = (value.max, value.min, value.mean, value.norm, value.md5, value.pair)
    return (value.dtype, value.shape, *numbers) if value.is_tensor else None


class _Places:
    """Row numbers by hash of a key; two arrays, as a dict takes ten times the memory."""

    def __init__(self, found: Sequence[tuple[int, int]]) -> None:
        self._hashes = array("q", [key for key, _ in found])
        self._rows = array("q", [row for _, row in found])

    def at(self, key: Hashable) -> Sequence[int]:
        """Return the rows with a key, or another key of the same hash, in order of execution."""
        begin = bisect_left(self._hashes, hash(key))
        return self._rows[begin : bisect_right(self._hashes, hash(key), begin)]


@dataclass(frozen=True, slots=True)
class Makers:
    """The rows that made a value, on each side; indices into the rows, earliest first."""

    target: Sequence[int]
    reference: Sequence[int]

    @property
    def first(self) -> tuple[int, ...]:
        """The earliest row of each side that has one."""
        return (*self.target[:1], *self.reference[:1])

    @property
    def common(self) -> int | None:
        """The row that made it on both sides, None if there is none."""
        if not self.target or not self.reference:
            return None
        if self.target[0] == self.reference[0]:
            return self.target[0]
        both = set(self.target) & set(self.reference)
        return min(both) if both else None


class _SideFlow:
    """Makers and users of each value on one side."""

    def __init__(
        self,
        rows: Sequence[Row],
        pick: Callable[[Row], Value | None],
        place: Callable[[Row], int],
    ) -> None:
        self._rows = rows
        self._pick = pick
        self._place = place

    @cached_property
    def _by_id(self) -> _Places:
        return self._indices(Role.OUTPUT, _value_id)

    @cached_property
    def _by_print(self) -> _Places:
        return self._indices(Role.OUTPUT, fingerprint)

    @cached_property
    def _users_by_id(self) -> _Places:
        return self._indices(Role.INPUT, _value_id)

    @cached_property
    def _users_by_content(self) -> _Places:
        return self._indices(Role.INPUT, _content)

    def _indices(self, role: Role, key_of: Callable[[Value], Hashable | None]) -> _Places:
        """Return the rows of values with one role by a key of theirs."""
        pick = self._pick
        found = [
            (hash(key), self._place(row), index)
            for index, row in enumerate(self._rows)
            if (value := pick(row)) is not None
            and value.role is role
            and (key := key_of(value)) is not None
        ]
        found.sort()
        return _Places([(key, index) for key, _, index in found])

    def makers(self, row: Row) -> Sequence[int]:
        """Return the output rows before this one that hold the same value, at most a few."""
        value = self._pick(row)
        if value is None:
            return ()
        position = self._place(row)
        number = value.value_id
        if number is not None:
            found = self._by_id.at(number)
            end = self._count_before(found, position)
            if end:
                return found[: min(end, _MOST_MAKERS)]
        key = fingerprint(value)
        if key is None:
            return ()
        # The latest one: an equal value that lies further back was perhaps overwritten since.
        found = self._by_print.at(key)
        end = self._count_before(found, position)
        latest = found[max(end - _MOST_MAKERS, 0) : end][::-1]
        return [index for index in latest if fingerprint(self._pick(self._rows[index])) == key]

    def users(self, row: Row, *, by_content: bool = False) -> Sequence[int]:
        """Return the input rows that hold the same recognised value.

        Args:
            row: the value.
            by_content: return all that may hold it: also those of which no call is known to have
                made them, as what is known of a tensor is forgotten when it may have been written.
        """
        value = self._pick(row)
        if value is None:
            return ()
        alike = self._users_by_content.at(_content(value)) if by_content else ()
        if value.value_id is None:
            return alike
        known = self._users_by_id.at(value.value_id)
        return [*known, *(index for index in alike if self._is_unmade(index))]

    def users_after(self, row: Row, *, by_content: bool = False) -> list[int]:
        """Return those of later calls, in the order in which the side makes them."""
        place = self._place(row)
        users = self.users(row, by_content=by_content)
        return [index for index in users if self._place(self._rows[index]) > place]

    def is_before(self, row: Row, other: Row) -> bool:
        """Return whether the side makes the call of a row before that of another one."""
        return self._place(row) < self._place(other)

    def _is_unmade(self, index: int) -> bool:
        value = self._pick(self._rows[index])
        number = None if value is None else value.value_id
        return number is None or not self._by_id.at(number)

    def _count_before(self, indices: Sequence[int], position: int) -> int:
        """Return how many of some rows, which are in order, ran before a position."""
        rows, place = self._rows, self._place
        if not indices or place(rows[indices[-1]]) < position:
            return len(indices)
        return bisect_left(indices, position, key=lambda index: place(rows[index]))


class DataFlow:
    """The flow of data on both sides; `names` are the reference's records in their own order."""

    def __init__(self, rows: Sequence[Row], names: Iterable[str] = ()) -> None:
        self.target = _SideFlow(rows, _target_value, _position)
        self.reference = _SideFlow(rows, _reference_value, _places_in(rows, names))

    def makers(self, row: Row) -> Makers:
        """Return the rows that made a row's value on each side, among those before its call."""
        return Makers(self.target.makers(row), self.reference.makers(row))


def _places_in(rows: Sequence[Row], names: Iterable[str]) -> Callable[[Row], int]:
    """Return what tells the place of a row's call among the names of the reference.

    Where both sides make all their calls in one order, the place in the merged list is as good.
    """
    places = {name: place for place, name in enumerate(names)}
    own = [places[row.pair.reference] for row in rows if row.pair.reference in places]
    if all(map(operator.le, own, own[1:])):
        return _position
    return lambda row: places.get(row.pair.reference or "", row.pair.position)


class OutsideValues:
    """Values that no recorded call made: the model's inputs and its parameters.

    Built when it is first asked: only differences need it.
    """

    def __init__(self, rows: Sequence[Row], is_model_input: Callable[[Row], bool]) -> None:
        self._rows = rows
        self._is_model_input = is_model_input
        self._by_role: dict[Role, dict[Fingerprint, int]] = {}

    def parameter_of(self, row: Row) -> int | None:
        """Return the differing parameter that a row's two values are, as index of its row."""
        return self._differing(Role.PARAMETER).get(fingerprints(row))

    def gradient_of(self, row: Row) -> int | None:
        """Return the differing gradient of a parameter that a row's two values are."""
        return self._differing(Role.PARAMETER_GRAD).get(fingerprints(row))

    def model_input_of(self, row: Row) -> int | None:
        """Return the input of the model that a row's two values are, as index of its row."""
        return self._model_inputs.get(fingerprints(row))

    def given_before(self, row: Row) -> tuple[int | None, int | None]:
        """Return the first row on each side in which an earlier call was given the row's value."""
        target, reference = (
            known.get(fingerprint(value)) if value is not None else None
            for known, value in zip(
                self._given, (_target_value(row), _reference_value(row)), strict=True
            )
        )
        return self._earlier(target, row), self._earlier(reference, row)

    def are_exchanged(self, row: Row) -> bool:
        """Return whether another call is given a row's two values the other way round."""
        return fingerprints(row)[::-1] in self._differing(Role.INPUT)

    def given_to_other(self, row: Row) -> tuple[bool, bool]:
        """Return whether calls of the other side are given the target's value, and the other's."""
        target, reference = (
            fingerprint(pick(row)) in known
            for pick, known in zip(
                (_target_value, _reference_value), reversed(self._given), strict=True
            )
        )
        return target, reference

    def _earlier(self, index: int | None, row: Row) -> int | None:
        is_earlier = index is not None and self._rows[index].pair.position < row.pair.position
        return index if is_earlier else None

    def swapped_parameters(self, row: Row) -> tuple[int, int] | None:
        """Return the rows of two different parameters that the sides passed here, if that is so."""
        if not isinstance(row, Matched):
            return None
        both = zip(self._parameters, row.values, strict=True)
        target, reference = (known.get(fingerprint(value)) for known, value in both)
        if target is None or reference is None or target == reference:
            return None
        return target, reference

    def _differing(self, role: Role) -> dict[Fingerprint, int]:
        if role not in self._by_role:
            self._by_role[role] = _places(
                (at, fingerprints(row))
                for at, row in enumerate(self._rows)
                if row.value.role is role and row.status.is_difference
            )
        return self._by_role[role]

    @cached_property
    def _model_inputs(self) -> dict[Fingerprint, int]:
        return _places(
            (at, fingerprints(row))
            for at, row in enumerate(self._rows)
            if row.value.role is Role.INPUT and row.value.is_tensor and self._is_model_input(row)
        )

    @cached_property
    def _given(self) -> tuple[dict[Fingerprint, int], ...]:
        """The rows of inputs, by the values of either side."""
        return self._by_value(Role.INPUT)

    @cached_property
    def _parameters(self) -> tuple[dict[Fingerprint, int], ...]:
        """The rows of parameters, by the values of either side."""
        return self._by_value(Role.PARAMETER)

    def _by_value(self, role: Role) -> tuple[dict[Fingerprint, int], ...]:
        return tuple(
            _places(
                (at, fingerprint(value))
                for at, row in enumerate(self._rows)
                if (value := pick(row)) is not None and value.role is role
            )
            for pick in (_target_value, _reference_value)
        )


def _places(found: Iterable[tuple[int, Fingerprint | None]]) -> dict[Fingerprint, int]:
    """Return the first row of each key that tells something."""
    places: dict[Fingerprint, int] = {}
    for index, key in found:
        if key is not None and key != (None, None):
            places.setdefault(key, index)
    return places


def fingerprints(row: Row) -> tuple[Fingerprint | None, Fingerprint | None]:
    """Return the keys by which both values of a row are recognised."""
    return fingerprint(row.target), fingerprint(row.reference)
