# SPDX-License-Identifier: Apache-2.0
"""Writes one dense tensor as the ``.pt`` file that ``torch.save`` would write, byte for byte.

``torch.save`` takes over 100 µs of Python a file, beside a training thread that waits for the
interpreter meanwhile. All that depends on dtype and shape alone is made once here and kept; a
further tensor costs its CRC-32, a few patched fields and one ``writev``.

The file is a zip archive of stored entries, each starting at a multiple of 64 bytes: a pickle that
describes the tensor, notes on the format, the elements, and an identifier made of the entries'
names and checksums. Sizes and checksums follow each entry, as in a stream. Everything here is for
files well below 4 GiB; `MAX_BYTES` is checked by the caller.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import mul
from typing import Final, NamedTuple

from msprobe.dump.crc import crc32
from msprobe.dump.formats.dtypes import PACKED_TYPES, STORAGE_TYPES, TORCH_STORAGES, item_size

MAX_BYTES: Final = 1 << 31
"""Larger values need the 64-bit form of zip archives."""

TYPED_STORAGES: Final = {dtype: storage for storage, dtype in TORCH_STORAGES.items()}
"""Types with a storage class of their own, and its name."""
UNTYPED: Final = frozenset(STORAGE_TYPES) - TYPED_STORAGES.keys() - PACKED_TYPES
"""Newer types, which torch stores as bytes and names apart."""

_PREFIX: Final = "archive"  # as torch.save names the folder when it writes to a buffer
_ALIGNMENT: Final = 64
_BEFORE: Final = (
    (".format_version", b"1"),
    (".storage_alignment", b"64"),
    ("byteorder", sys.byteorder.encode()),
)
_UTF8_AND_DESCRIPTOR: Final = 0x0808
_LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")
_DESCRIPTOR: Final = struct.Struct("<4sIII")
_CHECKSUM: Final = struct.Struct("<I")
_END_64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR_64: Final = struct.Struct("<4sIQI")
_END: Final = struct.Struct("<4sHHHHIIH")
# torch's hash of the seven entry names, the first half of the identifier.
_NAMES_HASH: Final = b"15728199511854643026"
_ID_BYTES: Final = 40
_MASK: Final = (1 << 64) - 1


class _Template(NamedTuple):
    """The file around the elements; the offsets say where the checksums go in `tail`."""

    head: bytes
    tail: bytes
    data_checksums: tuple[int, int]
    hash_before: int  # of the checksums of the entries before the elements
    version_checksum: int
    identifier: int
    identifier_checksums: tuple[int, int]


def write_archive(path: str, dtype: str, shape: tuple[int, ...], memory: memoryview) -> int:
    """Write a contiguous tensor to a new file; return the file's size.

    Args:
        path: the file.
        dtype: one of `TYPED_STORAGES` or `UNTYPED`.
        shape: its sizes, none of them 0.
        memory: its elements as they lie, fewer than `MAX_BYTES`.

    Raises:
        OSError: the disk refused.
    """
    size_bytes = len(memory)
    template = _template(dtype, shape, size_bytes)
    checksum = crc32(memory)
    tail = bytearray(template.tail)
    for offset in template.data_checksums:
        _CHECKSUM.pack_into(tail, offset, checksum)
    checksums = _combine(_combine(template.hash_before, checksum), template.version_checksum)
    identifier = b"%b%020d" % (_NAMES_HASH, checksums)
    start = template.identifier
    tail[start : start + _ID_BYTES] = identifier
    checksum = crc32(identifier)
    for offset in template.identifier_checksums:
        _CHECKSUM.pack_into(tail, offset, checksum)
    pieces = (template.head, memory, tail)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        wanted = len(template.head) + size_bytes + len(tail)
        written = os.writev(descriptor, pieces)
        if written < wanted:
            _write_rest(descriptor, pieces, written)
    finally:
        os.close(descriptor)
    return wanted


def _write_rest(
    descriptor: int, pieces: Sequence[bytes | bytearray | memoryview], done: int
) -> None:
    """Continue after a short write; a full disk raises here."""
    for piece in pieces:
        view = memoryview(piece)
        view, done = view[done:], max(0, done - len(view))
        while view:
            view = view[os.write(descriptor, view) :]


@lru_cache(maxsize=4096)
def _template(dtype: str, shape: tuple[int, ...], size_bytes: int) -> _Template:
    archive = _Archive()
    pickled = _pickle_of(dtype, shape, size_bytes)
    checksums = [archive.add("data.pkl", pickled)]
    checksums += [archive.add(name, content) for name, content in _BEFORE]
    hash_before = 0
    for one in checksums:
        hash_before = _combine(hash_before, one)
    head = archive.open("data/0", size_bytes)
    archive.parts = []
    start = archive.size
    data = (archive.close(0), len(archive.entries) - 1)
    version = archive.add("version", b"3\n")
    archive.open(".data/serialization_id", _ID_BYTES)
    identifier = archive.size - _ID_BYTES - start
    archive.parts.append(bytes(_ID_BYTES))
    last = (archive.close(0), len(archive.entries) - 1)
    directory = archive.finish()
    tail = b"".join(archive.parts)
    places = [
        (in_descriptor - start, directory[entry] - start) for in_descriptor, entry in (data, last)
    ]
    return _Template(head, tail, places[0], hash_before, version, identifier, places[1])


class _Entry(NamedTuple):
    name: bytes
    checksum: int
    size: int
    offset: int


class _Archive:
    """An archive being built; the elements themselves are counted, not held."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.entries: list[_Entry] = []

    def add(self, name: str, content: bytes) -> int:
        """Append an entry; return its checksum."""
        self.open(name, len(content))
        self.parts.append(content)
        checksum = crc32(content)
        self.close(checksum)
        return checksum

    def open(self, name: str, size: int) -> bytes:
        """Append the header of an entry; return all bytes so far."""
        path = f"{_PREFIX}/{name}".encode()
        offset = self.size
        # The padding is an extra field, "FB", whose own four bytes count too.
        used = offset + _LOCAL.size + len(path)
        padding = -used % _ALIGNMENT
        if padding < 4:
            padding += _ALIGNMENT
        flags = _UTF8_AND_DESCRIPTOR
        header = _LOCAL.pack(b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, 0, len(path), padding)
        extra = b"FB" + (padding - 4).to_bytes(2, "little") + b"Z" * (padding - 4)
        self.entries.append(_Entry(path, 0, size, offset))
        self.parts.append(header + path + extra)
        self.size = used + padding + size
        return b"".join(self.parts)

    def close(self, checksum: int) -> int:
        """Append the descriptor of the newest entry; return the position of its checksum."""
        entry = self.entries[-1] = self.entries[-1]._replace(checksum=checksum)
        self.parts.append(_DESCRIPTOR.pack(b"PK\7\x08", checksum, entry.size, entry.size))
        self.size += _DESCRIPTOR.size
        return self.size - _DESCRIPTOR.size + 4

    def finish(self) -> list[int]:
        """Append the directory; return the position of each entry's checksum in it."""
        start, places = self.size, []
        for path, checksum, size, offset in self.entries:
            places.append(self.size + 16)
            fixed = _CENTRAL.pack(
                b"PK\1\2", 0, 0, _UTF8_AND_DESCRIPTOR, 0, 0, 0, checksum, size, size, len(path),
                0, 0, 0, 0, 0, offset,
            )  # fmt: skip
            self.parts.append(fixed + path)
            self.size += len(fixed) + len(path)
        count, length = len(self.entries), self.size - start
        self.parts += [
            _END_64.pack(b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, length, start),
            _LOCATOR_64.pack(b"PK\6\7", 0, self.size, 1),
            _END.pack(b"PK\5\6", 0, 0, count, count, length, start, 0),
        ]
        return places


def _combine(seed: int, value: int) -> int:
    """Mix a value into a 64-bit hash, as torch does."""
    return seed ^ ((value + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & _MASK)


def _pickle_of(dtype: str, shape: tuple[int, ...], size_bytes: int) -> bytes:
    """Return ``data.pkl``: a call that rebuilds the tensor from its storage (protocol 2)."""
    typed = TYPED_STORAGES.get(dtype)
    version, storage = (b"2", b"torch\n%b" % typed.encode()) if typed else (b"3", _BYTES)
    count = size_bytes // item_size(dtype) if typed else size_bytes
    strides = tuple(accumulate(chain((1,), reversed(shape[1:])), mul))[::-1] if shape else ()
    puts = _Puts()
    parts = [
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v" + version + b"\n" + puts.next(),
        b"((" + _text("storage") + puts.next() + b"c" + storage + b"\n" + puts.next(),
        _text("0") + puts.next() + _text("cpu") + puts.next() + _integer(count) + b"t",
        puts.next() + b"Q" + _integer(0),
        _tuple(shape, puts) + _tuple(strides, puts),
        b"\x89ccollections\nOrderedDict\n" + puts.next() + b")R" + puts.next(),
    ]
    if not typed:
        parts.append(b"ctorch\n" + dtype.encode() + b"\n" + puts.next())
    parts += [b"t" + puts.next(), b"R" + puts.next(), b"."]
    return b"".join(parts)


_BYTES: Final = b"torch.storage\nUntypedStorage"


class _Puts:
    """Numbers of the pickler's memo entries."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> bytes:
        self._count += 1
        return b"q" + bytes((self._count - 1,))


def _text(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + value.to_bytes(1, "little")
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    return b"J" + value.to_bytes(4, "little")  # below `MAX_BYTES`


def _tuple(values: tuple[int, ...], puts: _Puts) -> bytes:
    if not values:
        return b")"
    numbers = b"".join(map(_integer, values))
    if len(values) > 3:
        return b"(" + numbers + b"t" + puts.next()
    return numbers + bytes((0x84 + len(values),)) + puts.next()
