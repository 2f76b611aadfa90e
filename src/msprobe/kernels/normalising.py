# SPDX-License-Identifier: Apache-2.0
"""Reduce the files of MindSpore's Dump for one iteration to the configured ones.

Some runtimes know neither statistics nor overflows nor a pause: they write all tensors. What was
not asked for is removed here, statistics are computed from the tensors, and the rest is listed:

    statistic.csv       one row a value, with the header that MindSpore itself writes
    kernel_index.csv    one row a value, in order of execution, with the full names of operators
    Opdebug.….json      the device's notes about an overflow
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from msprobe.capture.array_statistics import summarise_array
from msprobe.capture.statistics import NonFinite
from msprobe.dump.crc import crc32
from msprobe.dump.kernel_code import CodeMap, CodePlace
from msprobe.dump.kernel_files import (
    MAPPING_CSV,
    STATISTIC_CSV,
    KernelFolder,
    KernelValue,
    find_graph_file,
)
from msprobe.dump.kernel_ir import SourceLine, read_ir
from msprobe.dump.kernel_names import OVERFLOW_TYPE, parse_kernel_file_name
from msprobe.dump.kernel_views import PARAMETER, Kernel, kernels_in_order
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_files import StoredTensor, npy_type_and_shape, read_open_tensor
from msprobe.errors import DumpFormatError
from msprobe.kernels.convert_binary import convert_binary
from msprobe.report.csv_files import write_csv
from msprobe.report.tables import Cell, Table

INDEX_CSV: Final = "kernel_index.csv"
INDEX_COLUMNS: Final = (
    "Order", "Name", "Full Name", "IO", "Slot", "Data Type", "Shape", "File", "Source",
)  # fmt: skip
STATISTIC_COLUMNS: Final = (
    "Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size",
    "Data Type", "Shape", "Max Value", "Min Value", "Avg Value", "Count",
    "Negative Zero Count", "Positive Zero Count", "NaN Count", "Negative Inf Count",
    "Positive Inf Count", "Zero Count", "L2Norm Value",
)  # fmt: skip
CHECKSUM_COLUMN: Final = "MD5"

_FRAMEWORK: Final = f"{os.sep}site-packages{os.sep}mindspore{os.sep}"
_FLOATS: Final = "fc"
# Names of NumPy's types as MindSpore writes them.
_TYPE_WORDS: Final = {
    "bool": "Bool", "float": "Float", "int": "Int", "uint": "UInt", "complex": "Complex",
}  # fmt: skip


class _Type(NamedTuple):
    """Type and shape of a value, in MindSpore's words."""

    dtype: str
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The files to keep of an iteration.

    Attributes:
        statistics: compute statistics, and keep no tensors.
        checksums: with the statistics, a CRC-32 of each value's bytes.
        overflows: keep only operators that put out a NaN or an infinity.
        most: at most so many of these, None for all.
        times: first and last moment of each recorded part, in microseconds; None for all.
    """

    statistics: bool = False
    checksums: bool = False
    overflows: bool = False
    most: int | None = None
    times: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """The files of an iteration after normalising.

    Attributes:
        kernels: operators that are left.
        values: their inputs and outputs.
        overflowing: names of operators that put out a NaN or an infinity, if these were wanted.
        notes: files with notes on overflows.
    """

    kernels: int
    values: int
    overflowing: list[str]
    notes: list[Path]


def normalise(folder: KernelFolder, wanted: Wanted, code: CodeMap | None = None) -> Normalised:
    """Keep the wanted files in the folder of an iteration, remove the others, and list them.

    Args:
        folder: the folder; all that belongs to it has been written.
        wanted: the files to keep.
        code: where in the program operators come from; None if unknown.

    Raises:
        DumpFormatError: a file of the Dump is damaged.
        OSError: a file cannot be written or removed.
    """
    kernels = kernels_in_order([folder])
    if wanted.times is not None:
        kernels = _keep(kernels, lambda kernel: _is_inside(kernel, wanted.times or ()))
    overflowing: list[str] = []
    if wanted.overflows:
        kernels, overflowing = _keep_overflowing(kernels, wanted.most)
    types: dict[Path, _Type] = {}
    if wanted.statistics:
        types = _replace_by_statistics(folder, kernels, checksums=wanted.checksums)
    rows = list(_index_rows(kernels, code, types))
    write_csv(Table.of(INDEX_COLUMNS, rows), _cleared(folder.directory / INDEX_CSV))
    return Normalised(
        kernels=len(kernels),
        values=len(rows),
        overflowing=overflowing,
        notes=_decode_notes(folder.directory),
    )


def read_code(folder: KernelFolder) -> CodeMap | None:
    """Return the source lines of the operators of a folder's graph; None if unknown."""
    path = find_graph_file(folder)
    if path is None:
        return None
    try:
        return CodeMap([read_ir(path)])
    except DumpFormatError:  # without it, the source of operators is not known; no more
        return None


def _keep(kernels: Iterable[Kernel], is_kept: Any) -> list[Kernel]:
    kept = []
    for kernel in kernels:
        if is_kept(kernel):
            kept.append(kernel)
        else:
            _remove(kernel.values)
    return kept


def _remove(values: Iterable[KernelValue]) -> None:
    for value in values:
        if value.path is not None:
            value.path.unlink(missing_ok=True)


def _is_inside(kernel: Kernel, times: Sequence[tuple[int, int]]) -> bool:
    return any(first <= kernel.time <= last for first, last in times)


def _keep_overflowing(kernels: list[Kernel], most: int | None) -> tuple[list[Kernel], list[str]]:
    names: list[str] = []

    def overflows(kernel: Kernel) -> bool:
        if kernel.values[0].op_type == PARAMETER or (most is not None and len(names) >= most):
            return False
        outputs = [value.path for value in kernel.values if value.io == "output" and value.path]
        if not any(map(_has_nonfinite, outputs)):
            return False
        names.append(kernel.name)
        return True

    return _keep(kernels, overflows), names


def _has_nonfinite(path: Path) -> bool:
    array = _load(path).array
    return array.dtype.kind in _FLOATS and not bool(np.isfinite(array).all())


def _load(path: Path) -> StoredTensor:
    with OpenFile(path) as file:
        return read_open_tensor(file)


def _replace_by_statistics(
    folder: KernelFolder, kernels: Sequence[Kernel], *, checksums: bool
) -> dict[Path, _Type]:
    """Write ``statistic.csv``, then remove the tensors; return their types."""
    values = [
        (kernel, value) for kernel in kernels for value in kernel.values if value.path is not None
    ]
    if not values:
        return {}  # the runtime has computed them
    columns = STATISTIC_COLUMNS + ((CHECKSUM_COLUMN,) if checksums else ())
    types: dict[Path, _Type] = {}
    rows = [_statistic_row(kernel, value, types, checksums) for kernel, value in values]
    write_csv(Table.of(columns, rows), _cleared(folder.directory / STATISTIC_CSV))
    _remove(value for _, value in values)
    return types


def _statistic_row(
    kernel: Kernel, value: KernelValue, types: dict[Path, _Type], checksums: bool
) -> list[Cell]:
    if value.path is None:
        raise DumpFormatError(value.op_name, "has no tensor")
    stored = _load(value.path)
    array = stored.array
    words = types[value.path] = _Type(_type_word(stored.dtype), _shape_text(array.shape))
    summary = summarise_array(array)
    nonfinite = summary.nonfinite or NonFinite(0, 0, 0, None, None)
    # "Negative Zero Count" is MindSpore's name for the number of elements below zero.
    below = 0 if array.dtype.kind in "buc" else int(np.count_nonzero(array < 0))
    others = int(np.count_nonzero(array)) - below - nonfinite.nan_count
    row: list[Cell] = [
        value.op_type,
        kernel.scope,
        value.task,
        value.stream,
        value.time,
        value.io,
        value.index,
        array.nbytes,
        words.dtype,
        words.shape,
        summary.max,
        summary.min,
        summary.mean,
        array.size,
        below,
        others,
        nonfinite.nan_count,
        nonfinite.neg_inf_count,
        nonfinite.pos_inf_count,
        array.size - below - others - nonfinite.nan_count,
        summary.norm,
    ]
    if checksums:
        row.append(f"{crc32(np.ascontiguousarray(array).tobytes()):08x}")
    return row


def _type_word(dtype: str) -> str:
    word = dtype.rstrip("0123456789")
    return f"{_TYPE_WORDS.get(word, word)}{dtype[len(word) :]}"


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"({','.join(map(str, shape))})"


def _index_rows(
    kernels: Sequence[Kernel], code: CodeMap | None, types: Mapping[Path, _Type]
) -> Iterator[Sequence[Cell]]:
    """Yield the rows of the index.

    Args:
        kernels: the operators.
        code: where they come from, if that is known.
        types: of the tensors that were removed.
    """
    for order, kernel in enumerate(kernels):
        first = kernel.values[0]
        place = None
        if code is not None:
            is_parameter = first.op_type == PARAMETER
            place = code.parameter(kernel.scope) if is_parameter else code.kernel(kernel.scope)
        source = _source(place)
        for value in kernel.values:
            words, file = _Type(value.dtype, _shape_text(value.shape or ())), ""
            if value.path is not None and value.path in types:
                words = types[value.path]
            elif value.path is not None:
                file = value.path.name
                if not value.dtype:  # else a type that .npy cannot hold
                    dtype, shape = npy_type_and_shape(value.path)
                    words = _Type(_type_word(dtype), _shape_text(shape))
            yield (
                order, kernel.name, kernel.scope, value.io, value.index, *words, file, source,
            )  # fmt: skip


def _source(place: CodePlace | None) -> str:
    """Return the innermost line outside MindSpore, else the innermost."""
    if place is None or not place.frames:
        return ""
    line: SourceLine = next(
        (frame for frame in place.frames if _FRAMEWORK not in frame.file), place.frames[0]
    )
    return f"{line.file}:{line.line}"


def _decode_notes(directory: Path) -> list[Path]:
    """Convert binary overflow notes to JSON files; return all notes as JSON."""
    for path in sorted(directory.glob(f"{OVERFLOW_TYPE}.*")):
        has_json = path.with_name(f"{path.name}.output.0.json").exists()
        if path.suffix not in (".json", ".npy") and not has_json:
            convert_binary(path, directory)
    return sorted(directory.glob(f"{OVERFLOW_TYPE}.*.json"))


def _cleared(path: Path) -> Path:
    """Return a path after removing any file there."""
    path.unlink(missing_ok=True)
    return path


_OWN_FILES: Final = (STATISTIC_CSV, MAPPING_CSV, "kernel_index.csv")
_OTHER_FILES: Final = re.compile(
    r"ms_(?:global_)?execution_order_graph_\d+\.csv|ms_output_trace_code_graph_\d+\.(?:ir|pb)|\d{32}\.npy"
)


def clear_kernel_dump(rank_folder: Path) -> int:
    """Remove the files of a kernel dump below the folder of a rank; folders with others stay.

    Returns:
        The number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = 0
    if rank_folder.is_symlink():
        return 0
    for directory, _, names in os.walk(rank_folder, topdown=False):
        for name in names:
            if name in _OWN_FILES or _OTHER_FILES.fullmatch(name) or parse_kernel_file_name(name):
                (Path(directory) / name).unlink()
                removed += 1
        if not any(Path(directory).iterdir()):
            Path(directory).rmdir()
    return removed
