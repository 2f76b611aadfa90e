# SPDX-License-Identifier: Apache-2.0
"""Fields of protocol buffers."""

from __future__ import annotations


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, content: bytes) -> bytes:
    """Return a field of bytes with its length."""
    return varint(field << 3 | 2) + varint(len(content)) + content
