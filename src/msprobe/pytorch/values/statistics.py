# SPDX-License-Identifier: Apache-2.0
"""The summary of a torch tensor (meaning of the numbers: `msprobe.capture.statistics`).

On the CPU one pass over the memory gives all numbers, in C, without a copy. Elsewhere, and where
the C kernels are missing, torch's reductions do it (`device_statistics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from msprobe.capture.projections import PIECE_ELEMENTS, project_pieces
from msprobe.capture.statistics import (
    NATIVE,
    Native,
    NonFinite,
    Projections,
    Summary,
    from_raw,
)
from msprobe.pytorch.values.device_statistics import NOT_COUNTED, DeviceBatch
from msprobe.pytorch.values.readable import PLAIN, note_of_stored_values, readable, storage_address

__all__ = ["DeviceBatch", "make_summarise", "summarise", "use_threads_of_torch"]


def make_summarise(native: Native | None) -> Callable[[torch.Tensor], Summary]:
    """Return a function that summarises one tensor with the given kernels.

    Args:
        native: the C kernels; None for torch's reductions.
    """
    if native is None:
        return _by_reductions
    kinds = {
        dtype: (kind, dtype.itemsize)
        for name, kind in native.kinds.items()
        if isinstance(dtype := getattr(torch, name, None), torch.dtype)
    }

    def summarise(t: torch.Tensor) -> Summary:
        known = kinds.get(t.dtype)
        if known is not None and t.is_cpu and type(t) in PLAIN:
            try:
                return _of_memory(native, t, *known)
            except (RuntimeError, NotImplementedError, ValueError):
                pass  # no memory of its own: sparse, functorch wrapper, mkldnn, released …
        found = _dense(t)
        if isinstance(found, str):
            return Summary(note=found)
        known = kinds.get(found.dtype)
        if known is None or not found.is_cpu:
            return _by_reductions(t)
        summary = _of_memory(native, found, *known)
        summary.note = summary.note or note_of_stored_values(t)
        return summary

    return summarise


def _of_memory(native: Native, t: torch.Tensor, kind: int, item_bytes: int) -> Summary:
    """Summarise CPU memory where it lies. Every line counts: this runs for each tensor seen.

    Raises:
        RuntimeError: `t` has no memory of its own.
        ValueError: its memory was given back.
    """
    start: int = t.storage_offset() * item_bytes  # type: ignore[assignment]  # no SymInt here
    if t.is_contiguous():
        count = t.numel()
        if t.untyped_storage().nbytes() < start + count * item_bytes:
            return Summary(note="released")
        raw = native.stats(kind, storage_address(t) + start, count)
    else:
        storage = t.untyped_storage()
        address = storage_address(t) + start
        raw = native.stats_strided(kind, address, t.shape, t.stride(), storage.nbytes() - start)
    summary = Summary(*raw) if raw[4] is None else from_raw(raw)  # type: ignore[arg-type]
    if t.is_complex():
        if t.is_conj() or t.is_neg():
            summary.projections = projections_of(t.resolve_conj().resolve_neg())
    elif t.is_neg():
        negate(summary)
    return summary


def _dense(t: torch.Tensor) -> torch.Tensor | str:
    """Return the readable elements of `t`, in real numbers."""
    found = readable(t)
    if isinstance(found, str) or not found.is_quantized:
        return found
    try:
        return found.dequantize()
    except (RuntimeError, NotImplementedError) as exc:
        return f"unreadable: {type(exc).__name__}"


def _by_reductions(t: torch.Tensor) -> Summary:
    summary = _batch_of_one(t, count_nonfinite=False)
    if summary.note == NOT_COUNTED:  # rare, and counting doubles the work
        summary = _batch_of_one(t, count_nonfinite=True)
    held = _dense(t)
    if not isinstance(held, str) and held.is_cpu:
        summary.projections = projections_of(held)
    return summary


def projections_of(t: torch.Tensor) -> Projections | None:
    """Return the projections of a tensor on the CPU, widened a piece at a time.

    The elements come in the order in which they lie in memory, those that are repeated once.
    """
    for dim in range(t.dim()):
        t = t if t.stride(dim) else t.narrow(dim, 0, min(t.shape[dim], 1))
    try:
        order = sorted(range(t.dim()), key=t.stride().__getitem__, reverse=True)
        flat = t.permute(order).reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).view(-1)
        starts = range(0, flat.numel(), PIECE_ELEMENTS)
        return project_pieces(
            flat[start : start + PIECE_ELEMENTS].to(torch.float64).resolve_neg().numpy()
            for start in starts
        )
    except (RuntimeError, NotImplementedError):  # a conjugate view; float4 does not widen
        return None


def _batch_of_one(t: torch.Tensor, *, count_nonfinite: bool) -> Summary:
    batch = DeviceBatch(count_nonfinite=count_nonfinite)
    summary = batch.add(t)
    batch.collect()
    return summary


def negate(summary: Summary) -> None:
    """Turn the summary of x into that of -x (views with torch's lazy negative bit)."""
    summary.max, summary.min = _minus(summary.min), _minus(summary.max)
    summary.mean = _minus(summary.mean)
    if summary.projections is not None:
        first, second = summary.projections
        summary.projections = (0.0 - first, 0.0 - second)
    found = summary.nonfinite
    if found is not None:
        summary.nonfinite = NonFinite(
            found.nan_count,
            found.neg_inf_count,
            found.pos_inf_count,
            _minus(found.finite_min),
            _minus(found.finite_max),
        )


def _minus(x: float | None) -> float | None:
    return None if x is None else 0.0 - x  # not -x: zeros stay positive


summarise: Final = make_summarise(NATIVE)
"""``summarise(t) -> Summary`` with the best kernels of this process.

Never raises for what a tensor is, never changes or copies it in full (except quantised tensors,
whose real values are computed). The caller guarantees that grad mode is off, that torch functions
of subclasses are disabled (``torch._C.DisableTorchFunctionSubclass``) and that no mode of the
user's is on. float64 accumulation always, whatever the configured precision.

Cost on the CPU: 1 µs and one reading of the memory. A tensor on an accelerator makes the host wait
for the device: use `DeviceBatch` for many.
"""


def use_threads_of_torch() -> None:
    """Let large tensors, and many at once, be read by as many threads as torch computes with."""
    if NATIVE is not None:
        NATIVE.use_threads(torch.get_num_threads())
