# SPDX-License-Identifier: Apache-2.0
"""What a comparison is made of: operations that were paired, and rows, one per pair of values.

A *side* is one rank's dump of one step. An *operation* is a record on a side. Operations of the two
sides are paired first, then the values (*leaves*) inside them; each pair of values is a `Row`.
Pairs stand in the order (target, reference) everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msprobe.dump.records import JsonTree, Statistic
from msprobe.numerics.element_metrics import ElementMetrics


class Mode(StrEnum):
    """What the values are judged by."""

    TENSOR = "tensor"
    STATISTICS = "statistics"
    MD5 = "md5"


class Role(StrEnum):
    """What a value is to its operation."""

    INPUT = "input"
    PARAMETER = "parameter"
    OUTPUT = "output"
    PARAMETER_GRAD = "parameter_grad"
    SAVED = "saved"


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

    @property
    def is_difference(self) -> bool:
        """Whether somebody looking for a fault should see the row."""
        return self not in (Status.EQUAL, Status.CLOSE)


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
class Leaf:
    """One value of a record: a tensor, or an argument that is none.

    Attributes:
        slot: place inside the record, such that record and slot make the row's name: ``input.0``,
            ``output.0.hidden``, ``parameters.weight``. A keyword argument is ``input.mask``, or
            ``kwargs.mask`` where its values were kept (as the file is named). Empty for a value
            that is a record of its own (level ``debug``).
        role: what the value is to its operation.
        is_tensor: whether it has a shape and statistics.
        type: ``torch.Tensor``, ``int``, ``slice`` …
        dtype: normalised over frameworks: ``float32``, ``bfloat16``; empty for non-tensors.
        raw_dtype: as the dump spells it: ``torch.float32``, ``Float32``.
        shape: None for non-tensors.
        max: largest value, exactly as the dump holds it; likewise `min`, `mean` and `norm`.
        requires_grad: None where the dump does not say.
        md5: checksum of the bytes, None when not kept.
        data_name: file of the values, None when not kept.
        value: the value of a non-tensor.
        extra: further fields of the record (``value_id``, ``nan_count``, ``note`` …).
    """

    slot: str
    role: Role
    is_tensor: bool
    type: str
    dtype: str = ""
    raw_dtype: str = ""
    shape: tuple[int, ...] | None = None
    max: Statistic = None
    min: Statistic = None
    mean: Statistic = None
    norm: Statistic = None
    requires_grad: bool | None = None
    md5: str | None = None
    data_name: str | None = None
    value: JsonTree = None
    extra: Mapping[str, JsonTree] = field(default_factory=dict)

    @property
    def squeezed_shape(self) -> tuple[int, ...]:
        """The shape without dimensions of size 1."""
        return tuple(size for size in self.shape or () if size != 1)

    def has_shape_of(self, other: Leaf) -> bool:
        """Return whether the elements correspond: one shape, up to dimensions of size 1."""
        return self.shape == other.shape or self.squeezed_shape == other.squeezed_shape


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
        name = self.target or self.reference
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
    target: Leaf | None
    reference: Leaf | None
    metrics: ElementMetrics | None = None
    status: Status = Status.EQUAL
    origin: Origin | None = None
    error: float | None = None
    reason: str = ""
    problem: str = ""

    @property
    def leaf(self) -> Leaf:
        """The target's value, or the reference's where the target has none."""
        leaf = self.target or self.reference
        assert leaf is not None
        return leaf

    @property
    def holds_tensor(self) -> bool:
        """Whether either value is a tensor."""
        return any(leaf is not None and leaf.is_tensor for leaf in (self.target, self.reference))

    @property
    def name(self) -> str:
        """The row's name: record and slot."""
        return row_name(self.pair.name, self.leaf.slot)
