# SPDX-License-Identifier: Apache-2.0
"""Recognise tensor files that are equal in all bytes but their elements.

A dump holds thousands of small tensors of the same few types and shapes. All of their files that
is not elements is alike, but for checksums, the archive's identifier, and the name of the folder
inside. What was found out about one such file by parsing it therefore holds for every file that
agrees with it in all other bytes, and the comparison of these bytes takes a few microseconds.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from msprobe.dump.formats.zip import Entry, content_offset
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_archive import ArchivedTensor

_CENTRAL_CHECKSUM: Final = 16  # where an entry of the directory has its checksum
_DESCRIPTOR: Final = struct.Struct("<4sIII")
_CHECKSUM: Final = struct.Struct("<I")
_FIRST_NAME: Final = 30  # where the name begins in the header of the first entry
_FIRST_FILE: Final = b"/data.pkl"


class ArchiveTemplate(NamedTuple):
    """The bytes around the elements of an archive.

    Attributes:
        folder: the folder inside.
        head: all before the elements.
        tail: all behind them, with zeros where it changes with the elements.
        start: where the elements begin.
        end: where they end.
        blanks: where the tail changes with the elements, and the zeros for it.
        checksum_at: where the tail has the checksum of the elements.
    """

    folder: bytes
    head: bytes
    tail: bytes
    start: int
    end: int
    blanks: tuple[tuple[slice, bytes], ...]
    checksum_at: int

    def checksum(self, content: bytes, folder: bytes) -> int | None:
        """Return the checksum that a file has for its elements; None if it is another kind.

        Args:
            content: the file.
            folder: the folder inside; its name is as long as that of the template's.
        """
        head, tail = content[: self.start], bytearray(content[self.end :])
        checksum: int = _CHECKSUM.unpack_from(tail, self.checksum_at)[0]
        for place, zeros in self.blanks:
            tail[place] = zeros
        if folder != self.folder:
            name, wanted = folder + b"/", self.folder + b"/"
            head, tail = head.replace(name, wanted), tail.replace(name, wanted)
        return checksum if head == self.head and tail == self.tail else None


def folder_of(content: bytes) -> bytes:
    """Return the folder inside an archive that begins with its pickle, as torch's do."""
    length = int.from_bytes(content[26:28], "little")
    name = content[_FIRST_NAME : _FIRST_NAME + length]
    return name.removesuffix(_FIRST_FILE) if name.endswith(_FIRST_FILE) else b""


def make_template(file: OpenFile, found: ArchivedTensor) -> ArchiveTemplate | None:
    """Return the template of a small file; None where its form is not the usual one."""
    content, archive = file.content, found.archive
    if content is None or folder_of(content) != archive.prefix:
        return None
    start, end = found.start, found.start + found.storage.size
    places = _checksum_places(content, found.storage, end)
    identifier_name = b"%b/.data/serialization_id" % archive.prefix
    for entry in archive.directory.get(identifier_name, ())[-1:]:
        identifier = content_offset(file, identifier_name, entry)
        places += _checksum_places(content, entry, identifier + entry.size)
        places.append((identifier, entry.size))
    if not places or any(place < end for place, _ in places):
        return None
    blanks = tuple((slice(place - end, place - end + size), bytes(size)) for place, size in places)
    tail = bytearray(content[end:])
    for place, zeros in blanks:
        tail[place] = zeros
    return ArchiveTemplate(
        folder=archive.prefix,
        head=content[:start],
        tail=bytes(tail),
        start=start,
        end=end,
        blanks=blanks,
        checksum_at=blanks[0][0].start,
    )


def _checksum_places(content: bytes, entry: Entry, end: int) -> list[tuple[int, int]]:
    """Return place and length of an entry's checksums: in the directory, and behind its content."""
    if entry.place < 0:
        return []
    places = [(entry.place + _CENTRAL_CHECKSUM, _CHECKSUM.size)]
    if end + _DESCRIPTOR.size <= len(content):
        magic, checksum, packed, size = _DESCRIPTOR.unpack_from(content, end)
        if magic == b"PK\7\x08" and (checksum, packed, size) == (
            entry.checksum, entry.size, entry.size
        ):  # fmt: skip
            places.append((end + 4, _CHECKSUM.size))
    return places
