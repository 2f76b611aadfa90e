# SPDX-License-Identifier: Apache-2.0
"""The PyTorch side of the seam: reads tensors, never changes one.

Every method here runs with grad mode off and torch functions disabled (see `guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any, Final

import torch
from msgspec import Raw
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from msprobe.capture.call import Draft
from msprobe.capture.stacks import Traits
from msprobe.capture.statistics import Summary
from msprobe.capture.unfinished import fill_waiting, take_summary
from msprobe.capture.values import Found, Position
from msprobe.config import (
    Config,
    DiffCheckSection,
    DiffRule,
    NanCheckSection,
    Slice,
    StatisticsSection,
    SummaryMode,
    Task,
    TensorSection,
)
from msprobe.dump.records import TensorRecord
from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.interception.stack_traits import classify
from msprobe.pytorch.values.buffer_pool import BufferPool
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.describing import describe, placements_of, tensor_type
from msprobe.pytorch.values.memo import FoundOut, Value, new_memo
from msprobe.pytorch.values.readable import outside_transforms, readable, transforms_active
from msprobe.pytorch.values.statistics import DeviceBatch, summarise
from msprobe.pytorch.values.tensor_columns import KnownTensors
from msprobe.pytorch.values.tensor_payload import snapshot
from msprobe.pytorch.values.undefined_memory import UndefinedMemory
from msprobe.pytorch.values.value_watch import TorchValueWatch, first_positions, small_shares

# Exact types whose every property can be read without a detour.
TENSOR_TYPES: Final = (Tensor, Parameter)


class Summaries:
    """Summarises tensors; those on accelerators become ready batch by batch.

    Args:
        waits: whether numbers may come later; some tasks must know before the next call.
        only_extremes: see `DeviceBatch`.
    """

    __slots__ = ("_batch", "_only_extremes", "_waits")

    def __init__(self, *, waits: bool, only_extremes: bool) -> None:
        self._waits = waits
        self._only_extremes = only_extremes
        self._batch: DeviceBatch | None = None

    def __call__(self, tensor: Tensor) -> Summary:
        """Return the summary of a tensor, perhaps one that is not ready."""
        if tensor.is_cpu or tensor.is_meta or not self._waits:
            return summarise(tensor)
        if self._batch is None:
            self._batch = DeviceBatch(only_extremes=self._only_extremes)
        return self._batch.add(tensor)

    def take_batch(self) -> Callable[[], None] | None:
        """Start the copy of the numbers so far; see `Adapter.take_batch`."""
        batch, self._batch = self._batch, None
        if batch is None:
            return None
        batch.start_copy()
        return batch.collect


class TorchAdapter:
    """Describes, summarises and saves tensors.

    Attributes:
        memo: summaries of values that have not changed.
        undefined: which memory holds nothing yet.
        known: checksums and norms of parameters.
    """

    def __init__(self, config: Config) -> None:
        """Create it for one configuration."""
        self.memo = new_memo()
        self._describe = self.memo.describe
        self.undefined = UndefinedMemory()
        self.known = KnownTensors()
        self._md5 = False
        self._slices: tuple[Slice, ...] = ()
        section = config.section
        if isinstance(section, StatisticsSection | TensorSection):
            self._md5 = section.summary_mode is SummaryMode.MD5
            self._slices = section.slice
        elif isinstance(section, DiffCheckSection):
            self._md5 = section.compare is DiffRule.CHECKSUM
        self._waits = config.task not in (Task.OVERFLOW_CHECK, Task.DIFF_CHECK)
        self._buffers = BufferPool()
        # Records then hold nothing but the memo's texts.
        self._locates = config.task is Task.NAN_CHECK
        self._summarise = Summaries(waits=self._waits, only_extremes=self._locates)
        self.memo.summarise = self._summarise
        section = config.section
        self._underflow = section.underflow if isinstance(section, NanCheckSection) else 0.0
        self._is_whole = not (self._md5 or self._slices or self._locates)
        self._dtype_names: dict[torch.dtype, str] = {}

    @property
    def framework(self) -> str:
        """The name in dumps."""
        return "pytorch"

    @property
    def tensor_suffix(self) -> str:
        """The extension of tensor files."""
        return ".pt"

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a torch tensor of any class."""
        return issubclass(type(value), Tensor)

    def describe(self, value: object, key: str) -> Any:
        """Return the JSON form of a torch value that is not a tensor."""
        return describe(value)

    def classify_stack(self, codes: Sequence[CodeType]) -> Traits:
        """Return the traits of a call that follow from its stack frames."""
        return classify(codes)

    def is_machinery(self, _code: CodeType) -> bool:
        """Return False: stacks show the frames of torch, as those of mindstudio-probe do."""
        return False

    def current_rank(self) -> int | None:
        """Return the rank in the default process group, None when there is none."""
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank()
        return None

    def distrust(self, tensor: Tensor) -> None:
        """Note that the memory of a tensor may from now on be written unseen."""
        if self.memo.active:
            self.memo.ban(tensor)
        if self.undefined.storages:
            self.undefined.forget(tensor)

    def forget_values(self) -> None:
        """Forget the summaries of values: from now on their memory may be written unseen."""
        self.memo.clear()
        self.undefined.clear()

    def next_step(self) -> None:
        """Forget the values of the step that is over, and number those of the next anew."""
        self.memo.next_step()

    # -- tensors -------------------------------------------------------------------------------

    def record_tensor(
        self, tensor: Tensor, draft: Draft, path: str, *, is_gradient: bool = False
    ) -> TensorRecord | Raw:
        """Return the record of a tensor; see `msprobe.capture.adapter.Adapter`."""
        try:
            transforms = transforms_active()
            is_saved = draft.files is not None or draft.held is not None
            if self._is_whole and not (is_saved or transforms):
                text = self._describe(tensor, False if is_gradient else None)
                if text is not None:
                    return text
            if type(tensor) in TENSOR_TYPES and not transforms and not tensor.is_nested:
                return self._record_plain(tensor, draft, path, is_gradient=is_gradient)
            with outside_transforms():
                return self._record_unusual(tensor, draft, path, is_gradient=is_gradient)
        except Exception as error:  # noqa: BLE001 - one odd tensor must not cost the record
            draft.error = error
            note = f"unreadable: {type(error).__name__}: {error}"[:200]
            return TensorRecord(tensor_type(tensor), str(tensor.dtype), (), note=note)

    def record_plain(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] | None, draft: Draft, found: Found
    ) -> tuple[Raw, Raw] | None:
        """Return the encoded arguments; see `msprobe.capture.adapter.Adapter`."""
        if not self._is_whole or draft.files is not None or draft.held is not None:
            return None
        if type(args) is not tuple or transforms_active():
            return None
        named = kwargs or None
        if named is not None and type(named) is not dict:
            return None
        return self.memo.describe_call(args, named, found)

    @property
    def describes_whole(self) -> bool:
        """Whether the memo's descriptions are whole; see `msprobe.capture.adapter.Adapter`."""
        return self._is_whole

    def record_gradients(
        self, arrived: Sequence[tuple[Tensor, str, Position]], outputs: int, arguments: int
    ) -> Raw | None:
        """Return the encoded parts of a backward record; see `msprobe.capture.adapter.Adapter`."""
        if not self._is_whole or transforms_active():
            return None
        return self.memo.describe_gradients(arrived, outputs, arguments)

    def value_watch(self, *, share: float, parameters: bool) -> TorchValueWatch:
        """Return what asks whether values are finite; see `msprobe.capture.adapter.Adapter`."""
        return TorchValueWatch(
            self.memo,
            summarise,
            share=share,
            reads_parameters=parameters,
            underflow=self._underflow,
            waits=self._waits,
        )

    def _record_plain(
        self, tensor: Tensor, draft: Draft, path: str, *, is_gradient: bool
    ) -> TensorRecord:
        if self._slices:
            tensor = crop(tensor, self._slices)
        value = self._value_of(tensor)
        record = self._new_record(tensor, value, False if is_gradient else tensor.requires_grad)
        take_summary(draft, record, value.summary)
        if self._locates and value.summary.nonfinite is not None:
            record.first_nonfinite = first_positions(tensor)
        if self._underflow:
            shares = small_shares(tensor)
            if shares is not None:
                record.subnormal_share, record.zero_share = shares
        self._keep(tensor, record, value, draft, path)
        return record

    def _new_record(self, tensor: Tensor, value: Value, requires_grad: bool) -> TensorRecord:
        summary = value.summary
        dtype = tensor.dtype
        name = self._dtype_names.get(dtype)
        if name is None:
            name = self._dtype_names[dtype] = str(dtype)
        record = TensorRecord(
            "torch.Tensor",
            name,
            tuple(tensor.shape),
            summary.max,
            summary.min,
            summary.mean,
            summary.norm,
            requires_grad,
        )
        if value.id:
            record.value_id = value.id
        if not tensor.is_cpu:
            record.device = str(tensor.device)
        if tensor.layout is torch.strided and not tensor.is_contiguous():
            record.stride = tensor.stride()
        return record

    def _keep(
        self, tensor: Tensor, record: TensorRecord, value: Value, draft: Draft, path: str
    ) -> None:
        if self._md5:
            if value.md5 is None:
                value.md5 = crc32_hex(tensor)
            record.md5 = value.md5
        if draft.held is not None:
            # The call itself may overwrite it, or the user later.
            payload = None if 0 in record.shape else snapshot(tensor, self._buffers)
            if payload is not None:
                draft.held.append((payload, record, path))
        elif draft.files is not None:
            self._save(tensor, record, value, draft, path)

    def _save(
        self, tensor: Tensor, record: TensorRecord, value: Value, draft: Draft, path: str
    ) -> None:
        if draft.files is None or 0 in record.shape:
            return
        if value.file is not None:
            record.data_name = draft.file_name(path)
            draft.files.link_tensor(record.data_name, value.file)
            return
        payload = snapshot(tensor, self._buffers)
        if payload is not None:
            value.file = draft.save(payload, record, path)

    def _value_of(self, tensor: Tensor) -> Value:
        known = self.memo.look(tensor)
        return FoundOut(self._summarise(tensor)) if known is None else known

    def outline(self, tensor: Tensor, *, written: bool) -> TensorRecord:
        """Return the record of a tensor whose elements are not looked at.

        Args:
            tensor: any tensor.
            written: whether the call overwrites it; otherwise nothing has filled its memory yet.
        """
        requires_grad = tensor.requires_grad
        if type(tensor) in TENSOR_TYPES and not transforms_active() and not tensor.is_nested:
            shown = crop(tensor, self._slices) if self._slices else tensor
            record = self._new_record(shown, FoundOut(Summary()), requires_grad)
        else:
            with outside_transforms():
                record = self._unusual_record(tensor, Summary(), requires_grad)
        if written:
            record.written = True
        else:
            record.undefined = True
        return record

    def _record_unusual(
        self, tensor: Tensor, draft: Draft, path: str, *, is_gradient: bool
    ) -> TensorRecord:
        summary = self._summarise_unusual(tensor)
        requires_grad = False if is_gradient else tensor.requires_grad
        record = self._unusual_record(tensor, summary, requires_grad)
        take_summary(draft, record, summary)
        self._keep(tensor, record, FoundOut(summary), draft, path)
        return record

    def _unusual_record(
        self, tensor: Tensor, summary: Summary, requires_grad: bool
    ) -> TensorRecord:
        is_odd = tensor.is_nested or isinstance(tensor, UninitializedTensorMixin)
        held = readable(tensor) if is_odd else tensor
        shape = tuple(held.shape) if isinstance(held, Tensor) else ()
        record = TensorRecord(
            tensor_type(tensor),
            str(tensor.dtype),
            shape,
            summary.max,
            summary.min,
            summary.mean,
            summary.norm,
            requires_grad,
        )
        if type(tensor).__name__ == "DTensor":
            record.device_mesh, record.placements = placements_of(tensor)
            record.shape = tuple(tensor._local_tensor.shape)  # type: ignore[attr-defined]
        if not tensor.is_cpu:
            record.device = str(tensor.device)
        return record

    def _summarise_unusual(self, tensor: Tensor) -> Summary:
        if tensor.is_cpu or not self._waits:
            return summarise(tensor)
        held = readable(tensor)
        return Summary(note=held) if isinstance(held, str) else self._summarise(held)

    def take_bad_values(self) -> int:
        """Return how many values with a NaN or +Inf were described since the last call."""
        count, self.memo.bad = self.memo.bad, 0
        return count

    def private_copy(self, tensor: Tensor) -> Tensor:
        """Return a copy of a gradient that the user's program cannot reach."""
        return tensor.clone()

    def add(self, total: Tensor, share: Tensor) -> Tensor:
        """Return the sum of a private copy and a further share."""
        try:
            return total.add_(share)
        except RuntimeError:  # a sparse and a dense share, one of them with a batch dimension …
            return total + share

    def guard(self) -> AbstractContextManager[object]:
        """Return a context without grad mode, torch functions and the user's modes."""
        return guard()

    # -- devices -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do nothing: every device computes all statistics."""

    def wait_for_graphs(self) -> None:
        """Do nothing: between `start` and `stop` no compiled graph hands over values."""

    def take_batch(self) -> Callable[[], None] | None:
        """Start the copy of the statistics that the device computed; see `Adapter`."""
        return self._summarise.take_batch()

    def fill(self, draft: Draft) -> None:
        """Write the finished summaries into the records of `draft`; see `Adapter`."""
        fill_waiting(draft)


def crop(tensor: Tensor, slices: Sequence[Slice]) -> Tensor:
    """Return the part of `tensor` that the configured slices leave."""
    for one in slices:
        if one.dim < tensor.dim() and one.size in (None, tensor.size(one.dim)):
            size = tensor.size(one.dim)
            begin, end, _ = slice(one.begin, one.end).indices(size)
            tensor = tensor.narrow(one.dim, begin, max(0, end - begin))
    return tensor
