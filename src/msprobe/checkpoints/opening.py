# SPDX-License-Identifier: Apache-2.0
"""`open_checkpoint`: detect the format of a checkpoint, and list its parameters.

Files are recognised by their content, so a name's extension does not matter. A folder is a Megatron
checkpoint, a sharded one with an index, or simply a folder of files.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msprobe.checkpoints.megatron import find_megatron, read_megatron
from msprobe.checkpoints.mindspore_file import read_mindspore_file
from msprobe.checkpoints.numpy_file import MAGIC as NPY_MAGIC
from msprobe.checkpoints.numpy_file import read_npy, read_npz
from msprobe.checkpoints.parameters import Checkpoint, Parameter
from msprobe.checkpoints.safetensors_file import looks_like_safetensors, read_safetensors
from msprobe.checkpoints.spans import file_size
from msprobe.checkpoints.torch_file import read_torch_file
from msprobe.checkpoints.torch_old_file import MAGIC as OLD_TORCH_MAGIC
from msprobe.checkpoints.torch_old_file import read_old_torch_file
from msprobe.dump.formats.zip import NoArchiveError, read_directory
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError, DumpFormatError, UnsupportedError
from msprobe.json_text import JSON_ERRORS, json_problem, parse_json

SUFFIXES: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy")
"""Files that are taken from a folder without an index."""

_INDEX_SUFFIX: Final = ".index.json"
_MAX_INDEX_BYTES: Final = 256 << 20
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
    try:
        return _open(Path(path))
    except DumpFormatError as exc:  # the formats themselves know of no checkpoints
        raise CheckpointFormatError(exc.path, exc.problem) from exc


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return _open_folder(path)
    if path.name.endswith(_INDEX_SUFFIX):
        return _open_index(path)
    parameters, kind, notes = _read_file(path, path.stem)
    return _checkpoint(path, kind, parameters, notes)


def _open_folder(path: Path) -> Checkpoint:
    megatron = find_megatron(path)
    if megatron is not None:
        return read_megatron(megatron)
    if (path / ".metadata").is_file() or any(path.glob("*.distcp")):
        raise UnsupportedError(
            f"{path}: is a distributed checkpoint of PyTorch; make one file of it with "
            "torch.distributed.checkpoint.format_utils.dcp_to_torch_save(folder, file)"
        )
    indexes = sorted(path.glob("*" + _INDEX_SUFFIX))
    if indexes:
        # Of two (safetensors and .bin of the same weights) the safer format is read.
        return _open_index(
            next((each for each in indexes if "safetensors" in each.name), indexes[0])
        )
    return _open_files(path)


def _open_index(path: Path) -> Checkpoint:
    """Open the shards that an index lists."""
    places = _weight_map(path)
    shards: dict[str, dict[str, Parameter]] = {}
    notes: list[str] = []
    for name in dict.fromkeys(places.values()):
        if Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointFormatError(path, f"lists the file {name!r}, which is not beside it")
        parameters, _, found_notes = _read_file(path.parent / name, name)
        shards[name] = {parameter.name: parameter for parameter in parameters}
        notes += found_notes
    found: list[Parameter] = []
    for name, shard in places.items():
        parameter = shards[shard].pop(name, None)
        if parameter is None:
            raise CheckpointFormatError(path.parent / shard, f"does not hold {name!r}")
        found.append(parameter)
    unlisted = [name for shard in shards.values() for name in shard]
    if unlisted:
        notes.append(f"{len(unlisted)} tensors are not in the index: {', '.join(unlisted[:3])} …")
    return _checkpoint(path.parent, f"{len(shards)} shards", found, notes)


def _weight_map(path: Path) -> Mapping[str, str]:
    if file_size(path) > _MAX_INDEX_BYTES:
        raise CheckpointFormatError(path, "is too large for an index")
    try:
        tree = parse_json(path.read_bytes())
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    except JSON_ERRORS as exc:
        raise CheckpointFormatError(path, json_problem(exc)) from exc
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointFormatError(path, 'has no object "weight_map" of file names')
    return places


def _open_files(path: Path) -> Checkpoint:
    """Open all files of a folder. Names that occur in several files begin with their file's."""
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
    if not files:
        known = ", ".join(SUFFIXES)
        raise CheckpointFormatError(path, f"holds no checkpoint: no index and no file of {known}")
    if len(files) > _MAX_FILES:
        raise CheckpointFormatError(path, f"holds {len(files)} files")
    notes: list[str] = []
    by_file: dict[str, list[Parameter]] = {}
    for file in files:
        stem = file.relative_to(path).with_suffix("").as_posix()
        parameters, _, found_notes = _read_file(file, stem, may_be_empty=True)
        by_file[stem] = parameters
        notes += found_notes
    counts = Counter(each.name for parameters in by_file.values() for each in parameters)
    is_ambiguous = any(count > 1 for count in counts.values())
    found = [
        _renamed(each, f"{stem}.{each.name}") if is_ambiguous else each
        for stem, parameters in by_file.items()
        for each in parameters
    ]
    kind = f"{len(files)} files" if len(files) > 1 else "1 file"
    return _checkpoint(path, kind, found, notes)


def _renamed(parameter: Parameter, name: str) -> Parameter:
    return Parameter(
        name=name,
        dtype=parameter.dtype,
        shape=parameter.shape,
        span=parameter.span,
        file=parameter.file,
    )


def _read_file(
    path: Path, stem: str, *, may_be_empty: bool = False
) -> tuple[list[Parameter], str, list[str]]:
    """Return the parameters of one file, its format, and notes."""
    size = file_size(path)
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    parameters, kind, notes = _read_known(path, stem, start, size)
    if not parameters and not notes and not may_be_empty:
        raise CheckpointFormatError(path, "holds no tensors")
    return parameters, kind, notes


def _read_known(
    path: Path, stem: str, start: bytes, size: int
) -> tuple[list[Parameter], str, list[str]]:
    notes: list[str] = []
    if start.startswith(NPY_MAGIC):
        parameters, kind = read_npy(path, stem), "NumPy array"
    elif start.startswith(b"PK\x03\x04"):
        parameters, kind, notes = _read_zip(path)
    elif start.startswith(OLD_TORCH_MAGIC):
        old = read_old_torch_file(path)
        parameters, kind, notes = old.parameters, "PyTorch file before 1.6", old.notes
    elif looks_like_safetensors(start, size):
        parameters, kind = read_safetensors(path), "safetensors"
    elif start.startswith(b"\x0a"):
        (parameters, notes), kind = read_mindspore_file(path), "MindSpore checkpoint"
    elif start.startswith(b"version https://git-lfs"):
        raise CheckpointFormatError(path, "is a git-lfs pointer; fetch the file itself")
    else:
        problem = "is no checkpoint that is known" if size else "is empty"
        raise CheckpointFormatError(path, f"{problem} (known: {', '.join(SUFFIXES)})")
    return parameters, kind, notes


def _read_zip(path: Path) -> tuple[list[Parameter], str, list[str]]:
    try:
        with OpenFile(path) as file:
            names = list(read_directory(file))
    except NoArchiveError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    if any(name.endswith(b"/data.pkl") for name in names):
        found = read_torch_file(path)
        return found.parameters, "PyTorch file", found.notes
    if any(name.endswith(b".npy") for name in names):
        parameters, notes = read_npz(path)
        return parameters, "NumPy archive", notes
    raise CheckpointFormatError(path, "is an archive without tensors")


def _checkpoint(path: Path, kind: str, parameters: list[Parameter], notes: list[str]) -> Checkpoint:
    by_name = {parameter.name: parameter for parameter in parameters}
    return Checkpoint(path=path, kind=kind, parameters=by_name, notes=tuple(notes))
