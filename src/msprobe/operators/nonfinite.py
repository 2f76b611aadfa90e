# SPDX-License-Identifier: Apache-2.0
"""NaN and infinities that a program wants: numbers that it asked for, and -Inf as in a mask."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Final

from msprobe.operators.operator import Family, Operator

_MAKES_OF_NUMBERS: Final = ("tensor", "as_tensor", "asarray", "scalar_tensor", "new_tensor")
# Operators that give -Inf only where a result leaves the range of its type, or divide by zero.
_OVERFLOWING: Final = (Family.BILINEAR, Family.CONVOLUTION, Family.MULTIPLYING, Family.PRODUCT)
_LOWEST_SHARE: Final = 0.9  # of the largest number: below its negative, a number is a mask
_LARGEST: Final = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": sys.float_info.max,
}


def largest_of(dtype: str) -> float | None:
    """Return the largest number of a floating-point type, ``torch.float16`` or ``Float16``.

    None of types whose values are never said to be near it.
    """
    return _LARGEST.get(dtype.rpartition(".")[2].lower())


def is_asked_for(operator: Operator, numbers: Iterable[float], *, only_minus_inf: bool) -> bool:
    """Return whether a call was told to make the NaN or infinities of its results.

    Args:
        operator: what it computes.
        numbers: among its arguments. A NaN or infinity that is copied (``full``, ``masked_fill``)
            is wanted; of one that is computed with, only -Inf is: 0 · -Inf is a fault.
        only_minus_inf: whether -Inf is all that is not finite in the results.
    """
    copies = operator.family is Family.MOVING or operator.name in _MAKES_OF_NUMBERS
    return (copies or only_minus_inf) and not all(map(math.isfinite, numbers))


def has_overflowed(operator: Operator, dtype: str, lows: Iterable[float]) -> bool:
    """Return whether a result with -Inf, and no NaN or +Inf, is no mask of the forward pass.

    It is none where a product, a sum of products or a quotient left the range of its type. Numbers
    that are already at its lower end stand for -Inf, as in a mask.

    Args:
        operator: what the call computes.
        dtype: type of the result.
        lows: the smallest element of each argument, and the numbers among them.
    """
    largest = largest_of(dtype)
    if largest is None or operator.family not in _OVERFLOWING:
        return False
    return all(low > _LOWEST_SHARE * -largest for low in lows)
