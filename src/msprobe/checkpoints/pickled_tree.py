# SPDX-License-Identifier: Apache-2.0
"""Entries of a pickled tree: tensors, arrays and plain values, each with the keys that lead to it.

The tree is the one that `formats.pickle` describes, so nothing of it was ever run. Objects of any
class are taken apart: the class by its name, then arguments, attributes and items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import Content, Parameter, Unread, Value, storage_dtype
from msprobe.checkpoints.pickled_arrays import ObjectArrayError, UnknownArrayError, simplified
from msprobe.checkpoints.spans import FileSpan, MappedSpan, MemorySpan, Span, StridedSpan
from msprobe.dump.formats.dtypes import STORAGE_TYPES, item_size
from msprobe.dump.formats.pickle import Described, GlobalName, PersistentId
from msprobe.dump.formats.torch_archive import (
    Layout,
    SpecialTensorError,
    read_layout,
    storage_type_name,
)
from msprobe.errors import CheckpointFormatError, DumpFormatError

ByteOrder = Literal["big", "little"]
Locate = Callable[[str], tuple[int, int]]
"""Returns where a storage begins in the file and how many bytes it has, by its key."""

_Children = Iterator[tuple[Any, Any]]
"""Keys and values of a container, one after the other: lists of all would double the memory."""

_END: Final = object()
_TENSOR_FUNCTIONS: Final = ("torch._utils.", "torch._tensor.")
_DENSE: Final = "torch._utils._rebuild_tensor"
_PARAMETER: Final = "torch._utils._rebuild_parameter"
_SPARSE: Final = "torch._utils._rebuild_sparse_tensor"
_META: Final = "torch._utils._rebuild_meta_tensor"
_SUBCLASS: Final = "torch._tensor._rebuild_from_type_v2"
# A tensor that repeats few stored elements (``expand``) may pretend to be of any size.
_MAX_REPEATED_ELEMENTS: Final = 1 << 31
# A pickle can refer to one list from many places, so that a small file unfolds without end.
_MAX_NODES: Final = 2_000_000
_MAX_DEPTH: Final = 200
# Parts of a saved module whose names do not appear in its state dict.
_MODULE_PARTS: Final = ("_parameters", "_buffers", "_modules")
_LITERALS: Final = (str, int, float, complex, bytes, bytearray, type(None))
_STORAGES: Final = {
    "UntypedStorage": "uint8",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """Content of a file.

    Attributes:
        tree: the containers, as `formats.pickle` describes them.
        content: all entries in them.
    """

    tree: Any
    content: Content


def no_storage(key: str) -> tuple[int, int]:
    """Say that a file has no storages: a `Locate`."""
    raise KeyError(key)


def read_tree(
    path: Path, tree: Any, locate: Locate, byte_order: ByteOrder, *, root: KeyPath = ()
) -> TorchFile:
    """Return everything that a tree of `formats.pickle` describes.

    Args:
        path: the file.
        tree: the containers.
        locate: where each storage lies; raises an error for one that is not there.
        byte_order: of the elements.
        root: keys that lead to the tree itself.

    Raises:
        CheckpointFormatError: a description is damaged, or contradicts the file.
    """
    walk = _Walk(path, _Tensors(path, locate, byte_order))
    walk.run(root, tree)
    return TorchFile(tree=tree, content=walk.content)


class _Walk:
    """Visits a tree without recursion, in the order of the file."""

    def __init__(self, file: Path, tensors: _Tensors) -> None:
        self.content = Content()
        self._file = file
        self._tensors = tensors
        self._seen: set[KeyPath] = set()
        # Containers around the present node; one of these inside itself would unfold without end.
        self._around: dict[int, KeyPath] = {}

    def run(self, root: KeyPath, tree: Any) -> None:
        outermost: _Children = iter([(None, tree)])
        within = [(root, id(tree), outermost)]
        for _ in range(_MAX_NODES):
            around, container, children = within[-1]
            key, node = next(children, (None, _END))
            if node is _END:
                within.pop()
                if not within:
                    return
                del self._around[container]
                continue
            path = root if children is outermost else (*around, key)
            found = self._visit(path, node)
            if found is not None:
                if len(path) > _MAX_DEPTH:
                    problem = f"nested deeper than {_MAX_DEPTH} levels"
                    raise CheckpointFormatError(self._file, problem)
                self._around[id(node)] = path
                within.append((path, id(node), found))
        raise CheckpointFormatError(self._file, f"unfolds into more than {_MAX_NODES:,} values")

    def _visit(self, path: KeyPath, node: Any) -> _Children | None:
        """Keep an entry, or return the children of a container with their keys."""
        if id(node) in self._around:
            within = path_name(self._around[id(node)]) or "the whole"
            self._keep_value(path, GlobalName(f"again {within}"))
            return None
        if isinstance(node, _LITERALS):
            self._keep_value(path, node)
            return None
        if isinstance(node, Described):
            return self._visit_described(path, node)
        if isinstance(node, PersistentId):
            self._keep_storage(path, node)
            return None
        if isinstance(node, (list, tuple)) and all(isinstance(each, _LITERALS) for each in node):
            self._keep_value(path, tuple(node))
            return None
        if isinstance(node, (dict, list, tuple)) and node:
            return ((_plain_key(key), value) for key, value in _entries(node))
        if not isinstance(node, (dict, GlobalName)):
            raise CheckpointFormatError(self._file, f"{path_name(path)}: damaged pickle")
        self._keep_value(path, node)
        return None

    def _visit_described(self, path: KeyPath, node: Described) -> _Children | None:
        name = node.name
        if name.startswith(_TENSOR_FUNCTIONS):
            return self._visit_tensor(path, node, name)
        try:
            found = simplified(node)
        except ObjectArrayError as exc:
            return iter([("shape", exc.shape), ("items", exc.items)])
        except UnknownArrayError as exc:
            self._leave_out(path, str(exc))
            return None
        if isinstance(found, np.ndarray):
            self._keep_array(path, found)
            return None
        return iter(_parts(node)) if found is node else self._visit(path, found)

    def _visit_tensor(self, path: KeyPath, node: Described, name: str) -> _Children | None:
        try:
            self.content.parameters.append(self._tensors.parameter(self._free(path), node))
        except SpecialTensorError as exc:
            if name == _SPARSE:
                return iter(_sparse_parts(node))
            if name.startswith(_META):
                self._leave_out(path, "it is on the meta device, the file has no values for it")
                return None
            if isinstance(node.arguments, tuple) and not name.startswith(_DENSE):
                return iter(_parts(node))
            self._leave_out(path, str(exc))
        if name.startswith(_PARAMETER) and _is_frozen(node):
            return iter([("requires_grad", False)])
        if name == _SUBCLASS and len(node.arguments) > 3:
            attributes = node.arguments[3]
            if isinstance(attributes, dict) and attributes:
                return ((_plain_key(key), value) for key, value in attributes.items())
        return None

    def _keep_value(self, path: KeyPath, content: Any) -> None:
        path = self._free(path)
        self.content.values.append(
            Value(name=path_name(path), path=path, content=content, file=self._file)
        )

    def _keep_array(self, path: KeyPath, array: np.ndarray[Any, Any]) -> None:
        path = self._free(path)
        if array.dtype.name not in STORAGE_TYPES:
            self._leave_out(path, f"its elements are {array.dtype}")
            return
        self.content.parameters.append(
            Parameter(
                name=path_name(path),
                dtype=array.dtype.name,
                shape=array.shape,
                span=MemorySpan(array.reshape(-1)),
                file=self._file,
                path=path,
            )
        )

    def _keep_storage(self, path: KeyPath, node: PersistentId) -> None:
        found = self._tensors.storage(self._free(path), node)
        if found is None:
            self._leave_out(path, "it refers to something outside the file")
        else:
            self.content.parameters.append(found)

    def _leave_out(self, path: KeyPath, problem: str) -> None:
        self.content.unread.append(Unread(name=path_name(path), path=path, problem=problem))

    def _free(self, path: KeyPath) -> KeyPath:
        """Return the path, with a number behind it if an entry has it already."""
        found, number = path, 1
        while found in self._seen:
            number += 1
            found = (*path, f"#{number}")
        self._seen.add(found)
        return found


def stored_elements(storage_type: Any) -> str:
    """Return the type of the elements of a storage, as NumPy spells it; untyped ones are bytes."""
    word = storage_type_name(storage_type)
    return _STORAGES.get(word.rpartition(".")[2], word)


def _entries(node: Any) -> Iterable[tuple[Any, Any]]:
    return node.items() if isinstance(node, dict) else enumerate(node)


def _plain_key(key: Any) -> Any:
    """Return a key that equals the same key of another file; what has none becomes text."""
    if isinstance(key, (str, int, float)):
        return key
    if isinstance(key, tuple):
        return tuple(map(_plain_key, key[:100]))
    return key.name if isinstance(key, (Described, GlobalName)) else repr(key)[:200]


def _parts(node: Described) -> list[tuple[Any, Any]]:
    """Return class, arguments, attributes and items of an object of any class."""
    parts: list[tuple[Any, Any]] = [("__class__", node.function)]
    arguments = node.arguments
    if arguments:
        parts += enumerate(arguments) if isinstance(arguments, tuple) else [("__args__", arguments)]
    states = node.state if isinstance(node.state, tuple) else (node.state,)
    for state in states:
        if isinstance(state, dict):
            parts += _attributes(state)
        elif state is not None:
            parts.append(("__state__", state))
    if node.items is not None:
        parts += [(_plain_key(key), value) for key, value in _entries(node.items)]
    return parts


def _attributes(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    is_module = "_parameters" in state
    for key, value in state.items():
        if is_module and key in _MODULE_PARTS:
            content = value.items if isinstance(value, Described) else value
            if isinstance(content, dict):
                yield from ((_plain_key(name), child) for name, child in content.items())
        elif not (is_module and str(key).startswith("_") and _is_empty(value)):
            yield _plain_key(key), value


def _is_empty(value: Any) -> bool:
    if isinstance(value, Described):
        return not value.state and not value.items and not any(value.arguments or ())
    return not value


def _is_frozen(node: Described) -> bool:
    """Return whether a parameter takes no part in the training."""
    return isinstance(node.arguments, tuple) and node.arguments[1:2] == (False,)


def _sparse_parts(node: Described) -> list[tuple[Any, Any]]:
    layout, parts, *_ = node.arguments
    names = ("indices", "values", "size", "is_coalesced")
    if isinstance(parts, tuple) and len(parts) == 4 and isinstance(parts[-1], Described):
        names = ("compressed_indices", "plain_indices", "values", "size")
    return [("layout", layout), *zip(names, parts, strict=False)]


class _Tensors:
    """Turns descriptions of tensors into parameters."""

    def __init__(self, path: Path, locate: Locate, byte_order: ByteOrder) -> None:
        self._path = path
        self._name = str(path)
        self._locate = locate
        self._byte_order = byte_order
        self._stored_types: dict[str, np.dtype[Any]] = {}

    def parameter(self, path: KeyPath, tensor: Described) -> Parameter:
        """Return a parameter.

        Raises:
            SpecialTensorError: the tensor is no plain dense one.
            CheckpointFormatError: its description is damaged, or contradicts the file.
        """
        name = path_name(path)
        try:
            key, layout = read_layout(tensor, accepts_subclasses=True)
            span = self._span(key, layout)
        except (IndexError, KeyError, TypeError, AttributeError, ValueError) as exc:
            raise CheckpointFormatError(self._path, f"{name}: damaged ({exc})") from exc
        except DumpFormatError as exc:
            raise CheckpointFormatError(self._path, f"{name}: damaged ({exc.problem})") from exc
        if layout.conjugate:
            span = MappedSpan(span, np.conjugate)
        if layout.negative:
            span = MappedSpan(span, np.negative)
        return Parameter(
            name=name,
            dtype=layout.dtype,
            shape=layout.shape,
            span=span,
            file=self._path,
            path=path,
        )

    def storage(self, path: KeyPath, reference: PersistentId) -> Parameter | None:
        """Return a bare storage as a parameter; None for any other reference.

        Raises:
            CheckpointFormatError: the file has no such storage.
        """
        match reference.value:
            case ("storage", GlobalName() as kind, str() as key, *_):
                dtype = stored_elements(kind)
            case _:
                return None
        if dtype not in STORAGE_TYPES:
            return None
        try:
            offset, size_bytes = self._locate(key)
        except (KeyError, DumpFormatError) as exc:
            problem = f"{path_name(path)}: damaged ({exc})"
            raise CheckpointFormatError(self._path, problem) from exc
        return Parameter(
            name=path_name(path),
            dtype=dtype,
            shape=(size_bytes // item_size(dtype),),
            span=FileSpan(self._path, offset, self._stored_type(dtype)),
            file=self._path,
            path=path,
        )

    def _stored_type(self, dtype: str) -> np.dtype[Any]:
        if dtype not in self._stored_types:
            self._stored_types[dtype] = storage_dtype(dtype).newbyteorder(self._byte_order)
        return self._stored_types[dtype]

    def _span(self, key: str, layout: Layout) -> Span:
        offset, size_bytes = self._locate(key)
        numpy_type = self._stored_type(layout.dtype)
        stored = size_bytes // layout.itemsize
        layout.check_extent(self._name, stored, most_repeated=_MAX_REPEATED_ELEMENTS)
        if layout.is_row_major:
            return FileSpan(self._path, offset + layout.offset * layout.itemsize, numpy_type)
        return StridedSpan(
            path=self._path,
            offset=offset,
            count=stored,
            dtype=numpy_type,
            first=layout.offset,
            shape=layout.shape,
            stride=layout.stride,
        )
