# SPDX-License-Identifier: Apache-2.0
"""Statistics computed on the device where the tensor lies.

The numbers of many tensors gather in one buffer on the device and come to the host in one copy,
so that a captured step synchronises once. On a GPU one kernel reads a tensor once
(`device_reader`). Elsewhere, and for types that it does not read, torch's own reductions do it:
some 30 launches a tensor, and float64 copies of at most `DEFAULT_PIECE_ELEMENTS` elements at a time
(64 MB each). The same code serves the CPU when the C kernels are not there. Nothing waits for the
device until the numbers are asked for. The meaning of the numbers: `msprobe.capture.statistics`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch

from msprobe.capture.statistics import NonFinite, Summary
from msprobe.pytorch.values.device_streams import (
    HostCopy,
    current_device,
    current_stream,
    stream_address,
)
from msprobe.pytorch.values.readable import (
    note_of_stored_values,
    outside_transforms,
    readable,
)

logger = logging.getLogger(__name__)

PIECE_ELEMENTS: Final = {"cpu": 1 << 14}
"""How many elements are converted at a time, by device type.

On the CPU what fits its cache, and below torch's grain of 32768: on a busy machine the hand-over to
torch's thread pool made it 50 times slower.
"""
DEFAULT_PIECE_ELEMENTS: Final = 1 << 23
BLOCK_ROWS: Final = 1024
NOT_COUNTED: Final = "non-finite, not counted"
"""Note of a tensor with NaN or infinities in a batch that does not count them."""

CAPTURED: Final = "in the capture of a CUDA graph"
"""Note of values that are computed later, by the graph."""

# Columns of a row of 64-bit words. Floating-point ones come first, then integer ones:
# counts of NaN, +Inf and -Inf for floats; max, min and the halves of the sum for integers. The last
# two are the projections, which kernels for GPUs compute.
_FLOAT_COLUMNS: Final = 7
_PROJECTIONS: Final = 11
_COLUMNS: Final = 13

_TOP_BIT: Final = -(1 << 63)
_LOW_MASK: Final = (1 << 32) - 1
# The unsigned types have few operations: they are widened, or reinterpreted (uint64).
_WIDER: Final = {torch.uint16: torch.int32, torch.uint32: torch.int64}
_WIDE: Final = frozenset({torch.float64, torch.complex128})

_MOST_FAILURES: Final = 8
"""Each may have taken the time of compiling a kernel."""
_KERNEL_DEVICES: Final = frozenset({"cuda", "xpu"})

_Parts = tuple[list[torch.Tensor], list[torch.Tensor]]


class DeviceBatch:
    """Summaries of many tensors that become ready together.

    Not thread-safe: threads that add take turns. The rows of one CUDA stream are written and copied
    on that stream, so that streams need not wait for one another.

    Args:
        count_nonfinite: whether to count NaN and infinities and to find the finite extremes; it
            nearly doubles the work. Without, tensors with a NaN or an infinity say so in `note`.
        only_extremes: whether maximum and minimum are all that is computed, of floating-point and
            complex tensors alone: 3 kernel launches a tensor, and no copy of it.
    """

    __slots__ = ("_copies", "_count_nonfinite", "_full", "_only_extremes", "_open")

    def __init__(self, *, count_nonfinite: bool = True, only_extremes: bool = False) -> None:
        """Make an empty batch; buffers are allocated when the first tensor of a device comes."""
        self._count_nonfinite = count_nonfinite
        self._only_extremes = only_extremes
        self._open: dict[tuple[torch.device, int], _Rows] = {}
        self._full: list[_Rows] = []
        self._copies: list[tuple[_Rows, HostCopy]] = []

    def __len__(self) -> int:
        """Return the number of summaries whose copy was not started."""
        return sum(len(rows.pending) for rows in (*self._full, *self._open.values()))

    def add(self, t: torch.Tensor) -> Summary:
        """Start summarising `t`; the summary is filled by `collect`.

        Only reads `t`, on its device's current stream, and keeps no reference to it. Grad mode must
        be off, and torch functions of subclasses and the user's modes disabled.

        Returns:
            A summary with `ready` false; a ready one for empty tensors and those without data.
        """
        found = readable(t)
        if isinstance(found, str):
            return Summary(note=found)
        if found.numel() == 0:
            return Summary()
        if self._only_extremes and not (found.is_floating_point() or found.is_complex()):
            return Summary()
        device = found.device
        try:
            if found.is_quantized:
                found = found.dequantize()
            stream = stream_address(device)
            if stream is None:
                return Summary(note=CAPTURED)
            with outside_transforms(), current_device(device):
                rows = self._rows_for(device, stream)
                summary = rows.add(found, self._count_nonfinite)
        except (RuntimeError, NotImplementedError, TypeError) as exc:
            return Summary(note=f"unreadable: {type(exc).__name__}")
        if found is not t:
            summary.note = note_of_stored_values(t)
        return summary

    def start_copy(self) -> None:
        """Start the copy of all numbers so far to the host, without waiting for the device."""
        for rows in (*self._full, *self._open.values()):
            self._copies.append((rows, HostCopy(rows.words[: len(rows.pending)], rows.stream)))
        self._full, self._open = [], {}

    def collect(self) -> None:
        """Wait for the numbers of all tensors so far and fill their summaries.

        After `start_copy` this may run on another thread, as long as no tensor is added meanwhile;
        the waiting then holds up neither the GIL nor the training thread. A second call is free.
        """
        self.start_copy()
        while self._copies:
            rows, copy = self._copies.pop()
            rows.fill(copy.wait())

    def _rows_for(self, device: torch.device, stream: int) -> _Rows:
        rows = self._open.get((device, stream))
        if rows is not None and len(rows.pending) == BLOCK_ROWS:
            self._full.append(rows)
            rows = None
        if rows is None:
            kind = _Extremes if self._only_extremes else _Rows
            rows = self._open[device, stream] = kind(device, stream, current_stream(device))
        return rows


class _Rows:
    """The numbers of up to `BLOCK_ROWS` tensors of one device and stream."""

    __slots__ = ("_kernels", "_reader", "accumulate", "floats", "pending", "stream", "words")

    def __init__(self, device: torch.device, address: int, stream: Any) -> None:
        """Allocate the buffer on the stream that will write it."""
        # MPS has no float64.
        self.accumulate = torch.float32 if device.type == "mps" else torch.float64
        with torch.inference_mode(False):  # else nothing could be written outside of that mode
            self.words = torch.empty((BLOCK_ROWS, _COLUMNS), dtype=torch.int64, device=device)
            self.floats = self.words.view(self.accumulate)
        self.pending: list[tuple[Summary, torch.dtype, int, bool]] = []
        self.stream = stream
        self._kernels: Any = _KERNELS.module() if device.type in _KERNEL_DEVICES else None
        self._reader: Any = None
        if self._kernels is not None:
            try:
                self._reader = self._kernels.reader_of(self.words, address)
            except Exception as error:  # noqa: BLE001 - no compiler, a driver that is too old …
                _KERNELS.give_up(error)

    def add(self, t: torch.Tensor, count_nonfinite: bool) -> Summary:
        if self._reader is None or not self._add_by_kernel(t):
            return self._add_by_reductions(t, count_nonfinite)
        summary = Summary(ready=False)
        has_projections = self._kernels.has_order(t)
        self.pending.append((summary, t.dtype, t.numel(), has_projections))
        return summary

    def _add_by_kernel(self, t: torch.Tensor) -> bool:
        """Start the kernel that fills the next row; False where there is none for this tensor."""
        if t.dtype.itemsize == 1 and t.is_floating_point():
            t = t.to(torch.bfloat16)  # holds each number of the types of 8 bits
        if not self._kernels.reads(t):
            return False
        try:
            self._reader.read(t, len(self.pending))
        except Exception as error:  # noqa: BLE001 - this tensor is read by reductions
            _KERNELS.failed(error)
            return False
        return True

    def _add_by_reductions(self, t: torch.Tensor, count_nonfinite: bool) -> Summary:
        floats, integers = _parts(t, self.accumulate, count_nonfinite=count_nonfinite)
        row = len(self.pending)
        if floats:
            torch.stack(floats, out=self.floats[row, : len(floats)])
        if integers:
            end = _FLOAT_COLUMNS + len(integers)
            torch.stack(integers, out=self.words[row, _FLOAT_COLUMNS:end])
        summary = Summary(ready=False)
        counted = 1 if integers else -1
        self.pending.append((summary, t.dtype, counted * t.numel(), False))
        return summary

    def fill(self, host: torch.Tensor) -> None:
        floats = host.view(self.accumulate).tolist()
        for (summary, dtype, count, has_projections), words, numbers in zip(
            self.pending, host.tolist(), floats, strict=True
        ):
            integers = words[_FLOAT_COLUMNS:_PROJECTIONS]
            if dtype == torch.bool:
                summary.max, summary.min = bool(integers[0]), bool(integers[1])
            elif dtype.is_floating_point or dtype.is_complex:
                scale = numbers[6] if dtype in _WIDE else 1.0
                _fill_float(summary, numbers, integers, count, scale)
            else:
                _fill_integer(summary, numbers[0], integers, count, dtype)
            if has_projections:
                summary.projections = (numbers[_PROJECTIONS], numbers[_PROJECTIONS + 1])
            summary.ready = True


class _Extremes(_Rows):
    """The largest and the smallest number of each tensor; of complex ones, of the magnitudes."""

    __slots__ = ()

    def _add_by_reductions(self, t: torch.Tensor, count_nonfinite: bool) -> Summary:
        values = t.abs() if t.is_complex() else t
        if values.element_size() == 1:  # without reductions of their own
            values = values.float()
        low, high = torch.aminmax(values)
        self.floats[len(self.pending), :2] = torch.stack([high, low])
        summary = Summary(ready=False)
        self.pending.append((summary, t.dtype, t.numel(), False))
        return summary

    def fill(self, host: torch.Tensor) -> None:
        for (summary, *_), numbers in zip(
            self.pending, host.view(self.accumulate).tolist(), strict=True
        ):
            summary.max, summary.min = numbers[0] + 0.0, numbers[1] + 0.0
            summary.ready = True


class _Kernels:
    """The kernels for GPUs: found at the first use, given up when they do not run."""

    __slots__ = ("_failures", "_found")

    def __init__(self) -> None:
        self._found: list[ModuleType | None] = []
        self._failures = 0

    def module(self) -> ModuleType | None:
        """Return them, or None where they cannot run."""
        if not self._found:
            try:
                self._found.append(import_module("msprobe.pytorch.values.device_reader"))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with the user's Triton
                logger.info("no kernels for GPUs: %s", error)
                self._found.append(None)
        return self._found[0]

    def failed(self, error: Exception) -> None:
        """Note that a tensor could not be read; give up when that happens again and again."""
        self._failures += 1
        logger.debug("a tensor of a GPU is read by reductions: %r", error)
        if self._failures >= _MOST_FAILURES:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Use none any more in this process."""
        logger.warning("Triton cannot compile here (%s): recording on GPUs is slower", error)
        self._found[:] = [None]


_KERNELS: Final = _Kernels()


# ---- on the device ------------------------------------------------------------------------------


def _parts(t: torch.Tensor, accumulate: torch.dtype, *, count_nonfinite: bool) -> _Parts:
    """Return the floating-point and the integer columns of the row of `t`, as 0-dim tensors."""
    limit = PIECE_ELEMENTS.get(t.device.type, DEFAULT_PIECE_ELEMENTS)
    if t.dtype == torch.bool:
        return [], [t.any().long(), t.all().long()]
    if t.is_floating_point() or t.is_complex():
        return _float_parts(t, accumulate, limit, count_nonfinite=count_nonfinite)
    return _integer_parts(t, accumulate, limit)


def _pieces(t: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Yield views of at most `limit` elements that together are `t`, copying nothing."""
    if t.numel() <= limit:
        yield t
        return
    dim = max(range(t.dim()), key=lambda d: (t.shape[d] > 1, t.stride(d)))
    step = max(1, t.size(dim) * limit // t.numel())
    for start in range(0, t.size(dim), step):
        yield from _pieces(t.narrow(dim, start, min(step, t.size(dim) - start)), limit)


def _widened(piece: torch.Tensor, accumulate: torch.dtype) -> torch.Tensor:
    if piece.is_complex():
        return piece.to(accumulate.to_complex()).abs()
    return piece.to(accumulate)


def _float_parts(
    t: torch.Tensor, accumulate: torch.dtype, limit: int, *, count_nonfinite: bool
) -> _Parts:
    """Return max, min, sum, sum of squares, finite max and min [, scale], and the counts."""
    scale = _power_of_two_scale(t, accumulate, limit) if t.dtype in _WIDE else None
    parts, counts = [], []
    for piece in _pieces(t, limit):
        x = _widened(piece, accumulate)
        low, high = torch.aminmax(x)
        finite = [high, low]
        if count_nonfinite:
            finite, found = _count(x)
            counts.append(found)
        if scale is not None:
            x = x * scale
        parts.append([high, low, x.sum(), (x * x).sum(), *finite])
    max_, min_, sum_ = torch.amax, torch.amin, torch.sum
    floats = _joined(parts, [max_, min_, sum_, sum_, max_, min_])
    if scale is not None:
        floats = [*floats, scale]
    return floats, _joined(counts, [sum_] * 3) if counts else []


def _joined(
    pieces: list[list[torch.Tensor]], reductions: list[Callable[[torch.Tensor], torch.Tensor]]
) -> list[torch.Tensor]:
    """Return the numbers of a whole tensor from those of its pieces."""
    if len(pieces) == 1:
        return pieces[0]
    table = torch.stack([torch.stack(numbers) for numbers in pieces], dim=1)
    return [reduce(row) for reduce, row in zip(reductions, table, strict=True)]


def _power_of_two_scale(t: torch.Tensor, accumulate: torch.dtype, limit: int) -> torch.Tensor:
    """Return the power of two that brings the largest element near 1: no sum overflows then."""
    largest = torch.stack([_widened(p, accumulate).abs().amax() for p in _pieces(t, limit)]).amax()
    # The exponent of NaN and infinities is undefined; their scale does not matter.
    exponent = torch.frexp(largest).exponent.clamp(-1000, 1000)
    return torch.ldexp(torch.ones_like(largest), -exponent)


def _count(x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the finite maximum and minimum (-Inf, +Inf if none) and counts of NaN, +Inf, -Inf."""
    inf = math.inf
    low = torch.nan_to_num(x, nan=inf, posinf=inf, neginf=inf).amin()
    high = torch.nan_to_num(x, nan=-inf, posinf=-inf, neginf=-inf).amax()
    return [high, low], [x.isnan().sum(), (x == inf).sum(), (x == -inf).sum()]


def _integer_parts(t: torch.Tensor, accumulate: torch.dtype, limit: int) -> _Parts:
    """Return the columns of an integer tensor; the floating-point one is the sum of squares.

    The sum goes in two halves, each of which fits into int64 for up to 2**31 elements. uint64 has
    its top bit flipped in the extremes.
    """
    is_long = t.dtype == torch.uint64
    signed = t.view(torch.int64) if is_long else t
    squares, parts = [], []
    for part in _pieces(signed, limit):
        piece = part.to(_WIDER.get(part.dtype, part.dtype))
        low, high = torch.aminmax(piece ^ _TOP_BIT if is_long else piece)
        x = piece.to(torch.int64)
        lower, upper = x & _LOW_MASK, x >> 32
        if is_long:
            upper = upper & _LOW_MASK
        value = upper.to(accumulate) * 2.0**32 + lower
        squares.append([(value * value).sum()])
        parts.append([high.long(), low.long(), lower.sum(), upper.sum()])
    integers = _joined(parts, [torch.amax, torch.amin, torch.sum, torch.sum])
    return _joined(squares, [torch.sum]), integers


# ---- on the host --------------------------------------------------------------------------------


def _fill_float(
    summary: Summary, numbers: list[float], counts: list[int], count: int, scale: float
) -> None:
    high, low, total, squares, finite_max, finite_min = numbers[:6]
    summary.max, summary.min = high + 0.0, low + 0.0  # -0.0 + 0.0 is 0.0
    if math.isfinite(high) and math.isfinite(low):
        summary.mean = total / abs(count) / scale
        summary.norm = math.sqrt(squares) / scale
        return
    if math.isnan(high):
        summary.mean = summary.norm = math.nan
    else:
        summary.mean = low + high if math.isinf(low) else high
        summary.norm = math.inf
    if count < 0:
        summary.note = NOT_COUNTED
        return
    has_finite = finite_max >= finite_min
    summary.nonfinite = NonFinite(
        counts[0],
        counts[1],
        counts[2],
        finite_max + 0.0 if has_finite else None,
        finite_min + 0.0 if has_finite else None,
    )


def _fill_integer(
    summary: Summary, squares: float, integers: list[int], count: int, dtype: torch.dtype
) -> None:
    high, low, lower, upper = integers
    offset = 1 << 63 if dtype == torch.uint64 else 0
    summary.max, summary.min = high + offset, low + offset
    summary.mean = ((upper << 32) + lower) / count  # integers divide with one rounding
    summary.norm = math.sqrt(squares)
