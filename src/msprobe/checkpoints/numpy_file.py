# SPDX-License-Identifier: Apache-2.0
"""``.npy`` and ``.npz``: NumPy's own files; arrays of Python objects are refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Final, NamedTuple

from msprobe.checkpoints.parameters import Content, Parameter
from msprobe.checkpoints.spans import CompressedSpan, FileSpan, FortranSpan, Span
from msprobe.dump.formats.dtypes import STORAGE_TYPES
from msprobe.dump.formats.npy import NoNumbersError, NpyHeader, read_npy_header
from msprobe.dump.formats.torch_archive import MAX_DIMENSIONS
from msprobe.dump.formats.zip import ZIP_ERRORS, content_offset, read_directory
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError

MAGIC: Final = b"\x93NUMPY"
_ERRORS: Final = (*ZIP_ERRORS, SyntaxError, RecursionError)
# Deflate cannot do better than about 1:1032.
_MAX_RATIO: Final = 1100


def read_npy(path: Path, name: str) -> Content:
    """Return the array of a ``.npy`` file as a parameter called `name`.

    Raises:
        CheckpointFormatError: the file cannot be read.
        DumpFormatError: it is damaged, or holds no numbers.
    """
    try:
        with OpenFile(path) as file:
            header = _numbers(file)
    except _ERRORS as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    found = _parameter(path, name, header, _stored(path, header, header.start))
    return Content(parameters=[found])


def read_npz(path: Path) -> Content:
    """Return the arrays of a ``.npz`` file, and notes about those that are no numbers.

    Raises:
        CheckpointFormatError: the file is no archive, or an array is stored in a way that cannot
            be read.
        DumpFormatError: it is damaged.
    """
    content = Content()
    try:
        with OpenFile(path) as file, zipfile.ZipFile(path) as archive:
            directory = read_directory(file)
            for info in archive.infolist():
                if not info.filename.endswith(".npy"):
                    continue
                name = info.filename.removesuffix(".npy")
                if info.file_size > file.size * _MAX_RATIO:
                    raise CheckpointFormatError(path, f"{name!r}: its size is a lie")
                try:
                    with archive.open(info) as member:
                        header = _numbers(_Member(f"{path}: {name}", info.file_size, member))
                except NoNumbersError as exc:
                    content.notes.append(f"{name}: left out, {exc.problem}")
                    continue
                raw = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
                entry = directory[raw][-1]
                if entry.is_stored:
                    start = content_offset(file, raw, entry) + header.start
                    span = _stored(path, header, start)
                else:
                    span = _compressed(path, info.filename, header)
                content.parameters.append(_parameter(path, name, header, span))
    except _ERRORS as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    return content


class _Member(NamedTuple):
    """A member of an archive, in the form that `read_npy_header` reads."""

    name: str
    size: int
    file: IO[bytes]

    def read(self, offset: int, length: int, /) -> bytes:
        """Return bytes."""
        self.file.seek(offset)
        return self.file.read(length)


def _numbers(source: OpenFile | _Member) -> NpyHeader:
    header = read_npy_header(source)
    if header.dtype.name not in STORAGE_TYPES:
        raise NoNumbersError(source.name, f"holds no numbers but {header.dtype}")
    return header


def _stored(path: Path, header: NpyHeader, offset: int) -> Span:
    inner = FileSpan(path, offset, header.dtype)
    is_turned = header.is_fortran_order and len(header.shape) > 1
    return FortranSpan(inner, header.shape) if is_turned else inner


def _compressed(path: Path, member: str, header: NpyHeader) -> Span:
    if header.is_fortran_order and len(header.shape) > 1:
        problem = "is compressed and stored by columns; save it as numpy.ascontiguousarray"
        raise CheckpointFormatError(path, f"{member!r} {problem}")
    return CompressedSpan(path, member, header.start, header.dtype)


def _parameter(path: Path, name: str, header: NpyHeader, span: Span) -> Parameter:
    if len(header.shape) > MAX_DIMENSIONS:
        raise CheckpointFormatError(path, f"{name!r} has {len(header.shape)} dimensions")
    return Parameter(
        name=name,
        dtype=header.dtype.name,
        shape=header.shape,
        span=span,
        file=path,
        path=(name,),
    )
