# SPDX-License-Identifier: Apache-2.0
"""Kernel dumps of MindSpore as ranks with records, like every other dump.

One execution of a kernel is one record: ``MatMul.Default_fc1-Dense_MatMul-op0.0.forward``, with
the number of the execution within the iteration; kernels of gradients are backward records. The
order is that of the execution order file where there is one, else of the times in the file names.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from msprobe.dump import layout
from msprobe.dump.array_statistics import array_statistics
from msprobe.dump.call_tree import CallTree
from msprobe.dump.dump_steps import Dump, DumpStep
from msprobe.dump.kernel_code import CodeMap, flat_name
from msprobe.dump.kernel_files import (
    STATISTIC_CSV,
    KernelFolder,
    KernelValue,
    find_constants,
    find_graph_file,
    find_kernel_folders,
    holds_binary_files,
    read_execution_order,
    read_kernel_values,
)
from msprobe.dump.kernel_ir import read_ir
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_index import RecordIndex
from msprobe.dump.records import JsonTree
from msprobe.dump.tensor_files import npy_type_and_shape
from msprobe.dump.values import UNREADABLE
from msprobe.errors import DumpFormatError

LEVEL: Final = "L2"
PARAMETER: Final = "Parameter"

_GRADIENTS: Final = "Gradients"
# Inputs of a graph are dumped like its weights; only the name tells them apart.
_GRAPH_INPUT: Final = re.compile(r"inputs?\d*|data|label")
_STATISTICS: Final = {
    "maxvalue": "Max",
    "minvalue": "Min",
    "avgvalue": "Mean",
    "l2normvalue": "Norm",
}
_COUNTS: Final = {
    "nancount": "nan_count",
    "positiveinfcount": "pos_inf_count",
    "negativeinfcount": "neg_inf_count",
}
_CHECKSUMS: Final = ("md5", "hash:md5", "sha1", "hash:sha1", "hash")


def open_kernel_dump(path: str | os.PathLike[str]) -> Dump | None:
    """Open a folder of kernel dumps; None if there are none at that path.

    Args:
        path: the folder of a dump, a rank, a graph or an iteration, or a ``statistic.csv``.

    Raises:
        DumpFormatError: a folder cannot be read, or holds binary files, which must be converted.
    """
    path = Path(path)
    places: defaultdict[tuple[int, int], list[KernelFolder]] = defaultdict(list)
    for folder in find_kernel_folders(path):
        places[folder.step, folder.rank].append(folder)
    if not places and holds_binary_files(path):
        raise DumpFormatError(path, "holds binary files; convert them first: msprobe parse -d …")
    if not places:
        return None
    steps: dict[int, dict[int | str, RankView]] = {}
    for (step, rank), folders in sorted(places.items()):
        steps.setdefault(step, {})[rank] = KernelView(folders, step=step, rank=rank)
    return Dump(path, {number: DumpStep(number, ranks) for number, ranks in steps.items()})


class KernelView(RankView):
    """All kernels of one rank and iteration; several graphs follow each other in time."""

    def __init__(self, folders: list[KernelFolder], *, step: int, rank: int) -> None:
        constants = filter(None, map(find_constants, folders))
        self._constants = list({found.directory: found for found in constants}.values())
        all_folders = [*folders, *self._constants]
        common = Path(os.path.commonpath([folder.directory for folder in all_folders]))
        super().__init__(common, records_file=STATISTIC_CSV, step=step)
        if not self.records_path.is_file():
            self.records_path = common
        self.name = f"rank{rank}"
        self._folders = folders
        self._rank = rank

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self._rank

    @property
    def tensor_directory(self) -> Path:
        """The folder below which the files of values lie."""
        return self.directory

    @cached_property
    def call_tree(self) -> CallTree:
        """The cell of each kernel, where full names are known."""
        parents: dict[str, str | None] = {}
        for record in self._kernels:
            cells = _enclosing_cells(self._readable_code.full_name(record.scope))
            chain = [*cells, record.name] if cells else []
            for place, inner in enumerate(chain):
                parents.setdefault(inner, chain[place - 1] if place else None)
        return CallTree(parents=parents, micro_steps={}, micro_step_count=None)

    @cached_property
    def flow(self) -> Mapping[str, Mapping[str, tuple[str, str]]]:
        """Kernel → its input → the kernel that made it, and its output; from the graph files."""
        last: dict[str, str] = {}  # full name → record of its last execution so far
        found = {}
        for kernel in self._kernels:
            inputs = enumerate(self._readable_code.inputs(kernel.scope))
            known = {
                f"input.{place}": (last[flat_name(value.scope)], f"output.{value.output}")
                for place, value in inputs
                if value is not None and flat_name(value.scope) in last
            }
            if known or self._readable_code.kernel(kernel.scope) is not None:
                found[kernel.name] = known
            last[flat_name(kernel.scope)] = kernel.name
        return found

    @cached_property
    def _readable_code(self) -> CodeMap:
        """The same; empty where a graph file is damaged, which `frames` reports."""
        try:
            return self._code
        except DumpFormatError:
            return CodeMap([])

    @cached_property
    def _code(self) -> CodeMap:
        """Source lines and inputs from the graph files beside the values."""
        paths = {path for folder in self._folders if (path := find_graph_file(folder))}
        return CodeMap([read_ir(path) for path in sorted(paths)])

    @cached_property
    def _kernels(self) -> list[Kernel]:
        kernels = kernels_in_order(self._folders)
        return [*kernels_in_order(self._constants), *kernels] if self._constants else kernels

    @cached_property
    def _index(self) -> RecordIndex:
        entries = _KernelEntries(self._kernels, self.directory)
        has_tensors = any(value.path for kernel in self._kernels for value in kernel.values)
        head = {
            "task": "tensor" if has_tensors else "statistics",
            "level": LEVEL,
            "framework": "mindspore",
            "dump_data_dir": str(self.directory) if has_tensors else None,
        }
        return RecordIndex(self.records_path, head, entries, b"")

    @cached_property
    def _frames_by_name(self) -> Mapping[str, list[str]]:
        """Call stacks from the graph files beside the values."""
        if layout.STACK_JSON in self._ignored:
            return {}
        code = self._code
        found = {}
        for kernel in self._kernels:
            is_parameter = kernel.values[0].op_type == PARAMETER
            place = code.parameter(kernel.scope) if is_parameter else code.kernel(kernel.scope)
            if place is not None and place.frames:
                found[kernel.name] = [str(frame) for frame in place.frames]
        return found

    def unload(self) -> None:
        """Forget everything read so far, to free memory."""
        super().unload()
        for name in ("_kernels", "_code", "_readable_code", "flow"):
            self.__dict__.pop(name, None)


class Kernel:
    """One execution of one kernel.

    Attributes:
        values: its inputs and outputs.
        scope: its full name, with ``/`` where the order of execution knows it.
        place: its place in the order of execution, None if that does not list it.
        time: when its first value was written, in microseconds.
        name: of its record.
    """

    __slots__ = ("name", "place", "scope", "time", "values")

    def __init__(self, values: list[KernelValue], scope: str, place: int | None) -> None:
        self.values = values
        self.scope = scope
        self.place = place
        self.time = min(value.time for value in values)
        self.name = ""

    @property
    def is_backward(self) -> bool:
        """Return whether it computes a gradient."""
        return self.scope.startswith(_GRADIENTS)

    @property
    def base(self) -> str:
        """The record's name without number and direction."""
        return f"{self.values[0].op_type}.{_flat(self.scope)}"


class _KernelEntries(Mapping[str, JsonTree]):
    """Records by name; the files of values are opened when a record is asked for."""

    def __init__(self, kernels: Iterable[Kernel], base: Path) -> None:
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self._base = base
        self._known: dict[Path, dict[str, JsonTree]] = {}

    def __getitem__(self, name: str) -> JsonTree:
        kernel = self._kernels[name]
        inputs: dict[str, JsonTree] = {}
        outputs: dict[str, JsonTree] = {}
        for value in kernel.values:
            tree = inputs if value.io == "input" else outputs
            tree[value.index] = self._tensor(value)
        if kernel.values[0].op_type == PARAMETER:
            return {"input_args": outputs} if _is_graph_input(kernel) else {"output": outputs}
        return {"input" if kernel.is_backward else "input_args": inputs, "output": outputs}

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def _tensor(self, value: KernelValue) -> dict[str, JsonTree]:
        found: dict[str, JsonTree] = {"type": "mindspore.Tensor"}
        if value.path is None:
            found |= {"dtype": value.dtype, "shape": list(value.shape or ())}
        elif value.dtype:
            text = f"{value.path}: holds {value.dtype}, a type that .npy files cannot hold"
            return {"type": UNREADABLE, "value": text}
        else:
            try:
                found |= self._facts(value.path, value.statistics)
            except DumpFormatError as exc:
                # One damaged file among thousands must not keep the others from being read.
                return {"type": UNREADABLE, "value": str(exc)}
            found["data_name"] = value.path.relative_to(self._base).as_posix()
        return found | _recorded(value.statistics)

    def _facts(self, path: Path, statistics: Mapping[str, Any]) -> dict[str, JsonTree]:
        if path not in self._known:
            self._known[path] = _file_facts(path, statistics)
        return self._known[path]


def _is_graph_input(kernel: Kernel) -> bool:
    return _GRAPH_INPUT.fullmatch(kernel.scope) is not None


def _recorded(statistics: Mapping[str, Any]) -> dict[str, JsonTree]:
    """Return the statistics of ``statistic.csv``, under the names that records use."""
    found = {key: statistics[column] for column, key in _STATISTICS.items() if column in statistics}
    counts = {key: statistics.get(column) for column, key in _COUNTS.items()}
    if any(counts.values()):
        found |= counts
    sums = [str(statistics[name]) for name in _CHECKSUMS if statistics.get(name) is not None]
    # A record with both would be judged by its checksum, which cannot say how far off it is.
    if sums and not any(value is not None for value in found.values()):
        found["md5"] = sums[0]
    return found


def _file_facts(path: Path, statistics: Mapping[str, Any]) -> dict[str, JsonTree]:
    """Return type and shape of a file, and its statistics unless they were recorded."""
    dtype, shape = npy_type_and_shape(path)
    facts: dict[str, JsonTree] = {"dtype": dtype, "shape": list(shape)}
    if not any(name in statistics for name in _STATISTICS):
        facts |= _computed_statistics(path)
    return facts


def _computed_statistics(path: Path) -> dict[str, JsonTree]:
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):  # reading its elements will report the same problem
        return {}
    return array_statistics(array)


def kernels_in_order(folders: list[KernelFolder]) -> list[Kernel]:
    """Return the executions of all kernels in order, named.

    Raises:
        DumpFormatError: a table of the dump is damaged.
    """
    kernels: list[Kernel] = []
    for folder in folders:
        full_names = read_execution_order(folder)
        places = {_flat(name): place for place, name in enumerate(full_names)}
        for values in _executions(read_kernel_values(folder)):
            place = places.get(_flat(values[0].op_name))
            scope = values[0].op_name if place is None else full_names[place]
            kernels.append(Kernel(values, scope, place))
    known = [kernel for kernel in kernels if kernel.place is not None]
    if len(folders) == 1 and known:
        # The runtime may start kernels out of order; kernels missing in the file keep their time.
        first = min(kernel.time for kernel in known)
        kernels.sort(key=lambda kernel: _listed_order(kernel, first))
    else:
        kernels.sort(key=lambda kernel: (kernel.time, kernel.place or 0))
    _name(kernels)
    return kernels


def _listed_order(kernel: Kernel, first: int) -> tuple[int, int, int]:
    if kernel.place is not None:
        return (1, kernel.place, kernel.time)
    return (0 if kernel.time < first else 2, kernel.time, 0)


def _executions(values: list[KernelValue]) -> Iterator[list[KernelValue]]:
    """Yield the values of each execution: those that repeat a kernel's are of its next one."""
    seen: defaultdict[object, int] = defaultdict(int)
    executions: defaultdict[object, list[KernelValue]] = defaultdict(list)
    for value in sorted(values, key=lambda value: (value.time, value.io, value.index)):
        kernel = (value.op_type, value.op_name, value.task, value.stream)
        place = (*kernel, value.io, value.index)
        executions[*kernel, seen[place]].append(value)
        seen[place] += 1
    yield from executions.values()


def _name(kernels: list[Kernel]) -> None:
    """Number the executions of each kernel: by task, then by time."""
    by_base: defaultdict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        by_base[kernel.base].append(kernel)
    for base, group in by_base.items():
        for number, kernel in enumerate(sorted(group, key=_by_task)):
            direction = "backward" if kernel.is_backward else "forward"
            kernel.name = f"{base}.{number}.{direction}"


def _by_task(kernel: Kernel) -> tuple[int, int]:
    return (kernel.values[0].task, kernel.time)


def _flat(name: str) -> str:
    """Return a kernel's name as file names have it."""
    return re.sub(r"[/\\. ]", "_", name)


def _enclosing_cells(scope: str) -> list[str]:
    """Return the record names of the cells around a kernel, the outermost first.

    ``Default/network-WithLossCell/fc1-Dense/MatMul-op0`` →
    ``Cell.network.WithLossCell.forward.0``, ``Cell.network.fc1.Dense.forward.0``.
    """
    parts = scope.split("/")
    direction = "backward" if parts[0] == _GRADIENTS else "forward"
    found = []
    path: list[str] = []
    for part in parts[1:-1]:
        name, dash, class_name = part.rpartition("-")
        if dash:
            path.append(name.replace(".", "_"))
            found.append(f"Cell.{'.'.join(path)}.{class_name}.{direction}.0")
    return found
