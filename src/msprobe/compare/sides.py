# SPDX-License-Identifier: Apache-2.0
"""One rank's dump of one step, as comparisons see it: names, values, modules, places in the code.

Values are read straight from the parsed JSON into `Leaf` objects, without the detour through the
reader's typed views: a comparison reads every value of both dumps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msprobe.compare.model import Leaf, Mode, Role
from msprobe.dump.rank_view import RankView
from msprobe.dump.record_names import RecordKind, RecordName, forward_name
from msprobe.dump.record_views import MAX_DEPTH, REMARKS
from msprobe.dump.records import JsonTree, Statistic
from msprobe.errors import DumpFormatError, UnsupportedError

_P2P_OPERATION: Final = "torch.distributed.P2POp"
_PROCESS_GROUPS: Final = ("torch.ProcessGroup", "mindspore.ProcessGroup")


class _Part(NamedTuple):
    key: str
    prefix: str
    role: Role


# In the order in which rows stand.
_PARTS: Final = (
    _Part("input_args", "input", Role.INPUT),
    _Part("input_kwargs", "input", Role.INPUT),
    _Part("input", "input", Role.INPUT),
    _Part("parameters", "parameters", Role.PARAMETER),
    _Part("output", "output", Role.OUTPUT),
    _Part("output_kwargs", "output_kwargs", Role.OUTPUT),
)
_PART_KEYS: Final = frozenset(part.key for part in _PARTS)
_PARAMETER_GRADIENTS: Final = (RecordKind.PARAMETERS_GRAD, RecordKind.PARAMETERS_GRAD_REDUCED)

_TENSOR_KEYS: Final = frozenset(
    ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "data_name", "md5")
)
_NOTHING: Final = MappingProxyType[str, JsonTree]({})
_FLOAT_WORDS: Final = {
    "nan": math.nan,
    "inf": math.inf,
    "infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
_DTYPE_WORDS: Final = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "cfloat": "complex64",
    "cdouble": "complex128",
}
_VALUE_TASKS: Final = ("statistics", "tensor", "overflow_check", "")
# A statistics dump with checksums has one at nearly every tensor.
_TENSORS_TO_LOOK_AT: Final = 64

_FRAME: Final = re.compile(r"File (?P<file>.+?), line (?P<line>\d+), in ")
# The installed framework, this program, and the interpreter's own library.
_FRAMEWORK_FILE: Final = re.compile(
    r"(?:^|[/\\])(?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|mindtorch|msprobe)[/\\]"
    r"|(?:^|[/\\])torch[/\\](?:nn|autograd|utils|distributed|optim|_|amp|cuda|fx|overrides)"
    r"|^(?:torch|mindspore|msprobe)[/\\]|(?:^|[/\\])mindspore[/\\](?:nn|ops|common|train|mint)[/\\]"
    r"|[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)|^<frozen "
)


def normal_dtype(raw: str) -> str:
    """Return a dtype's name in the spelling that all frameworks share.

    Args:
        raw: as a dump spells it: ``torch.float32``, ``Float32``, ``mindspore.Float32``.

    Returns:
        ``float32``, ``bfloat16``, ``bool`` …
    """
    word = raw.rpartition(".")[2].lower()
    return _DTYPE_WORDS.get(word, word)


class Side:
    """One rank's dump of one step.

    Attributes:
        view: the dump.
        source: ``target`` or ``reference``, for messages.
        framework: ``pytorch``, ``mindspore`` …
        names: names of the records in order of execution.
    """

    def __init__(self, view: RankView, *, source: str) -> None:
        self.view = view
        self.source = source
        self.framework: str = view.head.framework
        self.names: Sequence[str] = list(view.records)
        # Shared by all values: the same few hundred texts and shapes come back a million times.
        self._texts: dict[str, str] = {}
        self._shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {"": ""}
        self._mode: Mode | None = None
        self._holds_saved_values = view.head.level == "debug"

    def __repr__(self) -> str:
        """Return which side of what, for debugging."""
        return f"Side({self.source}, {str(self.view.directory)!r})"

    @property
    def mode(self) -> Mode:
        """What the values of this dump can be judged by.

        Raises:
            UnsupportedError: the dump holds no values.
            DumpFormatError: a record is damaged.
        """
        if self._mode is None:
            self._mode = self._find_mode()
        return self._mode

    @property
    def tensor_directory(self) -> Path:
        """The folder of the tensor files, whether or not there is one."""
        return self.view.tensor_directory

    def tensor_path(self, data_name: str) -> Path:
        """Return the file of a tensor's values.

        Raises:
            RecordNotFoundError: the file is gone.
            DumpFormatError: the name points outside the folder.
        """
        return self.view.tensor_path(data_name)

    def parsed(self, name: str) -> RecordName:
        """Return a record's name taken apart."""
        return self.view.records.parsed(name)

    def parent(self, name: str) -> str | None:
        """Return the record that encloses another one, None at the top or if unknown."""
        return self.view.parents.get(name)

    def module(self, name: str) -> str:
        """Return the dotted path of the innermost module around a record.

        A module's own records answer with its own path; "" is the model itself, or unknown.
        """
        parsed = self.parsed(name)
        if parsed.is_module:
            return parsed.path
        found = self._module_around(name)
        forward = forward_name(parsed)
        if found is None and forward is not None:
            found = self._module_around(forward)
        return found or ""

    def frames(self, name: str) -> list[str]:
        """Return the frames of the user's code that led to a record, innermost first.

        Backward records answer with the frames of their forward call. If no frame is the user's,
        all are returned.

        Raises:
            DumpFormatError: ``stack.json`` is damaged.
        """
        frames = self.view.frames(name)
        if not frames:
            forward = forward_name(self.parsed(name))
            frames = self.view.frames(forward) if forward is not None else []
        own = [frame for frame in frames if not _is_framework_frame(frame)]
        return own or frames

    def source_line(self, name: str) -> str | None:
        """Return where in the user's code a call was made, such as ``train.py:12``."""
        for frame in self.frames(name):
            place = _place_of_frame(frame)
            if place is not None:
                return place
        return None

    def leaves(self, name: str) -> list[Leaf]:
        """Return the values of a record: inputs, parameters, outputs, gradients of parameters.

        They are made anew by each call and not kept.

        Raises:
            RecordNotFoundError: there is no such record.
            DumpFormatError: its text is damaged, or a value of a wrong type.
        """
        data = self.view.records.data(name)
        found: list[Leaf] = []
        add = _LeafReader(self, name, found)
        is_saved = self._holds_saved_values or name.endswith(".debug")
        if is_saved or not isinstance(data, dict) or isinstance(data.get("type"), str):
            add.walk(data, "", Role.SAVED, 0)
        elif ".parameters_grad" in name and self.parsed(name).kind in _PARAMETER_GRADIENTS:
            _read_gradients(data, add)
        else:
            self._read_parts(data, add)
        if isinstance(data, dict) and isinstance(data.get(REMARKS), dict):
            _add_remarks(found, data[REMARKS])
        return found

    @staticmethod
    def _read_parts(data: dict[str, Any], add: _LeafReader) -> None:
        for key, prefix, role in _PARTS:
            tree = data.get(key)
            if tree is not None or key in data:
                add.walk(tree, prefix, role, 0)
        for key, tree in data.items():
            # The random state before the call is a file, or nothing to compare.
            if key not in _PART_KEYS and key != REMARKS and isinstance(tree, (dict, list)):
                add.walk_tensors(tree, key)

    def _module_around(self, name: str) -> str | None:
        parent = self.parent(name)
        seen = 0
        while parent is not None and seen < MAX_DEPTH:  # a damaged file may go in circles
            parsed = self.parsed(parent)
            if parsed.is_module:
                return parsed.path
            parent = self.parent(parent)
            seen += 1
        return None

    def _find_mode(self) -> Mode:
        task = self.view.head.task
        if task not in _VALUE_TASKS:
            raise UnsupportedError(
                f'{self.view.records_path}: "task" is {task!r}, which keeps no values to compare; '
                "capture both runs with task statistics or tensor"
            )
        if task == "tensor":
            return Mode.TENSOR
        seen = 0
        has_files = False
        for name in self.names:
            for leaf in self.leaves(name):
                if not leaf.is_tensor:
                    continue
                if leaf.md5 is not None and task != "":
                    return Mode.MD5
                has_files = has_files or leaf.data_name is not None
                seen += 1
            if seen >= _TENSORS_TO_LOOK_AT:
                break
        return Mode.TENSOR if has_files else Mode.STATISTICS


class _LeafReader:
    """Walks the tree of one record and collects its values."""

    __slots__ = ("_dtypes", "_found", "_record", "_shapes", "_source", "_texts")

    def __init__(self, side: Side, record: str, found: list[Leaf]) -> None:
        self._texts = side._texts
        self._shapes = side._shapes
        self._dtypes = side._dtypes
        self._source = side.view.records_path
        self._record = record
        self._found = found

    def walk(self, tree: JsonTree, slot: str, role: Role, depth: int) -> None:
        """Collect the values below `tree`, whose place in the record is `slot`."""
        kind = type(tree)
        if kind is dict:
            type_name = tree.get("type")
            if isinstance(type_name, str):
                leaf = (
                    self._tensor(tree, slot, role, type_name)
                    if "shape" in tree
                    else self._scalar(tree, slot, role, type_name)
                )
                self._found.append(leaf)
                return
            if tree.get("class_type") == _P2P_OPERATION:
                self._found.append(self._p2p(tree, slot, role))
                return
            items: Iterable[tuple[Any, Any]] = tree.items()
        elif kind is list:
            items = enumerate(tree)
        else:
            self._found.append(self._plain(tree, slot, role))
            return
        if depth >= MAX_DEPTH:
            raise self._error(slot[:60], f"nested deeper than {MAX_DEPTH} levels")
        for key, item in items:
            self.walk(item, f"{slot}.{key}" if slot else str(key), role, depth + 1)

    def walk_tensors(self, tree: JsonTree, slot: str) -> None:
        """Collect only the tensors below `tree`, as inputs."""
        before = len(self._found)
        self.walk(tree, slot, Role.INPUT, 0)
        self._found[before:] = [leaf for leaf in self._found[before:] if leaf.is_tensor]

    def _plain(self, value: JsonTree, slot: str, role: Role) -> Leaf:
        """Return a value that stands in the file without its type."""
        return Leaf(
            slot=self._text(slot),
            role=role,
            is_tensor=False,
            type=type(value).__name__,
            value=value,
        )

    def _tensor(self, tree: dict[str, Any], slot: str, role: Role, type_name: str) -> Leaf:
        get = tree.get
        found_shape = tree["shape"]
        try:
            shape = self._shapes[tuple(found_shape)]
        except (KeyError, TypeError):
            shape = self._new_shape(slot, found_shape)
        raw_dtype = get("dtype")
        try:
            dtype = self._dtypes[raw_dtype]  # type: ignore[index]  # checked below
        except (KeyError, TypeError):
            raw_dtype = self._optional(slot, tree, "dtype", str) or ""
            dtype = self._dtypes[raw_dtype] = normal_dtype(raw_dtype)
        largest, least, mean, norm = get("Max"), get("Min"), get("Mean"), get("Norm")
        if not (type(largest) is type(least) is type(mean) is type(norm) is float):
            largest = self._statistic(slot, "Max", largest)
            least = self._statistic(slot, "Min", least)
            mean = self._statistic(slot, "Mean", mean)
            norm = self._statistic(slot, "Norm", norm)
        requires_grad = get("requires_grad")
        if requires_grad is not None and requires_grad.__class__ is not bool:
            requires_grad = self._optional(slot, tree, "requires_grad", bool)
        data_name = get("data_name")
        if data_name is not None:
            data_name = self._optional(slot, tree, "data_name", str) or None
            if data_name is not None:
                slot = self._slot_of_file(data_name, slot)
        md5 = get("md5")
        if md5 is not None and md5.__class__ is not str:
            md5 = self._optional(slot, tree, "md5", str)
        extra = (
            _NOTHING
            if tree.keys() <= _TENSOR_KEYS
            else {key: item for key, item in tree.items() if key not in _TENSOR_KEYS}
        )
        return Leaf(
            slot=self._text(slot),
            role=role,
            is_tensor=True,
            type=self._text(type_name),
            dtype=dtype,
            raw_dtype=self._text(raw_dtype or ""),
            shape=shape,
            max=largest,
            min=least,
            mean=mean,
            norm=norm,
            requires_grad=requires_grad,
            md5=md5,
            data_name=data_name,
            extra=extra,
        )

    def _scalar(self, tree: dict[str, Any], slot: str, role: Role, type_name: str) -> Leaf:
        extra: Any = _NOTHING
        if "value" in tree:
            value = tree["value"]
        elif type_name in _PROCESS_GROUPS and "group_ranks" in tree:
            value = tree["group_ranks"]
            extra = {key: item for key, item in tree.items() if key not in ("type", "group_ranks")}
        else:
            rest = {key: item for key, item in tree.items() if key != "type"}
            value = rest.get("format", rest)
        return Leaf(
            slot=self._text(slot),
            role=role,
            is_tensor=False,
            type=self._text(type_name),
            value=value,
            extra=extra,
        )

    def _p2p(self, tree: dict[str, Any], slot: str, role: Role) -> Leaf:
        """Return the tensor that a point-to-point operation sends or receives."""
        before = len(self._found)
        self.walk(tree.get("tensor"), slot, role, MAX_DEPTH)
        leaves = self._found[before:]
        del self._found[before:]
        if len(leaves) != 1:
            raise self._error(slot, '"tensor" is not one tensor')
        about = {key: item for key, item in tree.items() if key != "tensor"}
        leaves[0].extra = {**leaves[0].extra, **about}
        return leaves[0]

    def _slot_of_file(self, data_name: str, slot: str) -> str:
        """Return the slot that a file's name tells; very long names were shortened and do not."""
        stem, _, _ = data_name.rpartition(".")
        if stem == self._record:
            return ""
        if stem.startswith(self._record) and stem[len(self._record)] == ".":
            return stem[len(self._record) + 1 :]
        return slot

    def _text(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _new_shape(self, slot: str, found: JsonTree) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(
            type(size) is int and 0 <= size < 1 << 63 for size in found
        ):
            raise self._error(slot, f'"shape" is {found!r:.80}, not a list of sizes')
        shape = tuple(found)
        self._shapes[shape] = shape
        return shape

    def _statistic(self, slot: str, key: str, found: JsonTree) -> Statistic:
        if found is None or isinstance(found, (bool, float)):
            return found
        # Integer tensors reach from the least int64 to the greatest uint64.
        if isinstance(found, int) and -(1 << 63) <= found < 1 << 64:
            return found
        if isinstance(found, str) and found.lower() in _FLOAT_WORDS:
            return _FLOAT_WORDS[found.lower()]
        raise self._error(slot, f'"{key}" is {_shown(found)}, not a number')

    def _optional(self, slot: str, tree: dict[str, Any], key: str, kind: type) -> Any:
        found = tree.get(key)
        if found is None or isinstance(found, kind):
            return found
        raise self._error(slot, f'"{key}" is {_shown(found)}, not a {kind.__name__}')

    def _error(self, slot: str, problem: str) -> DumpFormatError:
        return DumpFormatError(self._source, f"{self._record}: {slot}: {problem}")


def _read_gradients(data: dict[str, Any], add: _LeafReader) -> None:
    for key, tree in data.items():
        # Each is a list of one. Were there more, only their order would tell them apart.
        trees = tree if isinstance(tree, list) else [tree]
        for index, item in enumerate(trees):
            add.walk(item, key if index == 0 else f"{key}.{index}", Role.PARAMETER_GRAD, 1)


def _add_remarks(leaves: list[Leaf], remarks: dict[str, JsonTree]) -> None:
    """Give each value the remark on its place: why a gradient is missing, or what it includes."""
    by_place: dict[str, str] = {}
    for place, remark in remarks.items():
        if isinstance(remark, str):
            by_place[place] = remark
        elif isinstance(remark, dict):
            by_place |= {f"{place}.{key}": str(text) for key, text in remark.items()}
    for leaf in leaves:
        remark = by_place.get(leaf.slot)
        if remark is not None:
            leaf.extra = {**leaf.extra, "note": remark}


# The same few frames come back for every call of a run.
@lru_cache(maxsize=10_000)
def _place_of_frame(frame: str) -> str | None:
    found = _FRAME.match(frame)
    if found is None:
        return None
    file = re.split(r"[/\\]", found["file"])[-1]
    return f"{file}:{found['line']}"


@lru_cache(maxsize=10_000)
def _is_framework_frame(frame: str) -> bool:
    found = _FRAME.match(frame)
    return found is not None and _FRAMEWORK_FILE.search(found["file"]) is not None


def _shown(found: JsonTree) -> str:
    if isinstance(found, int) and found.bit_length() > 200:
        return f"an integer of {found.bit_length()} bits"
    return f"{found!r:.80}" if not isinstance(found, (dict, list)) else type(found).__name__
