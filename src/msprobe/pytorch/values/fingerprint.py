# SPDX-License-Identifier: Apache-2.0
"""Checksum and statistics of one tensor, without making the program wait for a device."""

from __future__ import annotations

from torch import Tensor

from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.statistics import DeviceBatch, summarise


class Fingerprint:
    """Numbers that tell one value from another.

    Attributes:
        checksum: of its bytes; None on accelerators, and where there are no bytes to read.
        summary: its statistics; those of an accelerator are there after `wait`.
    """

    __slots__ = ("_batch", "checksum", "summary")

    def __init__(self, tensor: Tensor) -> None:
        """Read a tensor as it is now; on an accelerator its work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.
        """
        self._batch: DeviceBatch | None = None
        if tensor.is_cpu:
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
