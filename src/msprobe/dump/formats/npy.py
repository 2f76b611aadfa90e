# SPDX-License-Identifier: Apache-2.0
"""Reads the header of a ``.npy`` file: type, order and shape.

Stricter than NumPy's reader, which mends old headers.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msprobe.errors import DumpFormatError

if TYPE_CHECKING:
    import numpy as np

# As NumPy's own limit: longer ones may crash Python's parser.
_MAX_BYTES: Final = 10_000
_TYPE: Final = re.compile(r"[<>|=][biufcSUV]\d{1,6}")


class NoNumbersError(DumpFormatError):
    """The elements are no numbers but Python objects or records."""


class NpySource(Protocol):
    """Source of a header: an `OpenFile`, or a member of an archive."""

    @property
    def name(self) -> str:
        """The file, for messages."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def read(self, offset: int, length: int, /) -> bytes:
        """Return bytes; of a member of an archive, from front to back."""


class NpyHeader(NamedTuple):
    """Content of a ``.npy`` file.

    Attributes:
        shape: sizes of the array.
        is_fortran_order: whether the first index runs fastest.
        dtype: type of the elements, with byte order.
        start: where the elements begin in the file.
        size: bytes of the elements.
    """

    shape: tuple[int, ...]
    is_fortran_order: bool
    dtype: np.dtype[Any]
    start: int
    size: int


def read_npy_header(file: NpySource) -> NpyHeader:
    """Return type and shape of a ``.npy`` file, and where its elements begin; reads none of them.

    Raises:
        DumpFormatError: the header is damaged, or contradicts the size of the file.
        ValueError, SyntaxError …: the header is no Python literal.
    """
    path = file.name
    magic = file.read(0, min(file.size, 12))
    if magic[:6] != b"\x93NUMPY" or magic[6:8] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise DumpFormatError(path, "is not a .npy file of a known version")
    before = 10 if magic[6] == 1 else 12
    length = int.from_bytes(magic[8:before], "little")
    if length > _MAX_BYTES:
        raise DumpFormatError(path, f"has a header of {length} bytes")
    descr, is_fortran_order, shape = _parse(file.read(before, length))
    if descr is None or not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise DumpFormatError(path, "has a header of an unknown form")
    dtype = _numbers(descr)
    if dtype is None:
        raise NoNumbersError(path, f"holds {descr}, which are no numbers")
    found = file.size - before - length
    expected = math.prod(shape) * dtype.itemsize
    if found != expected:
        raise DumpFormatError(
            path, f"shape {shape} of {dtype} takes {expected} bytes, the file has {found}"
        )
    return NpyHeader(shape, is_fortran_order, dtype, before + length, expected)


@lru_cache(maxsize=1024)
def numpy_dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a type's name: ``float32`` …, or NumPy's own name for types that are no numbers."""
    return str(dtype.name) if dtype.kind in "biufc" else str(dtype)


# A dump holds thousands of arrays of the same few shapes.
@lru_cache(maxsize=1024)
def _parse(text: bytes) -> tuple[str | None, bool, tuple[Any, ...]]:
    """Return type, order and shape, as they are written; no type if the form is another one."""
    match ast.literal_eval(text.decode().strip()):
        case {"descr": str() as descr, "fortran_order": bool() as order, "shape": tuple() as shape}:
            return repr(descr), order, shape
        case {"descr": list(), "fortran_order": bool() as order, "shape": tuple() as shape}:
            return "records", order, shape
    return None, False, ()


@lru_cache(maxsize=64)
def _numbers(descr: str) -> np.dtype[Any] | None:
    import numpy as np

    return np.dtype(descr[1:-1]) if _TYPE.fullmatch(descr[1:-1]) else None
