# SPDX-License-Identifier: Apache-2.0
"""Whether one tensor is another one rounded to a coarser type, element by element and exactly."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checkpoints.parameters import PIECE_ELEMENTS, Parameter
from msprobe.dump.formats.dtypes import widen

_TYPES: Final = ("bfloat16", "float16", "float32", "float64")
"""From coarse to fine."""
_BYTES: Final = {"float16": 2, "float32": 4, "float64": 8}
_LOWEST_BIT: Final = np.uint32(1)


def rounded_type(target: Parameter, reference: Parameter) -> str | None:
    """Return the type to which one of two parameters is rounded and otherwise equal to the other.

    Where both have the same type, one of them may have been rounded and widened again.

    Args:
        target: a parameter.
        reference: one of as many elements.

    Returns:
        ``bfloat16`` …, None if neither is the other one rounded.

    Raises:
        CheckpointFormatError: a file cannot be read.
    """
    types = {target.dtype, reference.dtype}
    if not types <= set(_TYPES):
        return None
    if len(types) == 2:
        coarse, fine = sorted((target, reference), key=lambda item: _TYPES.index(item.dtype))
        return coarse.dtype if is_rounding(fine, coarse, coarse.dtype) else None
    for dtype in _TYPES[: _TYPES.index(target.dtype)]:
        for fine, coarse in ((reference, target), (target, reference)):
            if is_rounding(fine, coarse, dtype) and _goes_both_ways(fine, coarse):
                return dtype
    return None


def is_rounding(fine: Parameter, coarse: Parameter, dtype: str) -> bool:
    """Return whether a parameter is another one rounded to a type, element by element."""
    for one, other in zip(fine.pieces(), coarse.pieces(), strict=True):
        expected = rounded(widen(one, fine.dtype), dtype)
        if not np.array_equal(expected, widen(other, coarse.dtype), equal_nan=True):
            return False
    return True


def _goes_both_ways(fine: Parameter, coarse: Parameter) -> bool:
    """Whether some elements were rounded up and some down; a shift of simple numbers is neither."""
    count = min(fine.count, PIECE_ELEMENTS)
    one, other = (widen(item.span.read(0, count), item.dtype) for item in (fine, coarse))
    errors = np.sign(one.astype(np.float64) - other)
    return bool((errors > 0).any() and (errors < 0).any())


def rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return numbers rounded to a type, to nearest, ties to even; widened for bfloat16."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore", invalid="ignore"):
            narrow: NDArray[Any] = values.astype(f"f{_BYTES[dtype]}")
            return narrow
    bits = _as_float32(values).view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> 16) & _LOWEST_BIT)) & np.uint32(0xFFFF0000)
    found: NDArray[Any] = upper.view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), found)


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32 so that rounding these once more rounds as if it were once.

    float64 is rounded to odd: towards zero, with the lowest bit set where that was not exact.
    """
    if values.dtype.itemsize <= 4:
        return np.ascontiguousarray(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        near = values.astype(np.float32)
        wide = near.astype(np.float64)
        cut = np.where(np.abs(wide) > np.abs(values), np.nextafter(near, np.float32(0)), near)
    inexact = (wide != values) & np.isfinite(values)
    bits = cut.astype(np.float32).view(np.uint32) | inexact.astype(np.uint32)
    odd: NDArray[np.float32] = bits.view(np.float32)
    return odd
