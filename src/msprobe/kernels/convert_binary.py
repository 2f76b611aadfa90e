# SPDX-License-Identifier: Apache-2.0
"""Binary kernel dumps as ``.npy`` or ``.pt`` files, in the order of elements of the program."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.kernel_files import MAPPING_CSV, read_mapping
from msprobe.dump.kernel_names import OVERFLOW_TYPE, parse_kernel_file_name
from msprobe.dump.layout import MAX_NAME_BYTES
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_archive_writer import MAX_BYTES, TYPED_STORAGES, UNTYPED, write_archive
from msprobe.errors import DumpFormatError, ReportWriteError
from msprobe.files import report_file, write_report
from msprobe.json_text import strict_json
from msprobe.kernels.binary_dump import BinaryValue, read_binary_dump
from msprobe.kernels.element_types import ELEMENT_TYPES, NAMES_WITHOUT_VALUES, decode_elements
from msprobe.kernels.layouts import STORED, Layout, LayoutError, restore_layout
from msprobe.kernels.overflow_info import decode_overflow
from msprobe.plain_text import reason

_NPY: Final = ".npy"


class FileType(StrEnum):
    """Type of the files to write."""

    NPY = "npy"
    PT = "pt"


@dataclass(slots=True, kw_only=True)
class Conversion:
    """Result of a conversion.

    Attributes:
        written: the new files.
        problems: file → error, for files that could not be converted in full.
    """

    written: list[Path] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)


def convert_binary(
    data: Path,
    output: Path,
    *,
    wanted: str = "",
    file_type: FileType = FileType.NPY,
    by_operation: bool = False,
) -> Conversion:
    """Convert a binary file, or all below a folder.

    Args:
        data: a file or folder.
        output: where the new files go; made when needed.
        wanted: name of the order that tensors get, see `restore_layout`; ``STORED`` leaves them.
        file_type: type of the new files.
        by_operation: whether the new files go to ``{operation}/{time}/``; else subfolders are kept.

    Raises:
        DumpFormatError: there are no binary files.
        ReportWriteError: a file cannot be written.
    """
    done = Conversion()
    found = False
    for path, name in _binary_files(data):
        found = True
        folder = output / path.parent.relative_to(data) if data.is_dir() else output
        kernel = parse_kernel_file_name(name) if by_operation else None
        if kernel is not None:
            folder = output / kernel.op_name / str(kernel.time)
        _convert_file(path, name, _Target(folder, file_type), wanted, done)
    if not found:
        raise DumpFormatError(data, "holds no binary files of a kernel dump")
    return done


def read_value(file: OpenFile, value: BinaryValue, *, wanted: str = "") -> NDArray[Any]:
    """Return one value of an open binary file.

    Raises:
        DumpFormatError: its type or the order of its elements is not known, or its shape does not
            fit its bytes.
    """
    where = f"{value.io} {value.index}"
    kind = ELEMENT_TYPES.get(value.data_type)
    if kind is None:
        name = NAMES_WITHOUT_VALUES.get(value.data_type, "unknown")
        text = f"{where} has the type {name} ({value.data_type}), which cannot be converted"
        raise DumpFormatError(file.path, text)
    count = prod(value.shape)
    if kind.bytes_of(count) > value.size_bytes:
        text = f"{where} has {value.size_bytes} bytes; {list(value.shape)} of {kind.name} need more"
        raise DumpFormatError(file.path, text)
    raw = file.read(value.offset, kind.bytes_of(count))
    try:
        array = decode_elements(raw, kind, count).reshape(value.shape)
    except ValueError as exc:  # beside a zero, the other sizes may be beyond all bounds
        raise DumpFormatError(file.path, f"{where} has an impossible shape: {exc}") from exc
    if wanted == STORED:
        return array
    try:
        return _restored(array, value, wanted)
    except LayoutError as exc:
        raise DumpFormatError(file.path, f"{where}: {exc}; -f {STORED} leaves it as it is") from exc


def _restored(array: NDArray[Any], value: BinaryValue, wanted: str) -> NDArray[Any]:
    try:
        layout = Layout(value.layout)
    except ValueError as exc:
        raise LayoutError(f"the layout {value.layout} is not known") from exc
    original, groups = value.original_shape, value.sub_layout
    try:
        return restore_layout(array, layout, original, groups=groups, wanted=wanted)[0]
    except (ValueError, OverflowError) as exc:
        raise LayoutError(str(exc)) from exc


def _binary_files(data: Path) -> Iterator[tuple[Path, str]]:
    """Yield binary files with their original names."""
    if data.is_file():
        name = _real_names(data.parent, (data.parent / MAPPING_CSV).is_file()).get(data.name)
        yield data, name or data.name
        return
    if not data.is_dir():
        raise DumpFormatError(data, "does not exist; check the path")
    for directory, folders, names in os.walk(data):
        folders.sort()
        real_names = _real_names(Path(directory), MAPPING_CSV in names)
        for name in sorted(names):
            found = parse_kernel_file_name(real_names.get(name, name))
            if found is not None and found.is_binary:
                yield Path(directory) / name, real_names.get(name, name)


def _real_names(directory: Path, has_mapping: bool) -> Mapping[str, str]:
    if not has_mapping:
        return {}
    names = read_mapping(directory)
    return names | {
        short.removesuffix(_NPY): full.removesuffix(_NPY) for short, full in names.items()
    }


def _convert_file(path: Path, name: str, target: _Target, wanted: str, done: Conversion) -> None:
    """Convert one file; a value that cannot be converted is noted and does not stop the others."""
    problems = []
    try:
        header = read_binary_dump(path)
        with OpenFile(path) as file:
            for value in header.values:
                try:
                    if name.startswith(f"{OVERFLOW_TYPE}.") and value.io == "output":
                        done.written.append(_write_overflow(file, value, name, target))
                    else:
                        array = read_value(file, value, wanted=wanted)
                        done.written.append(target.write(name, value, array))
                except DumpFormatError as exc:
                    problems.append(str(exc).removeprefix(f"{path}: "))
    except DumpFormatError as exc:
        problems.append(str(exc).removeprefix(f"{path}: "))
    if problems:
        done.problems[path] = "; ".join(problems)


def _write_overflow(file: OpenFile, value: BinaryValue, name: str, target: _Target) -> Path:
    found = decode_overflow(file.read(value.offset, value.size_bytes), file.path)
    return target.write_text(f"{name}.output.{value.index}.json", strict_json(found, indent=4))


class _Target:
    """A folder that receives files."""

    def __init__(self, folder: Path, file_type: FileType) -> None:
        self._folder = folder
        self._type = file_type

    def write(self, name: str, value: BinaryValue, array: NDArray[Any]) -> Path:
        """Write one value as ``{name}.{io}.{index}.{sizes}.npy``."""
        sizes = "x".join(map(str, array.shape))
        wanted = ".".join(filter(None, (name, value.io, str(value.index), sizes, self._type.value)))
        path = self._path(wanted)
        with report_file(path) as temporary:
            if self._type is FileType.NPY:
                with temporary.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
            else:
                _write_pt(temporary, array)
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file."""
        return write_report(self._path(name), text)

    def _path(self, wanted: str) -> Path:
        """Return the path for a file name; a number replaces a name that is too long."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if len(os.fsencode(wanted)) <= MAX_NAME_BYTES:
                return self._folder / wanted
            digest = int(hashlib.sha256(os.fsencode(wanted)).hexdigest(), 16)
            short = f"{digest % 10**32:032d}{Path(wanted).suffix}"
            with (self._folder / MAPPING_CSV).open("a", encoding="utf-8") as file:
                file.write(f"{short},{wanted}\n")
        except OSError as exc:
            raise ReportWriteError(self._folder, f"cannot be written: {reason(exc)}") from exc
        return self._folder / short


def _write_pt(path: Path, array: NDArray[Any]) -> None:
    whole = np.ascontiguousarray(array).reshape(array.shape)
    if whole.dtype.name not in TYPED_STORAGES and whole.dtype.name not in UNTYPED:
        raise DumpFormatError(path, f"the type {whole.dtype} has no place in a .pt file")
    if whole.nbytes > MAX_BYTES:
        raise DumpFormatError(path, f"{whole.nbytes} bytes are too many for a .pt file; use npy")
    write_archive(
        os.fspath(path), whole.dtype.name, whole.shape, whole.reshape(-1).view(np.uint8).data
    )
