# SPDX-License-Identifier: Apache-2.0
"""`Checkpoint` and `Parameter`: types and shapes are known, values are read when asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checkpoints.spans import FileSpan, Span
from msprobe.dump.formats.dtypes import STORAGE_TYPES
from msprobe.dump.formats.torch_archive import MAX_DIMENSIONS
from msprobe.errors import CheckpointFormatError, UnsupportedError

PIECE_ELEMENTS: Final = 1 << 20
"""Elements that are read at a time: 4 MiB of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One tensor of a checkpoint.

    Attributes:
        name: its full name, ``layers.0.weight``.
        dtype: ``float32``, ``bfloat16`` …
        shape: the shape.
        span: its values: raw elements, bfloat16 as uint16, float8 as uint8.
        file: where it is stored, for messages; one of several files for a merged parameter.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    span: Span
    file: Path

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of its values."""
        return self.count * storage_dtype(self.dtype).itemsize

    def pieces(self, elements: int = PIECE_ELEMENTS) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order, in flat pieces.

        Raises:
            CheckpointFormatError: the file cannot be read.
        """
        for start in range(0, self.count, elements):
            yield self.span.read(start, min(start + elements, self.count))

    def array(self) -> NDArray[Any]:
        """Return all values at once, in the parameter's shape.

        Raises:
            CheckpointFormatError: the file cannot be read.
        """
        return self.span.read(0, self.count).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: the path that was opened.
        kind: the detected format, in words.
        parameters: its tensors by name, in the order of the file.
        notes: remarks for the user: tensors that were left out, replicas that disagree …
    """

    path: Path
    kind: str
    parameters: Mapping[str, Parameter]
    notes: tuple[str, ...] = ()


def storage_dtype(dtype: str) -> np.dtype[Any]:
    """Return how NumPy holds elements of a type.

    Raises:
        UnsupportedError: a type that is not known.
    """
    if dtype not in STORAGE_TYPES:
        raise UnsupportedError(f"elements of type {dtype!r} cannot be read")
    return np.dtype(STORAGE_TYPES[dtype])


def contiguous_parameter(
    name: str, dtype: str, shape: tuple[int, ...], *, path: Path, offset: int, available: int
) -> Parameter:
    """Return a parameter whose elements lie one after another in a file.

    Args:
        name: its name.
        dtype: its type.
        shape: its shape.
        path: the file.
        offset: where the elements begin, in bytes.
        available: how many bytes there are for it.

    Raises:
        CheckpointFormatError: the shape and type do not take exactly that many bytes.
        UnsupportedError: a type that is not known.
    """
    numpy_type = storage_dtype(dtype)
    if len(shape) > MAX_DIMENSIONS:
        raise CheckpointFormatError(path, f"{name!r} has {len(shape)} dimensions")
    needed = math.prod(shape) * numpy_type.itemsize
    if needed != available:
        raise CheckpointFormatError(
            path,
            f"{name!r}: shape {list(shape)} of {dtype} takes {needed} bytes, "
            f"the file has {available} for it",
        )
    span = FileSpan(path, offset, numpy_type)
    return Parameter(name=name, dtype=dtype, shape=shape, span=span, file=path)
