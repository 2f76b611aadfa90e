# SPDX-License-Identifier: Apache-2.0
"""Memory for copies of tensors, used again and again.

Fresh memory is dear: the system clears each page when it is first touched, which takes several
times as long as the copy itself. A step that saves its tensors would touch hundreds of megabytes
of it, although only copies that wait to be written have to exist at one time.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LEAST_BYTES: Final = 64 << 10
"""Smaller copies are left to the allocator, which keeps such memory by itself."""
MAX_IDLE_BYTES: Final = 64 << 20
"""Most memory kept for the next copies; the rest goes back to the system."""


class BufferPool:
    """Buffers by size. One thread takes, another gives back; there is no lock to wait for."""

    def __init__(self) -> None:
        self._idle: dict[int, list[Tensor]] = {}

    @property
    def idle_bytes(self) -> int:
        """Memory kept for the next copies."""
        return sum(size * len(buffers) for size, buffers in list(self._idle.items()))

    def take(self, size_bytes: int) -> Tensor:
        """Return a buffer (uint8) of at least this size, with anything in it."""
        capacity = capacity_for(size_bytes)
        idle = self._idle.get(capacity)
        if idle:
            try:
                return idle.pop()
            except IndexError:  # `give` has just emptied it
                pass
        return torch.empty(capacity, dtype=torch.uint8)

    def give(self, buffer: Tensor) -> None:
        """Take back a buffer that is not used any more."""
        capacity = buffer.numel()
        if self.idle_bytes + capacity > MAX_IDLE_BYTES:
            # Other sizes may be wanted now than those which have gathered here.
            self._idle = {}
        if capacity <= MAX_IDLE_BYTES:
            self._idle.setdefault(capacity, []).append(buffer)


def capacity_for(size_bytes: int) -> int:
    """Return the size rounded up to one of four in each power of two: at most a quarter is lost."""
    quarter = 1 << max(0, size_bytes.bit_length() - 3)
    return -(-size_bytes // quarter) * quarter
