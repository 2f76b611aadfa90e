# SPDX-License-Identifier: Apache-2.0
"""Files of MindSpore's own kernel dumps: names, folders, ``statistic.csv``.

    rank_0/{net}/{graph}/{iteration}/
        MatMul.Default_fc1-Dense_MatMul-op0.0.0.1795182233644492.input.0.DefaultFormat.Float32.npy
        statistic.csv          instead of, or beside, the tensors
        mapping.csv            names of files whose own names would have been too long
    rank_0/execution_order/ms_execution_order_graph_{graph}.csv

The asynchronous form of Ascend has the rank as a plain number and more folders above; older files
lack the type at their end, newer ones may have a second number after the index.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from msprobe.dump.kernel_names import parse_kernel_file_name
from msprobe.dump.records import Statistic
from msprobe.errors import DumpFormatError
from msprobe.files import reading

STATISTIC_CSV: Final = "statistic.csv"
MAPPING_CSV: Final = "mapping.csv"

_EXECUTION_ORDER: Final = "execution_order"
_GRAPHS: Final = "graphs"
_SCOPE_SEPARATOR: Final = "/"
_MAX_DEPTH: Final = 10
_NPY: Final = ".npy"
# Types that .npy cannot hold keep no suffix.
_VALUE_SUFFIXES: Final = (_NPY, "")
_RANK_PART: Final = re.compile(r"rank_(\d{1,9})")
_STEP_PART: Final = re.compile(r"(?:step_?)?(\d{1,9})")
# No other file has a number like that in its name.
_FIRST_TIME: Final = 10**12
_TIME_PART: Final = re.compile(r"\d{14}")
# A rank is a small number; a folder of 14 digits is a time.
_NUMBER_PART: Final = re.compile(r"\d{1,6}")
_RANK_PLACES: Final = (-4, -3)
# Parts of a dump that hold no values of an iteration.
_CONSTANTS: Final = "constants"
_OTHER_FOLDERS: Final = (_CONSTANTS, "dump_tensor_data", _EXECUTION_ORDER, _GRAPHS)
_STATISTIC_COLUMNS: Final = {
    "opname": "name",
    "optype": "type",
    "taskid": "task",
    "streamid": "stream",
    "timestamp": "time",
    "io": "io",
    "slot": "index",
}
_REQUIRED: Final = ("opname", "io", "slot")
_WORDS: Final[Mapping[str, Statistic]] = {"": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFolder:
    """The folder of one graph, rank and iteration.

    Attributes:
        directory: the folder.
        rank: the rank, or the device where ranks are not told.
        step: the iteration.
        graph: name of the folder above: the graph's number.
    """

    directory: Path
    rank: int
    step: int
    graph: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelValue:
    """One input or output of one kernel.

    Attributes:
        op_type: ``MatMul``; ``Parameter`` for values that no kernel made.
        op_name: scope and number of the kernel; ``/`` in it may have become ``_``.
        task: number of the task; 0 on the CPU, as is `stream`.
        time: when it was written, in microseconds.
        io: ``input`` or ``output``.
        index: which input or output; ``2`` or, where the dump has two numbers, ``2.0``.
        path: file of the values, None where only statistics were kept.
        dtype: as ``statistic.csv`` spells it; empty where the file of values knows it.
        shape: None where the file of values knows it.
        statistics: column of ``statistic.csv`` → value, names in lower case without spaces.
    """

    op_type: str
    op_name: str
    task: int
    stream: int
    time: int
    io: str
    index: str
    path: Path | None = None
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    statistics: Mapping[str, Statistic | str] = field(default_factory=dict)


def find_kernel_folders(path: Path) -> list[KernelFolder]:
    """Return the folders at or below a path that hold values of kernels, by rank and step.

    Raises:
        DumpFormatError: a folder cannot be read.
    """
    if path.is_file() and path.name in (STATISTIC_CSV, MAPPING_CSV):
        path = path.parent
    if not path.is_dir():
        return []
    root = path.resolve()
    with reading(path, DumpFormatError):
        found = [_placed(directory, root) for directory in _value_folders(root)]
    return sorted(found, key=lambda folder: (folder.step, folder.rank, str(folder.directory)))


def _value_folders(path: Path) -> Iterator[Path]:
    depth = len(path.parts)
    for directory, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in _OTHER_FOLDERS)
        here = Path(directory)
        if len(here.parts) - depth >= _MAX_DEPTH:
            folders.clear()
        if STATISTIC_CSV in files or MAPPING_CSV in files or any(map(_is_value, files)):
            yield here


def _is_value(name: str) -> bool:
    found = parse_kernel_file_name(name)
    return found is not None and bool(found.io) and found.suffix in _VALUE_SUFFIXES


def _placed(directory: Path, root: Path) -> KernelFolder:
    """Return a folder with the rank and step in its path; 0 where the path has none.

    Args:
        directory: the folder.
        root: the folder that was opened: plain numbers above it are none of the dump.
    """
    parts = directory.parts
    times = [place for place, part in enumerate(parts) if _TIME_PART.fullmatch(part)]
    ranks = [found for part in parts if (found := _RANK_PART.fullmatch(part))]
    rank, step = _below_time(parts, times[-1], len(root.parts)) if times else _below_net(parts)
    return KernelFolder(
        directory=directory,
        rank=int(ranks[-1][1]) if ranks else rank,
        step=step,
        graph=parts[-2] if len(parts) > 1 else "",
    )


def _below_net(parts: tuple[str, ...]) -> tuple[int, int]:
    """Return rank and step of ``…/{rank}/{net}/{graph}/{iteration}``."""
    step = _STEP_PART.fullmatch(parts[-1])
    places = (parts[place] for place in _RANK_PLACES if len(parts) >= -place)
    rank = next((int(part) for part in places if _NUMBER_PART.fullmatch(part)), 0)
    return rank, int(step[1]) if step else 0


def _below_time(parts: tuple[str, ...], time: int, root: int) -> tuple[int, int]:
    """Return rank and step of ``[{step}/]{time}/{device}/[{model}/{number}/][{iteration}/]``.

    The step counts, where it is told: iterations are then those of one model within the step.
    """
    below = parts[time + 1 :]
    rank = 0
    if below and _NUMBER_PART.fullmatch(below[0]):
        rank, below = int(below[0]), below[1:]
    above = _STEP_PART.fullmatch(parts[time - 1]) if time else None
    if above is not None and (time > root or not parts[time - 1].isdigit()):
        return rank, int(above[1])
    step = _STEP_PART.fullmatch(below[-1]) if below else None
    return rank, int(step[1]) if step else 0


def find_constants(folder: KernelFolder) -> KernelFolder | None:
    """Return the folder of a graph's constants, shared by all iterations; None if missing."""
    path = folder.directory.parent / _CONSTANTS
    return replace(folder, directory=path) if path.is_dir() else None


def holds_binary_files(path: Path) -> bool:
    """Return whether there are binary files at or below a path, as the asynchronous Dump writes."""
    for directory, _, names in os.walk(path):
        if len(Path(directory).parts) - len(path.parts) > _MAX_DEPTH:
            return False
        for name in names:
            found = parse_kernel_file_name(name)
            if found is not None and found.is_binary and found.time >= _FIRST_TIME:
                return True
    return False


def read_kernel_values(folder: KernelFolder) -> list[KernelValue]:
    """Return all values of a folder, in no particular order.

    Where tensors and statistics were kept, the values carry both.

    Raises:
        DumpFormatError: ``statistic.csv`` or ``mapping.csv`` is damaged.
    """
    tensors = list(_tensor_values(folder.directory))
    path = folder.directory / STATISTIC_CSV
    statistics = list(_read_statistics(path)) if path.is_file() else []
    if not tensors:
        return statistics
    by_key = {_key(value): value for value in statistics}
    return [
        replace(value, statistics=found.statistics) if (found := by_key.get(_key(value))) else value
        for value in tensors
    ]


def _key(value: KernelValue) -> tuple[str, int, int, str, str, int]:
    name = value.op_name.replace(_SCOPE_SEPARATOR, "_")
    return (name, value.task, value.stream, value.io, value.index, value.time)


def _tensor_values(directory: Path) -> Iterator[KernelValue]:
    real_names = read_mapping(directory)
    for path in directory.iterdir():
        found = parse_kernel_file_name(real_names.get(path.name, path.name))
        if found is None or not found.io or found.suffix not in _VALUE_SUFFIXES:
            continue
        yield KernelValue(
            op_type=found.op_type,
            op_name=found.op_name,
            task=found.task,
            stream=found.stream,
            time=found.time,
            io=found.io,
            index=found.index,
            path=path,
            dtype="" if found.suffix else found.layout.rpartition(".")[2],
        )


def read_mapping(directory: Path) -> dict[str, str]:
    """Return short file name → original name, from a folder's ``mapping.csv``.

    Raises:
        DumpFormatError: it is damaged.
    """
    path = directory / MAPPING_CSV
    if not path.is_file():
        return {}
    names = {}
    for number, row in enumerate(_csv_rows(path), start=1):
        if not row:
            continue
        if len(row) < 2 or not row[0] or not row[1]:
            raise DumpFormatError(path, f"line {number}: is not a short name and a long one")
        short, full = (name if name.endswith(_NPY) else f"{name}{_NPY}" for name in row[:2])
        names[short] = full
    return names


def _read_statistics(path: Path) -> Iterator[KernelValue]:
    rows = _csv_rows(path)
    header = [re.sub(r"[\s_]", "", name).lower() for name in next(rows, [])]
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise DumpFormatError(path, f"its header has no column {', '.join(missing)}")
    for number, row in enumerate(rows, start=2):
        # A row may end in a comma that the header lacks.
        if row:
            yield _statistic_value(path, number, dict(zip(header, row, strict=False)))


def _statistic_value(path: Path, number: int, cells: dict[str, str]) -> KernelValue:
    io = cells.get("io", "").strip().lower()
    if io not in ("input", "output"):
        raise DumpFormatError(path, f"line {number}: IO is {io!r}; it must be input or output")
    numbers = {key: cells.pop(key, "0").strip() or "0" for key in ("taskid", "streamid")}
    time = cells.pop("timestamp", "0").strip() or "0"
    index = cells.get("slot", "").strip()
    for key, text in (*numbers.items(), ("timestamp", time), ("slot", index)):
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise DumpFormatError(path, f"line {number}: {key} is {text!r}, not a number")
    known = {*_STATISTIC_COLUMNS, "datasize", "datatype", "shape"}
    return KernelValue(
        op_type=cells.get("optype", "").strip(),
        op_name=cells.get("opname", "").strip(),
        task=int(numbers["taskid"]),
        stream=int(numbers["streamid"]),
        time=int(time),
        io=io,
        index=index,
        dtype=cells.get("datatype", "").strip(),
        shape=_shape(path, number, cells.get("shape", "")),
        statistics={
            key: _statistic(text.strip()) for key, text in cells.items() if key not in known
        },
    )


def _shape(path: Path, number: int, text: str) -> tuple[int, ...]:
    sizes = [size for size in re.split(r"[\s,()\[\]]+", text) if size]
    if not all(size.isascii() and size.isdigit() and len(size) < 19 for size in sizes):
        raise DumpFormatError(path, f"line {number}: Shape is {text!r}, not a list of sizes")
    return tuple(map(int, sizes))


def _statistic(text: str) -> Statistic | str:
    """Return a number, or the text itself if it is none (a checksum)."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else float(text)
    except ValueError:
        return text


def _csv_rows(path: Path) -> Iterator[list[str]]:
    with (
        reading(path, DumpFormatError, UnicodeDecodeError, csv.Error),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        yield from csv.reader(file, skipinitialspace=True)


def find_graph_file(folder: KernelFolder) -> Path | None:
    """Return the graph of a folder as text, if it was written beside the values."""
    name = f"ms_output_trace_code_graph_{folder.graph}.ir"
    for above in list(folder.directory.parents)[:4]:
        path = above / _GRAPHS / name
        if path.is_file():
            return path
    return None


def read_execution_order(folder: KernelFolder) -> list[str]:
    """Return the full names of the kernels of a graph in order of execution; empty if unknown."""
    name = f"ms_execution_order_graph_{folder.graph}.csv"
    for above in list(folder.directory.parents)[:4]:
        path = above / _EXECUTION_ORDER / name
        if path.is_file():
            rows = [row[0].strip() for row in _csv_rows(path) if row]
            return rows[1:]
    return []
