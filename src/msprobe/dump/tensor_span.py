# SPDX-License-Identifier: Apache-2.0
"""Position of a saved tensor's elements in its file, for reading them piece by piece."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, NamedTuple

from msprobe.dump.archive_template import ArchiveTemplate, folder_of, make_template
from msprobe.dump.formats.npy import numpy_dtype_name, read_npy_header
from msprobe.dump.formats.torch_archive import SpecialTensorError
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_archive import ArchivedTensor, find_tensor
from msprobe.dump.tensor_files import READ_ERRORS, first_line, special_tensor
from msprobe.errors import DumpFormatError

# Kinds of files that are remembered: a few KiB each.
_TEMPLATES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpan:
    """Position of a tensor's elements in a file.

    Attributes:
        dtype: the true type without a framework's prefix: ``float32``, ``bfloat16`` …
        storage_type: NumPy's type of the elements as they lie: bfloat16 is ``u2``, float8 ``u1``.
        itemsize: bytes of an element.
        shape: sizes of the tensor.
        count: number of elements.
        start: where the first element lies.
        size: bytes of all elements.
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
    is_plain: bool


class FoundTensor(NamedTuple):
    """A tensor in a file.

    Attributes:
        span: where it lies.
        checksum: CRC-32 of its bytes; 0 where there is none.
    """

    span: TensorSpan
    checksum: int


class SpanFinder:
    """Finds tensors in files, faster where many files have one form; for one thread."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[ArchiveTemplate, TensorSpan]] = {}

    def find(self, file: OpenFile) -> FoundTensor:
        """Return where the tensor in a ``.npy`` or ``.pt`` file lies; reads none of its elements.

        Raises:
            DumpFormatError: the file is damaged or hostile.
            UnsupportedError: a special tensor (sparse, quantised …) that only torch can read.
        """
        try:
            if file.is_npy:
                return FoundTensor(_find_in_npy(file), 0)
            return self._find_in_archive(file)
        except READ_ERRORS as exc:
            raise DumpFormatError(file.name, f"cannot be read: {first_line(exc)}") from exc

    def _find_in_archive(self, file: OpenFile) -> FoundTensor:
        content = file.content
        if content is None:
            return _find_in_archive(file)[1]
        folder = folder_of(content)
        key = (file.size, len(folder))
        if key in self._known:
            template, span = self._known[key]
            checksum = template.checksum(content, folder)
            if checksum is not None:
                return FoundTensor(span, checksum)
        archived, found = _find_in_archive(file)
        new = make_template(file, archived) if found.span.size == archived.storage.size else None
        if new is not None:
            if len(self._known) >= _TEMPLATES:
                self._known.clear()
            self._known[key] = (new, found.span)
        return found


def _find_in_archive(file: OpenFile) -> tuple[ArchivedTensor, FoundTensor]:
    try:
        archived = find_tensor(file)
    except SpecialTensorError as exc:
        raise special_tensor(file.name, exc) from exc
    layout = archived.layout
    size_bytes = layout.count * layout.itemsize
    is_plain = (
        layout.is_row_major
        and not layout.conjugate
        and not layout.negative
        and archived.archive.is_big_endian == (sys.byteorder == "big")
    )
    span = TensorSpan(
        dtype=layout.dtype,
        storage_type=layout.storage_type,
        itemsize=layout.itemsize,
        shape=layout.shape,
        count=layout.count,
        start=archived.start + layout.offset * layout.itemsize,
        size=size_bytes,
        is_plain=is_plain,
    )
    return archived, FoundTensor(
        span, archived.storage.checksum if size_bytes == archived.storage.size else 0
    )


def _find_in_npy(file: OpenFile) -> TensorSpan:
    header = read_npy_header(file)
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
        is_plain=is_row_major and dtype.isnative,
    )
