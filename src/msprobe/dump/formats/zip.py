# SPDX-License-Identifier: Apache-2.0
"""The entries of a zip archive that is not compressed, found where they lie in the file.

Python's own `zipfile` takes over 100 µs for an archive of seven entries, more than the comparison
of a small tensor. So the usual forms of the directory are read here, and everything else (64-bit
sizes of entries, comments, several disks …) is left to `zipfile`.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msprobe.dump.crc import crc32
from msprobe.dump.open_file import FileWindow, OpenFile
from msprobe.errors import DumpFormatError

_END: Final = struct.Struct("<4sHHHHIIH")
_CENTRAL: Final = struct.Struct("<4s4xHH4xIII14xI")
_NAMED: Final = struct.Struct("<4s20xIHHH8xI")  # other fields of the same header
_LONG_END: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR: Final = struct.Struct("<4sIQI")
_LOCAL: Final = struct.Struct("<4s2xH18xHH")
_UNKNOWN_16: Final = 0xFFFF
_UNKNOWN_32: Final = 0xFFFFFFFF
_ENCRYPTED: Final = 0x1
ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    RuntimeError,  # encrypted; and NotImplementedError, an unknown compression
    ValueError,  # names that are no text, negative positions
    EOFError,
    KeyError,
    OverflowError,
    MemoryError,
)
"""Errors that `zipfile` raises for damaged archives."""


class NoArchiveError(Exception):
    """A file is no zip archive, or a damaged one."""


class Entry(NamedTuple):
    """An entry of the directory.

    Attributes:
        checksum: CRC-32 of the content.
        size: bytes of the content.
        offset: where the entry's header begins.
        is_stored: neither compressed nor encrypted.
        place: where the directory speaks of it; -1 if only `zipfile` knows.
    """

    checksum: int
    size: int
    offset: int
    is_stored: bool
    place: int = -1


Directory = Mapping[bytes, Sequence[Entry]]


def read_directory(file: OpenFile | FileWindow) -> Directory:
    """Return the entries of an archive by name; a damaged one may hold a name twice.

    Raises:
        NoArchiveError: the file is no archive that can be read.
        DumpFormatError: it cannot be read at all.
    """
    usual = _read_usual_directory(file)
    return _read_any_directory(file) if usual is None else usual


def stored_entry(file: OpenFile | FileWindow, directory: Directory, name: bytes) -> Entry:
    """Return an entry whose bytes lie in the file as they are.

    Raises:
        DumpFormatError: there is none of that name, or it is compressed.
    """
    if name not in directory:
        raise DumpFormatError(file.name, f"has no entry {name.decode(errors='replace')!r}")
    entry = directory[name][-1]
    # An entry larger than the file can only be a decompression bomb.
    if not entry.is_stored or entry.size > file.size:
        raise DumpFormatError(
            file.name, f"entry {name.decode(errors='replace')!r} is compressed or its size is a lie"
        )
    return entry


def stored_content(file: OpenFile | FileWindow, name: bytes, entry: Entry) -> bytes:
    """Return the content of an entry that `stored_entry` returned.

    Raises:
        DumpFormatError: it is damaged.
    """
    content = file.read(content_offset(file, name, entry), entry.size)
    check_checksum(file.name, entry.checksum, crc32(content))
    return content


def check_checksum(path: str, written: int, computed: int) -> None:
    """Check the content of an entry against its checksum.

    Args:
        path: the file.
        written: the checksum in the archive; 0 means none.
        computed: the checksum of the bytes that were read.

    Raises:
        DumpFormatError: it is not.
    """
    if written not in (0, computed):
        raise DumpFormatError(path, "is damaged: its content does not fit its checksum")


def content_offset(file: OpenFile | FileWindow, name: bytes, entry: Entry) -> int:
    """Return where the content of an entry begins.

    Raises:
        DumpFormatError: the entry is not where the directory says, or reaches out of the file.
    """
    if entry.offset < 0:
        raise DumpFormatError(
            file.name, f"has no entry {name.decode(errors='replace')!r} where it should be"
        )
    header = file.read(entry.offset, _LOCAL.size + len(name))
    magic, flags, name_length, extra_length = _LOCAL.unpack_from(header)
    start: int = entry.offset + _LOCAL.size
    is_named = name_length == len(name) and header.endswith(name)
    if magic != b"PK\3\4" or not is_named or flags & _ENCRYPTED:
        raise DumpFormatError(
            file.name, f"has no entry {name.decode(errors='replace')!r} where it should be"
        )
    start += name_length + extra_length
    if start + entry.size > file.size:
        raise DumpFormatError(file.name, f"ends inside its entry {name.decode(errors='replace')!r}")
    return start


def _read_usual_directory(file: OpenFile | FileWindow) -> Directory | None:
    if file.size < _END.size:
        return None
    end = file.size - _END.size
    magic, disk, first_disk, _, count, length, start, comment = _END.unpack(
        file.read(end, _END.size)
    )
    if magic != b"PK\5\6" or disk or first_disk or comment:
        return None
    if count == _UNKNOWN_16 or start == _UNKNOWN_32:
        count, length, start = _read_long_end(file, end)
    if count < 0 or start + length > end:
        return None
    text = file.read(start, length)
    places: dict[bytes, int] = {}
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > length:
            return None
        magic, size, name_length, extra_length, comment_length, offset = _NAMED.unpack_from(
            text, at
        )
        name = text[at + _CENTRAL.size : at + _CENTRAL.size + name_length]
        if magic != b"PK\1\2" or _UNKNOWN_32 in (size, offset) or not name.isascii():
            return None
        places[name] = at
        at += _CENTRAL.size + name_length + extra_length + comment_length
    # A name twice, a remainder, or a gap that hides the 64-bit form's true numbers: for zipfile.
    if len(places) != count or at != length or not _is_end_of_directory(file, start + length, end):
        return None
    return _UsualDirectory(text, start, places)


class _UsualDirectory(Directory):
    """Entries made when asked for: those of an archive of 100,000 tensors take 40 MB."""

    def __init__(self, text: bytes, start: int, places: Mapping[bytes, int]) -> None:
        self._text = text
        self._start = start
        self._places = places

    def __getitem__(self, name: bytes) -> Sequence[Entry]:
        at = self._places[name]
        _, flags, method, checksum, packed, size, offset = _CENTRAL.unpack_from(self._text, at)
        is_stored = method == 0 and packed == size and not flags & _ENCRYPTED
        return (Entry(checksum, size, offset, is_stored, self._start + at),)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _read_long_end(file: OpenFile | FileWindow, end: int) -> tuple[int, int, int]:
    """Return number of entries, length and start of a large archive's directory; -1 for none.

    Archives of more than 65,534 entries or 4 GiB have a second end record before the usual one.
    """
    begin = end - _LONG_END.size - _LOCATOR.size
    if begin < 0:
        return -1, 0, 0
    magic, _, _, _, disk, first_disk, count, total, length, start = _LONG_END.unpack(
        file.read(begin, _LONG_END.size)
    )
    mark, _, place, _ = _LOCATOR.unpack(file.read(begin + _LONG_END.size, _LOCATOR.size))
    is_known = (magic, mark, place) == (b"PK\6\6", b"PK\6\7", begin)
    if not is_known or disk or first_disk or count != total:
        return -1, 0, 0
    return count, length, start


def _is_end_of_directory(file: OpenFile | FileWindow, directory_end: int, end: int) -> bool:
    """Return whether nothing lies between the directory and its end record but a 64-bit copy."""
    gap = end - directory_end
    return gap == 0 or (gap == 76 and file.read(directory_end, 4) == b"PK\6\6")


def _read_any_directory(file: OpenFile | FileWindow) -> dict[bytes, list[Entry]]:
    try:
        with file.stream() as stream, zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
    except ZIP_ERRORS as exc:
        raise NoArchiveError(str(exc)) from exc
    entries: dict[bytes, list[Entry]] = {}
    for info in infos:
        is_utf8 = info.flag_bits & 0x800
        name = info.orig_filename.encode("utf-8" if is_utf8 else "cp437")
        is_stored = (
            info.compress_type == zipfile.ZIP_STORED
            and info.compress_size == info.file_size
            and not info.flag_bits & _ENCRYPTED
        )
        entry = Entry(info.CRC, info.file_size, info.header_offset, is_stored)
        entries.setdefault(name, []).append(entry)
    return entries
