# SPDX-License-Identifier: Apache-2.0
"""The elements of a tensor as NumPy can write them, and their checksum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.crc import crc32


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
    if whole.dtype.kind not in "biufc":  # no others show their memory
        whole = whole.view(np.uint8)
    return f"{crc32(whole if whole.size else b''):08x}"
