# SPDX-License-Identifier: Apache-2.0
"""Shape, checksum and statistics of a value that enters the model, or of a loss."""

from __future__ import annotations

from torch import Tensor

from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.readable import PLAIN, is_row_major, readable
from msprobe.pytorch.values.statistics import DeviceBatch, summarise


class Fingerprint:
    """Checksum and statistics of a tensor.

    Attributes:
        checksum: of its bytes; None on accelerators, and where there are no bytes to read.
        summary: its statistics; those of an accelerator are there after `wait`.
        is_row_major: whether its elements, and so its projections, lie in memory in their order.
    """

    __slots__ = ("_batch", "checksum", "is_row_major", "summary")

    def __init__(self, tensor: Tensor) -> None:
        """Read a tensor as it is now; on an accelerator the work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.
        """
        self._batch: DeviceBatch | None = None
        self.is_row_major = is_row_major(tensor)
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


def shape_of(tensor: Tensor) -> list[int]:
    """Return the shape of the elements that this process holds of a tensor.

    That is the own part of a distributed one, and all elements of a nested one.
    """
    if type(tensor) not in PLAIN or tensor.is_nested:
        found = readable(tensor)
        if isinstance(found, Tensor):
            return list(found.shape)
        if not tensor.is_meta:
            return []
    return list(tensor.shape)
