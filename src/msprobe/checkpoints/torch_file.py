# SPDX-License-Identifier: Apache-2.0
"""What `torch.save` writes: state dicts, whole modules, nested containers of tensors.

Such a file is a zip archive with a pickle, ``data.pkl``, that describes the containers and how each
tensor lies on its storage, and the bytes of the storages in ``data/{key}``. The pickle is read as
data (`pickle_tree`). Tensors of one storage share its bytes, as they do in torch.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
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
from msprobe.checkpoints.pickle_tree import (
    MAX_PICKLE_BYTES,
    Described,
    read_pickle,
)
from msprobe.checkpoints.spans import FileSpan, Span, StridedSpan, file_size
from msprobe.checkpoints.zip_members import member_offset
from msprobe.errors import CheckpointFormatError, UnsupportedError

OLD_FORMAT_MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
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


def read_torch_file(path: Path) -> TorchFile:
    """Return the tensors of a ``.pt``, ``.pth`` or ``.bin`` file.

    Raises:
        CheckpointFormatError: the file is damaged, or its sizes contradict each other.
        UnsupportedError: it was written before PyTorch 1.6.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            prefix = _prefix(path, members)
            info = members[prefix + "data.pkl"]
            if info.file_size > min(MAX_PICKLE_BYTES, file_size(path)):
                raise CheckpointFormatError(path, f"data.pkl has {info.file_size} bytes")
            member_offset(path, info)
            tree = read_pickle(archive.read(info))
            is_big_endian = (
                prefix + "byteorder" in members and archive.read(prefix + "byteorder")[:3] == b"big"
            )
    except (zipfile.BadZipFile, OSError, RuntimeError, zlib.error, ValueError) as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    reader = _Tensors(path, members, prefix, "big" if is_big_endian else "little")
    parameters: dict[str, Parameter] = {}
    for name, tensor in _walk(path, tree):
        found = reader.parameter(name, tensor)
        if found is not None:
            parameters[name] = found
    return TorchFile(tree=tree, parameters=list(parameters.values()), notes=reader.notes)


def _prefix(path: Path, members: dict[str, zipfile.ZipInfo]) -> str:
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointFormatError(path, f"holds {len(pickles)} data.pkl entries instead of one")
    return pickles[0].removesuffix("data.pkl")


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

    def __init__(
        self,
        path: Path,
        members: dict[str, zipfile.ZipInfo],
        prefix: str,
        byte_order: Literal["big", "little"],
    ) -> None:
        self.notes: list[str] = []
        self._path = path
        self._members = members
        self._prefix = prefix
        self._byte_order = byte_order
        self._offsets: dict[str, int] = {}

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
        member = self._members[f"{self._prefix}data/{key}"]
        if key not in self._offsets:
            self._offsets[key] = member_offset(self._path, member)
        offset = self._offsets[key]
        numpy_type: np.dtype[Any] = storage_dtype(dtype).newbyteorder(self._byte_order)
        stored = member.file_size // numpy_type.itemsize
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
        stem = storage_type.name.removeprefix("torch.").removesuffix("Storage")
        dtype, metadata = _STORAGE_TYPES.get(stem, stem), arguments[6:7]
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


def refuse_old_format(path: Path) -> None:
    """Say what to do with a file that was written before PyTorch 1.6.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"{path}: was written in the format of PyTorch before 1.6; load and save it again: "
        "torch.save(torch.load(path, weights_only=True), new_path)"
    )
