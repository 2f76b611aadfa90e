# SPDX-License-Identifier: Apache-2.0
"""Where the elements of a saved tensor lie in its file, so that they can be read piece by piece."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_files import special_tensor
from msprobe.errors import DumpFormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Where the elements of a tensor lie in a file.

    Attributes:
        dtype: the true type without a framework's prefix: ``float32``, ``bfloat16`` …
        storage_type: NumPy's type of the elements as they lie: bfloat16 is ``u2``, float8 ``u1``.
        itemsize: bytes of an element.
        shape: sizes of the tensor.
        count: number of elements.
        start: where the first element lies.
        size: bytes of all elements.
        checksum: CRC-32 of these bytes; 0 where there is none.
        is_plain: whether the bytes are the elements in row-major order and this machine's byte
            order. Where not, read the tensor as a whole: `msprobe.dump.tensor_files`.
    """

    dtype: str
    storage_type: str
    itemsize: int
    shape: tuple[int, ...]
    count: int
    start: int
    size: int
    checksum: int
    is_plain: bool


def find_span(file: OpenFile) -> TensorSpan:
    """Return where the tensor in a ``.npy`` or ``.pt`` file lies; reads nothing of its elements.

    Raises:
        DumpFormatError: the file is damaged or hostile.
        UnsupportedError: a special tensor (sparse, quantised …) that only torch can read.
    """
    return _find_in_npy(file) if file.path.suffix == ".npy" else _find_in_archive(file)


def _find_in_archive(file: OpenFile) -> TensorSpan:
    from msprobe.dump.tensor_archive import SpecialTensorError, find_tensor

    try:
        layout, start, size, checksum, is_big_endian = find_tensor(file)
    except SpecialTensorError as exc:
        raise special_tensor(file.path, exc) from exc
    size_bytes = layout.count * layout.itemsize
    is_plain = (
        layout.is_row_major
        and not layout.conjugate
        and not layout.negative
        and is_big_endian == (sys.byteorder == "big")
    )
    return TensorSpan(
        dtype=layout.dtype,
        storage_type=layout.storage_type,
        itemsize=layout.itemsize,
        shape=layout.shape,
        count=layout.count,
        start=start + layout.offset * layout.itemsize,
        size=size_bytes,
        checksum=checksum if size_bytes == size else 0,
        is_plain=is_plain,
    )


def _find_in_npy(file: OpenFile) -> TensorSpan:
    from msprobe.dump.npy_header import numpy_dtype_name, read_npy_header

    try:
        header = read_npy_header(file)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as exc:
        raise DumpFormatError(file.path, f"has a damaged header: {exc}") from exc
    dtype = header.dtype
    is_row_major = not header.is_fortran_order or sum(size != 1 for size in header.shape) < 2
    return TensorSpan(
        dtype=numpy_dtype_name(dtype),
        storage_type=dtype.str[1:],
        itemsize=dtype.itemsize,
        shape=header.shape,
        count=header.size // dtype.itemsize if dtype.itemsize else 0,
        start=header.start,
        size=header.size,
        checksum=0,
        is_plain=is_row_major and dtype.isnative,
    )
