# SPDX-License-Identifier: Apache-2.0
"""Checksums, norms and some elements of many tensors, by column.

On the CPU a tensor is read at once: one pass for norm and projections, one for the checksum,
nothing copied. On an accelerator norms (float32, one `torch._foreach_norm` for a dtype) and
elements are computed there, and come to the host in one copy when they are asked for; checksums
and projections are left out.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.capture.statistics import NATIVE
from msprobe.dump.crc import crc32
from msprobe.dump.facts import Fingerprints, Number, Projections, sample_index
from msprobe.pytorch.values.checksum import crc32_hex, memory_at
from msprobe.pytorch.values.device_streams import current_stream, stream_context
from msprobe.pytorch.values.known_prints import KnownPrints, Print
from msprobe.pytorch.values.readable import (
    PLAIN,
    memory_of,
    note_of_stored_values,
    readable,
)
from msprobe.pytorch.values.statistics import summarise

Row = list[int | float | None]

_FORMATS: Final = {
    torch.float32: "f",
    torch.float64: "d",
    torch.int64: "q",
    torch.int32: "i",
    torch.int16: "h",
    torch.int8: "b",
    torch.uint8: "B",
    torch.bfloat16: "H",
    torch.float16: "H",
}
_KINDS: Final = {
    dtype: kind
    for name, kind in (NATIVE.kinds.items() if NATIVE is not None else ())
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
_HALVES: Final = (torch.bfloat16, torch.float16)


class TensorColumns:
    """Numbers of a list of tensors, each column as long as the list.

    Attributes:
        checksum: CRC-32 of the bytes of each; None on accelerators and where there are none.
        norm: the L2 norm of each; those of an accelerator are there after `wait`.
        projections: see docs/metrics.md; None on accelerators.
        samples: the elements at `sample_index` of each; None of sparse and complex tensors.
        elements: how many elements of each were read; None where none could be.
        notes: position → why numbers are missing, or what they are of.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        known: KnownPrints | None = None,
        *,
        were_written: bool = False,
    ) -> None:
        """Read tensors as they are now; on an accelerator the work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.

        Args:
            tensors: any tensors; a None makes an empty row.
            known: spares reading what has not changed, and learns what is read; None for neither.
            were_written: whether they have certainly changed, perhaps without torch's counting.
        """
        self._known = known
        self._asks = known is not None and not were_written
        count = len(tensors)
        self.checksum: list[str | None] = [None] * count
        self.norm: list[Number] = [None] * count
        self.projections: list[Projections] = [None] * count
        self.samples: list[Row | None] = [None] * count
        self.elements: list[int | None] = [None] * count
        self.notes: dict[int, str] = {}
        self._device: dict[torch.device, list[int]] = defaultdict(list)
        self._found: dict[int, Tensor] = {}
        self._fetches: list[Callable[[], None]] = []
        for place, tensor in enumerate(tensors):
            if tensor is not None:
                try:
                    self._take(place, tensor)
                except Exception as exc:  # noqa: BLE001 - one odd tensor must not cost the others
                    self.notes[place] = f"unreadable: {type(exc).__name__}"
        for device, places in self._device.items():
            self._take_from_device(device, places)
        self._device.clear()
        self._found.clear()

    @property
    def is_ready(self) -> bool:
        """Whether all numbers are there."""
        return not self._fetches

    def wait(self) -> None:
        """Wait for the numbers of accelerators."""
        while self._fetches:
            self._fetches.pop()()

    def fingerprints(self) -> Fingerprints:
        """Return checksums, norms and projections."""
        return Fingerprints(checksum=self.checksum, norm=self.norm, projections=self.projections)

    def _take(self, place: int, tensor: Tensor) -> None:
        memory = memory_of(tensor)
        if memory is not None:
            self._take_memory(place, tensor, *memory)
            return
        found = readable(tensor)
        if isinstance(found, str):
            self.notes[place] = found
            return
        self.elements[place] = found.numel()
        note = note_of_stored_values(tensor)
        if note is None and type(tensor) not in PLAIN and found.shape != tensor.shape:
            note = f"a part of shape {list(found.shape)}"
        if note is not None:
            self.notes[place] = note
        if not found.numel():
            self.samples[place] = []
            self.checksum[place] = crc32_hex(found)
        elif not found.is_cpu:
            self._device[found.device].append(place)
            self._found[place] = found
        else:
            summary = summarise(found)
            self.norm[place], self.projections[place] = summary.norm, summary.projections
            self.checksum[place] = crc32_hex(tensor)
            if _has_elements(tensor, found):
                self.samples[place] = [view.item() for view in _element_views(found)]

    def _take_memory(self, place: int, tensor: Tensor, address: int, size_bytes: int) -> None:
        """Read a plain contiguous CPU tensor where it lies."""
        self.elements[place] = count = tensor.numel()
        dtype = tensor.dtype
        memory, known = memory_at(address, size_bytes), self._known
        found = (
            known.find(tensor, address, size_bytes) if known is not None and self._asks else None
        )
        if found is None:
            kind = _KINDS.get(dtype)
            if kind is None or NATIVE is None:
                summary = summarise(tensor)
                norm, projections = summary.norm, summary.projections
            else:
                *_, norm, _, projections = NATIVE.stats(kind, address, count)
            found = Print(f"{crc32(memory):08x}", norm, projections)
            if known is not None:
                known.put(tensor, address, size_bytes, found)
        self.checksum[place], self.norm[place], self.projections[place] = found
        self.samples[place] = _samples_of_memory(tensor, dtype, count, memory)

    def _take_from_device(self, device: torch.device, places: list[int]) -> None:
        """Queue norms and elements of these tensors, all floating-point ones, on their device."""
        wide = torch.float32 if device.type == "mps" else torch.float64
        real = [place for place in places if self._found[place].is_floating_point()]
        by_type: dict[torch.dtype, list[int]] = defaultdict(list)
        for place in real:
            by_type[self._found[place].dtype].append(place)
        pieces: list[Tensor] = []
        puts: list[tuple[list[Any], int, int]] = []
        for dtype, group in by_type.items():
            tensors = [self._found[place] for place in group]
            accumulate = dtype if dtype is torch.float64 else torch.float32
            norms = torch._foreach_norm(tensors, 2, dtype=accumulate)
            pieces.append(torch.stack(norms).to(wide))
            puts += [(self.norm, place, -1) for place in group]
            views = [view for tensor in tensors for view in _sampled(tensor)]
            if views:
                pieces.append(torch.cat(views).to(wide))
            puts += [
                (self.samples, place, len(sample_index(tensor.numel())))
                for place, tensor in zip(group, tensors, strict=True)
            ]
        for place in set(places) - set(real):
            self.notes[place] = f"{self._found[place].dtype} on {device.type}"
        if pieces:
            packed, stream = torch.cat(pieces), current_stream(device)
            self._fetches.append(lambda: _spread(packed, stream, puts))


def _spread(packed: Tensor, stream: Any, puts: list[tuple[list[Any], int, int]]) -> None:
    """Bring numbers to the host and put them into their columns.

    Args:
        packed: the numbers.
        stream: of the device, on which they are computed.
        puts: column, row, and how many numbers (-1 for a single one), in their order.
    """
    with nullcontext() if stream is None else stream_context(stream):
        numbers = iter(packed.tolist())
    for column, place, count in puts:
        column[place] = next(numbers) if count < 0 else [next(numbers) for _ in range(count)]


def _has_elements(tensor: Tensor, found: Tensor) -> bool:
    """Return whether flat positions mean the same in a tensor and in what holds its elements."""
    return tensor.layout is torch.strided and not found.is_complex() and not found.is_quantized


def _samples_of_memory(tensor: Tensor, dtype: torch.dtype, count: int, memory: Any) -> Row | None:
    index = sample_index(count)
    code = _FORMATS.get(dtype)
    if code is None:
        return None if dtype.is_complex else [view.item() for view in _element_views(tensor)]
    if not count:
        return []
    elements = memory.cast("B").cast(code)[index.start : index.stop : index.step].tolist()
    return _halves(elements, dtype) if dtype in _HALVES else elements


def _halves(words: list[int], dtype: torch.dtype) -> Row:
    count = len(words)
    if dtype is torch.bfloat16:  # the upper half of a float32
        wide = struct.pack(f"={count}I", *(word << 16 for word in words))
        return list(struct.unpack(f"={count}f", wide))
    return list(struct.unpack(f"={count}e", struct.pack(f"={count}H", *words)))


def _sampled(tensor: Tensor) -> list[Tensor]:
    """Return views that together are the elements at `sample_index`."""
    if not tensor.is_contiguous():
        return [view.view(1) for view in _element_views(tensor)]
    index = sample_index(tensor.numel())
    return [tensor.view(-1)[index.start : index.stop : index.step]] if index else []


def _element_views(tensor: Tensor) -> list[Tensor]:
    return [tensor[_position(place, tensor.shape)] for place in sample_index(tensor.numel())]


def _position(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of the element at a flat position in row-major order."""
    found = []
    for size in reversed(shape):
        place, last = divmod(place, size)
        found.append(last)
    return tuple(reversed(found))
