# SPDX-License-Identifier: Apache-2.0
"""Reads `torch.save` files, and pickles: state dicts, whole modules, nested containers of tensors.

The pickle is read as data. Tensors of one storage share its bytes, as in torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msprobe.checkpoints.pickled_tree import ByteOrder, TorchFile, no_storage, read_tree
from msprobe.checkpoints.spans import file_size
from msprobe.dump.formats.pickle import read_pickle
from msprobe.dump.formats.torch_archive import SpecialTensorError, open_torch_archive
from msprobe.dump.formats.zip import Directory, NoArchiveError
from msprobe.dump.open_file import OpenFile
from msprobe.errors import CheckpointFormatError
from msprobe.files import reading
from msprobe.plain_text import reason

MAX_PICKLE_BYTES: Final = 256 << 20


def read_plain_pickle(path: Path) -> TorchFile:
    """Return the entries of a pickle without an archive around it, such as NumPy arrays.

    Raises:
        CheckpointFormatError: it cannot be read, or is larger than `MAX_PICKLE_BYTES`.
    """

    if file_size(path) > MAX_PICKLE_BYTES:
        raise CheckpointFormatError(path, "is too large for a pickle without an archive")
    with reading(path, CheckpointFormatError, ValueError):
        return read_tree(path, read_pickle(path.read_bytes()), no_storage, "little")


def read_torch_file(path: Path, directory: Directory | None = None) -> TorchFile:
    """Return the entries of a ``.pt``, ``.pth`` or ``.bin`` file.

    Args:
        path: the file.
        directory: its entries as an archive, if they were read before.

    Raises:
        CheckpointFormatError: the file holds no pickle that can be read.
        DumpFormatError: it is damaged, or its sizes contradict each other.
    """
    try:
        with OpenFile(path) as file:
            archive = open_torch_archive(file, directory)
            tree = read_pickle(archive.pickle(MAX_PICKLE_BYTES))

            def locate(key: str) -> tuple[int, int]:
                start, entry = archive.storage(key)
                return start, entry.size

            order: ByteOrder = "big" if archive.is_big_endian else "little"
            return read_tree(path, tree, locate, order)
    except (NoArchiveError, ValueError) as exc:
        raise CheckpointFormatError(path, f"cannot be read: {reason(exc)}") from exc
    except SpecialTensorError as exc:
        raise CheckpointFormatError(path, "data.pkl is too large") from exc
