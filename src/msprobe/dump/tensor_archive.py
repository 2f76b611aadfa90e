# SPDX-License-Identifier: Apache-2.0
"""A ``.pt`` file with one tensor, found and read without torch and without running a pickle."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msprobe.dump.crc import crc32
from msprobe.dump.formats.pickle import read_pickle
from msprobe.dump.formats.torch_archive import (
    Layout,
    SpecialTensorError,
    TorchArchive,
    open_torch_archive,
    read_layout,
)
from msprobe.dump.formats.zip import Entry, NoArchiveError, check_checksum
from msprobe.dump.open_file import OpenFile
from msprobe.errors import DumpFormatError
from msprobe.plain_text import reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

# torch writes about 200 bytes; a tensor subclass a few thousand.
_MAX_PICKLE_BYTES: Final = 1 << 20
_USUAL_PICKLE_BYTES: Final = 1 << 11


class ArchivedTensor(NamedTuple):
    """A tensor in an archive, its elements not read yet.

    Attributes:
        archive: the archive.
        layout: where the elements lie on the storage.
        start: where the storage begins in the file.
        storage: its entry, whose checksum is 0 where torch was told not to compute it.
    """

    archive: TorchArchive
    layout: Layout
    start: int
    storage: Entry


def find_tensor(file: OpenFile) -> ArchivedTensor:
    """Return where the tensor in a ``.pt`` file lies; reads nothing of its elements.

    Raises:
        SpecialTensorError: not a plain dense tensor.
        DumpFormatError: the file is damaged, or its sizes contradict each other.
    """
    try:
        archive = open_torch_archive(file)
    except NoArchiveError as exc:
        if file.read(0, min(file.size, 1)) == b"\x80":
            # torch before 1.6 wrote bare pickles.
            raise SpecialTensorError("is in torch's old format") from exc
        raise DumpFormatError(file.name, f"is not a readable .pt archive: {reason(exc)}") from exc
    key, layout = _layout(file.name, archive.pickle(_MAX_PICKLE_BYTES))
    start, entry = archive.storage(key)
    layout.check_extent(file.name, entry.size // layout.itemsize)
    return ArchivedTensor(archive, layout, start, entry)


def read_archive(file: OpenFile) -> tuple[NDArray[Any], str]:
    """Return the tensor in a ``.pt`` file and its dtype's name.

    bfloat16 comes as uint16, float8 as uint8 bit patterns.

    Raises:
        SpecialTensorError: not a plain dense tensor.
        DumpFormatError: the file is damaged, or its sizes contradict each other.
    """
    found = find_tensor(file)
    raw = file.read(found.start, found.storage.size)
    check_checksum(file.name, found.storage.checksum, crc32(raw))
    order = ">" if found.archive.is_big_endian else "<"
    return _build(found.layout, raw, order), found.layout.dtype


def _layout(path: str, pickled: bytes) -> tuple[str, Layout]:
    try:
        if len(pickled) <= _USUAL_PICKLE_BYTES:
            return _usual_layout(pickled)
        return read_layout(read_pickle(pickled))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as exc:
        raise DumpFormatError(path, f"data.pkl is damaged: {exc}") from exc


# A dump holds thousands of tensors of the same few shapes, and their pickles are alike to the byte.
@lru_cache(maxsize=1024)
def _usual_layout(pickled: bytes) -> tuple[str, Layout]:
    return read_layout(read_pickle(pickled))


def _build(layout: Layout, raw: bytes, byte_order: str) -> NDArray[Any]:
    import numpy as np

    dtype = np.dtype(byte_order + layout.storage_type)
    if not layout.count:
        return np.zeros(layout.shape, dtype=dtype.newbyteorder("="))
    storage = np.frombuffer(raw, dtype=dtype, count=len(raw) // dtype.itemsize)
    steps = [step * dtype.itemsize for step in layout.stride]
    view = np.lib.stride_tricks.as_strided(
        storage[layout.offset :], shape=layout.shape, strides=steps, writeable=False
    )
    array = view.astype(dtype.newbyteorder("="), copy=False)
    if layout.conjugate:
        array = np.conj(array)
    return -array if layout.negative else array
