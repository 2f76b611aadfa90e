# SPDX-License-Identifier: Apache-2.0
"""The values of a record, straight from its parsed JSON.

Without the detour through the reader's typed views: a comparison reads every value of both dumps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from msprobe.compare.model import Leaf, Role
from msprobe.dump.record_views import MAX_DEPTH, REMARKS
from msprobe.dump.records import JsonTree, Statistic
from msprobe.dump.stored_values import optional_of, shape_of, statistic_of
from msprobe.errors import DumpFormatError

_T = TypeVar("_T")

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

_TENSOR_KEYS: Final = frozenset(
    ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "data_name", "md5")
)
_NOTHING: Final = MappingProxyType[str, JsonTree]({})
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


class Content(StrEnum):
    """What the values of a record are."""

    CALL = "call"
    GRADIENTS = "gradients"
    """Of parameters."""
    SAVED = "saved"


@dataclass(frozen=True, slots=True)
class KnownWords:
    """What the values of a dump share: the same few hundred words come back a million times.

    Attributes:
        texts: each text, for the one object that stands for all equal ones.
        shapes: likewise.
        dtypes: types as the dump spells them, and their common spelling.
    """

    texts: dict[str, str] = field(default_factory=dict)
    shapes: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=lambda: {"": ""})


def normal_dtype(raw: str) -> str:
    """Return a dtype's name in the spelling that all frameworks share.

    Args:
        raw: as a dump spells it: ``torch.float32``, ``Float32``, ``mindspore.Float32``.

    Returns:
        ``float32``, ``bfloat16``, ``bool`` …
    """
    word = raw.rpartition(".")[2].lower()
    return _DTYPE_WORDS.get(word, word)


def read_leaves(
    data: JsonTree, content: Content, *, record: str, words: KnownWords, source: Path
) -> list[Leaf]:
    """Return the values of a record: inputs, parameters, outputs, gradients of parameters.

    Args:
        data: the record as it stands in the file.
        content: what its values are.
        record: its name.
        words: of the dump; grows.
        source: the file, for messages.

    Raises:
        DumpFormatError: a value is of a wrong type, or nested too deeply.
    """
    found: list[Leaf] = []
    add = _LeafReader(words, source, record, found)
    if content is Content.SAVED or not isinstance(data, dict):
        add.walk(data, "", Role.SAVED, 0)
    elif content is Content.GRADIENTS:
        _read_gradients(data, add)
    else:
        _read_parts(data, add)
    if isinstance(data, dict) and isinstance(data.get(REMARKS), dict):
        _add_remarks(found, data[REMARKS])
    return found


class _LeafReader:
    """Walks the tree of one record and collects its values."""

    __slots__ = ("_dtypes", "_found", "_record", "_shapes", "_source", "_texts")

    def __init__(self, words: KnownWords, source: Path, record: str, found: list[Leaf]) -> None:
        self._texts = words.texts
        self._shapes = words.shapes
        self._dtypes = words.dtypes
        self._source = source
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
        try:
            shape = shape_of(found)
        except ValueError as exc:
            raise self._error(slot, f'"shape" {exc}') from None
        self._shapes[shape] = shape
        return shape

    def _statistic(self, slot: str, key: str, found: JsonTree) -> Statistic:
        try:
            return statistic_of(found)
        except ValueError as exc:
            raise self._error(slot, f'"{key}" {exc}') from None

    def _optional(self, slot: str, tree: dict[str, Any], key: str, kind: type[_T]) -> _T | None:
        try:
            return optional_of(tree.get(key), kind)
        except ValueError as exc:
            raise self._error(slot, f'"{key}" {exc}') from None

    def _error(self, slot: str, problem: str) -> DumpFormatError:
        return DumpFormatError(self._source, f"{self._record}: {slot}: {problem}")


def _read_parts(data: dict[str, Any], add: _LeafReader) -> None:
    for key, prefix, role in _PARTS:
        tree = data.get(key)
        if tree is not None or key in data:
            add.walk(tree, prefix, role, 0)
    for key, tree in data.items():
        # The random state before the call is a file, or nothing to compare.
        if key not in _PART_KEYS and key != REMARKS and isinstance(tree, (dict, list)):
            add.walk_tensors(tree, key)


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
