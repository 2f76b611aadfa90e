# SPDX-License-Identifier: Apache-2.0
"""What `torch.save` writes: state dicts, whole modules, nested containers of tensors.

Since PyTorch 1.6 such a file is a zip archive with a pickle, ``data.pkl``, that describes the
containers and how each tensor lies on its storage, and the bytes of the storages in ``data/{key}``.
The pickle is read as data (`pickle_tree`). Tensors of one storage share its bytes, as in torch.
"""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

from msprobe.checkpoints.pickle_tree import MAX_PICKLE_BYTES, read_pickle
from msprobe.checkpoints.spans import file_size
from msprobe.checkpoints.torch_tensors import TorchFile, find_tensors
from msprobe.checkpoints.zip_members import ZIP_ERRORS, member_offset
from msprobe.errors import CheckpointFormatError


def read_torch_file(path: Path) -> TorchFile:
    """Return the tensors of a ``.pt``, ``.pth`` or ``.bin`` file.

    Raises:
        CheckpointFormatError: the file is damaged, or its sizes contradict each other.
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
    except ZIP_ERRORS as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc

    @cache
    def locate(key: str) -> tuple[int, int]:
        member = members[f"{prefix}data/{key}"]
        return member_offset(path, member), member.file_size

    return find_tensors(path, tree, locate, "big" if is_big_endian else "little")


def _prefix(path: Path, members: dict[str, zipfile.ZipInfo]) -> str:
    pickles = [name for name in members if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointFormatError(path, f"holds {len(pickles)} data.pkl entries instead of one")
    return pickles[0].removesuffix("data.pkl")
