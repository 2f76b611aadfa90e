# SPDX-License-Identifier: Apache-2.0
"""Checksums, norms and some elements of many tensors, by column.

On the CPU all plain tensors are read at once by one call in C, nothing copied. On an accelerator
norms (one `torch._foreach_norm` for a dtype) and elements are computed there, and come to
the host in one copy when they are asked for; checksums and projections are left out.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import torch
from msgspec import Raw
from torch import Tensor

from msprobe.dump.crc import crc32
from msprobe.dump.facts import Fingerprints, Number, Projections, encode_fact, sample_index
from msprobe.json_text import parse_json
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.device_streams import HostCopy, current_stream
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.readable import PLAIN, is_row_major, note_of_stored_values, readable
from msprobe.pytorch.values.statistics import summarise

Row = list[int | float | None]


class Ask(IntEnum):
    """Which tensors are looked up before they are read; values as in `fill_columns` in C."""

    NONE = 0
    ALL = 1
    FROZEN = 2
    """Parameters that are not trained."""


class Samples(IntEnum):
    """Which elements are kept, and how."""

    NONE = 0
    """Perhaps none."""
    NUMBERS = 1
    TEXT = 2
    """Encoded at once: later, when they are out of the processor's cache, that takes longer."""


class KnownTensors:
    """Numbers of the tensors of a run's models, kept while they are valid.

    Large plain ones on the CPU are not read again while they are unchanged: the tensor is the same
    object with the same memory, torch's counter of its versions has not moved, and some bytes from
    all over it are the same. The bytes are for writes that torch does not count: through ``.data``,
    NumPy, or by a fused optimizer.

    Attributes:
        names: identity → name of parameters and buffers when the step started.
        rows: see `fill_columns` of the C extension, without which nothing is known.
        told: names of the parameters that records of the step's optimizers are about.
    """

    __slots__ = ("names", "rows", "told")

    def __init__(self) -> None:
        """Create it; nothing is known."""
        self.names: Mapping[int, str] = {}
        self.rows: dict[int, tuple[weakref.ref[Tensor], int, bytes]] = {}
        self.told: set[str] = set()

    def next_step(self) -> None:
        """Forget the names, and the tensors that are gone."""
        self.names = {}
        self.told.clear()
        for address in [address for address, row in self.rows.items() if row[0]() is None]:
            del self.rows[address]


class TensorColumns:
    """Numbers of a list of tensors, each column as long as the list.

    Attributes:
        checksum: CRC-32 of the bytes of each; None on accelerators and where there are none.
        norm: the L2 norm of each; those of an accelerator are there after `wait`.
        projections: see docs/metrics.md; None on accelerators.
        samples: the elements at `sample_index` of each; None of sparse and complex tensors.
        text: the samples in JSON; None where they are not encoded yet.
        elements: how many elements of each were read; None where none could be.
        notes: position → why numbers are missing, or what they are of.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor | None],
        known: KnownTensors | None = None,
        asks: Ask = Ask.ALL,
        *,
        samples: Samples = Samples.NUMBERS,
    ) -> None:
        """Read tensors as they are now; on an accelerator the work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.

        Args:
            tensors: any tensors; a None makes an empty row.
            known: spares reading what has not changed, and learns what is read; None for neither.
            asks: those that may be known; others have certainly changed, perhaps without torch's
                counting.
            samples: whether elements are kept, and their form.
        """
        count = len(tensors)
        self.checksum: list[str | None] = [None] * count
        self.norm: list[Number] = [None] * count
        self.projections: list[Projections] = [None] * count
        self.samples: list[Row | None] = [None] * count
        self.text: Raw | None = None
        self.elements: list[int | None] = [None] * count
        self.notes: dict[int, str] = {}
        self._device: dict[torch.device, list[int]] = defaultdict(list)
        self._found: dict[int, Tensor] = {}
        self._fetches: list[Callable[[], None]] = []
        for place in self._fill(list(tensors), known, asks, samples):
            tensor = tensors[place]
            if tensor is not None:
                try:
                    self._take(place, tensor)
                except Exception as exc:  # noqa: BLE001 - one odd tensor must not cost the others
                    self.notes[place] = f"unreadable: {type(exc).__name__}"
        for device, places in self._device.items():
            self._take_from_device(device, places)
        self._device.clear()
        self._found.clear()
        if samples is Samples.TEXT and not self._fetches:
            self.text = Raw(encode_fact(self.samples))
            self.samples = []

    @property
    def is_ready(self) -> bool:
        """Whether all numbers are there."""
        return not self._fetches

    def wait(self) -> None:
        """Wait for the numbers of accelerators."""
        while self._fetches:
            self._fetches.pop()()

    def rows(self) -> list[Row | None]:
        """Return the samples, which may be encoded."""
        return self.samples if self.text is None else parse_json(bytes(self.text))

    def fingerprints(self) -> Fingerprints:
        """Return checksums, norms and projections."""
        return Fingerprints(checksum=self.checksum, norm=self.norm, projections=self.projections)

    def _fill(
        self,
        tensors: list[Tensor | None],
        known: KnownTensors | None,
        asks: Ask,
        samples: Samples,
    ) -> Sequence[int]:
        """Read the plain contiguous tensors on the CPU; return the places of the others."""
        if TENSORS is None:
            return range(len(tensors))
        columns = (self.checksum, self.norm, self.projections, self.samples, self.elements)
        rows = None if known is None else known.rows
        left: list[int] = TENSORS.fill_columns(
            tensors, columns, rows, asks, crc32, samples is not Samples.NONE
        )
        return left

    def _take(self, place: int, tensor: Tensor) -> None:
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
            self.norm[place] = summary.norm
            self.projections[place] = summary.projections if is_row_major(found) else None
            self.checksum[place] = crc32_hex(tensor)
            if _has_elements(tensor, found):
                elements = [view.item() for view in _element_views(found)]
                self.samples[place] = [+one for one in elements]  # of bool, 0 and 1

    def _take_from_device(self, device: torch.device, places: list[int]) -> None:
        """Queue norms and elements of these tensors, all floating-point ones, on their device."""
        wide = torch.float32 if device.type == "mps" else torch.float64
        real = [place for place in places if self._found[place].is_floating_point()]
        by_type: dict[torch.dtype, list[int]] = defaultdict(list)
        for place in real:
            by_type[self._found[place].dtype].append(place)
        pieces: list[Tensor] = []
        puts: list[tuple[list[Any], int, int]] = []
        for group in by_type.values():
            tensors = [self._found[place] for place in group]
            norms = torch._foreach_norm(tensors, 2, dtype=wide)
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
            copy = HostCopy(torch.cat(pieces), current_stream(device))
            self._fetches.append(lambda: _spread(copy, puts))


def _spread(copy: HostCopy, puts: list[tuple[list[Any], int, int]]) -> None:
    """Put numbers into their columns when they have arrived.

    Args:
        copy: the numbers.
        puts: column, row, and how many numbers (-1 for a single one), in their order.
    """
    numbers = copy.wait().tolist()
    start = 0
    for column, place, count in puts:
        end = start + abs(count)
        column[place] = numbers[start] if count < 0 else numbers[start:end]
        start = end


def _has_elements(tensor: Tensor, found: Tensor) -> bool:
    """Return whether flat positions mean the same in a tensor and in what holds its elements."""
    return tensor.layout is torch.strided and not found.is_complex() and not found.is_quantized


def _sampled(tensor: Tensor) -> list[Tensor]:
    """Return views that together are the elements at `sample_index`."""
    if not tensor.is_contiguous():
        return [view.view(1) for view in _element_views(tensor)]
    index = sample_index(tensor.numel())
    first = tensor.storage_offset() + index.start
    return [tensor.as_strided((len(index),), (index.step,), first)] if index else []


def _element_views(tensor: Tensor) -> list[Tensor]:
    return [tensor[_position(place, tensor.shape)] for place in sample_index(tensor.numel())]


def _position(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the index of the element at a flat position in row-major order."""
    found = []
    for size in reversed(shape):
        place, last = divmod(place, size)
        found.append(last)
    return tuple(reversed(found))
