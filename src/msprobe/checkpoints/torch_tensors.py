# SPDX-License-Identifier: Apache-2.0
"""Find the tensors in a pickle of `torch.save`: names, storages and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import Content, Parameter, storage_dtype
from msprobe.checkpoints.spans import FileSpan, Span, StridedSpan
from msprobe.dump.formats.pickle import Described
from msprobe.dump.formats.torch_archive import Layout, SpecialTensorError, read_layout
from msprobe.errors import CheckpointFormatError, DumpFormatError

ByteOrder = Literal["big", "little"]
Locate = Callable[[str], tuple[int, int]]
"""Returns where a storage begins in the file and how many bytes it has, by its key."""

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
    """Content of a file.

    Attributes:
        tree: the containers, as `formats.pickle` describes them.
        content: the tensors in them, and notes about those that were left out.
    """

    tree: Any
    content: Content


def find_tensors(path: Path, tree: Any, locate: Locate, byte_order: ByteOrder) -> TorchFile:
    """Return the tensors that a tree of `formats.pickle` describes.

    Args:
        path: the file.
        tree: the containers.
        locate: where each storage lies; raises an error for one that is not there.
        byte_order: of the elements.

    Raises:
        CheckpointFormatError: a description is damaged, or contradicts the file.
    """
    reader = _Tensors(path, locate, byte_order)
    parameters: dict[KeyPath, Parameter] = {}
    for keys, tensor in _walk(path, tree):
        found = reader.parameter(keys, tensor)
        if found is not None:
            parameters[keys] = found
    content = Content(parameters=list(parameters.values()), notes=reader.notes)
    return TorchFile(tree=tree, content=content)


def _walk(path: Path, tree: Any) -> Iterator[tuple[KeyPath, Described]]:
    """Yield every tensor with its path; without recursion, in the order of the file."""
    waiting: list[tuple[KeyPath, int, Any]] = [((), 0, tree)]
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        keys, depth, node = waiting.pop()
        if depth > _MAX_DEPTH:
            raise CheckpointFormatError(path, f"nested deeper than {_MAX_DEPTH} levels")
        if isinstance(node, Described) and node.name.startswith(_TENSOR_FUNCTIONS):
            yield keys, node
            continue
        waiting += reversed([((*keys, key), depth + 1, child) for key, child in _children(node)])
    raise CheckpointFormatError(path, f"unfolds into more than {_MAX_NODES:,} values")


def _children(node: Any) -> Iterator[tuple[Any, Any]]:
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
            yield _plain_key(key), value


def _plain_key(key: Any) -> Any:
    """Return a key that equals the same key of another file; others than numbers become text."""
    return key if isinstance(key, (str, int, float)) else repr(key)[:200]


class _Tensors:
    """Turns descriptions of tensors into parameters."""

    def __init__(self, path: Path, locate: Locate, byte_order: ByteOrder) -> None:
        self.notes: list[str] = []
        self._path = path
        self._locate = locate
        self._byte_order = byte_order

    def parameter(self, path: KeyPath, tensor: Described) -> Parameter | None:
        name = path_name(path)
        try:
            layout = read_layout(tensor, accepts_subclasses=True)
            if not (layout.conjugate or layout.negative):
                return self._plain(name, path, layout)
            self.notes.append(f"{name}: left out, is stored with its sign or conjugation pending")
        except SpecialTensorError as exc:
            self.notes.append(f"{name}: left out, {exc}")
        except (IndexError, KeyError, TypeError, AttributeError, ValueError) as exc:
            raise CheckpointFormatError(self._path, f"{name}: damaged ({exc})") from exc
        except DumpFormatError as exc:
            raise CheckpointFormatError(self._path, f"{name}: damaged ({exc.problem})") from exc
        return None

    def _plain(self, name: str, path: KeyPath, layout: Layout) -> Parameter:
        offset, size_bytes = self._locate(layout.key)
        numpy_type = storage_dtype(layout.dtype).newbyteorder(self._byte_order)
        stored = size_bytes // layout.itemsize
        layout.check_extent(str(self._path), stored, most_repeated=_MAX_REPEATED_ELEMENTS)
        span: Span
        if layout.is_row_major:
            span = FileSpan(self._path, offset + layout.offset * layout.itemsize, numpy_type)
        else:
            span = StridedSpan(
                path=self._path,
                offset=offset,
                count=stored,
                dtype=numpy_type,
                first=layout.offset,
                shape=layout.shape,
                stride=layout.stride,
            )
        return Parameter(
            name=name,
            dtype=layout.dtype,
            shape=layout.shape,
            span=span,
            file=self._path,
            path=path,
        )
