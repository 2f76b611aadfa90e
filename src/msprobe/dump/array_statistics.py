# SPDX-License-Identifier: Apache-2.0
"""Statistics of an array, in the form of records, for tensors that were saved without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msprobe.dump.records import JsonTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK_ELEMENTS: Final = 1 << 20


def array_statistics(array: NDArray[Any]) -> dict[str, JsonTree]:
    """Return maximum, minimum, mean and norm, in float64, a piece at a time; counts of NaN and Inf.

    Nothing for empty arrays and for those of no real numbers; no mean and norm of truth values.
    """
    import numpy as np

    if array.size == 0 or array.dtype.kind not in "biuf":
        return {}
    if array.dtype.kind == "b":
        return {"Max": bool(array.max()), "Min": bool(array.min())}
    flat = array.ravel(order="K")
    total = squares = 0.0
    nans = rises = falls = 0
    with np.errstate(all="ignore"):  # of infinities with both signs
        for start in range(0, flat.size, _CHUNK_ELEMENTS):
            piece = flat[start : start + _CHUNK_ELEMENTS].astype(np.float64)
            total += float(piece.sum())
            squares += float(np.dot(piece, piece))
            nans += int(np.isnan(piece).sum())
            rises += int(np.isposinf(piece).sum())
            falls += int(np.isneginf(piece).sum())
        found: dict[str, JsonTree] = {
            "Max": array.max().item(),
            "Min": array.min().item(),
            "Mean": total / flat.size,
            "Norm": squares**0.5,
        }
    if nans or rises or falls:
        found |= {"nan_count": nans, "pos_inf_count": rises, "neg_inf_count": falls}
    return found
