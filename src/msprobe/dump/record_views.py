# SPDX-License-Identifier: Apache-2.0
"""Typed, read-only views of what a dump holds.

A `Record` is one entry of ``dump.json``. Its parts (``input_args``, ``output`` …) are trees as
deep as the user's arguments were; `Record.leaves` walks them. The views are strict: a value of a
wrong type is a `DumpFormatError` that names record and part, never a surprise further on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from msprobe.dump.record_names import RecordName
from msprobe.dump.records import JsonTree, Statistic
from msprobe.dump.stored_values import optional_of, shape_of, statistic_of
from msprobe.errors import DumpFormatError

_T = TypeVar("_T")

PartPath = tuple[str | int, ...]
"""Keys and indices from a record to one of its leaves, such as ``("input_args", 0)``."""

# Deeper than any capture writes (the peer stops at 400); keeps hostile files off the stack limit.
MAX_DEPTH: Final = 500
REMARKS: Final = "remarks"
"""Part that says, by value, why a gradient is missing or what else it includes."""

_CONTAINER_PARTS: Final = ("input_args", "input_kwargs", "input", "output", "parameters")
# As in the names of tensor files: "input.0" and "kwargs.key".
_SHORT_PARTS: Final = {"input_args": "input", "input_kwargs": "kwargs"}
_STATISTICS: Final = ("Max", "Min", "Mean", "Norm")
_TENSOR_KEYS: Final = frozenset(
    (*_STATISTICS, "type", "dtype", "shape", "requires_grad", "data_name", "md5")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorValue:
    """One tensor of a record.

    Attributes:
        type: ``torch.Tensor``, ``mindspore.Tensor``, ``numpy.ndarray`` …
        dtype: as the framework prints it, ``torch.bfloat16``, ``Float32``.
        shape: the shape.
        max: largest value; NaN when there is any; a bool for bool tensors; None when undefined.
        min: smallest value, likewise.
        mean: arithmetic mean, likewise.
        norm: L2 norm, likewise.
        requires_grad: None where the dump does not say (MindSpore).
        data_name: file in ``dump_tensor_data`` with the values; None when they were not kept.
        md5: checksum of the bytes (the name is historical), None when not kept.
        extra: every other key of the entry: ``device``, ``stride``, ``value_id``, ``layout`` …
    """

    type: str
    dtype: str
    shape: tuple[int, ...]
    max: Statistic = None
    min: Statistic = None
    mean: Statistic = None
    norm: Statistic = None
    requires_grad: bool | None = None
    data_name: str | None = None
    md5: str | None = None
    extra: Mapping[str, JsonTree]

    @property
    def has_nan(self) -> bool:
        """Whether the tensor is known to hold a NaN."""
        return _is_nan(self.max) or _is_nan(self.min) or self._count("nan_count") > 0

    @property
    def has_inf(self) -> bool:
        """Whether the tensor is known to hold an infinity (older dumps hide these behind a NaN)."""
        counted = self._count("pos_inf_count") + self._count("neg_inf_count")
        return counted > 0 or _is_inf(self.max) or _is_inf(self.min)

    @property
    def value_id(self) -> int | None:
        """Number shared by all appearances of the same unchanged value in the step."""
        number = self.extra.get("value_id")
        return number if isinstance(number, int) else None

    def _count(self, key: str) -> int:
        number = self.extra.get(key)
        return number if isinstance(number, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarValue:
    """A leaf that is no tensor: a number, a string, a dtype, a process group …

    Attributes:
        type: ``int``, ``slice``, ``torch.Size``, ``torch.ProcessGroup`` …
        value: the value, or all other keys of the entry when it has no single value.
    """

    type: str
    value: JsonTree


Leaf = TensorValue | ScalarValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of ``dump.json`` or ``debug.json``.

    Attributes:
        name: the entry's name, taken apart.
        data: the entry as it stands in the file: a dict of parts, or a bare value at level debug.
        source: the file, for messages.
    """

    name: RecordName
    data: JsonTree
    source: Path

    @property
    def parts(self) -> Mapping[str, JsonTree]:
        """The parts that hold values (``input_args``, ``output`` …), as they stand in the file."""
        if not isinstance(self.data, dict) or _leaf_type(self.data) is not None:
            return {"value": self.data}
        return {key: tree for key, tree in self.data.items() if not self._is_note(key, tree)}

    @property
    def notes(self) -> Mapping[str, JsonTree]:
        """What is said of the call as a whole: ``recomputed``, ``phase``, an exception …"""
        if not isinstance(self.data, dict) or _leaf_type(self.data) is not None:
            return {}
        return {key: tree for key, tree in self.data.items() if self._is_note(key, tree)}

    def leaves(self, part: str | None = None) -> Iterator[tuple[PartPath, Leaf]]:
        """Yield each value with its path, in file order.

        Args:
            part: only this part (``input_args`` …); None for all.

        Raises:
            DumpFormatError: a value of a wrong type, or nesting beyond 500 levels.
        """
        for key, tree in self.parts.items():
            if part is None or part == key:
                yield from self._walk((key,), tree)

    def tensors(self, part: str | None = None) -> Iterator[tuple[PartPath, TensorValue]]:
        """Yield each tensor with its path; see `leaves`."""
        for path, leaf in self.leaves(part):
            if isinstance(leaf, TensorValue):
                yield path, leaf

    def _is_note(self, key: str, tree: JsonTree) -> bool:
        if key in _CONTAINER_PARTS or tree is None:
            return False
        if key == REMARKS:
            return isinstance(tree, dict) and _leaf_type(tree) is None
        return not isinstance(tree, (dict, list))

    def _walk(self, path: PartPath, tree: JsonTree) -> Iterator[tuple[PartPath, Leaf]]:
        if len(path) > MAX_DEPTH:
            raise self._error(path[:3], f"nested deeper than {MAX_DEPTH} levels")
        if tree is None:
            yield path, None
        elif isinstance(tree, list):
            for position, item in enumerate(tree):
                yield from self._walk((*path, position), item)
        elif not isinstance(tree, dict):
            yield path, ScalarValue(type=type(tree).__name__, value=tree)
        elif (type_name := _leaf_type(tree)) is None:
            for key, item in tree.items():
                yield from self._walk((*path, key), item)
        elif "shape" in tree:
            yield path, self._tensor(path, type_name, tree)
        else:
            yield path, _scalar(type_name, tree)

    def _tensor(self, path: PartPath, type_name: str, tree: dict[str, Any]) -> TensorValue:
        values = {key: self._statistic(path, key, tree.get(key)) for key in _STATISTICS}
        return TensorValue(
            type=type_name,
            dtype=self._optional(path, tree, "dtype", str) or "",
            shape=self._shape(path, tree["shape"]),
            max=values["Max"],
            min=values["Min"],
            mean=values["Mean"],
            norm=values["Norm"],
            requires_grad=self._optional(path, tree, "requires_grad", bool),
            data_name=self._optional(path, tree, "data_name", str),
            md5=self._optional(path, tree, "md5", str),
            extra={key: item for key, item in tree.items() if key not in _TENSOR_KEYS},
        )

    def _shape(self, path: PartPath, found: JsonTree) -> tuple[int, ...]:
        try:
            return shape_of(found)
        except ValueError as exc:
            raise self._error(path, f'"shape" {exc}') from None

    def _statistic(self, path: PartPath, key: str, found: JsonTree) -> Statistic:
        try:
            return statistic_of(found)
        except ValueError as exc:
            raise self._error(path, f'"{key}" {exc}') from None

    def _optional(
        self, path: PartPath, tree: dict[str, Any], key: str, kind: type[_T]
    ) -> _T | None:
        try:
            return optional_of(tree.get(key), kind)
        except ValueError as exc:
            raise self._error(path, f'"{key}" {exc}') from None

    def _error(self, path: PartPath, problem: str) -> DumpFormatError:
        return DumpFormatError(self.source, f"{self.name.full}: {part_label(path)}: {problem}")


def part_label(path: PartPath) -> str:
    """Return a path in short: ``input.0``, ``kwargs.mask``, ``parameters.weight``."""
    first, *rest = path
    return ".".join(str(key) for key in (_SHORT_PARTS.get(str(first), first), *rest))


def _leaf_type(tree: dict[str, Any]) -> str | None:
    # A user's own dict may have a key "type" too, but there its value is an entry, not a string.
    type_name = tree.get("type")
    return type_name if isinstance(type_name, str) else None


def _scalar(type_name: str, tree: dict[str, Any]) -> ScalarValue:
    if "value" in tree:
        return ScalarValue(type=type_name, value=tree["value"])
    rest = {key: item for key, item in tree.items() if key != "type"}
    return ScalarValue(type=type_name, value=rest.get("format", rest))


def _is_nan(value: Statistic) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_inf(value: Statistic) -> bool:
    return isinstance(value, float) and math.isinf(value)
