# SPDX-License-Identifier: Apache-2.0
"""The parts of a comparison: paired operations, and rows, one per pair of values.

A *side* is one rank's dump of one step. An *operation* is a record on a side. Operations of the two
sides are paired first, then the values inside them; each pair of values is a `Row`.
Pairs are in the order (target, reference) everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from msprobe.compare.causes import Cause
from msprobe.dump.values import Role, Value
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.number_types import epsilon_of, kind_of


class Mode(StrEnum):
    """The data by which values are judged."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    MD5 = "md5"


class Status(StrEnum):
    """Relation of the two values of a row.

    Attributes:
        is_difference: whether the two values are known to differ.
    """

    EQUAL = "equal"
    CLOSE = "close"
    DIFFERS = "differs"
    SHAPE = "shape"
    DTYPE = "dtype"
    MISSING = "missing"
    ADDED = "added"
    NONFINITE = "nonfinite"
    UNREAD = "unread"
    """Nothing shows that the values differ, but their elements could not be read."""

    def __init__(self, word: str) -> None:
        # Asked for several times a row: an attribute, not a property.
        self.is_difference = word not in ("equal", "close", "unread")


class Origin(StrEnum):
    """Origin of the difference of a row."""

    INTRODUCED = "introduced"
    INHERITED = "inherited"
    AMPLIFIED = "amplified"
    INPUT = "input"


class Match(StrEnum):
    """Way in which two operations were paired."""

    EXACT = "exact"
    ALIAS = "alias"
    ALIGNED = "aligned"
    MAPPED = "mapped"
    UNMATCHED = "unmatched"


_AS_NAMED: Final[Mapping[str, str | None]] = MappingProxyType({})


# Not dataclasses: msgspec structs are made several times as fast, and every value makes one.
class OperationPair(msgspec.Struct, kw_only=True, gc=False):
    """Two records that are the same operation, or one that has no partner.

    Attributes:
        position: place in the order of execution of the merged list, from 0.
        target: name of the target's record, None where it is missing there.
        reference: name of the reference's record, None where it is missing there.
        match: how they were paired.
        confidence: 1.0 for exact names, less where similarity decided, 0.0 unmatched.
        slots: target slot → reference slot, where a mapping file says so; others keep their names.
            A slot includes everything below it (``input`` for ``input.0``), and the longest one
            counts. None means that the value has no partner.
        target_slots: values of the target that make rows; None for all. Where a data mapping leads
            from one operation to several, each of these pairs has its share.
        reference_slots: values of the reference that make rows; as `target_slots`.
    """

    position: int
    target: str | None
    reference: str | None
    match: Match
    confidence: float = 1.0
    slots: Mapping[str, str | None] = _AS_NAMED
    target_slots: frozenset[str] | None = None
    reference_slots: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The record's name: the target's, or the reference's where the target has none."""
        return (self.reference or "") if self.target is None else self.target

    @property
    def is_matched(self) -> bool:
        """Whether both sides have the operation."""
        return self.target is not None and self.reference is not None


def row_name(record: str, slot: str) -> str:
    """Return the name of a value: record and slot."""
    return f"{record}.{slot}" if slot else record


class Row(msgspec.Struct, kw_only=True, gc=False):
    """A value of either side, or of both, and the verdict on it.

    Every row is `Matched`, `Added` or `Missing`.

    Attributes:
        pair: the operation.
        target: the target's value, None where it is missing there.
        reference: the reference's value, None where it is missing there.
        metrics: how their elements differ, where both files were read.
        status: filled in by `msprobe.compare.verdicts`, as are the following.
        origin: None for rows without a difference.
        error: the relative error that decided the status; None where there is no such number.
        finding: the difference in words; empty where the status is enough.
        cause: the reason for the origin; None where status and origin are enough.
        subject: the record, the value or the rank that the cause names.
        problem: why the values could not be compared (unreadable file …); empty if they could.
    """

    pair: OperationPair
    target: Value | None = None
    reference: Value | None = None
    metrics: ElementMetrics | None = None
    status: Status = Status.EQUAL
    origin: Origin | None = None
    error: float | None = None
    finding: str = ""
    cause: Cause | None = None
    subject: str = ""
    problem: str = ""

    @property
    def value(self) -> Value:
        """The target's value, or the reference's where the target has none."""
        found = self.reference if self.target is None else self.target
        assert found is not None
        return found

    @property
    def values(self) -> tuple[Value, ...]:
        """The values that there are, the target's first."""
        return (self.value,)

    @property
    def holds_tensor(self) -> bool:
        """Whether either value is a tensor."""
        return self.value.is_tensor

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument that is no tensor."""
        return self.value.role is Role.INPUT and not self.holds_tensor

    @property
    def name(self) -> str:
        """The row's name: record and slot."""
        return row_name(self.pair.name, self.value.slot)

    @property
    def target_name(self) -> str | None:
        """The name that the target has for the value; None where it has none."""
        return _value_name(self.pair.target, self.target)

    @property
    def reference_name(self) -> str | None:
        """The name that the reference has for the value; None where it has none."""
        return _value_name(self.pair.reference, self.reference)

    @property
    def reason(self) -> str:
        """The reason for status and origin, in words."""
        if self.cause is None:
            return self.finding
        words = self.cause.words.format(self.subject)
        return f"{self.finding}; {words}" if self.finding and words else self.finding or words


def _value_name(record: str | None, value: Value | None) -> str | None:
    return None if record is None or value is None else row_name(record, value.slot)


class Matched(Row, kw_only=True, gc=False):
    """Two values that belong together."""

    target: Value
    reference: Value

    @property
    def value(self) -> Value:
        """The target's value."""
        return self.target

    @property
    def values(self) -> tuple[Value, ...]:
        """Both values."""
        return self.target, self.reference

    @property
    def holds_tensor(self) -> bool:
        """Whether either value is a tensor."""
        return self.target.is_tensor or self.reference.is_tensor

    @property
    def precisions(self) -> tuple[str, str] | None:
        """Floating types of the target and the reference; None where they are as fine, or none.

        Complex numbers are as fine as those that they are pairs of.
        """
        target, reference = self.target.dtype, self.reference.dtype
        is_same = target == reference or kind_of(target) is not kind_of(reference)
        if is_same or not (epsilon_of(target) and epsilon_of(reference)):
            return None
        return target, reference


class Added(Row, kw_only=True, gc=False):
    """A value that only the target has."""

    target: Value


class Missing(Row, kw_only=True, gc=False):
    """A value that only the reference has."""

    reference: Value
