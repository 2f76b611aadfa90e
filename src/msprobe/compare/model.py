# SPDX-License-Identifier: Apache-2.0
"""What a comparison is made of: operations that were paired, and rows, one per pair of values.

A *side* is one rank's dump of one step. An *operation* is a record on a side. Operations of the two
sides are paired first, then the values inside them; each pair of values is a `Row`.
Pairs stand in the order (target, reference) everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msprobe.dump.values import Value
from msprobe.numerics.element_metrics import ElementMetrics


class Mode(StrEnum):
    """What the values are judged by."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    MD5 = "md5"


class Status(StrEnum):
    """How the two values of a row relate."""

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

    @property
    def is_difference(self) -> bool:
        """Whether the two values are known to differ."""
        return self not in (Status.EQUAL, Status.CLOSE, Status.UNREAD)


class Origin(StrEnum):
    """Where the difference of a row comes from."""

    INTRODUCED = "introduced"
    INHERITED = "inherited"
    AMPLIFIED = "amplified"
    INPUT = "input"


class Match(StrEnum):
    """How two operations found each other."""

    EXACT = "exact"
    ALIAS = "alias"
    ALIGNED = "aligned"
    MAPPED = "mapped"
    UNMATCHED = "unmatched"


@dataclass(slots=True, kw_only=True)
class OperationPair:
    """Two records that are the same operation, or one that has no partner.

    Attributes:
        position: place in the order of execution of the merged list, from 0.
        target: name of the target's record, None where it is missing there.
        reference: likewise.
        match: how they found each other.
        confidence: 1.0 for exact names, less where similarity decided, 0.0 unmatched.
        slots: target slot → reference slot, where a mapping file says so; others keep their names.
            A slot stands for everything below it (``input`` for ``input.0``), and the longest one
            counts. None means that the value has no partner.
        target_slots: values of the target that make rows; None for all. Where a data mapping leads
            from one operation to several, each of these pairs has its share.
        reference_slots: likewise.
    """

    position: int
    target: str | None
    reference: str | None
    match: Match
    confidence: float = 1.0
    slots: Mapping[str, str | None] = field(default_factory=dict)
    target_slots: frozenset[str] | None = None
    reference_slots: frozenset[str] | None = None

    @property
    def name(self) -> str:
        """The record's name: the target's, or the reference's where the target has none."""
        name = self.reference if self.target is None else self.target
        assert name is not None
        return name


def row_name(record: str, slot: str) -> str:
    """Return the name of a value: record and slot."""
    return f"{record}.{slot}" if slot else record


@dataclass(slots=True, kw_only=True)
class Row:
    """Two values that belong together, and what is to be said of them.

    Attributes:
        pair: the operation.
        target: the target's value, None where it is missing there.
        reference: likewise.
        metrics: how their elements differ, where both files were read.
        status: filled in by `msprobe.compare.verdicts`; likewise the following.
        origin: None for rows without a difference.
        error: the relative error that decided the status; None where there is no such number.
        reason: why, in words; empty where status says it all.
        problem: why the values could not be compared (unreadable file …); empty if they could.
    """

    pair: OperationPair
    target: Value | None
    reference: Value | None
    metrics: ElementMetrics | None = None
    status: Status = Status.EQUAL
    origin: Origin | None = None
    error: float | None = None
    reason: str = ""
    problem: str = ""

    @property
    def value(self) -> Value:
        """The target's value, or the reference's where the target has none."""
        value = self.reference if self.target is None else self.target
        assert value is not None
        return value

    @property
    def holds_tensor(self) -> bool:
        """Whether either value is a tensor."""
        return any(value is not None and value.is_tensor for value in (self.target, self.reference))

    @property
    def name(self) -> str:
        """The row's name: record and slot."""
        return row_name(self.pair.name, self.value.slot)
