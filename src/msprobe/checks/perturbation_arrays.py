# SPDX-License-Identifier: Apache-2.0
"""Perturb NumPy arrays and measure how results differ, for frameworks whose values come as such."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.perturbation import Change
from msprobe.numerics.number_types import Kind, epsilon_of, kind_of

Array = NDArray[Any]
RELATIVE_SHARE: Final = 0.75
"""Relative noise is epsilon to this power: far above roundings, far below the numbers."""


def one_ulp_smaller(values: Array) -> Array:
    """Return floating-point elements of which half are one number of their type nearer to zero.

    The others, zeros, NaN and infinities stay.
    """
    bits = values.view(f"u{values.dtype.itemsize}")
    wide = values.astype(np.float64)
    moves = _chosen(values.shape) & np.isfinite(wide) & (wide != 0)
    found: Array = (bits - moves.astype(bits.dtype)).view(values.dtype)
    return found


def relatively_smaller(values: Array, dtype: str) -> Array:
    """Return floating-point elements of which half are smaller by some digits' worth.

    Args:
        values: the elements.
        dtype: normal name of their type.
    """
    size = epsilon_of(dtype) ** RELATIVE_SHARE
    found: Array = (values.astype(np.float64) * (1 - size * _chosen(values.shape))).astype(
        values.dtype
    )
    return found


def _chosen(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which elements move: always the same."""
    return np.random.default_rng(0).integers(0, 2, shape).astype(bool)


def change_of_arrays(index: int, dtype: str, result: Array, changed: Array) -> Change:
    """Return how a result differs from that of the perturbed call.

    Args:
        index: which output.
        dtype: normal name of its type.
        result: its elements.
        changed: those of the perturbed call.
    """
    known: dict[str, Any] = {
        "output_index": index,
        "dtype": dtype,
        "shape": tuple(result.shape),
        "count": result.size,
    }
    if result.shape != changed.shape:
        return Change(**known, reshaped=tuple(changed.shape))
    if result.dtype == changed.dtype:
        known["differing"], known["first"] = _differing(result, changed)
    if kind_of(dtype) is not Kind.FLOAT or not result.size:
        return Change(**known)
    one, other = (array.astype(np.float64).reshape(-1) for array in (result, changed))
    sound = np.isfinite(one) & np.isfinite(other)
    odd = ~sound & ~((one == other) | (np.isnan(one) & np.isnan(other)))
    one, other = np.where(sound, one, 0.0), np.where(sound, other, 0.0)
    size, moved = float(np.linalg.norm(one)), np.abs(other - one)
    known["nonfinite"] = int(np.count_nonzero(odd))
    if not size:
        return Change(**known, relative=math.inf if moved.any() else 0.0, cancels=True)
    scale = size / math.sqrt(one.size)
    _, exponent = np.frexp(np.maximum(np.abs(one), scale))
    floor = scale * math.sqrt(epsilon_of(dtype))
    smaller, larger = np.sort(np.maximum(np.abs([one, other]), floor), axis=0)
    return Change(
        **known,
        relative=float(np.linalg.norm(moved)) / size,
        worst_ulp=float((moved / np.ldexp(epsilon_of(dtype), exponent - 1)).max()),
        ratio=float((larger / smaller).max()) - 1.0,
        flips=bool(((one * other) < -(floor**2)).any()),
        size=scale,
    )


def _differing(result: Array, changed: Array) -> tuple[int, int | None]:
    """Return how many elements differ in any bit, and the first of them."""
    one, other = (
        np.ascontiguousarray(array).view(f"V{array.dtype.itemsize}").reshape(-1)
        for array in (result, changed)
    )
    different = one != other
    count = int(np.count_nonzero(different))
    return count, int(np.argmax(different)) if count else None
