# SPDX-License-Identifier: Apache-2.0
"""`Checkpoint` and its entries: parameters, whose elements are read when asked for, and values."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from msprobe.checkpoints.key_paths import KeyPath, path_name, spelled_names
from msprobe.checkpoints.open_files import SMALL_BYTES, read_small
from msprobe.checkpoints.spans import FileSpan, Span
from msprobe.dump.formats.dtypes import PACKED_TYPES, STORAGE_TYPES
from msprobe.dump.formats.torch_archive import MAX_DIMENSIONS
from msprobe.errors import CheckpointFormatError, UnsupportedError

PIECE_ELEMENTS: Final = 1 << 20
"""Elements that are read at a time: 4 MiB of float32."""


class Format(StrEnum):
    """Format of a file or folder of a checkpoint, as its words for people."""

    SAFETENSORS = "safetensors"
    NUMPY = "NumPy"
    MINDSPORE = "MindSpore"
    STATE_DICT = "a table of tensors"
    """A file of PyTorch, or a pickle, that holds one table of tensors and nothing else."""
    SHARDS = "a sharded table of tensors"
    TORCH = "PyTorch"
    DISTRIBUTED = "PyTorch's distributed format"
    ZERO = "DeepSpeed ZeRO"
    MEGATRON = "Megatron"


class Parameter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One tensor of a checkpoint.

    Attributes:
        name: its full name, ``layers.0.weight``; no other entry of its checkpoint has it.
        dtype: ``float32``, ``bfloat16`` …
        shape: the shape.
        span: its values: raw elements, bfloat16 as uint16, float8 as uint8.
        file: where it is stored, for messages; one of several files for a merged parameter.
        path: the keys that lead to it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    span: Span
    file: Path
    path: KeyPath

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of its values."""
        return self.count * storage_dtype(self.dtype).itemsize

    def pieces(self, elements: int = PIECE_ELEMENTS) -> Iterator[NDArray[Any]]:
        """Yield all values in row-major order, in flat pieces.

        Raises:
            CheckpointFormatError: the file cannot be read.
        """
        count = self.count
        for start in range(0, count, elements):
            yield self.span.read(start, min(start + elements, count))

    def array(self) -> NDArray[Any]:
        """Return all values at once, in the parameter's shape.

        Raises:
            CheckpointFormatError: the file cannot be read.
        """
        return self.span.read(0, self.count).reshape(self.shape)


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a checkpoint that is no tensor: a learning rate, an epoch, a name …

    Attributes:
        name: its full name, as that of a parameter.
        path: the keys that lead to it.
        content: number, text, bytes, None; a tuple of these; a `GlobalName` for a class or
            function; an empty dict.
        file: where it is stored.
    """

    name: str
    path: KeyPath
    content: Any
    file: Path


class Unread(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry that cannot be read, and hence not be compared.

    Attributes:
        name: its full name.
        path: the keys that lead to it.
        problem: why it cannot be read.
    """

    name: str
    path: KeyPath
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Copies of one parameter that should be alike, and are not.

    Attributes:
        name: the parameter's name.
        problem: which copies differ.
    """

    name: str
    problem: str


Entry = Parameter | Value | Unread
AnyEntry = TypeVar("AnyEntry", Parameter, Value, Unread)


@dataclass(slots=True, kw_only=True)
class Content:
    """Entries of one file, or of several that belong together; every path occurs once.

    Attributes:
        parameters: the tensors, in the order of the file.
        values: everything else that can be compared.
        unread: entries that cannot be read.
        contradictions: parameters whose copies differ.
        notes: remarks for the user.
        formats: those of its files.
    """

    parameters: list[Parameter] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    contradictions: list[Contradiction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    formats: set[Format] = field(default_factory=set)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries of every kind."""
        yield from self.parameters
        yield from self.values
        yield from self.unread

    def is_empty(self) -> bool:
        """Return whether there is nothing to compare and nothing to say."""
        return not (self.parameters or self.values or self.unread or self.notes)

    def is_one_table(self) -> bool:
        """Return whether there are tensors in one container, and nothing else."""
        containers = {item.path[:-1] for item in self.parameters}
        return len(containers) == 1 and not (self.values or self.unread)

    def add(self, other: Content, below: KeyPath = ()) -> None:
        """Add the entries of another file.

        Args:
            other: its content; not to be used afterwards.
            below: keys that are put before its paths.
        """
        self.parameters += [_below(item, below) for item in other.parameters]
        self.values += [_below(item, below) for item in other.values]
        self.unread += [_below(item, below) for item in other.unread]
        self.contradictions += other.contradictions
        self.notes += other.notes
        self.formats |= other.formats


def renamed(entry: AnyEntry, path: KeyPath) -> AnyEntry:
    """Return an entry with another path, and the name of that."""
    return replace(entry, path=path, name=path_name(path))


def _below(entry: AnyEntry, keys: KeyPath) -> AnyEntry:
    """Return an entry with further keys before its path."""
    if not keys:
        return entry
    return replace(entry, name=f"{path_name(keys)}.{entry.name}", path=(*keys, *entry.path))


def joined_contents(by_file: Mapping[str, Content]) -> Content:
    """Return the entries of several files; a path that two of them share begins with the file.

    Args:
        by_file: the content of each file, by a name for it.
    """
    counts = Counter(item.path for content in by_file.values() for item in content.entries())
    found = Content()
    for file, content in by_file.items():
        is_shared = any(counts[item.path] > 1 for item in content.entries())
        found.add(content, (file,) if is_shared else ())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint on disk.

    Attributes:
        path: the path that was opened.
        kind: the detected format, in words.
        parameters: its tensors by name, in the order of the file.
        values: its other entries by name: numbers, text, names of classes …
        unread: entries that cannot be read, and hence not be compared.
        contradictions: parameters whose copies on several ranks differ.
        grid: how a model is divided over ranks, where the checkpoint has entries of single ranks.
        notes: remarks for the user.
        formats: those of its files.
    """

    path: Path
    kind: str
    parameters: Mapping[str, Parameter]
    values: Mapping[str, Value] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    grid: str = ""
    notes: tuple[str, ...] = ()
    formats: frozenset[Format] = frozenset()


def make_checkpoint(path: Path, kind: str, content: Content, *, grid: str = "") -> Checkpoint:
    """Return a checkpoint of these entries, whose names are made different where they are not."""
    parameters, values, unread = content.parameters, content.values, content.unread
    taken = {item.path for item in content.entries()}
    if len(taken) < len(parameters) + len(values) + len(unread):
        taken.clear()
        parameters = [_distinct(item, taken) for item in parameters]
        values = [_distinct(item, taken) for item in values]
        unread = [_distinct(item, taken) for item in unread]
    found = {item.name for items in (parameters, values, unread) for item in items}
    names = spelled_names(taken) if len(found) < len(taken) else {}

    def named(items: list[AnyEntry]) -> Iterable[AnyEntry]:
        if not names:
            return items
        return (
            replace(item, name=names[item.path]) if item.path in names else item for item in items
        )

    return Checkpoint(
        path=path,
        kind=kind,
        parameters={item.name: item for item in named(parameters)},
        values={item.name: item for item in named(values)},
        unread=tuple(named(unread)),
        contradictions=tuple(content.contradictions),
        grid=grid,
        notes=tuple(content.notes),
        formats=frozenset(content.formats),
    )


def _distinct(item: AnyEntry, taken: set[KeyPath]) -> AnyEntry:
    """Return an entry with a number behind its path if another one has it already."""
    path, number = item.path, 1
    while path in taken:
        number += 1
        path = (*item.path, f"#{number}")
    taken.add(path)
    return item if path is item.path else renamed(item, path)


def same_bytes(one: Parameter, other: Parameter) -> bool:
    """Return whether two parameters have one shape, one type and the same bytes.

    Raises:
        CheckpointFormatError: a file cannot be read.
    """
    return (one.shape, one.dtype) == (other.shape, other.dtype) and all(
        left.tobytes() == right.tobytes()
        for left, right in zip(one.pieces(), other.pieces(), strict=True)
    )


def find_equal(pairs: Sequence[tuple[Parameter | None, Parameter | None]]) -> list[bool]:
    """Return for pairs whether both are small, have one shape and type, and equal finite elements.

    Args:
        pairs: parameters to compare; None for one that has no partner.

    Raises:
        CheckpointFormatError: a file cannot be read.
    """
    equal = [False] * len(pairs)
    contents: dict[tuple[str, np.dtype[Any]], dict[int, bytes]] = defaultdict(dict)
    for place, (one, other) in enumerate(pairs):
        if one is None or other is None:
            continue
        left, right = one.span, other.span
        if (
            one.dtype == other.dtype
            and one.shape == other.shape
            and isinstance(left, FileSpan)
            and isinstance(right, FileSpan)
            and left.dtype == right.dtype
            and one.dtype not in PACKED_TYPES
            and (size := one.size_bytes) <= SMALL_BYTES
        ):
            content = read_small(left.path, left.offset, size)
            if content == read_small(right.path, right.offset, size):
                contents[one.dtype, left.dtype][place] = content
    for (dtype, stored), found in contents.items():
        # One look at all of them together, at single ones only where that finds any.
        all_finite = is_finite(np.frombuffer(b"".join(found.values()), stored), dtype)
        for place, content in found.items():
            equal[place] = all_finite or is_finite(np.frombuffer(content, stored), dtype)
    return equal


def is_finite(array: NDArray[Any], dtype: str) -> bool:
    """Return whether stored elements of a type are known to be finite; False for 8-bit floats."""
    if dtype == "bfloat16":
        return not ((array & 0x7F80) == 0x7F80).any()
    if dtype.startswith("float8"):
        return False
    return array.dtype.kind in "iub" or bool(np.isfinite(array).all())


@lru_cache(maxsize=64)
def storage_dtype(dtype: str) -> np.dtype[Any]:
    """Return how NumPy holds elements of a type.

    Raises:
        UnsupportedError: a type that is not known.
    """
    if dtype not in STORAGE_TYPES:
        raise UnsupportedError(f"elements of type {dtype!r} cannot be read")
    return np.dtype(STORAGE_TYPES[dtype])


def contiguous_parameter(
    name: str, dtype: str, shape: tuple[int, ...], *, path: Path, offset: int, available: int
) -> Parameter:
    """Return a parameter whose elements lie one after another in a file.

    Args:
        name: its name.
        dtype: its type.
        shape: its shape.
        path: the file.
        offset: where the elements begin, in bytes.
        available: how many bytes there are for it.

    Raises:
        CheckpointFormatError: the shape and type do not take exactly that many bytes, or the type
            is not known.
    """
    if dtype not in STORAGE_TYPES:
        raise CheckpointFormatError(path, f"{name!r} is of type {dtype!r}, which is not known")
    numpy_type = storage_dtype(dtype)
    if len(shape) > MAX_DIMENSIONS:
        raise CheckpointFormatError(path, f"{name!r} has {len(shape)} dimensions")
    needed = math.prod(shape) * numpy_type.itemsize
    if needed != available:
        raise CheckpointFormatError(
            path,
            f"{name!r}: shape {list(shape)} of {dtype} takes {needed} bytes, "
            f"the file has {available} for it",
        )
    span = FileSpan(path, offset, numpy_type)
    return Parameter(name=name, dtype=dtype, shape=shape, span=span, file=path, path=(name,))
