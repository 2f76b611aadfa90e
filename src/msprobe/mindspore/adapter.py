# SPDX-License-Identifier: Apache-2.0
"""The MindSpore side of the seam: reads tensors, never changes one.

On the CPU the memory of a tensor is a NumPy array without a copy, one pass over it gives all
statistics, and no operator runs. On an accelerator statistics are computed there and arrive later,
many at a time (`device_statistics`); values come to the host where the bytes are wanted, or where
the device cannot compute with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import CodeType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import mindspore
from mindspore import Parameter, Tensor
from msprobe.capture.array_statistics import summarise_array
from msprobe.capture.call import Draft
from msprobe.capture.stacks import Traits
from msprobe.capture.statistics import Summary
from msprobe.capture.unfinished import fill_waiting, take_summary
from msprobe.capture.values import Found
from msprobe.config import (
    Config,
    DiffCheckSection,
    DiffRule,
    Slice,
    StatisticsSection,
    SummaryMode,
    Task,
    TensorSection,
)
from msprobe.dump.array_file import ArrayFile
from msprobe.dump.records import TensorRecord
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled.cells import is_static_graph
from msprobe.mindspore.compiled.sink import take_kept
from msprobe.mindspore.compiled.values import GRAPH_VALUES, Summarised, array_type
from msprobe.mindspore.describing import describe, dtype_name
from msprobe.mindspore.device_statistics import DeviceStatistics
from msprobe.mindspore.immediate_operators import wait_for_launched
from msprobe.mindspore.stack_traits import classify, is_of_user_or_layer
from msprobe.mindspore.tensor_payload import crc32_hex, plain_values

_FEW_BYTES: Final = 1 << 15
TENSOR_TYPES: Final = (Tensor, Parameter, *GRAPH_VALUES)


class MindSporeAdapter:
    """Describes, summarises and saves tensors."""

    def __init__(
        self, config: Config, *, reads_memory: bool | None = None, accumulate: Any = None
    ) -> None:
        """Create it for one configuration.

        Args:
            config: the settings.
            reads_memory: whether the host reads every value itself; None: only on the CPU.
            accumulate: the type of the device's sums; see `DeviceStatistics`.
        """
        self._md5 = False
        self._slices: tuple[Slice, ...] = ()
        section = config.section
        if isinstance(section, StatisticsSection | TensorSection):
            self._md5 = section.summary_mode is SummaryMode.MD5
            self._slices = section.slice
        elif isinstance(section, DiffCheckSection):
            self._md5 = section.compare is DiffRule.CHECKSUM
        self._reads_memory = reads_memory
        # Whether values lie on a device; known when recording begins.
        self._asks_device = False
        # These tasks must know before the next call, and a checksum needs the bytes.
        is_judged = config.task in (Task.OVERFLOW_CHECK, Task.DIFF_CHECK)
        self._waits = not (self._md5 or is_judged)
        self._device = DeviceStatistics(accumulate)

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
        return isinstance(value, (Tensor, *GRAPH_VALUES))

    def describe(self, value: object, key: str) -> Any:
        """Return the JSON form of a MindSpore value that is not a tensor."""
        return describe(value)

    def classify_stack(self, codes: Sequence[CodeType]) -> Traits:
        """Return the traits of a call that follow from its stack frames."""
        return classify(codes)

    def is_machinery(self, code: CodeType) -> bool:
        """Return whether this is code of MindSpore's, except that of its layers."""
        return not is_of_user_or_layer(code)

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
        if isinstance(tensor, Summarised):
            return _record_of(tensor, tensor.shape, tensor.summary, draft)
        stored = _stored(tensor)
        if stored is None:
            shape = tuple(tensor.shape)
            return TensorRecord(
                "mindspore.Tensor", dtype_name(tensor), shape, note="not initialised"
            )
        record = self._record_on_device(stored, draft)
        return record if record is not None else self._record_on_host(stored, draft, path)

    def _record_on_device(self, stored: Any, draft: Draft) -> TensorRecord | None:
        """Return a record whose numbers arrive later, None where the host needs the values."""
        if not (self._waits and self._asks_device) or isinstance(stored, np.ndarray):
            return None
        if draft.files is not None or draft.held is not None:
            return None
        bounds = _bounds(stored.shape, self._slices)
        shape = tuple(end - begin for begin, end in bounds)
        is_whole = shape == tuple(stored.shape)
        crop = None if is_whole else (tuple(begin for begin, _ in bounds), shape)
        summary = self._device.summarise(stored, crop)
        if summary is None:
            return None
        record = TensorRecord("mindspore.Tensor", dtype_name(stored), shape)
        take_summary(draft, record, summary)
        return record

    def _record_on_host(self, stored: Any, draft: Draft, path: str) -> TensorRecord:
        values = array_of(stored)
        if self._slices:
            bounds = _bounds(values.shape, self._slices)
            values = np.asarray(values[tuple(slice(*both) for both in bounds)])
        record = _record_of(stored, tuple(values.shape), summarise_array(values), draft)
        if self._md5:
            record.md5 = crc32_hex(values)
        if values.size and (draft.held is not None or draft.files is not None):
            # The memory is the user's: a value saved later must be a copy.
            payload = ArrayFile(plain_values(values))
            if draft.held is not None:
                draft.held.append((payload, record, path))
            else:
                draft.save(payload, record, path)
        return record

    # -- shares of gradients -------------------------------------------------------------------

    def record_plain(self, args: Any, kwargs: Any, draft: Draft, found: Found) -> None:
        """Return None: arguments are described one by one."""

    @property
    def describes_whole(self) -> bool:
        """Return False: there are no such texts."""
        return False

    def record_gradients(self, arrived: Any, outputs: int, arguments: int) -> None:
        """Return None: gradients are described one by one."""

    def value_watch(self, *, share: float, parameters: bool) -> None:
        """Return None: values are described to learn whether they are finite."""

    def take_bad_values(self) -> int:
        """Return 0: every value belongs to a draft, which knows it."""
        return 0

    def private_copy(self, tensor: Any) -> Any:
        """Return a copy of a gradient: where it lies, or as a NumPy array."""
        copy = self._device.copy(_stored(tensor)) if self._asks_device else None
        return copy if copy is not None else np.array(values_of(tensor), copy=True)

    def add(self, total: Any, share: Any) -> Any:
        """Return the sum of a private copy and a further share, rounded to the copy's type."""
        if not isinstance(total, np.ndarray):
            found = self._device.add(total, _stored(share))
            if found is not None:
                return found
            total = np.array(total.asnumpy(), copy=True)
        total += values_of(share)
        return total

    # -- devices -------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Test which operators the device can compute, before the first call is recorded."""
        _device_target.cache_clear()
        if on_host() if self._reads_memory is None else self._reads_memory:
            return
        # In graph mode each operator of ours would be a graph to compile.
        self._asks_device = not is_static_graph()
        if self._asks_device:
            self._device.prepare()

    def wait_for_graphs(self) -> None:
        """Wait for launched operators and graphs (CPU only: there graphs hand over values)."""
        if on_host():
            try:
                wait_for_launched()
            finally:
                take_kept()

    def take_batch(self) -> Callable[[], None] | None:
        """Join the statistics that the device computed, for one copy; see `Adapter`."""
        return self._device.take_batch() if self._asks_device else None

    def fill(self, draft: Draft) -> None:
        """Write the finished summaries into the records of `draft`; see `Adapter`."""
        fill_waiting(draft)

    def guard(self) -> AbstractContextManager[object]:
        """Return a context that does nothing: the code that runs operators enters its own."""
        return nullcontext()


def values_of(tensor: Any) -> NDArray[Any] | None:
    """Return the values of a tensor, or of the sum that `MindSporeAdapter.add` made of gradients.

    None for a parameter whose initialiser has not run.
    """
    stored = _stored(tensor)
    return None if stored is None else array_of(stored)


def array_of(stored: Any) -> NDArray[Any]:
    """Return the values of an initialised tensor, or an array as it is; only to be read."""
    if isinstance(stored, np.ndarray):
        return stored
    if 0 < stored.nbytes <= _FEW_BYTES:
        # `asnumpy` takes 20 µs, in which NumPy parses a text about the elements; a copy 0.2 to 4.
        try:
            dtype = array_type(stored.dtype)
        except TypeError:  # float8 and the like
            pass
        else:
            return np.ndarray(stored.shape, dtype, stored.get_bytes())
    values: NDArray[Any] = stored.asnumpy()
    return values


def host_values(tensor: Any) -> NDArray[Any] | None:
    """Return the values of a tensor on the CPU; None on an accelerator: the program would wait."""
    return values_of(tensor) if on_host() else None


def _stored(tensor: Any) -> Any:
    """Return the holder of the values: a tensor, an array, or None before initialisation."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if not isinstance(tensor, Tensor):  # sparse tensors: their stored values
        tensor = tensor.values
    return None if getattr(tensor, "has_init", False) else tensor


def _record_of(tensor: Any, shape: tuple[int, ...], summary: Summary, draft: Draft) -> TensorRecord:
    four = (summary.max, summary.min, summary.mean, summary.norm)
    record = TensorRecord("mindspore.Tensor", dtype_name(tensor), shape, *four)
    take_summary(draft, record, summary)
    return record


def _bounds(shape: Sequence[int], slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Return begin and end, in each dimension, of the part that the configured slices leave."""
    bounds = [(0, size) for size in shape]
    for one in slices:
        if one.dim >= len(bounds):
            continue
        first, last = bounds[one.dim]
        if one.size in (None, last - first):
            begin, end, _ = slice(one.begin, one.end).indices(last - first)
            bounds[one.dim] = (first + begin, first + max(begin, end))
    return bounds


def on_host() -> bool:
    """Return whether operators run on the CPU."""
    return _device_target() == "CPU"


@cache
def _device_target() -> str:
    # Asked once a start: MindSpore takes 10 µs to tell, and cannot change it once it has run.
    return str(mindspore.get_context("device_target"))
