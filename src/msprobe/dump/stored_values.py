# SPDX-License-Identifier: Apache-2.0
"""Type checks for values that come from the JSON of a dump.

All functions raise `ValueError` with the end of a sentence that begins with the name of the key.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

from msprobe.dump.records import JsonTree, Statistic

_T = TypeVar("_T")

_FLOAT_WORDS: Final = {
    "nan": math.nan,
    "inf": math.inf,
    "infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
_NUMBERS: Final = (float, int)
_MAX_SHOWN: Final = 60


def shape_of(found: JsonTree) -> tuple[int, ...]:
    """Return a list of sizes.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(found, list):
        raise ValueError(f"is {shown_value(found)}, not a list of sizes")  # noqa: TRY004 - documented
    for size in found:
        if type(size) is not int or not 0 <= size < 1 << 63:
            raise ValueError(f"is a list with {shown_value(size)}, not a list of sizes")
    return tuple(found)


def integers_of(found: JsonTree) -> tuple[int, ...] | None:
    """Return a list of integers, or None.

    Raises:
        ValueError: it is something else.
    """
    if found is None:
        return None
    if isinstance(found, list) and all(type(item) is int for item in found):
        return tuple(found)
    raise ValueError(f"is {shown_value(found)}, not a list of integers")


def pair_of(found: JsonTree) -> tuple[float, float]:
    """Return two finite numbers.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(found, list) and len(found) == 2:
        first, second = found
        if type(first) in _NUMBERS and type(second) in _NUMBERS:
            pair = float(first), float(second)
            if math.isfinite(pair[0]) and math.isfinite(pair[1]):
                return pair
    raise ValueError(f"is {shown_value(found)}, not a list of two finite numbers")


def statistic_of(found: JsonTree) -> Statistic:
    """Return a number, a truth value or None; texts such as ``inf`` are numbers.

    Raises:
        ValueError: it is something else.
    """
    if found is None or isinstance(found, (bool, float)):
        return found
    # Integer tensors reach from the least int64 to the greatest uint64.
    if isinstance(found, int) and -(1 << 63) <= found < 1 << 64:
        return found
    if isinstance(found, str) and found.lower() in _FLOAT_WORDS:
        return _FLOAT_WORDS[found.lower()]
    raise ValueError(f"is {shown_value(found)}, not a number")


def optional_of(found: JsonTree, kind: type[_T]) -> _T | None:
    """Return a value of a type, or None.

    Raises:
        ValueError: it is something else.
    """
    if found is None or isinstance(found, kind):
        return found
    raise ValueError(f"is {shown_value(found)}, not a {kind.__name__}")


def shown_value(found: JsonTree) -> str:
    """Return a short text of any value, for a message."""
    if isinstance(found, int) and found.bit_length() > 200:
        return f"an integer of {found.bit_length()} bits"
    text = repr(found) if not isinstance(found, (dict, list)) else type(found).__name__
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
