# SPDX-License-Identifier: Apache-2.0
"""Number types: what kind they are, and how finely they resolve."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final


class Kind(StrEnum):
    """Types of one kind differ only in range and precision."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"
    COMPLEX = "complex"
    OTHER = "other"


# Distance from 1 to the next larger number. The formats: IEEE 754, bfloat16, and the 8-bit types
# as https://docs.pytorch.org/docs/stable/tensor_attributes.html lists them.
_EPSILON: Final = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "float8_e8m0fnu": 1.0,
    "hifloat8": 2.0**-2,
    "complex128": 2.0**-52,
    "complex64": 2.0**-23,
    "complex32": 2.0**-10,
}


FLOAT_TYPES: Final = frozenset(_EPSILON)
"""Normal names of all types with a resolution."""


@cache
def kind_of(dtype: str) -> Kind:
    """Return the kind of a type given by its normal name; `OTHER` for unknown ones."""
    if dtype == "bool":
        return Kind.BOOL
    if dtype.startswith(("int", "uint", "qint", "quint")):
        return Kind.INTEGER
    if dtype.startswith(("float", "bfloat", "hifloat")):
        return Kind.FLOAT
    return Kind.COMPLEX if dtype.startswith("complex") else Kind.OTHER


def epsilon_of(dtype: str) -> float:
    """Return the distance from 1 to the next number; 0 for types that hold integers exactly."""
    found = _EPSILON.get(dtype)
    if found is not None:
        return found
    return _EPSILON["float32"] if kind_of(dtype) in (Kind.FLOAT, Kind.COMPLEX) else 0.0


@cache
def coarser(first: str, second: str) -> str:
    """Return the type with the larger epsilon; the first if they are alike."""
    return second if epsilon_of(second) > epsilon_of(first) else first
