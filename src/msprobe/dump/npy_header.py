# SPDX-License-Identifier: Apache-2.0
"""What the header of a ``.npy`` file says.

Stricter than NumPy's reader, which mends old headers.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msprobe.dump.open_file import OpenFile
from msprobe.errors import DumpFormatError

if TYPE_CHECKING:
    import numpy as np

# As NumPy's own limit: longer ones may crash Python's parser.
_MAX_BYTES: Final = 10_000
_TYPE: Final = re.compile(r"[<>|=][biufcSUV]\d{1,6}")


class NpyHeader(NamedTuple):
    """What is in the file.

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


def read_npy_header(file: OpenFile) -> NpyHeader:
    """Return what is in a ``.npy`` file; reads nothing of its elements.

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
    problem, shape, is_fortran_order, dtype = _parse(file.read(before, length))
    if problem or dtype is None:
        raise DumpFormatError(path, problem)
    found = file.size - before - length
    expected = math.prod(shape) * dtype.itemsize
    if found != expected:
        raise DumpFormatError(
            path, f"shape {shape} of {dtype} takes {expected} bytes, the file has {found}"
        )
    return NpyHeader(shape, is_fortran_order, dtype, before + length, expected)


def numpy_dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``float32`` …, and for no numbers what NumPy calls them."""
    return str(dtype.name) if dtype.kind in "biufc" else str(dtype)


# A dump holds thousands of arrays of the same few shapes.
@lru_cache(maxsize=1024)
def _parse(text: bytes) -> tuple[str, tuple[int, ...], bool, np.dtype[Any] | None]:
    """Return a problem in words, or shape, order and type."""
    import numpy as np

    match ast.literal_eval(text.decode().strip()):
        case {"descr": str() as descr, "fortran_order": bool() as order, "shape": tuple() as shape}:
            pass
        case _:
            return "has a header of an unknown form", (), False, None
    if not _TYPE.fullmatch(descr):
        return f"holds {descr!r}, which are no numbers", (), False, None
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        return "has a shape that is no list of sizes", (), False, None
    return "", shape, order, np.dtype(descr)
