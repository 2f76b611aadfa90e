# SPDX-License-Identifier: Apache-2.0
"""The tensors in what `torch.save` pickled: how each lies on its storage, and under which name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from msprobe.checkpoints.parameters import (
    MAX_DIMENSIONS,
    Parameter,
    known_type,
    storage_dtype,
)
from msprobe.checkpoints.pickle_tree import Described
from msprobe.checkpoints.spans import FileSpan, Span, StridedSpan
from msprobe.errors import CheckpointFormatError

ByteOrder = Literal["big", "little"]
Locate = Callable[[str], tuple[int, int]]
"""Returns where a storage begins in the file and how many bytes it has, by its key."""

_STORAGE_TYPES: Final = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_REBUILD: Final = "torch._utils._rebuild_"
_TENSOR_FUNCTIONS: Final = ("torch._utils.", "torch._tensor.")
# A tensor that repeats few stored elements (``expand``) may pretend to be of any size.
_MAX_REPEATED_ELEMENTS: Final = 1 << 31
# A pickle can refer to one list from many places, so that a small file unfolds without end.
_MAX_NODES: Final = 1_000_000
_MAX_DEPTH: Final = 200
# Parts of a saved module whose names do not appear in its state dict.
_MODULE_PARTS: Final = ("_parameters", "_buffers", "_modules")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """What a file holds.

    Attributes:
        tree: the containers, as `pickle_tree` describes them.
        parameters: the tensors in them; names are the keys on the way, joined by dots.
        notes: tensors that were left out, and why.
    """

    tree: Any
    parameters: list[Parameter]
    notes: list[str]


def find_tensors(path: Path, tree: Any, locate: Locate, byte_order: ByteOrder) -> TorchFile:
    """Return the tensors that a tree of `pickle_tree` describes.

    Args:
        path: the file.
        tree: the containers.
        locate: where each storage lies; raises `KeyError` for one that is not there.
        byte_order: of the elements.

    Raises:
        CheckpointFormatError: a description is damaged, or contradicts the file.
    """
    reader = _Tensors(path, locate, byte_order)
    parameters: dict[str, Parameter] = {}
    for name, tensor in _walk(path, tree):
        found = reader.parameter(name, tensor)
        if found is not None:
            parameters[name] = found
    return TorchFile(tree=tree, parameters=list(parameters.values()), notes=reader.notes)


def storage_type_name(storage_type: Any) -> str:
    """Return the type of a storage's elements, ``float32`` for ``torch.FloatStorage``."""
    stem = str(storage_type.name).removeprefix("torch.").removesuffix("Storage")
    return _STORAGE_TYPES.get(stem, stem)


def _walk(path: Path, tree: Any) -> Iterator[tuple[str, Described]]:
    """Yield every tensor with its name; without recursion, in the order of the file."""
    waiting: list[tuple[str, int, Any]] = [("", 0, tree)]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        name, depth, node = waiting.pop()
        if depth > _MAX_DEPTH:
            raise CheckpointFormatError(path, f"nested deeper than {_MAX_DEPTH} levels")
        if isinstance(node, Described) and node.name.startswith(_TENSOR_FUNCTIONS):
            yield name, node
            continue
        begin = f"{name}." if name else ""
        waiting += reversed([(begin + key, depth + 1, child) for key, child in _children(node)])
    raise CheckpointFormatError(path, f"unfolds into more than {_MAX_NODES:,} values")


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the containers and described objects inside one, with their keys."""
    if isinstance(node, Described):
        if isinstance(node.items, (dict, list)):
            yield from _children(node.items)
        if isinstance(node.state, dict) and "_parameters" in node.state:
            for part in _MODULE_PARTS:
                yield from _children(node.state.get(part))
        return
    if isinstance(node, dict):
        entries: Iterable[tuple[Any, Any]] = node.items()
    else:
        entries = enumerate(node) if isinstance(node, (list, tuple)) else ()
    for key, value in entries:
        if isinstance(value, (dict, list, tuple, Described)):
            yield _key_text(key), value


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else str(key)[:200]


class _Tensors:
    """Turns descriptions of tensors into parameters."""

    def __init__(self, path: Path, locate: Locate, byte_order: ByteOrder) -> None:
        self.notes: list[str] = []
        self._path = path
        self._locate = locate
        self._byte_order = byte_order

    def parameter(self, name: str, tensor: Described) -> Parameter | None:
        try:
            tensor = _unwrapped(tensor)
            if tensor.name not in (_REBUILD + "tensor_v2", _REBUILD + "tensor_v3"):
                what = tensor.name.rpartition(".")[2] or "unknown"
                self.notes.append(f"{name}: left out, a special tensor ({what})")
                return None
            return self._plain(name, tensor)
        except (IndexError, KeyError, TypeError, AttributeError, ValueError) as exc:
            raise CheckpointFormatError(self._path, f"{name}: damaged ({exc})") from exc

    def _plain(self, name: str, tensor: Described) -> Parameter | None:
        storage, first, shape, stride = tensor.arguments[:4]
        _, storage_type, key, *_ = storage.value
        dtype, flags = _dtype_and_flags(tensor, storage_type)
        shape, stride = tuple(map(_size, shape)), tuple(map(_size, stride))
        if not known_type(dtype):
            self.notes.append(f"{name}: left out, its elements are {dtype}")
            return None
        if flags.get("conj") is True or flags.get("neg") is True:
            self.notes.append(f"{name}: left out, stored with its sign or conjugation pending")
            return None
        if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS:
            raise ValueError("shape and strides do not fit together")
        span = self._span(key, dtype, _size(first), shape, stride)
        return Parameter(name=name, dtype=dtype, shape=shape, span=span, file=self._path)

    def _span(
        self, key: str, dtype: str, first: int, shape: tuple[int, ...], stride: tuple[int, ...]
    ) -> Span:
        offset, size_bytes = self._locate(key)
        numpy_type: np.dtype[Any] = storage_dtype(dtype).newbyteorder(self._byte_order)
        stored = size_bytes // numpy_type.itemsize
        count = math.prod(shape)
        last = first + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        if count and last >= stored:
            raise ValueError(f"shape {list(shape)} needs more than its {stored} stored elements")
        if count > max(stored, _MAX_REPEATED_ELEMENTS):
            raise ValueError(f"shape {list(shape)} repeats {stored} stored elements")
        if _is_contiguous(shape, stride) or not count:
            return FileSpan(self._path, offset + first * numpy_type.itemsize, numpy_type)
        return StridedSpan(
            path=self._path,
            offset=offset,
            count=stored,
            dtype=numpy_type,
            first=first,
            shape=shape,
            stride=stride,
        )


def _unwrapped(tensor: Described) -> Described:
    """Return the tensor inside a parameter, or inside a subclass that only adds attributes."""
    for _ in range(4):
        if tensor.name.startswith(_REBUILD + "parameter"):
            tensor = tensor.arguments[0]
        elif tensor.name == "torch._tensor._rebuild_from_type_v2":
            function, _, arguments, *_ = tensor.arguments
            tensor = Described(function, arguments)
    return tensor


def _dtype_and_flags(tensor: Described, storage_type: Any) -> tuple[str, dict[str, Any]]:
    arguments = tensor.arguments
    if tensor.name.endswith("_v3"):
        dtype, metadata = arguments[6].name.removeprefix("torch."), arguments[7:8]
    else:
        dtype, metadata = storage_type_name(storage_type), arguments[6:7]
    return dtype, metadata[0] if metadata and isinstance(metadata[0], dict) else {}


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _size(value: Any) -> int:
    if type(value) is int and 0 <= value < 1 << 62:
        return value
    raise ValueError("a size is no number of elements")
