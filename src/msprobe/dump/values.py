# SPDX-License-Identifier: Apache-2.0
"""`Value`: one value of a record, a tensor or an argument that is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from msprobe.dump.records import PASS_THROUGH, STORED_VALUES, JsonTree, Statistic

PartPath = tuple[str | int, ...]
"""Keys and indices from a record to one of its values, such as ``("input_args", 0)``."""

# As in the names of tensor files: "input.0" and "kwargs.key".
_SHORT_PARTS: Final[Mapping[str | int, str]] = {"input_args": "input", "input_kwargs": "kwargs"}
_NO_FIELDS: Final = MappingProxyType[str, JsonTree]({})


UNREADABLE: Final = "unreadable"
"""Type of a value whose file is damaged; the value is the error message."""


class Role(StrEnum):
    """Role of a value in its operation."""

    INPUT = "input"
    PARAMETER = "parameter"
    OUTPUT = "output"
    PARAMETER_GRAD = "parameter_grad"
    SAVED = "saved"
    OTHER = "other"
    """A fact about the call that is no tensor, such as which generator it drew from."""


class Message(NamedTuple):
    """Point-to-point operation (``torch.distributed.P2POp``) that sends or receives a tensor.

    Attributes:
        operation: ``isend`` or ``irecv``.
        peer: the other rank.
        tag: None where the dump does not say.
        group_id: of the process group.
    """

    operation: str | None = None
    peer: int | None = None
    tag: int | None = None
    group_id: str | None = None


class Unusual(msgspec.Struct, frozen=True, gc=False):
    """Facts that few values have; the attributes of the same names of `Value` read them."""

    nan_count: int | None = None
    pos_inf_count: int | None = None
    neg_inf_count: int | None = None
    finite_max: Statistic = None
    finite_min: Statistic = None
    note: str | None = None
    remark: str | None = None
    written: bool | None = None
    undefined: bool | None = None
    device: str | None = None
    group_ranks: tuple[int, ...] | None = None
    message: Message | None = None
    extra: Mapping[str, JsonTree] = _NO_FIELDS


_USUAL: Final = Unusual()


# Not a dataclass: a msgspec struct is made five times as fast, and a comparison makes all values
# of two dumps and keeps them: half of its memory. Calls with over 15 keywords are slow in Python.
class Value(msgspec.Struct, gc=False):
    """One value of a record: a tensor, or an argument that is none.

    Attributes:
        path: where it is in the record: ``("input_args", 0)``.
        slot: the same for names of rows, which are record and slot: ``input.0``,
            ``output.0.hidden``, ``parameters.weight``. A keyword argument is ``input.mask``, or
            ``kwargs.mask`` where its values were kept (as the file is named). Empty for a value
            that is a record of its own (level ``debug``).
        role: role in its operation (input, parameter, output …).
        is_tensor: whether it has a shape and statistics.
        type: ``torch.Tensor``, ``int``, ``slice`` …; ``NoneType`` for null.
        dtype: normalised over frameworks: ``float32``, ``bfloat16``; empty for non-tensors.
        raw_dtype: as the dump spells it: ``torch.float32``, ``Float32``.
        shape: None for non-tensors.
        max: largest value, as the dump holds it: NaN when there is any; a bool for bool tensors;
            None when undefined. The same holds for `min`, `mean` and `norm` (L2).
        requires_grad: None where the dump does not say (MindSpore).
        data_name: file in ``dump_tensor_data`` with the elements; None when not kept.
        md5: checksum of the bytes (the name is historical), None when not kept.
        value_id: number that all appearances of the same unchanged value in the step share.
        value: the value of a non-tensor, or all other keys of the entry if it has no single value.
        stride: only when the tensor is not contiguous, in elements.
        pair: two sums with pseudo-random signs (docs/metrics.md), where the dump has them: a
            complex number takes a third of the memory of a tuple of two.
        nan_count: number of NaN elements; None where the dump does not say. The same holds for
            `pos_inf_count` and `neg_inf_count`.
        finite_max: largest finite element, only where some are not finite; also `finite_min`.
        note: why a statistic is missing, in a few words (``uninitialized``, ``meta`` …).
        remark: why a gradient is missing, or which shares it includes.
        written: True for a tensor that the call overwrites without reading.
        undefined: True for memory that nothing had filled yet.
        device: only when it is not the CPU.
        group_ranks: the members of a process group.
        message: of a point-to-point operation.
        extra: every other key of the entry.
    """

    path: PartPath
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
    data_name: str | None = None
    md5: str | None = None
    value_id: int | None = None
    value: JsonTree = None
    stride: tuple[int, ...] | None = None
    pair: complex | None = None
    unusual: Unusual = _USUAL

    def add_unusual(self, **facts: Any) -> None:
        """Set facts of `Unusual`."""
        self.unusual = msgspec.structs.replace(self.unusual, **facts)

    @property
    def projections(self) -> tuple[float, float] | None:
        """The `pair` of elements that lie in memory in their order, each once; else None."""
        if self.pair is None or (self.stride and self._order != self._row_major):
            return None
        return self.pair.real, self.pair.imag

    @projections.setter
    def projections(self, pair: tuple[float, float] | None) -> None:
        self.pair = None if pair is None else complex(*pair)

    @property
    def nan_count(self) -> int | None:  # noqa: D102
        return self.unusual.nan_count

    @property
    def pos_inf_count(self) -> int | None:  # noqa: D102
        return self.unusual.pos_inf_count

    @property
    def neg_inf_count(self) -> int | None:  # noqa: D102
        return self.unusual.neg_inf_count

    @property
    def finite_max(self) -> Statistic:  # noqa: D102
        return self.unusual.finite_max

    @property
    def finite_min(self) -> Statistic:  # noqa: D102
        return self.unusual.finite_min

    @property
    def note(self) -> str | None:  # noqa: D102
        return self.unusual.note

    @property
    def remark(self) -> str | None:  # noqa: D102
        return self.unusual.remark

    @property
    def written(self) -> bool | None:  # noqa: D102
        return self.unusual.written

    @property
    def undefined(self) -> bool | None:  # noqa: D102
        return self.unusual.undefined

    @property
    def device(self) -> str | None:  # noqa: D102
        return self.unusual.device

    @property
    def group_ranks(self) -> tuple[int, ...] | None:  # noqa: D102
        return self.unusual.group_ranks

    @property
    def message(self) -> Message | None:  # noqa: D102
        return self.unusual.message

    @property
    def extra(self) -> Mapping[str, JsonTree]:  # noqa: D102
        return self.unusual.extra

    @property
    def label(self) -> str:
        """The place in short: ``input.0``, ``kwargs.mask``, ``parameters.weight``."""
        return path_label(self.path)

    @property
    def argument(self) -> str:
        """Position or name among the arguments or results: ``0`` of ``input.0``, ``mask``."""
        return ".".join(map(str, self.path[1:]))

    @property
    def is_null(self) -> bool:
        """Whether the record holds null in this place."""
        return self.type == "NoneType"

    @property
    def is_unread(self) -> bool:
        """Whether the call does not read its elements, so that they mean nothing."""
        return bool(self.unusual.written or self.unusual.undefined)

    @property
    def is_handed_through(self) -> bool:
        """Whether it is a gradient of all uses of an input that the call returns as it is."""
        return self.note is not None and self.note.partition(":")[0] == PASS_THROUGH

    @property
    def is_sparse(self) -> bool:
        """Whether its numbers are those of its stored values alone, which may be parts of sums."""
        return self.note == STORED_VALUES

    @property
    def squeezed_shape(self) -> tuple[int, ...]:
        """The shape without dimensions of size 1."""
        return tuple(size for size in self.shape or () if size != 1)

    @property
    def _row_major(self) -> tuple[int, ...]:
        return tuple(range(len(self.squeezed_shape)))

    @property
    def _order(self) -> tuple[int, ...]:
        """Dimensions larger than 1 as they lie in memory, without those that repeat elements."""
        if self.stride is None:
            return self._row_major
        pairs = zip(self.stride, self.shape or (), strict=True)
        steps = [step for step, size in pairs if size != 1]
        return tuple(sorted(filter(steps.__getitem__, range(len(steps))), key=lambda i: -steps[i]))

    def pairs_with(self, other: Value) -> tuple[complex, complex] | None:
        """Return the `pair` of both, None where they are not of elements in one order."""
        if self.pair is None or other.pair is None:
            return None
        is_one_order = self.stride == other.stride or self._order == other._order
        return (self.pair, other.pair) if is_one_order else None

    def has_shape_of(self, other: Value) -> bool:
        """Return whether the elements correspond: one shape, up to dimensions of size 1."""
        return self.shape == other.shape or self.squeezed_shape == other.squeezed_shape

    @property
    def has_nan(self) -> bool:
        """Whether the tensor is known to hold a NaN."""
        return self.max != self.max or self.min != self.min or bool(self.unusual.nan_count)

    @property
    def has_inf(self) -> bool:
        """Whether the tensor is known to hold an infinity (older dumps hide these behind a NaN)."""
        if self.unusual.pos_inf_count or self.unusual.neg_inf_count:
            return True
        return any(isinstance(end, float) and math.isinf(end) for end in (self.max, self.min))

    @property
    def inf_count(self) -> int | None:
        """Number of infinite elements; None where the dump lacks it."""
        if self.pos_inf_count is None and self.neg_inf_count is None:
            return None
        return (self.pos_inf_count or 0) + (self.neg_inf_count or 0)

    @property
    def finite_ends(self) -> tuple[Statistic, Statistic]:
        """Largest and smallest of the finite elements; None where the dump lacks them."""
        if _is_finite(self.max) and _is_finite(self.min):
            return self.max, self.min
        largest = self.max if _is_finite(self.max) else self.finite_max
        least = self.min if _is_finite(self.min) else self.finite_min
        return (largest if _is_finite(largest) else None, least if _is_finite(least) else None)


def path_label(path: PartPath) -> str:
    """Return a path in short: ``input.0``, ``kwargs.mask``, ``parameters.weight``."""
    first, *rest = path
    return ".".join(str(key) for key in (_SHORT_PARTS.get(first, first), *rest))


def _is_finite(number: Statistic) -> bool:
    return number is not None and math.isfinite(number)
