# SPDX-License-Identifier: Apache-2.0
"""``.npy`` and ``.npz``: NumPy's own files; pickled objects in them are read as data."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from msprobe.checkpoints.parameters import Content, Parameter, Unread, Value
from msprobe.checkpoints.pickled_tree import no_storage, read_tree
from msprobe.checkpoints.spans import CompressedSpan, FileSpan, Span, by_columns
from msprobe.dump.formats.dtypes import STORAGE_TYPES
from msprobe.dump.formats.npy import NoNumbersError, NpyHeader, read_npy_header
from msprobe.dump.formats.pickle import read_pickle
from msprobe.dump.formats.torch_archive import MAX_DIMENSIONS
from msprobe.dump.formats.zip import ZIP_ERRORS, Directory, content_offset, read_directory
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading

MAGIC: Final = b"\x93NUMPY"
_ERRORS: Final = (*ZIP_ERRORS, SyntaxError, RecursionError)
# Deflate cannot do better than about 1:1032.
_MAX_RATIO: Final = 1100
_MAX_TEXT_BYTES: Final = 1 << 20
_MAX_PICKLE_BYTES: Final = 64 << 20


def read_npy(path: Path, name: str) -> Content:
    """Return the array of a ``.npy`` file as a parameter called `name`, but with no key.

    Raises:
        CheckpointFormatError: the file cannot be read.
        DumpFormatError: it is damaged.
    """
    with reading(path, CheckpointFormatError, *_ERRORS), OpenFile(path) as file:
        content = _read_array(path, name, file, lambda header: _stored(path, header, 0))
    # The name is that of the file, not of anything in it.
    content.parameters = [replace(item, path=()) for item in content.parameters]
    return content


def read_npz(path: Path) -> Content:
    """Return the arrays of a ``.npz`` file.

    Raises:
        CheckpointFormatError: the file is no archive, or an array is stored in a way that cannot
            be read.
        DumpFormatError: it is damaged.
    """
    content = Content()
    with (
        reading(path, CheckpointFormatError, *_ERRORS),
        OpenFile(path) as file,
        zipfile.ZipFile(path) as archive,
    ):
        directory = read_directory(file)
        for info in archive.infolist():
            if info.filename.endswith(".npy"):
                content.add(_read_member(path, file, directory, archive, info))
    return content


def _read_member(
    path: Path,
    file: OpenFile,
    directory: Directory,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
) -> Content:
    name = info.filename.removesuffix(".npy")
    if info.file_size > file.size * _MAX_RATIO:
        raise CheckpointFormatError(path, f"{name!r}: its size is a lie")
    raw = info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")
    entry = directory[raw][-1]

    def span(header: NpyHeader) -> Span:
        if entry.is_stored:
            return _stored(path, header, content_offset(file, raw, entry))
        return _compressed(path, info.filename, header)

    with archive.open(info) as member:
        return _read_array(path, name, _Member(f"{path}: {name}", info.file_size, member), span)


def _read_array(
    path: Path, name: str, source: OpenFile | _Member, span: Callable[[NpyHeader], Span]
) -> Content:
    """Return an array as a parameter; one of text or objects as values."""
    try:
        header = read_npy_header(source)
    except NoNumbersError as exc:
        return _read_objects(path, name, source, exc.problem)
    if header.dtype.name in STORAGE_TYPES:
        return Content(parameters=[_parameter(path, name, header, span(header))])
    if header.dtype.kind in "SU" and header.size <= _MAX_TEXT_BYTES:
        array = np.frombuffer(source.read(header.start, header.size), header.dtype)
        value = Value(name=name, path=(name,), content=tuple(array.tolist()), file=path)
        return Content(values=[value])
    problem = f"holds no numbers but {header.dtype}"
    return Content(unread=[Unread(name=name, path=(name,), problem=problem)])


def _read_objects(path: Path, name: str, source: OpenFile | _Member, problem: str) -> Content:
    """Return the objects of an array, which lie in a pickle behind its header."""
    start = source.read(0, min(source.size, 12))
    begin = 10 if start[6] == 1 else 12
    begin += int.from_bytes(start[8:begin], "little")
    size = source.size - begin
    if b"'|O'" not in source.read(0, begin) or size > _MAX_PICKLE_BYTES:
        return Content(unread=[Unread(name=name, path=(name,), problem=problem)])
    tree = read_pickle(source.read(begin, size))
    return read_tree(path, tree, no_storage, "little", root=(name,)).content


class _Member(NamedTuple):
    """A member of an archive, in the form that `read_npy_header` reads."""

    name: str
    size: int
    file: IO[bytes]

    def read(self, offset: int, length: int, /) -> bytes:
        """Return bytes."""
        self.file.seek(offset)
        return self.file.read(length)


def _stored(path: Path, header: NpyHeader, offset: int) -> Span:
    inner = FileSpan(path, offset + header.start, header.dtype)
    is_turned = header.is_fortran_order and len(header.shape) > 1
    return by_columns(inner, header.shape) if is_turned else inner


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
