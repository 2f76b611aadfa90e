# SPDX-License-Identifier: Apache-2.0
"""The measures of many tensors as one array, for the monitor.

Columns as in `msprobe.monitor.ops`: max, min, mean, norm, elements below a threshold, NaN,
infinities, elements. Plain tensors on the CPU are read by one call in C. Those of an accelerator
are reduced there, and come to the host in one copy for all.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from msprobe.capture.statistics import Summary
from msprobe.monitor.ops import BINS, MEASURES
from msprobe.pytorch.values.device_statistics import DeviceBatch
from msprobe.pytorch.values.device_streams import current_stream, stream_context
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.readable import readable
from msprobe.pytorch.values.statistics import summarise, use_threads_of_torch

Array = NDArray[np.float64]
Known = dict[int, tuple[weakref.ref[Tensor], int, bytes]]
"""Measures of tensors that may be unchanged when they are read again, by identity."""

_FIRST_ROWS: Final = 64
_LOWEST, _WIDTH = -40, 2


class Measures:
    """A table of measures that grows by tensors.

    Everything is read when it is added; numbers of accelerators are there after `wait`. Grad mode
    must be off meanwhile, and torch functions of subclasses and the user's modes disabled.

    Attributes:
        reasons: row → why a tensor could not be read; its row is to be left out.
    """

    __slots__ = (
        "_batch",
        "_bins",
        "_count",
        "_pending",
        "_places",
        "_rows",
        "_threshold",
        "reasons",
    )

    def __init__(self, threshold: float, *, with_bins: bool = False) -> None:
        """Create an empty table.

        Args:
            threshold: elements with a smaller magnitude are counted; negative to count none.
            with_bins: whether elements are counted by magnitude.
        """
        use_threads_of_torch()
        self._threshold = threshold
        self._rows = np.empty((_FIRST_ROWS, MEASURES))
        self._bins = np.zeros((_FIRST_ROWS, BINS)) if with_bins else None
        self._count = 0
        self.reasons: dict[int, str] = {}
        self._batch: DeviceBatch | None = None
        self._places: list[tuple[int, Summary, int]] = []
        self._pending: list[tuple[int, Tensor, Any]] = []

    def __len__(self) -> int:
        """Return the number of tensors so far."""
        return self._count

    def add(self, tensors: list[Tensor], known: Known | None = None) -> None:
        """Read tensors; each gets the next row.

        Args:
            tensors: any tensors.
            known: spares reading again what has not changed, and learns what is read.
        """
        first, self._count = self._count, self._count + len(tensors)
        if self._count > len(self._rows):
            self._grow()
        left: Sequence[int] = range(len(tensors))
        if TENSORS is not None:
            bins = None if self._bins is None else self._bins[first : self._count]
            rows = self._rows[first : self._count]
            left = TENSORS.fill_measures(tensors, rows, self._threshold, bins, known)
        for place in left:
            try:
                self._add_unusual(first + place, tensors[place])
            except Exception as error:  # noqa: BLE001 - one odd tensor must not cost the others
                self.reasons[first + place] = f"unreadable: {type(error).__name__}"

    def start_copy(self) -> None:
        """Start to copy the numbers of accelerators, without waiting for them."""
        if self._batch is not None:
            self._batch.start_copy()

    def wait(self) -> tuple[Array, Array | None]:
        """Return measures and bins, of all tensors so far; on any thread, when none is added."""
        if self._batch is not None:
            self._batch.collect()
            for place, summary, elements in self._places:
                self._put_summary(place, summary, elements)
            _fetch(self._pending, self._rows, self._bins)
            self._places, self._pending, self._batch = [], [], None
        bins = None if self._bins is None else self._bins[: self._count]
        return self._rows[: self._count], bins

    def _grow(self) -> None:
        size = max(2 * len(self._rows), self._count)
        rows = np.empty((size, MEASURES))
        rows[: len(self._rows)] = self._rows
        if self._bins is not None:
            bins = np.zeros((size, BINS))
            bins[: len(self._bins)] = self._bins
            self._bins = bins
        self._rows = rows

    def _add_unusual(self, place: int, tensor: Tensor) -> None:
        found = readable(tensor)
        if isinstance(found, str):
            self.reasons[place] = found
            return
        if found.is_quantized:
            found = found.dequantize()
        if TENSORS is not None and found.is_cpu and found is not tensor:
            bins = None if self._bins is None else self._bins[place : place + 1]
            rows = self._rows[place : place + 1]
            if not TENSORS.fill_measures([found], rows, self._threshold, bins, None):
                return
        if found.is_cpu:
            summary = summarise(found)
            self._put_summary(place, summary, found.numel())
            _fetch([(place, _counts(found, self._threshold), None)], self._rows, self._bins)
            return
        if self._batch is None:
            self._batch = DeviceBatch()
        summary = self._batch.add(found)
        self._places.append((place, summary, found.numel()))
        self._pending.append((place, _counts(found, self._threshold), current_stream(found.device)))

    def _put_summary(self, place: int, summary: Summary, elements: int) -> None:
        if summary.note is not None and summary.norm is None and summary.max is None and elements:
            self.reasons[place] = summary.note
        numbers = (summary.max, summary.min, summary.mean, summary.norm)
        found = summary.nonfinite
        nans = found.nan_count if found else 0
        infs = found.pos_inf_count + found.neg_inf_count if found else 0
        known = [np.nan if one is None else float(one) for one in numbers]
        self._rows[place] = (*known, np.nan, nans, infs, elements)


def _counts(tensor: Tensor, threshold: float) -> Tensor:
    """Return how many elements are below a threshold, and how many are in each bin."""
    if tensor.is_complex() or tensor.dtype is torch.bool:
        size = tensor.abs() if tensor.is_complex() else tensor.to(torch.float32)
    else:
        size = tensor.to(torch.float64 if tensor.dtype is torch.float64 else torch.float32).abs()
    below = (size < threshold).sum()
    exponent = torch.frexp(size).exponent - 1
    bins = torch.div(exponent - _LOWEST, _WIDTH, rounding_mode="floor") + 2
    bins = bins.clamp(1, BINS - 1).where(size > 0, 0).where(torch.isfinite(size), BINS)
    counted = torch.bincount(bins.reshape(-1), minlength=BINS + 1)[:BINS]
    return torch.cat([below.reshape(1), counted])


def _fetch(pending: list[tuple[int, Tensor, Any]], rows: Array, bins: Array | None) -> None:
    """Put counts into their columns, with one copy for each stream."""
    by_stream: dict[Any, list[tuple[int, Tensor]]] = {}
    for place, counts, stream in pending:
        by_stream.setdefault(stream, []).append((place, counts))
    for stream, found in by_stream.items():
        with nullcontext() if stream is None else stream_context(stream):
            numbers = torch.stack([counts for _, counts in found]).tolist()
        for (place, _), (below, *counted) in zip(found, numbers, strict=True):
            rows[place, 4] = below
            if bins is not None:
                bins[place] = counted
