# SPDX-License-Identifier: Apache-2.0
"""The MindSpore side of the seam: reads tensors, never changes one and runs no operator.

On the CPU the memory of a tensor is a NumPy array without a copy, and one pass over it gives all
statistics. From an accelerator the values are brought to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import CodeType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import mindspore
from mindspore import Parameter, Tensor
from msprobe.capture.array_statistics import summarise_array
from msprobe.capture.call import Draft
from msprobe.capture.stacks import Traits
from msprobe.config import Config, Slice, StatisticsSection, SummaryMode, TensorSection
from msprobe.dump.records import TensorRecord
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.describing import describe, dtype_name
from msprobe.mindspore.stack_traits import classify
from msprobe.mindspore.tensor_payload import ArrayFile, crc32_hex, plain_values

TENSOR_TYPES: Final = (Tensor, Parameter)


class MindSporeAdapter:
    """Describes, summarises and saves tensors."""

    def __init__(self, config: Config) -> None:
        """Create it for one configuration."""
        self._md5 = False
        self._slices: tuple[Slice, ...] = ()
        section = config.section
        if isinstance(section, StatisticsSection | TensorSection):
            self._md5 = section.summary_mode is SummaryMode.MD5
            self._slices = section.slice

    @property
    def framework(self) -> str:
        """The name in dumps."""
        return "mindspore"

    @property
    def tensor_suffix(self) -> str:
        """The extension of tensor files."""
        return ".npy"

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a MindSpore tensor or parameter."""
        return isinstance(value, Tensor)

    def describe(self, value: object, key: str) -> Any:
        """Return the JSON form of a MindSpore value that is not a tensor."""
        return describe(value)

    def classify_stack(self, codes: Sequence[CodeType]) -> Traits:
        """Say what the frames of a call mean for it."""
        return classify(codes)

    def current_rank(self) -> int | None:
        """Return the rank in the communication group, None without one."""
        return current_rank()

    # -- tensors -------------------------------------------------------------------------------

    def record_tensor(
        self, tensor: Any, draft: Draft, path: str, *, is_gradient: bool = False
    ) -> TensorRecord:
        """Return the record of a tensor; see `msprobe.capture.adapter.Adapter`."""
        try:
            return self._record(tensor, draft, path)
        except Exception as error:  # noqa: BLE001 - one odd tensor must not cost the record
            draft.error = error
            note = f"unreadable: {type(error).__name__}: {error}"[:200]
            return TensorRecord("mindspore.Tensor", dtype_name(tensor), (), note=note)

    def _record(self, tensor: Any, draft: Draft, path: str) -> TensorRecord:
        values = values_of(tensor)
        if values is None:
            shape = tuple(tensor.shape)
            return TensorRecord(
                "mindspore.Tensor", dtype_name(tensor), shape, note="not initialised"
            )
        if self._slices:
            values = _crop(values, self._slices)
        summary = summarise_array(values)
        record = TensorRecord(
            "mindspore.Tensor",
            dtype_name(tensor),
            tuple(values.shape),
            summary.max,
            summary.min,
            summary.mean,
            summary.norm,
        )
        draft.add_details(record, summary)
        if self._md5:
            record.md5 = crc32_hex(values)
        if values.size and (draft.held is not None or draft.files is not None):
            # The memory is the user's: what is saved later must be a copy.
            payload = ArrayFile(plain_values(values))
            if draft.held is not None:
                draft.held.append((payload, record, path))
            else:
                draft.save(payload, record, path)
        return record

    def private_copy(self, tensor: Any) -> Any:
        """Return a copy of a gradient, as a NumPy array: no operator runs."""
        return np.array(values_of(tensor), copy=True)

    def add(self, total: Any, share: Any) -> Any:
        """Return the sum of a private copy and a further share, rounded to its type."""
        total += values_of(share)
        return total

    # -- nothing waits for a device ------------------------------------------------------------

    def take_batch(self) -> Callable[[], None] | None:
        """Return None: every summary is complete when it is handed out."""
        return None

    def fill(self, draft: Draft) -> None:
        """Do nothing: no summary is ever unfinished."""

    def unnoticed(self) -> AbstractContextManager[object]:
        """Return a context that does nothing: reading a tensor shows nowhere."""
        return nullcontext()


def values_of(tensor: Any) -> NDArray[Any] | None:
    """Return the values of a tensor, or of the sum that `MindSporeAdapter.add` made of gradients.

    None for a parameter whose initialiser has not run.
    """
    if isinstance(tensor, np.ndarray):
        return tensor
    if not isinstance(tensor, Tensor):  # sparse tensors: their stored values
        tensor = tensor.values
    if getattr(tensor, "has_init", False):
        return None
    values: NDArray[Any] = tensor.asnumpy()
    return values


def _crop(values: NDArray[Any], slices: Sequence[Slice]) -> NDArray[Any]:
    for one in slices:
        if one.dim < values.ndim and one.size in (None, values.shape[one.dim]):
            index = [slice(None)] * values.ndim
            index[one.dim] = slice(one.begin, one.end)
            values = values[tuple(index)]
    return values


def on_host() -> bool:
    """Return whether operators run on the CPU."""
    return str(mindspore.get_context("device_target")) == "CPU"
