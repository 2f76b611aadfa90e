# SPDX-License-Identifier: Apache-2.0
"""`open_checkpoint`: detect the format of a checkpoint, and list its parameters.

Files are recognised by their content, so a name's extension does not matter. A folder is a Megatron
checkpoint, a sharded one with an index, or simply a folder of files.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from msprobe.checkpoints.deepspeed import find_deepspeed, read_deepspeed
from msprobe.checkpoints.distributed import METADATA, PART_SUFFIX, is_distributed, read_distributed
from msprobe.checkpoints.holding import named_role
from msprobe.checkpoints.megatron import find_megatron, read_megatron
from msprobe.checkpoints.mindspore_file import read_mindspore_file
from msprobe.checkpoints.mindspore_sharded import find_mindspore_shards, read_mindspore_shards
from msprobe.checkpoints.numpy_file import MAGIC as NPY_MAGIC
from msprobe.checkpoints.numpy_file import read_npy, read_npz
from msprobe.checkpoints.open_files import forget_files
from msprobe.checkpoints.optimizers import name_states
from msprobe.checkpoints.parameters import (
    Checkpoint,
    Content,
    Format,
    Parameter,
    Unread,
    joined_contents,
    make_checkpoint,
)
from msprobe.checkpoints.safetensors_file import looks_like_safetensors, read_safetensors
from msprobe.checkpoints.spans import file_size
from msprobe.checkpoints.torch_file import read_plain_pickle, read_torch_file
from msprobe.checkpoints.torch_old_file import MAGIC as OLD_TORCH_MAGIC
from msprobe.checkpoints.torch_old_file import read_old_torch_file
from msprobe.dump.formats.zip import NoArchiveError, read_directory
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError, DumpFormatError
from msprobe.files import reading
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json
from msprobe.plain_text import reason

SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".pkl", ".ckpt", ".npz", ".npy")
"""Files that are taken from a folder without an index."""

_INDEX_SUFFIX: Final = ".index.json"
KNOWN_ENDS: Final = (*SUFFIXES, PART_SUFFIX, _INDEX_SUFFIX)
"""Ends of the names of all files that are read as parts of a checkpoint."""
_MAX_INDEX_BYTES: Final = 256 << 20
_NUMBERED: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")
_PROTOCOLS: Final = (b"\x02", b"\x03", b"\x04", b"\x05")
_MAX_FILES: Final = 100_000


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint. Reads headers only; values are read when asked for.

    Args:
        path: a file (``.safetensors``, ``.pt``, ``.pth``, ``.bin``, ``.ckpt`` of PyTorch or
            MindSpore, ``.npz``, ``.npy``), the index of a sharded checkpoint, or a folder: of
            shards with an index, of Megatron-LM, or of such files.

    Raises:
        CheckpointFormatError: there is no checkpoint, or a file of it is damaged or hostile.
        UnsupportedError: a format that cannot be read without its framework.
    """
    forget_files()
    try:
        return _open(Path(path))
    except DumpFormatError as exc:  # the formats themselves know of no checkpoints
        raise CheckpointFormatError(exc.path, exc.problem) from exc


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(_INDEX_SUFFIX):
        return _open_index(path)
    if path.suffix == PART_SUFFIX:
        raise CheckpointFormatError(path, "is a part of a distributed checkpoint; name its folder")
    content, kind = _read_file(path, path.stem)
    return _made(path, kind, content)


def _made(path: Path, kind: str, content: Content) -> Checkpoint:
    name_states(content)
    return make_checkpoint(path, kind, content)


def _open_folder(path: Path) -> Checkpoint:
    megatron = find_megatron(path)
    if megatron is not None:
        return read_megatron(megatron)
    deepspeed = find_deepspeed(path)
    if deepspeed is not None:
        return read_deepspeed(deepspeed)
    shards = find_mindspore_shards(path)
    if shards is not None:
        return read_mindspore_shards(path, shards, lambda file: _read_file(file, file.stem)[0])
    indexes = sorted(path.glob("*" + _INDEX_SUFFIX))
    if not indexes or is_distributed(path):
        return _open_files(path)
    # Of two (safetensors and .bin of the same weights) the safer format is read.
    index = next((each for each in indexes if "safetensors" in each.name), indexes[0])
    beside = {name for each in indexes if each != index for name in _listed(each)}
    return _open_index(index, leave_out=beside)


def _listed(index: Path) -> set[str]:
    """Return the files that another index lists; none if it cannot be read."""
    try:
        return set(_weight_map(index).values())
    except CheckpointFormatError:
        return set()


def _open_index(path: Path, leave_out: Set[str] | None = None) -> Checkpoint:
    """Open the shards that an index lists.

    Args:
        path: the index.
        leave_out: files beside it that are not read, too; None to read the shards only.
    """
    places = _weight_map(path)
    shards: dict[str, dict[str, Parameter]] = {}
    content = Content()
    for name in dict.fromkeys(places.values()):
        if Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointFormatError(path, f"lists the file {name!r}, which is not beside it")
        shard, _ = _read_file(path.parent / name, name)
        shards[name] = {parameter.name: parameter for parameter in shard.parameters}
        shard.parameters = []
        _add_apart(content, _below_its_name(shard, Path(name)), name)
    for name, file in places.items():
        parameter = shards[file].pop(name, None)
        if parameter is None:
            raise CheckpointFormatError(path.parent / file, f"does not hold {name!r}")
        content.parameters.append(parameter)
    if content.formats == {Format.STATE_DICT}:
        content.formats = {Format.SHARDS}
    unlisted = {file: left for file, left in shards.items() if left}
    if unlisted:
        names = [name for left in unlisted.values() for name in left]
        first = ", ".join(names[:3])
        content.notes.append(f"{len(names)} tensors are not in the index: {first} …")
        for file, left in unlisted.items():
            content.add(Content(parameters=list(left.values())), (file,))
    if leave_out is not None:
        problem = "weights in another format, not read; name its index to compare it"
        content.unread += [
            Unread(name=file, path=(file,), problem=problem) for file in sorted(leave_out)
        ]
        content = _with_others(path.parent, content, {*shards, *leave_out})
    return _made(path.parent, f"{len(shards)} shards", content)


def _with_others(folder: Path, content: Content, read: Set[str]) -> Content:
    """Return the content of shards with that of the other files of their folder."""
    for file in sorted(folder.iterdir()):
        if file.suffix in SUFFIXES and file.name not in read and file.is_file():
            other, _ = _read_file(file, file.stem, may_be_empty=True)
            found = _below_its_name(other, file)
            # What loads the shards does not look at weights that the index does not list.
            is_unlisted = found is other and bool(other.parameters)
            content.add(found, (file.name,)) if is_unlisted else _add_apart(
                content, found, file.name
            )
    return content


def _add_apart(content: Content, other: Content, file: str) -> None:
    """Add the entries of another file, below its name if they share a path with the others."""
    taken = {entry.path for entry in content.entries()}
    is_apart = taken.isdisjoint(entry.path for entry in other.entries())
    content.add(other, () if is_apart else (file,))


def _below_its_name(content: Content, file: Path) -> Content:
    """Return the entries of ``optimizer.pt``, ``rng_state_0.pth`` … below the file's name."""
    role = named_role(file.stem)
    if role is None or any(named_role(str(x.path[0])) is role for x in content.entries() if x.path):
        return content
    found = Content()
    found.add(content, (file.stem,))
    return found


def _weight_map(path: Path) -> Mapping[str, str]:
    if file_size(path) > _MAX_INDEX_BYTES:
        raise CheckpointFormatError(path, "is too large for an index")
    try:
        tree = parse_json(path.read_bytes())
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    except JSON_ERRORS as exc:
        raise CheckpointFormatError(path, json_problem(exc)) from exc
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointFormatError(path, 'has no object "weight_map" of file names')
    return places


def _open_files(path: Path) -> Checkpoint:
    """Open all files of a folder. Paths of files that share one begin with the file's name."""
    patterns = (METADATA, f"*{PART_SUFFIX}")
    parts = sorted({file.parent for pattern in patterns for file in path.rglob(pattern)})
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files and not parts:
        known = ", ".join(SUFFIXES)
        raise CheckpointFormatError(path, f"holds no checkpoint: no index and no file of {known}")
    if len(files) > _MAX_FILES:
        raise CheckpointFormatError(path, f"holds {len(files)} files")
    _check_numbered(files)
    by_file = {part.relative_to(path).as_posix(): read_distributed(part) for part in parts}
    for file in files:
        stem = file.relative_to(path).with_suffix("").as_posix()
        content, _ = _read_file(file, stem, may_be_empty=True)
        if all(not entry.path for entry in content.entries()):  # of .npy only the file has a name
            content.parameters = [replace(x, path=(x.name,)) for x in content.parameters]
        key = stem if stem not in by_file else file.relative_to(path).as_posix()
        by_file[key] = _below_its_name(content, file)
    kind = f"{len(by_file)} files" if len(by_file) > 1 else "1 file"
    if parts == [path]:
        kind = "distributed checkpoint"
    return _made(path, kind, joined_contents(by_file))


def _check_numbered(files: list[Path]) -> None:
    """Check that shards without an index, whose names say how many there are, are all there."""
    found: dict[tuple[Path, str, int, str], set[int]] = defaultdict(set)
    for file in files:
        name = _NUMBERED.fullmatch(file.name)
        if name is not None:
            found[file.parent, name[1], int(name[3]), name[4]].add(int(name[2]))
    for (folder, begin, count, end), numbers in found.items():
        first = 0 if 0 in numbers else 1
        missing = next((each for each in range(first, count + first) if each not in numbers), None)
        if missing is not None:
            name_missing = f"{begin}-{missing:05d}-of-{count:05d}{end}"
            raise CheckpointFormatError(folder / name_missing, "is missing")


def _read_file(path: Path, stem: str, *, may_be_empty: bool = False) -> tuple[Content, str]:
    """Return the entries of one file, and its format."""
    size = file_size(path)
    with reading(path, CheckpointFormatError), path.open("rb") as file:
        start = file.read(64)
    content, kind, form = _read_known(path, stem, start, size)
    if form is Format.TORCH and content.is_one_table():
        form = Format.STATE_DICT
    content.formats = {form}
    if not may_be_empty and content.is_empty():
        raise CheckpointFormatError(path, "holds nothing to compare")
    return content, kind


def _read_known(path: Path, stem: str, start: bytes, size: int) -> tuple[Content, str, Format]:
    # First: the length of its header may begin like any other format, 0x80 0x02 like a pickle.
    if looks_like_safetensors(start, size):
        return read_safetensors(path), "safetensors", Format.SAFETENSORS
    if start.startswith(NPY_MAGIC):
        return read_npy(path, stem), "NumPy array", Format.NUMPY
    if start.startswith(b"PK\x03\x04"):
        return _read_zip(path)
    if start.startswith(OLD_TORCH_MAGIC):
        return read_old_torch_file(path).content, "PyTorch file before 1.6", Format.TORCH
    if start[:1] == b"\x80" and start[1:2] in _PROTOCOLS:
        return read_plain_pickle(path).content, "pickle", Format.TORCH
    if start.startswith(b"\x0a"):
        return read_mindspore_file(path), "MindSpore checkpoint", Format.MINDSPORE
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointFormatError(path, "is a git-lfs pointer; fetch the file itself")
    problem = "has the content of no checkpoint that is known" if size else "is empty"
    raise CheckpointFormatError(path, f"{problem} (known: {', '.join(SUFFIXES)})")


def _read_zip(path: Path) -> tuple[Content, str, Format]:
    try:
        with OpenFile(path) as file:
            directory = read_directory(file)
    except NoArchiveError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    if any(name.endswith(b"/data.pkl") for name in directory):
        return read_torch_file(path, directory).content, "PyTorch file", Format.TORCH
    if any(name.endswith(b".npy") for name in directory):
        return read_npz(path), "NumPy archive", Format.NUMPY
    raise CheckpointFormatError(path, "is an archive without tensors")
