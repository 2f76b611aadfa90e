# SPDX-License-Identifier: Apache-2.0
"""Checksums, norms and projections of large parameters, while they are not written."""

from __future__ import annotations

import weakref
from typing import Final, NamedTuple

from torch import Tensor

from msprobe.capture.statistics import Projections
from msprobe.dump.crc import crc32
from msprobe.pytorch.values.checksum import memory_at

# Reading so little takes no longer than asking whether it was written.
_SMALL_BYTES: Final = 1 << 14
_PROBES: Final = 8
_PROBE_BYTES: Final = 64  # a line of the processor's cache


class Print(NamedTuple):
    """Checksum, norm and projections of one value."""

    checksum: str
    norm: float | None
    projections: Projections | None


class _Known(NamedTuple):
    reference: weakref.ref[Tensor]
    state: tuple[int, int, int, int]
    print: Print


class KnownPrints:
    """Prints of plain contiguous CPU tensors, from the start of a step to that of the next.

    A value counts as unchanged if the tensor is the same object with the same memory, torch's
    counter of its versions has not moved, and some bytes from all over it are the same. The bytes
    are for writes that torch does not count: through ``.data``, NumPy, or by a fused optimizer.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        """Create it; nothing is known."""
        self._known: dict[int, _Known] = {}

    def find(self, tensor: Tensor, address: int, size_bytes: int) -> Print | None:
        """Return the print of a tensor if it is known and unchanged."""
        if size_bytes <= _SMALL_BYTES:
            return None
        known = self._known.get(id(tensor))
        if known is None or known.reference() is not tensor:
            return None
        return known.print if known.state == _state(tensor, address, size_bytes) else None

    def put(self, tensor: Tensor, address: int, size_bytes: int, found: Print) -> None:
        """Remember the print of a tensor as it is now."""
        if size_bytes > _SMALL_BYTES and not tensor.is_inference():  # those have no version
            state = _state(tensor, address, size_bytes)
            self._known[id(tensor)] = _Known(weakref.ref(tensor), state, found)

    def drop_dead(self) -> None:
        """Forget the tensors that are gone."""
        dead = [key for key, known in self._known.items() if known.reference() is None]
        for key in dead:
            del self._known[key]


def _state(tensor: Tensor, address: int, size_bytes: int) -> tuple[int, int, int, int]:
    memory = memory_at(address, size_bytes)
    gap = (size_bytes - _PROBE_BYTES) // (_PROBES - 1)
    some = b"".join([memory[at * gap : at * gap + _PROBE_BYTES] for at in range(_PROBES)])
    return tensor._version, address, size_bytes, crc32(some)
