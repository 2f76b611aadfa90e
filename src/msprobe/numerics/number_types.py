# SPDX-License-Identifier: Apache-2.0
"""Number types: what kind they are, and how finely they resolve."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Final

from msprobe.dump.formats.dtypes import COMPLEX_PARTS, FLOATS


class Kind(StrEnum):
    """Types of one kind differ only in range and precision."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"
    COMPLEX = "complex"
    OTHER = "other"


WHOLE: Final = frozenset((Kind.BOOL, Kind.INTEGER))
"""Kinds of numbers that do not round."""

_EPSILON: Final = {
    **{name: kind.epsilon for name, kind in FLOATS.items()},
    **{name: FLOATS[part].epsilon for name, part in COMPLEX_PARTS.items()},
    # Types that no file holds, but records name.
    "hifloat8": 2.0**-2,
    "complex32": FLOATS["float16"].epsilon,
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


@cache
def epsilon_of(dtype: str) -> float:
    """Return the distance from 1 to the next number; 0 for types that hold integers exactly."""
    found = _EPSILON.get(dtype)
    if found is not None:
        return found
    return _EPSILON["float32"] if kind_of(dtype) in (Kind.FLOAT, Kind.COMPLEX) else 0.0


@cache
def coarser(first: str, second: str) -> str:
    """Return the type with the larger epsilon; the first at a tie."""
    return second if epsilon_of(second) > epsilon_of(first) else first
