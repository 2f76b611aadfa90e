# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays as tensor files: ``.npy`` as NumPy writes them, ``.pt`` as PyTorch does tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_archive_writer import MAX_BYTES, TYPED_STORAGES, UNTYPED, write_archive


class ArrayFile:
    """An array on its way to a file.

    Attributes:
        values: the array.
        size_bytes: the memory that it occupies until it is written.
    """

    __slots__ = ("size_bytes", "values")

    def __init__(self, values: NDArray[Any]) -> None:
        """Wrap a contiguous array, which must not change until it is written."""
        self.values = values
        self.size_bytes = values.nbytes

    def write(self, path: Path) -> None:
        """Write it, as ``.pt`` or ``.npy``; arrays that need a pickle are refused."""
        if path.suffix == ".pt":
            memory = self.values.reshape(-1).view(np.uint8).data
            write_archive(os.fspath(path), self.values.dtype.name, self.values.shape, memory)
            return
        with path.open("wb") as file:
            np.lib.format.write_array(file, self.values, allow_pickle=False)


def fits_archive(array: NDArray[Any]) -> bool:
    """Return whether a ``.pt`` file can hold an array."""
    known = array.dtype.name in TYPED_STORAGES or array.dtype.name in UNTYPED
    return known and array.dtype.isnative and 0 < array.nbytes < MAX_BYTES
