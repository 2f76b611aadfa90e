# SPDX-License-Identifier: Apache-2.0
"""``.npy`` and ``.npz``: NumPy's own files; arrays of Python objects are refused."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from msprobe.checkpoints.parameters import Parameter, contiguous_parameter, known_type
from msprobe.checkpoints.spans import CompressedSpan, FileSpan, FortranSpan, file_size
from msprobe.checkpoints.zip_members import ZIP_ERRORS, member_offset
from msprobe.errors import CheckpointFormatError

MAGIC: Final = b"\x93NUMPY"
_ERRORS: Final = (OSError, ValueError, SyntaxError, EOFError, RecursionError, MemoryError)
# Deflate cannot do better than about 1:1032.
_MAX_RATIO: Final = 1100


def read_npy(path: Path, name: str) -> list[Parameter]:
    """Return the array of a ``.npy`` file as a parameter called `name`.

    Raises:
        CheckpointFormatError: the file is damaged, or holds no numbers.
    """
    size = file_size(path)
    try:
        with path.open("rb") as file:
            shape, fortran, dtype, begin = _header(path, file)
    except _ERRORS as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    return [_stored(path, name, shape, fortran, dtype, begin, size - begin)]


def read_npz(path: Path) -> tuple[list[Parameter], list[str]]:
    """Return the arrays of a ``.npz`` file, and notes about those that are no numbers.

    Raises:
        CheckpointFormatError: the file is damaged.
    """
    found: list[Parameter] = []
    notes: list[str] = []
    size = file_size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".npy"):
                    continue
                name = info.filename.removesuffix(".npy")
                if info.file_size > size * _MAX_RATIO:
                    raise CheckpointFormatError(path, f"{name!r}: its size is a lie")
                with archive.open(info) as member:
                    shape, fortran, dtype, begin = _header(path, member, name)
                if not known_type(dtype.name):
                    notes.append(f"{name}: left out, holds no numbers but {dtype}")
                    continue
                available = info.file_size - begin
                if info.compress_type == zipfile.ZIP_STORED:
                    offset = member_offset(path, info) + begin
                    found.append(_stored(path, name, shape, fortran, dtype, offset, available))
                else:
                    _check_size(path, name, shape, dtype, available)
                    found.append(_compressed(path, info, name, shape, fortran, dtype, begin))
    except (*ZIP_ERRORS, SyntaxError) as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    return found, notes


def _header(
    path: Path, file: IO[bytes], name: str = ""
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, order and type, and where the elements begin."""
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise CheckpointFormatError(path, f"{name}: .npy version {version} is not known")
    shape, fortran, dtype = read(file)
    if not all(type(size) is int and 0 <= size < 1 << 63 for size in shape):
        raise CheckpointFormatError(path, f"{name}: has a shape that is no list of sizes")
    return shape, fortran, dtype, file.tell()


def _check_size(
    path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], available: int
) -> None:
    needed = math.prod(shape) * dtype.itemsize
    if needed != available:
        problem = f"shape {list(shape)} takes {needed} bytes, there are {available}"
        raise CheckpointFormatError(path, f"{name!r}: {problem}")


def _stored(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    fortran: bool,
    dtype: np.dtype[Any],
    offset: int,
    available: int,
) -> Parameter:
    if not known_type(dtype.name):
        raise CheckpointFormatError(path, f"{name!r} holds no numbers but {dtype}")
    parameter = contiguous_parameter(
        name, dtype.name, shape, path=path, offset=offset, available=available
    )
    inner = FileSpan(path, offset, dtype)
    span = FortranSpan(inner, shape) if fortran and len(shape) > 1 else inner
    return Parameter(name=name, dtype=parameter.dtype, shape=shape, span=span, file=path)


def _compressed(
    path: Path,
    info: zipfile.ZipInfo,
    name: str,
    shape: tuple[int, ...],
    fortran: bool,
    dtype: np.dtype[Any],
    begin: int,
) -> Parameter:
    if fortran and len(shape) > 1:
        problem = "is compressed and stored by columns; save it as numpy.ascontiguousarray"
        raise CheckpointFormatError(path, f"{name!r} {problem}")
    span = CompressedSpan(path, info.filename, begin, dtype)
    return Parameter(name=name, dtype=dtype.name, shape=shape, span=span, file=path)
