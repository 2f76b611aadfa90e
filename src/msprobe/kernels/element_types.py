# SPDX-License-Identifier: Apache-2.0
"""Types of elements in binary kernel dumps, and their bytes as NumPy arrays.

bfloat16 becomes float32, exactly. Types of less than a byte, several of which lie in one, from its
lowest bits on, become int8 or uint8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.formats.dtypes import widen


@dataclass(frozen=True, slots=True)
class ElementType:
    """A type of elements.

    Attributes:
        name: as messages name it.
        stored: NumPy type of its bytes; a byte that holds several elements is a uint8.
        bits: of one element.
        is_signed: whether packed elements have a sign.
    """

    name: str
    stored: str
    bits: int
    is_signed: bool = False

    @property
    def is_packed(self) -> bool:
        """Return whether several elements lie in a byte."""
        return self.bits < 8

    def bytes_of(self, count: int) -> int:
        """Return the bytes that so many elements take."""
        return -(-count * self.bits // 8)


def _plain(name: str) -> ElementType:
    return ElementType(name, name, np.dtype(name).itemsize * 8)


ELEMENT_TYPES: Final[dict[int, ElementType]] = {
    1: _plain("float32"),
    2: _plain("float16"),
    3: _plain("int8"),
    4: _plain("uint8"),
    5: _plain("int16"),
    6: _plain("uint16"),
    7: _plain("int32"),
    8: _plain("int64"),
    9: _plain("uint32"),
    10: _plain("uint64"),
    11: ElementType("bool", "uint8", 8),
    12: _plain("float64"),
    16: _plain("complex64"),
    17: _plain("complex128"),
    18: ElementType("qint8", "int8", 8),
    19: ElementType("qint16", "int16", 16),
    20: ElementType("qint32", "int32", 32),
    21: ElementType("quint8", "uint8", 8),
    22: ElementType("quint16", "uint16", 16),
    27: ElementType("bfloat16", "uint16", 16),
    28: ElementType("int4", "uint8", 4, is_signed=True),
    29: ElementType("uint1", "uint8", 1),
    30: ElementType("int2", "uint8", 2, is_signed=True),
    31: ElementType("uint2", "uint8", 2),
}
"""Types by the number that files give them."""

NAMES_WITHOUT_VALUES: Final = {0: "undefined", 13: "string"}
"""Numbers of types whose elements cannot be an array."""


def decode_elements(raw: bytes, kind: ElementType, count: int) -> NDArray[Any]:
    """Return elements as a flat array.

    Args:
        raw: their bytes, little-endian; `kind.bytes_of(count)` at least.
        kind: their type.
        count: how many.
    """
    stored = np.frombuffer(raw[: kind.bytes_of(count)], np.dtype(kind.stored).newbyteorder("<"))
    if kind.is_packed:
        return _unpack(stored, kind, count)
    if kind.name == "bool":
        truths: NDArray[np.bool_] = stored != 0
        return truths
    return widen(stored, kind.name)


def _unpack(stored: NDArray[np.uint8], kind: ElementType, count: int) -> NDArray[Any]:
    shifts = np.arange(0, 8, kind.bits, dtype=np.uint8)
    mask = np.uint8((1 << kind.bits) - 1)
    values = ((stored[:, None] >> shifts) & mask).reshape(-1)[:count]
    if not kind.is_signed:
        return values
    # Moved to the upper end of the byte and back, the highest bit spreads as the sign.
    empty = 8 - kind.bits
    upper: NDArray[np.int8] = (values << np.uint8(empty)).view(np.int8)
    signed: NDArray[np.int8] = np.right_shift(upper, np.int8(empty))
    return signed
