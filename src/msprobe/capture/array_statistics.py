# SPDX-License-Identifier: Apache-2.0
"""The summary of a NumPy array, for adapters whose tensors lie in host memory.

The meaning of the numbers: `msprobe.capture.statistics`. With the C kernels one pass over the
memory gives all of them; without, NumPy does, in float64.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.capture.projections import project
from msprobe.capture.statistics import (
    NATIVE,
    NonFinite,
    RawStatistics,
    Summary,
    from_raw,
    raw_of,
)


def summarise_array(array: NDArray[Any]) -> Summary:
    """Return the summary of an array of any layout; the array is only read."""
    raw = _native_statistics(array)
    return summarise_by_numpy(array) if raw is None else from_raw(raw)


def raw_statistics(array: NDArray[Any]) -> RawStatistics:
    """Same as `summarise_array`, in the form of the C kernels and without the note."""
    return _native_statistics(array) or raw_of(summarise_by_numpy(array))[0]


def _native_statistics(array: NDArray[Any]) -> RawStatistics | None:
    """Return what the C kernels find, None where they are missing or do not know the type."""
    kind = _native_kind(array.dtype)
    if NATIVE is None or kind is None:
        return None
    whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return NATIVE.stats(kind, whole.__array_interface__["data"][0], whole.size)


@cache
def _native_kind(dtype: np.dtype[Any]) -> int | None:
    """Return the number of a type in the C kernels, None where they do not know it."""
    return NATIVE.kinds.get(dtype.name) if NATIVE is not None and dtype.isnative else None


def summarise_by_numpy(array: NDArray[Any]) -> Summary:
    """Same as `summarise_array`, without the C kernels."""
    if array.size == 0:
        return Summary()
    summary = _summarise(array)
    if summary.note is None:
        summary.projections = project(array)
    return summary


def _summarise(array: NDArray[Any]) -> Summary:
    kind = array.dtype.kind
    if kind == "b":
        return Summary(bool(array.any()), bool(array.all()))
    if kind in "iu":
        return _integers(array)
    if kind == "c":
        return _floats(np.abs(array.astype(np.complex128)))
    try:
        return _floats(array.astype(np.float64))  # bfloat16 and float8 are NumPy extension types
    except (TypeError, ValueError):
        return Summary(note=f"unreadable: {array.dtype}")


def _integers(array: NDArray[Any]) -> Summary:
    total = sum(int(part) for part in _exact_sums(array))
    wide = array.astype(np.float64)
    norm = math.sqrt(math.fsum(np.square(wide).ravel()))
    return Summary(int(array.max()), int(array.min()), total / array.size, norm)


def _exact_sums(array: NDArray[Any]) -> list[Any]:
    if array.dtype.itemsize < 8:
        return [array.sum(dtype=object)]
    # The halves of a 64-bit integer add up without overflow as long as there are below 2**31.
    low = (array & 0xFFFFFFFF).astype(np.uint64).sum(dtype=np.uint64)
    high = (array >> 32).sum(dtype=object)
    return [int(low), int(high) << 32]


def _floats(wide: NDArray[np.float64]) -> Summary:
    finite = wide[np.isfinite(wide)]
    with np.errstate(all="ignore"):
        largest = float(np.abs(wide).max())
        if math.isfinite(largest) and largest > 0.0:
            # Scaled by a power of two, so that no square overflows or vanishes.
            scale = 2.0 ** (math.frexp(largest)[1] - 1)
            norm = scale * math.sqrt(float(np.square(wide / scale).sum()))
        else:
            norm = largest
        summary = Summary(
            float(wide.max()) + 0.0, float(wide.min()) + 0.0, float(wide.mean()), norm
        )
    if finite.size != wide.size:
        summary.nonfinite = NonFinite(
            int(np.isnan(wide).sum()),
            int(np.isposinf(wide).sum()),
            int(np.isneginf(wide).sum()),
            float(finite.max()) if finite.size else None,
            float(finite.min()) if finite.size else None,
        )
    return summary
