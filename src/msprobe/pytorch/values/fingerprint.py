# SPDX-License-Identifier: Apache-2.0
"""Checksum and statistics of values that tell one from another: of a batch, of a parameter.

Nothing here makes the program wait for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from msprobe.capture.statistics import NATIVE
from msprobe.dump.crc import crc32
from msprobe.pytorch.values.checksum import crc32_hex, memory_at
from msprobe.pytorch.values.device_streams import current_stream
from msprobe.pytorch.values.readable import memory_of
from msprobe.pytorch.values.statistics import DeviceBatch, summarise

# Reading so little takes no longer than asking whether it was written.
_SMALL_BYTES: Final = 1 << 14
_PROBES: Final = 8
_PROBE_BYTES: Final = 64  # a line of the processor's cache

_KINDS: Final = {
    dtype: kind
    for name, kind in (NATIVE.kinds.items() if NATIVE is not None else ())
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}


class Fingerprint:
    """Checksum and statistics of a tensor.

    Attributes:
        checksum: of its bytes; None on accelerators, and where there are no bytes to read.
        summary: its statistics; those of an accelerator are there after `wait`.
    """

    __slots__ = ("_batch", "checksum", "summary")

    def __init__(self, tensor: Tensor) -> None:
        """Read a tensor as it is now; on an accelerator the work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.
        """
        self._batch: DeviceBatch | None = None
        if tensor.is_cpu or tensor.is_meta:
            self.checksum = crc32_hex(tensor)
            self.summary = summarise(tensor)
            return
        self.checksum = None
        self._batch = DeviceBatch()
        self.summary = self._batch.add(tensor)
        self._batch.start_copy()

    @property
    def is_ready(self) -> bool:
        """Whether the statistics are there."""
        return self._batch is None

    def wait(self) -> None:
        """Wait for the statistics."""
        if self._batch is not None:
            self._batch.collect()
            self._batch = None


class Print(NamedTuple):
    """The numbers of one parameter or buffer.

    Attributes:
        checksum: of its bytes; None where they cannot be read.
        norm: its L2 norm.
        projections: see docs/metrics.md.
    """

    checksum: str | None = None
    norm: float | None = None
    projections: list[float | None] | None = None


class _Known(NamedTuple):
    reference: weakref.ref[Tensor]
    version: int
    address: int
    size_bytes: int
    probe: int
    print: Print


class KnownPrints:
    """Prints of large tensors on the CPU, until they are written.

    A value counts as unchanged if the tensor is the same object with the same memory, torch's
    counter of its versions has not moved, and some bytes from all over it are the same. The bytes
    are for writes that torch does not count: through ``.data``, NumPy, or by a fused optimizer.
    After one that is known to write so, use `forget`.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Create it; nothing is known."""
        self._known: dict[int, _Known] = {}

    def read(self, tensor: Tensor) -> Print:
        """Return the print of a tensor: the known one if it is unchanged.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.
        """
        memory = memory_of(tensor)
        kind = _KINDS.get(tensor.dtype)
        if memory is None or kind is None or NATIVE is None:
            return _unusual(tensor)
        address, size_bytes = memory
        if size_bytes <= _SMALL_BYTES or tensor.is_inference():
            return _of_memory(kind, address, size_bytes, tensor.numel())
        probe = _probe(address, size_bytes)
        known = self._known.get(id(tensor))
        if (
            known is not None
            and known.reference() is tensor
            and (known.version, known.address) == (tensor._version, address)
            and (known.size_bytes, known.probe) == (size_bytes, probe)
        ):
            return known.print
        found = _of_memory(kind, address, size_bytes, tensor.numel())
        self._known[id(tensor)] = _Known(
            weakref.ref(tensor), tensor._version, address, size_bytes, probe, found
        )
        return found

    def forget(self, tensor: Tensor) -> None:
        """Read a tensor anew the next time."""
        self._known.pop(id(tensor), None)

    def drop_dead(self) -> None:
        """Forget the tensors that are gone."""
        dead = [key for key, known in self._known.items() if known.reference() is None]
        for key in dead:
            del self._known[key]


def _of_memory(kind: int, address: int, size_bytes: int, count: int) -> Print:
    assert NATIVE is not None
    norm = NATIVE.stats(kind, address, count)[3]
    return Print(f"{crc32(memory_at(address, size_bytes)):08x}", norm)


def _probe(address: int, size_bytes: int) -> int:
    memory = memory_at(address, size_bytes)
    gap = (size_bytes - _PROBE_BYTES) // (_PROBES - 1)
    return crc32(b"".join([memory[at * gap : at * gap + _PROBE_BYTES] for at in range(_PROBES)]))


def _unusual(tensor: Tensor) -> Print:
    """Return the print of a tensor that is not plain memory; nothing of one on a device."""
    if not (tensor.is_cpu or tensor.is_meta):
        return Print()
    try:
        found = Fingerprint(tensor)
    except Exception:  # noqa: BLE001 - classes of users and libraries, of which any may be odd
        return Print()
    norm = found.summary.norm
    return Print(found.checksum, norm)


def start_norms(tensors: Sequence[Tensor]) -> Callable[[], list[float | None]]:
    """Start computing L2 norms on an accelerator, with a few kernels for all of them.

    Args:
        tensors: floating-point tensors on one device, all float64 or all narrower.

    Returns:
        A function that waits for the norms and returns them, in the order of the tensors.
    """
    device = tensors[0].device
    wide = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
    norms = torch.stack(torch._foreach_norm(list(tensors), 2, dtype=wide)).to(torch.float64)
    stream = current_stream(device)
    if stream is None:
        return norms.tolist
    host = torch.empty(norms.shape, dtype=norms.dtype, pin_memory=True)
    host.copy_(norms, non_blocking=True)
    event = stream.record_event()

    def collect() -> list[float | None]:
        event.synchronize()
        return host.tolist()

    return collect
