# SPDX-License-Identifier: Apache-2.0
"""The types of elements that can be compared, and what is known of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msprobe.errors import UnsupportedError


class Category(StrEnum):
    """What kind of numbers a type holds."""

    FLOAT = "float"
    COMPLEX = "complex"
    INTEGER = "integer"
    BOOLEAN = "boolean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementType:
    """One type.

    Attributes:
        name: ``float32``, ``bfloat16`` …
        storage: NumPy's name for the raw elements; bfloat16 and float8 are bit patterns.
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
        return self.storage in ("int64", "uint64")


def element_type(dtype: str) -> ElementType:
    """Return what is known of a type.

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
    """Return the type with fewer fraction bits; of two alike, the one that ends further from 0."""
    return min(first, second, key=lambda kind: (kind.fraction_bits, -kind.min_exponent))


def zero_shift(target: ElementType, reference: ElementType) -> float:
    """Return what the documented format adds to both sides where the reference is zero.

    It is the machine epsilon of the type that it computes in.
    """
    single = all(kind.has_ulp and kind.fraction_bits <= 23 for kind in (target, reference))
    return 2.0**-23 if single else 2.0**-52


def _float(name: str, storage: str, fraction_bits: int, min_exponent: int) -> ElementType:
    return ElementType(
        name=name,
        storage=storage,
        category=Category.FLOAT,
        fraction_bits=fraction_bits,
        min_exponent=min_exponent,
    )


def _complex(name: str, fraction_bits: int, min_exponent: int) -> ElementType:
    return ElementType(
        name=name,
        storage=name,
        category=Category.COMPLEX,
        fraction_bits=fraction_bits,
        min_exponent=min_exponent,
    )


# IEEE 754-2019; bfloat16; the OCP 8-bit formats and their "fnuz" variants. float8_e8m0fnu reaches
# down to 2**-127: for counting units it stands where the other formats have their subnormals.
_TYPES: Final = {
    kind.name: kind
    for kind in (
        _float("float32", "float32", 23, -126),
        _float("float16", "float16", 10, -14),
        _float("bfloat16", "uint16", 7, -126),
        _float("float64", "float64", 52, -1022),
        _float("float8_e4m3fn", "uint8", 3, -6),
        _float("float8_e4m3fnuz", "uint8", 3, -7),
        _float("float8_e5m2", "uint8", 2, -14),
        _float("float8_e5m2fnuz", "uint8", 2, -15),
        _float("float8_e8m0fnu", "uint8", 0, -126),
        _complex("complex64", 23, -126),
        _complex("complex128", 52, -1022),
        ElementType(name="bool", storage="bool", category=Category.BOOLEAN),
        *(
            ElementType(name=name, storage=name, category=Category.INTEGER)
            for name in (
                "int8",
                "int16",
                "int32",
                "int64",
                "uint8",
                "uint16",
                "uint32",
                "uint64",
            )
        ),
    )
}
