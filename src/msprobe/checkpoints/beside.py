# SPDX-License-Identifier: Apache-2.0
"""Files beside the weights: configurations, states of trainers, tokenizers.

Files of one name are compared: JSON value by value, any others by their bytes. A file that only one
side has is no difference of the weights, which may be in another layout, but it was not compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from msprobe.checkpoints.parameters import Checkpoint, Unread, Value
from msprobe.checkpoints.pickled_tree import no_storage, read_tree
from msprobe.checkpoints.spans import file_size
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading
from msprobe.json_text import JSON_ERRORS, parse_json

# They say where the weights are, or how to convert them, and formats read what they need of them.
_ABOUT_THE_FORMAT: Final = (
    "latest", "latest_checkpointed_iteration.txt", "zero_to_fp32.py", "ds_config.json",
)  # fmt: skip
_MAX_JSON_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 1 << 20


def with_files_beside(
    target: Checkpoint, reference: Checkpoint, known: tuple[str, ...]
) -> tuple[Checkpoint, Checkpoint]:
    """Return two checkpoints with the files beside their weights among their values.

    Args:
        target: the checkpoint under test.
        reference: the trusted one.
        known: ends of names of files that checkpoints consist of, which are read anyway.

    Raises:
        CheckpointFormatError: a file cannot be read.
    """
    files, others = (_beside(each, known) for each in (target, reference))
    if not files and not others:
        return target, reference
    own, there = list[Value](), list[Value]()
    for name in sorted(files.keys() & others.keys()):
        one, other = _contents(name, files[name], others[name])
        own += one
        there += other
    return (
        _with(target, own, sorted(files.keys() - others.keys())),
        _with(reference, there, sorted(others.keys() - files.keys())),
    )


def _beside(checkpoint: Checkpoint, known: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of the folders that a checkpoint was read from, by their relative path."""
    root = checkpoint.path
    if not root.is_dir():
        return {}
    read = {each.file for each in checkpoint.parameters.values()}
    read |= {each.file for each in checkpoint.values.values()}
    folders = {root, *(file.parent for file in read if file.is_relative_to(root))}
    return {
        file.relative_to(root).as_posix(): file
        for folder in folders
        for file in folder.iterdir()
        if not file.name.startswith(".")
        and file.name not in _ABOUT_THE_FORMAT
        and not file.name.endswith(known)
        and file not in read
        and file.is_file()
    }


def _with(checkpoint: Checkpoint, values: list[Value], unmatched: list[str]) -> Checkpoint:
    problem = "the other side has no file of this name"
    unread = [Unread(name=name, path=(name,), problem=problem) for name in unmatched]
    found = {**checkpoint.values, **{item.name: item for item in values}}
    return replace(checkpoint, values=found, unread=(*checkpoint.unread, *unread))


def _contents(name: str, one: Path, other: Path) -> tuple[list[Value], list[Value]]:
    """Return what two files of one name hold; of equal ones, or of unknown ones, their digests."""
    digests = _digest(one), _digest(other)
    if digests[0] != digests[1] and name.endswith(".json"):
        try:
            return _json_values(name, one), _json_values(name, other)
        except (CheckpointFormatError, *JSON_ERRORS):
            pass  # no JSON after all: the bytes are compared
    return _value(name, one, digests[0]), _value(name, other, digests[1])


def _value(name: str, file: Path, digest: str) -> list[Value]:
    content = f"{file_size(file):,} bytes, {digest[:16]}"
    return [Value(name=name, path=(name,), content=content, file=file)]


def _json_values(name: str, file: Path) -> list[Value]:
    if file_size(file) > _MAX_JSON_BYTES:
        raise CheckpointFormatError(file, "is too large")
    tree = parse_json(file.read_bytes())
    return read_tree(file, tree, no_storage, "little", root=(name,)).content.values


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with reading(file, CheckpointFormatError), file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
