# SPDX-License-Identifier: Apache-2.0
"""Checksums, norms and projections of many tensors, as arrays.

On the CPU all are read by one call in C. On an accelerator norm and some elements are computed
there as for `TensorColumns`: the checksum is then that of these, and the norm takes the place of
the projections.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from msprobe.capture.signature import Prints, no_prints
from msprobe.dump.crc import crc32
from msprobe.dump.signature_file import SAMPLED
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.memo import TENSORS
from msprobe.pytorch.values.readable import is_row_major
from msprobe.pytorch.values.statistics import summarise
from msprobe.pytorch.values.tensor_columns import Ask, TensorColumns


class KnownPrints:
    """What was last read of a list of tensors, to be read again where they have changed.

    Large plain ones on the CPU have not changed while they have the same memory, torch's counter
    of their versions has not moved, and some bytes from all over them are the same; see
    `KnownTensors`. The tensors are the caller's to hold, and to tell apart.

    Attributes:
        prints: of each.
        keys: how each was when it was read; 0 where that is unknown.
    """

    __slots__ = ("keys", "prints")

    def __init__(self, count: int) -> None:
        """Create it for a number of tensors; nothing is known."""
        self.prints = no_prints(count)
        self.keys = np.zeros(count, np.uint64)

    def forget(self, places: Sequence[int]) -> None:
        """Forget what was read of some."""
        self.prints[places] = no_prints(len(places))
        self.keys[places] = 0


class TensorPrints:
    """Prints of a list of tensors; those of an accelerator are there after `wait`."""

    __slots__ = ("_columns", "_places", "_prints")

    def __init__(
        self,
        tensors: list[Tensor | None] | list[Tensor],
        known: KnownPrints | None = None,
        asks: Ask = Ask.ALL,
    ) -> None:
        """Read tensors as they are now; on an accelerator the work is queued there.

        Grad mode must be off, and torch functions of subclasses and the user's modes disabled.

        Args:
            tensors: any tensors; a None makes an empty print.
            known: of the same list, read before; brought up to date.
            asks: as for `TensorColumns`.
        """
        count = len(tensors)
        self._prints = no_prints(count) if known is None else known.prints
        left: Sequence[int] = range(count)
        if TENSORS is not None:
            keys = None if known is None else known.keys
            left = TENSORS.fill_prints(tensors, self._prints, keys, asks, crc32)
            if known is not None and left:
                known.forget(left)
        self._places: list[int] = []
        far: list[Tensor] = []
        for place in left:
            tensor = tensors[place]
            if tensor is None:
                continue
            checksum = crc32_hex(tensor) if tensor.is_cpu else None
            if checksum is None:
                self._places.append(place)
                far.append(tensor)
                continue
            summary = summarise(tensor)
            row = self._prints[place]
            row["checksum"] = int(checksum, 16) or 1
            row["norm"] = np.nan if summary.norm is None else summary.norm
            is_ordered = summary.projections is not None and is_row_major(tensor)
            row["projections"] = summary.projections if is_ordered else (np.nan, np.nan)
        self._columns = TensorColumns(far) if far else None

    def wait(self) -> Prints:
        """Return the prints, waiting for those on a device."""
        columns, self._columns = self._columns, None
        if columns is not None:
            columns.wait()
            for place, norm, sample in zip(
                self._places, columns.norm, columns.samples, strict=True
            ):
                if norm is not None:
                    content = struct.pack("<d", norm) + repr(sample).encode()
                    checksum = SAMPLED | np.uint64(zlib.crc32(content))
                    self._prints[place] = (checksum, norm, (norm, norm))
        return self._prints
