# SPDX-License-Identifier: Apache-2.0
"""Reads the fields of a protobuf message, without its description: numbers and raw values."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

_MAX_VARINT_BYTES: Final = 10
_MASK: Final = (1 << 64) - 1


class Wire(IntEnum):
    """How a field is written."""

    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5


class MalformedMessageError(ValueError):
    """The bytes are no protobuf message; the text says why, the caller knows where."""


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
    data: memoryview


def read_fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in the order of the file.

    Raises:
        MalformedMessageError: the bytes are no message.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in _WIRES:
            raise MalformedMessageError(f"a field has the tag {tag}, which no message has")
        wire = Wire(kind)
        if wire is Wire.VARINT:
            value, place = _varint(message, place)
            yield Field(number, wire, value, message[:0])
            continue
        size = 8 if wire is Wire.FIXED64 else 4
        if wire is Wire.BYTES:
            size, place = _varint(message, place)
        if size > len(message) - place:
            raise MalformedMessageError(f"field {number} ends behind the message")
        data = message[place : place + size]
        value = 0 if wire is Wire.BYTES else int.from_bytes(data, "little")
        yield Field(number, wire, value, data)
        place += size


def read_integers(field: Field) -> Iterator[int]:
    """Yield the numbers of a repeated field: one, or several where they are packed.

    Raises:
        MalformedMessageError: the packed numbers are cut off.
    """
    if field.wire is not Wire.BYTES:
        yield field.integer
        return
    place = 0
    while place < len(field.data):
        value, place = _varint(field.data, place)
        yield value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return a number of variable length and where the next thing begins."""
    value = 0
    for count in range(_MAX_VARINT_BYTES):
        if place + count >= len(message):
            raise MalformedMessageError("it is cut off inside a number")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & _MASK, place + count + 1
    raise MalformedMessageError("a number has more than ten bytes")


_WIRES: Final = frozenset(Wire)
