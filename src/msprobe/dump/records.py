# SPDX-License-Identifier: Apache-2.0
"""Records as they are written to ``dump.json`` (format: docs/formats.md).

A record is a plain dict of parts (``input_args``, ``output`` …) whose leaves are either
[`TensorRecord`][msprobe.dump.records.TensorRecord] objects, small ``{"type", "value"}`` dicts,
or None. `encode` turns it into one line of JSON.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

# Json trees are open by nature: the user's nested arguments decide their shape.
JsonTree = Any
Statistic = float | int | bool | None

SIGN_PERIOD: Final = 144
"""The signs of projections come again after so many elements, up to the end of a block."""
SIGN_BLOCK: Final = 7 * SIGN_PERIOD
"""Elements of a block, each of which has signs from another place."""


class TensorRecord(msgspec.Struct):
    """One tensor of a record. Field order and names are the on-disk format; UNSET is left out.

    Mutable on purpose: on an accelerator the four statistics arrive after the record was made.

    Attributes:
        type: ``torch.Tensor``, ``mindspore.Tensor``, ``torch.distributed.tensor.DTensor`` …
        dtype: as the framework prints it, ``torch.bfloat16``.
        max: largest value, NaN when any element is; true/false for bool; None when undefined.
        min: smallest value, same type.
        mean: arithmetic mean; None when undefined (empty, bool …).
        norm: L2 norm over all elements; None when undefined.
        data_name: file in ``dump_tensor_data`` that holds the value.
        md5: CRC-32 of the contiguous little-endian bytes, 8 hex digits (the key's name is legacy).
        device: only when it is not the CPU.
        stride: only when the tensor is not contiguous, in elements.
        value_id: equal for the same unchanged value wherever it appears in the step.
        nan_count: number of NaN elements, only when there is a NaN or an infinity.
        pos_inf_count: number of +Inf elements, under the same condition.
        neg_inf_count: number of -Inf elements, under the same condition.
        finite_max: largest finite value, under the same condition; None when no element is finite.
        finite_min: smallest finite value, under the same condition.
        projections: two sums of the elements with pseudo-random signs (docs/metrics.md).
        note: why a statistic is missing, in a few words (``meta``, ``released`` …).
        all_of: the backward record of the one call that a parameter's gradient comes from, where
            that is known; its ``.grad`` was None before.
        written: true for a tensor that the call overwrites without reading; it has no statistics.
        undefined: true for memory that nothing has filled yet; it has no values.
        is_nan: whether there is a NaN or an infinity; only in the task ``nan_check``.
        first_nonfinite: index of the first NaN, +Inf and -Inf, under ``nan``, ``inf``, ``-inf``;
            only in the task ``nan_check``.
        subnormal_share: share of nonzero elements that are subnormal; only in the task
            ``nan_check``, where ``underflow`` asks for it.
        zero_share: share of elements that are zero; the same.
    """

    type: str
    dtype: str
    shape: tuple[int, ...] | list[int]
    max: Statistic = msgspec.field(name="Max", default=None)
    min: Statistic = msgspec.field(name="Min", default=None)
    mean: Statistic = msgspec.field(name="Mean", default=None)
    norm: Statistic = msgspec.field(name="Norm", default=None)
    requires_grad: bool | UnsetType = UNSET
    device_mesh: Any = UNSET
    placements: Any = UNSET
    data_name: str | UnsetType = UNSET
    md5: str | UnsetType | None = UNSET
    device: str | UnsetType = UNSET
    stride: tuple[int, ...] | list[int] | UnsetType = UNSET
    value_id: int | UnsetType = UNSET
    nan_count: int | UnsetType = UNSET
    pos_inf_count: int | UnsetType = UNSET
    neg_inf_count: int | UnsetType = UNSET
    finite_max: Statistic | UnsetType = UNSET
    finite_min: Statistic | UnsetType = UNSET
    projections: tuple[float, float] | UnsetType = UNSET
    note: str | UnsetType = UNSET
    all_of: str | UnsetType = UNSET
    written: bool | UnsetType = UNSET
    undefined: bool | UnsetType = UNSET
    is_nan: bool | UnsetType = UNSET
    first_nonfinite: dict[str, list[int]] | UnsetType = UNSET
    subnormal_share: float | UnsetType = UNSET
    zero_share: float | UnsetType = UNSET


STORED_VALUES: Final = "stored values only"
"""Note of sparse tensors: the zeros that are not stored do not count."""
PASS_THROUGH: Final = "pass-through"
"""First word of the note of a gradient that a call has of an input which it returns as it is."""

_FAST: Final = msgspec.json.Encoder()


def encode(tree: JsonTree, *, nonfinite: bool = False) -> bytes:
    """Return `tree` as one line of JSON, without a line break.

    Args:
        tree: dicts with str keys, lists, tuples, scalars, None, `TensorRecord`, and parts that are
            encoded already (`msgspec.Raw`).
        nonfinite: whether any number in it is NaN, infinite, or an integer beyond 64 bits. msgspec
            refuses these or writes null; Python's `json` writes them as the format has it.
    """
    return _FAST.encode(_encoded_leaves(tree) if nonfinite else tree)


def with_text(value: TensorRecord | msgspec.Raw, key: str, text: str) -> TensorRecord | msgspec.Raw:
    """Return a copy of a tensor's record, encoded or not, with a text under a key."""
    if isinstance(value, TensorRecord):
        return msgspec.structs.replace(value, **{key: text})
    return msgspec.Raw(b'%b,"%b":%b}' % (bytes(value)[:-1], key.encode(), _FAST.encode(text)))


def _encoded_leaves(tree: JsonTree) -> JsonTree:
    """Return the tree with its leaves encoded by Python's `json`."""
    if isinstance(tree, dict):
        return {key: _encoded_leaves(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [_encoded_leaves(item) for item in tree]
    if isinstance(tree, msgspec.Raw):
        return tree
    text = json.dumps(msgspec.to_builtins(tree), separators=(",", ":"))
    return msgspec.Raw(text.encode())
