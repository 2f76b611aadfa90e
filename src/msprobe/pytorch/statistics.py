# SPDX-License-Identifier: Apache-2.0
"""The summary of a torch tensor (what the numbers mean: `msprobe.capture.statistics`).

On the CPU one pass over the memory gives all numbers, in C, without a copy. Elsewhere, and where
the C kernels are missing, torch's reductions do it (`device_statistics`).
"""

from __future__ import annotations

from typing import Final

import torch

from msprobe.capture.statistics import NATIVE, Native, NonFinite, Summary, from_raw
from msprobe.pytorch.device_statistics import DeviceBatch
from msprobe.pytorch.readable import STORED_VALUES, is_released, readable

__all__ = ["DeviceBatch", "Summarizer", "summarise"]

# The address of the storage. Unlike data_ptr() it does not make torch copy a lazily cloned tensor.
_storage_address: Final = torch._C._data_address
_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


class Summarizer:
    """Summarises tensors with one choice of kernels.

    Args:
        native: the C kernels; None for torch's reductions.
    """

    __slots__ = ("_kind_of", "_native")

    def __init__(self, native: Native | None) -> None:
        self._native = native
        self._kind_of: dict[torch.dtype, int] = {}
        for name, kind in native.kinds.items() if native else ():
            dtype = getattr(torch, name, None)
            if isinstance(dtype, torch.dtype):
                self._kind_of[dtype] = kind

    def __call__(self, t: torch.Tensor) -> Summary:
        """Return the summary of `t`; never raises for what a tensor is, never changes it.

        The caller guarantees that grad mode is off, that torch functions of subclasses are
        disabled (``torch._C.DisableTorchFunctionSubclass``) and that no mode of the user's is on.

        Cost on the CPU: 1 µs and the reading of the memory. A tensor on an accelerator makes the
        host wait for the device: use `DeviceBatch` for many.
        """
        kind = self._kind_of.get(t.dtype)
        if kind is not None and type(t) in _PLAIN and t.is_cpu and not t.is_nested:
            try:
                return self._of_memory(t, kind)
            except (RuntimeError, NotImplementedError):
                pass  # no memory of its own: sparse, functorch wrapper, mkldnn …
        return self._of_unusual(t)

    def _of_memory(self, t: torch.Tensor, kind: int) -> Summary:
        """Summarise CPU memory in place. Raises RuntimeError when `t` has none."""
        native = self._native
        assert native is not None
        count = t.numel()
        if count == 0:
            return Summary()
        item_bytes = t.element_size()
        start = t.storage_offset() * item_bytes
        if t.is_contiguous():
            if t.untyped_storage().nbytes() < start + count * item_bytes:
                return Summary(note="released")
            summary = from_raw(native.stats(kind, _storage_address(t) + start, count))
        else:
            if is_released(t):
                return Summary(note="released")
            address = _storage_address(t) + start
            summary = from_raw(native.stats_strided(kind, address, tuple(t.shape), t.stride()))
        if t.is_neg() and not t.is_complex():
            negate(summary)
        return summary

    def _of_unusual(self, t: torch.Tensor) -> Summary:
        """Summarise anything else: wrappers, sparse, nested, quantised, other devices."""
        found = readable(t)
        if isinstance(found, str):
            return Summary(note=found)
        if found.is_quantized:
            found = found.dequantize()
        if found.is_cpu and found.dtype in self._kind_of:
            summary = self._of_memory(found, self._kind_of[found.dtype])
        else:
            batch = DeviceBatch()
            summary = batch.add(found)
            batch.collect()
        if t.is_sparse and summary.note is None:
            summary.note = STORED_VALUES
        return summary


def negate(summary: Summary) -> None:
    """Turn the summary of x into that of -x (views with torch's lazy negative bit)."""

    def minus(x: float | bool | None) -> float | None:
        return None if x is None else 0.0 - x

    summary.max, summary.min = minus(summary.min), minus(summary.max)
    summary.mean = minus(summary.mean)
    found = summary.nonfinite
    if found is not None:
        summary.nonfinite = NonFinite(
            found.nan_count,
            found.neg_inf_count,
            found.pos_inf_count,
            minus(found.finite_min),
            minus(found.finite_max),
        )


summarise: Final = Summarizer(NATIVE)
"""Summarise one tensor with the best kernels of this process."""
