# SPDX-License-Identifier: Apache-2.0
"""Reads the fields of a protobuf message, without its description: numbers and where bytes lie.

Contents stay in the file until they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

_MAX_VARINT_BYTES: Final = 10
_MASK: Final = (1 << 64) - 1


class Source(Protocol):
    """Anything that is read by position, such as an `OpenFile`."""

    def read(self, offset: int, length: int, /) -> bytes:
        """Return bytes."""


class Memory(NamedTuple):
    """A source in memory."""

    content: bytes

    def read(self, offset: int, length: int, /) -> bytes:
        """Return bytes."""
        return self.content[offset : offset + length]


class Wire(IntEnum):
    """Wire type of a field."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class MalformedMessageError(ValueError):
    """The bytes are no protobuf message; the text says why, the caller knows where."""


class Message(NamedTuple):
    """Bytes of a source: a message, a text or other bytes, depending on the field.

    Attributes:
        source: where they are.
        start: where they begin in it.
        stop: where they end.
    """

    source: Source
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.stop - self.start

    def fields(self, *, end_mark: bytes = b"") -> Iterator[Field]:
        """Yield the fields of a message in the order of the file.

        Args:
            end_mark: bytes that end the message before its stop, where a field would begin.

        Raises:
            MalformedMessageError: the bytes are no message.
        """
        place = self.start
        while place < self.stop:
            if end_mark and self._bytes(place, len(end_mark)) == end_mark:
                return
            tag, place = self._varint(place)
            number, kind = tag >> 3, tag & 7
            if number == 0 or kind not in _WIRES:
                raise MalformedMessageError(f"a field has the tag {tag}, which no message has")
            wire, value, start = Wire(kind), 0, place
            if wire is Wire.VARINT:
                value, place = self._varint(place)
            elif wire is Wire.BYTES:
                length, start = self._varint(place)
                place = start + length
            else:
                place += 8 if wire is Wire.FIXED64 else 4
                value = int.from_bytes(self._bytes(start, place - start), "little")
            if place > self.stop:
                raise MalformedMessageError(f"field {number} ends behind the message")
            yield Field(number, wire, value, Message(self.source, start, place))

    def text(self, limit: int) -> str:
        """Return the bytes as text.

        Raises:
            MalformedMessageError: they are none, or are more than `limit`.
        """
        if self.size > limit:
            raise MalformedMessageError(f"has a name of more than {limit} bytes")
        try:
            return self._bytes(self.start, self.size).decode()
        except UnicodeDecodeError as exc:
            raise MalformedMessageError("has a name that is no text") from exc

    def integers(self) -> Iterator[int]:
        """Yield numbers that are packed.

        Raises:
            MalformedMessageError: the last one is cut off.
        """
        place = self.start
        while place < self.stop:
            value, place = self._varint(place)
            yield value

    def _bytes(self, place: int, length: int) -> bytes:
        return self.source.read(place, max(min(length, self.stop - place), 0))

    def _varint(self, place: int) -> tuple[int, int]:
        """Return a number of variable length and where the next thing begins."""
        value = 0
        found = self._bytes(place, _MAX_VARINT_BYTES)
        for count, byte in enumerate(found):
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                return value & _MASK, place + count + 1
        if len(found) < _MAX_VARINT_BYTES:
            raise MalformedMessageError("it is cut off inside a number")
        raise MalformedMessageError("a number has more than ten bytes")


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: the field's number, from 1.
        wire: how it is written.
        integer: its value, if it is a number.
        data: its value, if it is text, bytes, a message or a packed list.
    """

    number: int
    wire: Wire
    integer: int
    data: Message

    def integers(self) -> Iterator[int]:
        """Yield the numbers of a repeated field: one, or several where they are packed.

        Raises:
            MalformedMessageError: the packed numbers are cut off.
        """
        if self.wire is Wire.BYTES:
            yield from self.data.integers()
        else:
            yield self.integer


_WIRES: Final = frozenset(Wire)
