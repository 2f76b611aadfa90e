# SPDX-License-Identifier: Apache-2.0
"""Element types that can be compared, with their number formats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msprobe.dump.formats.dtypes import COMPLEX_PARTS, FLOATS, PACKED_TYPES, STORAGE_TYPES
from msprobe.errors import UnsupportedError


class Category(StrEnum):
    """Kind of numbers that a type holds."""

    FLOAT = "float"
    COMPLEX = "complex"
    INTEGER = "integer"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """One type.

    Attributes:
        name: ``float32``, ``bfloat16`` …
        storage: NumPy's type of the raw elements; bfloat16 and float8 are bit patterns.
        category: what kind of numbers.
        fraction_bits: stored bits of the significand, of a part for complex numbers; 0 for
            integers.
        min_exponent: smallest normal number is two to this power.
    """

    name: str
    storage: str
    category: Category
    fraction_bits: int = 0
    min_exponent: int = 0

    @property
    def has_ulp(self) -> bool:
        """Whether distances can be counted in units in the last place."""
        return self.category in (Category.FLOAT, Category.COMPLEX)

    @property
    def is_long(self) -> bool:
        """Whether float64 cannot hold every value."""
        return self.storage in ("i8", "u8")


def element_type(dtype: str) -> ElementType:
    """Return the properties of an element type.

    Raises:
        UnsupportedError: its elements are no numbers, or are packed.
    """
    try:
        return _TYPES[dtype]
    except KeyError:
        known = ", ".join(_TYPES)
        message = f"elements of type {dtype!r} cannot be compared one by one; known are {known}"
        raise UnsupportedError(message) from None


def coarser(first: ElementType, second: ElementType) -> ElementType:
    """Return the type with fewer fraction bits; at a tie, the one of the smaller range."""
    return min(first, second, key=lambda kind: (kind.fraction_bits, -kind.min_exponent))


def zero_shift(target: ElementType, reference: ElementType) -> float:
    """Return the offset that the documented format adds to both sides where the reference is zero.

    It is the machine epsilon of the type that it computes in.
    """
    single = all(kind.has_ulp and kind.fraction_bits <= 23 for kind in (target, reference))
    return 2.0**-23 if single else 2.0**-52


def _known(name: str, storage: str) -> ElementType:
    part = FLOATS.get(COMPLEX_PARTS.get(name, name))
    category = Category.BOOLEAN if name == "bool" else Category.INTEGER
    if part is not None:
        category = Category.COMPLEX if name in COMPLEX_PARTS else Category.FLOAT
    return ElementType(
        name=name,
        storage=storage,
        category=category,
        fraction_bits=0 if part is None else part.fraction_bits,
        min_exponent=0 if part is None else part.min_exponent,
    )


_TYPES: Final = {
    name: _known(name, storage)
    for name, storage in STORAGE_TYPES.items()
    if name not in PACKED_TYPES
}
