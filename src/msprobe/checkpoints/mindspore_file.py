# SPDX-License-Identifier: Apache-2.0
"""``.ckpt`` of MindSpore: a protocol buffer, read without MindSpore and without a generated parser.

    message Checkpoint  { repeated Value value = 1; }
    message Value       { string tag = 1; TensorProto tensor = 2; }
    message TensorProto { repeated int64 dims = 1; string tensor_type = 2;
                          bytes tensor_content = 3; }

A large parameter is stored in slices: entries of one tag, whose contents follow each other. Only
the structure is read; the contents stay in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from msprobe.checkpoints.parameters import MAX_DIMENSIONS, Parameter, known_type, storage_dtype
from msprobe.checkpoints.spans import FileSpan, JoinedSpan, Span, file_size
from msprobe.errors import CheckpointFormatError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TEXT_BYTES: Final = 1 << 16
_MAX_ENTRIES: Final = 5_000_000
# What follows the message when it was saved with a checksum.
_CHECKSUM_MARK: Final = b"crc_num"


def read_mindspore_file(path: Path) -> tuple[list[Parameter], list[str]]:
    """Return the parameters of a file, and notes about entries that hold no numbers.

    Raises:
        CheckpointFormatError: the file is damaged, encrypted, or no checkpoint.
    """
    size = file_size(path)
    found: dict[str, _Pending] = {}
    try:
        with path.open("rb") as file:
            reader = _Reader(path, file, size)
            for entry in reader.fields(0, size, is_top=True):
                if entry.number == 1 and entry.wire == _BYTES:
                    _read_value(reader, entry, found)
    except OSError as exc:
        raise CheckpointFormatError(path, f"cannot be read: {exc}") from exc
    parameters: list[Parameter] = []
    notes: list[str] = []
    for tag, pending in found.items():
        if known_type(pending.dtype):
            parameters.append(_parameter(path, tag, pending))
        else:
            notes.append(f"{tag}: left out, its type is {pending.dtype or 'not given'}")
    return parameters, notes


@dataclass(slots=True)
class _Pending:
    dims: tuple[int, ...]
    dtype: str
    contents: list[tuple[int, int]] = field(default_factory=list)


class _Field(NamedTuple):
    """One field of a message; `start` and `stop` enclose its bytes."""

    number: int
    wire: int
    value: int
    start: int
    stop: int


class _Reader:
    """Walks through the fields of messages; reads headers and small texts only."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self._file = file
        self._size = size
        self._entries = 0

    def fields(self, position: int, stop: int, *, is_top: bool = False) -> Iterator[_Field]:
        while position < stop:
            if is_top and self._at(position, len(_CHECKSUM_MARK)) == _CHECKSUM_MARK:
                return
            self._entries += 1
            if self._entries > _MAX_ENTRIES:
                raise self.error(f"has more than {_MAX_ENTRIES:,} entries")
            key, position = self._varint(position, stop)
            number, wire = key >> 3, key & 7
            value = 0
            if wire == _VARINT:
                start = position
                value, position = self._varint(position, stop)
            elif wire == _BYTES:
                length, start = self._varint(position, stop)
                position = start + length
            elif wire in (_FIXED64, _FIXED32):
                start = position
                position += 8 if wire == _FIXED64 else 4
            else:
                raise self.error(f"is no checkpoint of MindSpore (field type {wire})")
            if number == 0 or position > stop:
                raise self.error("is no checkpoint of MindSpore, or is cut off")
            yield _Field(number, wire, value, start, position)

    def text(self, entry: _Field) -> str:
        if entry.stop - entry.start > _MAX_TEXT_BYTES:
            raise self.error("has a name of more than 64 kB")
        try:
            return self._at(entry.start, entry.stop - entry.start).decode()
        except UnicodeDecodeError as exc:
            raise self.error("has a name that is no text") from exc

    def numbers(self, entry: _Field) -> list[int]:
        """Return an int64, or several that are packed."""
        if entry.wire == _VARINT:
            return [entry.value]
        position, found = entry.start, list[int]()
        while position < entry.stop and len(found) <= MAX_DIMENSIONS:
            value, position = self._varint(position, entry.stop)
            found.append(value)
        return found

    def error(self, problem: str) -> CheckpointFormatError:
        return CheckpointFormatError(self.path, problem)

    def _at(self, position: int, length: int) -> bytes:
        self._file.seek(position)
        return self._file.read(length)

    def _varint(self, position: int, stop: int) -> tuple[int, int]:
        value = 0
        for shift, byte in enumerate(self._at(position, min(10, stop - position))):
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return value & (1 << 64) - 1, position + shift + 1
        raise self.error("is no checkpoint of MindSpore, or is cut off")


def _read_value(reader: _Reader, value: _Field, found: dict[str, _Pending]) -> None:
    tag, tensor = "", None
    for entry in reader.fields(value.start, value.stop):
        if entry.wire == _BYTES and entry.number == 1:
            tag = reader.text(entry)
        elif entry.wire == _BYTES and entry.number == 2:
            tensor = entry
    if not tag:
        raise reader.error("is no checkpoint of MindSpore (an entry has no name)")
    if tensor is None:
        found.setdefault(tag, _Pending((), ""))
        return
    _read_tensor(reader, tag, tensor, found)


def _read_tensor(reader: _Reader, tag: str, tensor: _Field, found: dict[str, _Pending]) -> None:
    dims: list[int] = []
    dtype, content = "", None
    for entry in reader.fields(tensor.start, tensor.stop):
        if entry.number == 1:
            dims += reader.numbers(entry)
        elif entry.number == 2 and entry.wire == _BYTES:
            dtype = reader.text(entry)
        elif entry.number == 3 and entry.wire == _BYTES:
            content = (entry.start, entry.stop)
    if len(dims) > MAX_DIMENSIONS:
        raise reader.error(f"{tag!r} has {len(dims)} dimensions")
    # A single 0 stands for a number without dimensions.
    shape = () if dims == [0] else tuple(dims)
    pending = found.setdefault(tag, _Pending(shape, dtype.lower()))
    if (pending.dims, pending.dtype) != (shape, dtype.lower()):
        raise reader.error(f"the slices of {tag!r} contradict each other")
    if content is not None:
        pending.contents.append(content)


def _parameter(path: Path, tag: str, pending: _Pending) -> Parameter:
    numpy_type = storage_dtype(pending.dtype).newbyteorder("<")
    parts: list[tuple[Span, int]] = []
    for start, stop in pending.contents:
        if (stop - start) % numpy_type.itemsize:
            raise CheckpointFormatError(path, f"{tag!r} is cut within an element")
        count = (stop - start) // numpy_type.itemsize
        parts.append((FileSpan(path, start, numpy_type), count))
    needed, stored = math.prod(pending.dims), sum(count for _, count in parts)
    if needed != stored:
        raise CheckpointFormatError(
            path, f"{tag!r}: shape {list(pending.dims)} has {needed} elements, {stored} are stored"
        )
    span = (
        parts[0][0]
        if len(parts) == 1
        else JoinedSpan(parts or [(FileSpan(path, 0, numpy_type), 0)])
    )
    return Parameter(name=tag, dtype=pending.dtype, shape=pending.dims, span=span, file=path)
