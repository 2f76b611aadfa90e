# SPDX-License-Identifier: Apache-2.0
"""Reads `torch.save` files from before PyTorch 1.6, as many published models still are.

Five pickles follow each other: a magic number, a version, facts about the machine, the containers,
and the keys of the storages. The storages come next, each as its number of elements (8 bytes) and
its bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

from msprobe.checkpoints.pickled_tree import TorchFile, read_tree, stored_elements
from msprobe.checkpoints.spans import file_size
from msprobe.checkpoints.torch_file import MAX_PICKLE_BYTES
from msprobe.dump.formats.dtypes import STORAGE_TYPES, item_size
from msprobe.dump.formats.pickle import PersistentId, read_pickle
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading

MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_VERSION: Final = 1001


def read_old_torch_file(path: Path) -> TorchFile:
    """Return the tensors of a file.

    Raises:
        CheckpointFormatError: the file is damaged, or its sizes contradict each other.
    """
    references: list[PersistentId] = []
    with (
        reading(path, CheckpointFormatError, ValueError, AttributeError, TypeError, IndexError),
        path.open("rb") as file,
    ):
        limited: Any = _Limited(file, min(file_size(path), MAX_PICKLE_BYTES))
        _, version, facts = (read_pickle(limited) for _ in range(3))
        tree = read_pickle(limited, references)
        keys = read_pickle(limited)
        if version != _VERSION or not isinstance(facts, dict) or not isinstance(keys, list):
            raise CheckpointFormatError(path, f"is of an unknown version ({version!r:.20})")
        places = _places(path, file, keys, _item_sizes(references))
    is_big_endian = facts.get("little_endian") is False
    return read_tree(path, tree, places.__getitem__, "big" if is_big_endian else "little")


class _Limited:
    """A file whose reads are refused beyond an end, before memory is taken for them."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._end = end

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        if size < 0 or size > self._end - self._file.tell():
            raise ValueError("a pickle reaches beyond the file")
        return self._file.read(size)

    def readline(self) -> bytes:
        """Return the next line."""
        return self._file.readline(1 << 16)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


def _item_sizes(references: list[PersistentId]) -> dict[str, int]:
    """Return the bytes of an element by the key of the storage."""
    found: dict[str, int] = {}
    for reference in references:
        _, storage_type, key, *_ = reference.value
        dtype = stored_elements(storage_type)
        if dtype not in STORAGE_TYPES:
            raise ValueError(f"holds elements of an unknown type ({dtype})")
        found[key] = item_size(dtype)
    return found


def _places(
    path: Path, file: BinaryIO, keys: list[Any], item_sizes: dict[str, int]
) -> dict[str, tuple[int, int]]:
    """Return begin and size of each storage, which lie behind the pickles."""
    end = file_size(path)
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        if key not in item_sizes:
            raise ValueError(f"no tensor says what lies in storage {key!r:.40}")
        begin, size_bytes = file.tell(), count * item_sizes[key]
        if size_bytes > end - begin:
            raise ValueError(f"storage {key!r:.40} reaches beyond the file")
        places[key] = (begin, size_bytes)
        file.seek(begin + size_bytes)
    return places
