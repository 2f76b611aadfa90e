# SPDX-License-Identifier: Apache-2.0
"""Distributed checkpoints of PyTorch (DCP), as FSDP and Megatron's ``torch_dist`` save them.

    {folder}/.metadata            a pickle: which part of which tensor lies where
    {folder}/__{rank}_{n}.distcp  the parts, each as `torch.save` writes it

The metadata and the parts are read as data. Parts are put together to whole tensors, so that
checkpoints of other world sizes can be compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msprobe.checkpoints.blocks import Block, joined_blocks
from msprobe.checkpoints.key_paths import KeyPath, path_name
from msprobe.checkpoints.parameters import Content, Format, Parameter, Unread
from msprobe.checkpoints.pickled_tree import ByteOrder, read_tree
from msprobe.checkpoints.spans import file_size
from msprobe.dump.formats.dtypes import STORAGE_TYPES
from msprobe.dump.formats.pickle import Described, GlobalName, read_pickle
from msprobe.dump.formats.torch_archive import (
    MAX_DIMENSIONS,
    SpecialTensorError,
    open_torch_archive,
)
from msprobe.dump.formats.zip import NoArchiveError
from msprobe.dump.open_file import FileWindow, OpenFile
from msprobe.errors import CheckpointFormatError, DumpFormatError
from msprobe.files import reading

METADATA: Final = ".metadata"
PART_SUFFIX: Final = ".distcp"
_MAX_METADATA_BYTES: Final = 1 << 30
_MAX_PICKLE_BYTES: Final = 64 << 20
_DAMAGE: Final = (KeyError, TypeError, AttributeError, ValueError, IndexError)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part lies."""

    file: str
    offset: int
    length: int


def is_distributed(folder: Path) -> bool:
    """Return whether a folder is a distributed checkpoint."""
    return (folder / METADATA).is_file() or any(folder.glob("*" + PART_SUFFIX))


def read_distributed(folder: Path) -> Content:
    """Return the entries of a folder with ``.metadata`` and ``.distcp`` files.

    Raises:
        CheckpointFormatError: a file is missing, damaged or hostile, or the parts do not make up
            the tensors.
    """
    path = folder / METADATA
    state = _read_metadata(path)
    try:
        entries = state["state_dict_metadata"]
        paths = state.get("planner_data")
        places = _places(path, state["storage_data"])
    except _DAMAGE as exc:
        raise CheckpointFormatError(path, f"is of an unknown form ({exc!r:.80})") from exc
    content = Content(formats={Format.DISTRIBUTED})
    with _Parts(folder) as parts:
        for name, entry in entries.items():
            keys = _keys(name, paths)
            try:
                _read_entry(content, keys, entry, places.get(name, {}), parts)
            except CheckpointFormatError:
                raise
            except _DAMAGE as exc:
                problem = f"{name!r:.80}: of an unknown form ({exc!r:.80})"
                raise CheckpointFormatError(path, problem) from exc
    return content


def _read_metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointFormatError(path, "is missing; without it the .distcp files mean nothing")
    if file_size(path) > _MAX_METADATA_BYTES:
        raise CheckpointFormatError(path, "is too large")
    with reading(path, CheckpointFormatError, ValueError):
        tree = read_pickle(path.read_bytes())
    if not isinstance(tree, Described) or not isinstance(tree.state, dict):
        raise CheckpointFormatError(path, "holds no metadata of a distributed checkpoint")
    return tree.state


def _keys(name: str, paths: Any) -> KeyPath:
    found = paths.get(name) if isinstance(paths, dict) else None
    is_path = isinstance(found, tuple) and all(isinstance(key, (str, int)) for key in found)
    return found if is_path and found else (name,)


def _places(path: Path, storage: dict[Any, Any]) -> dict[str, dict[tuple[int, ...] | None, _Place]]:
    """Return where the parts of each entry lie, by their offset in the tensor."""
    found: dict[str, dict[tuple[int, ...] | None, _Place]] = defaultdict(dict)
    for index, info in storage.items():
        offset = index.state.get("offset")
        if info.state.get("transform_descriptors"):
            raise CheckpointFormatError(path, "its parts are compressed, which cannot be read")
        place = _Place(
            str(info.state["relative_path"]), int(info.state["offset"]), int(info.state["length"])
        )
        found[index.state["fqn"]][None if offset is None else _size(offset)] = place
    return found


def _size(described: Any) -> tuple[int, ...]:
    """Return a ``torch.Size``."""
    sizes = described.arguments[0] if isinstance(described, Described) else described
    if not isinstance(sizes, (tuple, list)) or len(sizes) > MAX_DIMENSIONS:
        raise ValueError("not a shape")
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise ValueError("not a shape")
    return tuple(sizes)


def _read_entry(
    content: Content,
    keys: KeyPath,
    entry: Described,
    places: dict[tuple[int, ...] | None, _Place],
    parts: _Parts,
) -> None:
    if not entry.name.endswith(".TensorStorageMetadata"):
        content.add(parts.read(_only(places), keys))
        return
    shape = _size(entry.state["size"])
    dtype = _dtype(entry.state["properties"])
    if dtype not in STORAGE_TYPES:
        problem = f"its elements are {dtype or 'of an unknown type'}"
        content.unread.append(Unread(name=path_name(keys), path=keys, problem=problem))
        return
    blocks: list[Block] = []
    file = parts.folder / METADATA
    for chunk in entry.state["chunks"]:
        offset, sizes = _size(chunk.state["offsets"]), _size(chunk.state["sizes"])
        place = places[offset] if offset in places else _only(places)
        (part,) = parts.read(place, keys).parameters
        if (part.dtype, part.shape) != (dtype, sizes):
            problem = f"{path_name(keys)}: is {part.dtype}{list(part.shape)}, not as .metadata says"
            raise CheckpointFormatError(part.file, problem)
        file = part.file
        blocks.append(Block(offset, sizes, part.span))
    try:
        span = joined_blocks(shape, blocks, dtype)
    except ValueError as exc:
        problem = f"the parts of {path_name(keys)!r} do not make up {list(shape)}: {exc}"
        raise CheckpointFormatError(parts.folder, problem) from exc
    content.parameters.append(
        Parameter(name=path_name(keys), dtype=dtype, shape=shape, span=span, file=file, path=keys)
    )


def _only(places: dict[tuple[int, ...] | None, _Place]) -> _Place:
    if len(places) != 1:
        raise ValueError("no place of a part is given")
    return next(iter(places.values()))


def _dtype(properties: Any) -> str:
    """Return the type of the elements: the first of the properties."""
    state = properties.state
    dtype = state.get("dtype") if isinstance(state, dict) else state[0]
    return dtype.name.removeprefix("torch.") if isinstance(dtype, GlobalName) else ""


class _Parts:
    """Reads parts out of ``.distcp`` files, each of which is opened once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, OpenFile] = {}

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def read(self, place: _Place, keys: KeyPath) -> Content:
        """Return the entries of a part; a plain tensor is one, with these keys."""
        file = self._file(place.file)
        if not 0 <= place.offset <= place.offset + place.length <= file.size:
            raise CheckpointFormatError(file.path, f"ends before the part {path_name(keys)!r}")
        window = FileWindow(file, place.offset, place.length)
        try:
            archive = open_torch_archive(window)
            tree = read_pickle(archive.pickle(_MAX_PICKLE_BYTES))
            locate = _locator(archive.storage, place.offset)
            order: ByteOrder = "big" if archive.is_big_endian else "little"
            return read_tree(file.path, tree, locate, order, root=keys).content
        except (NoArchiveError, SpecialTensorError, ValueError) as exc:
            raise CheckpointFormatError(file.path, f"{path_name(keys)}: {exc}") from exc
        except DumpFormatError as exc:
            raise CheckpointFormatError(file.path, f"{path_name(keys)}: {exc.problem}") from exc

    def _file(self, name: str) -> OpenFile:
        if name not in self._files:
            if Path(name).name != name or name in ("", ".", ".."):
                path = self.folder / METADATA
                raise CheckpointFormatError(path, f"names the file {name!r}, not beside it")
            try:
                self._files[name] = OpenFile(self.folder / name)
            except DumpFormatError as exc:
                raise CheckpointFormatError(self.folder / name, exc.problem) from exc
        return self._files[name]


def _locator(
    storage: Callable[[str], tuple[int, Any]], begin: int
) -> Callable[[str], tuple[int, int]]:
    def locate(key: str) -> tuple[int, int]:
        start, entry = storage(key)
        return begin + start, entry.size

    return locate
