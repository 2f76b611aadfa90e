# SPDX-License-Identifier: Apache-2.0
"""Tensor files: a private copy of a value, written as ``numpy.save`` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.crc import crc32


class ArrayFile:
    """A value on its way to a ``.npy`` file.

    Attributes:
        size_bytes: what it occupies until it is written.
    """

    __slots__ = ("_values", "size_bytes")

    def __init__(self, values: NDArray[Any]) -> None:
        """Take an array that nobody else will change."""
        self._values = values
        self.size_bytes = values.nbytes

    def write(self, path: Path) -> None:
        """Write it so that ``numpy.load(path, allow_pickle=False)`` reads it."""
        with path.open("wb") as file:
            np.lib.format.write_array(file, self._values, allow_pickle=False)


def plain_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous copy in a type that ``.npy`` files know.

    bfloat16 and float8 become float32, exactly.
    """
    if values.dtype.kind in "biufc":
        return np.array(values, order="C", copy=True)
    return np.ascontiguousarray(values.astype(np.float32))


def crc32_hex(values: NDArray[Any]) -> str:
    """Return the CRC-32 of the contiguous bytes, 8 hex digits."""
    whole = np.ascontiguousarray(values)
    return f"{crc32(whole.view(np.uint8).reshape(-1).data if whole.size else b''):08x}"
