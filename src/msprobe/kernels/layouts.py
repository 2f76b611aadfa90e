# SPDX-License-Identifier: Apache-2.0
"""The order in which Ascend devices store tensors, and back to the order of the program.

Devices split the channels (C) of a feature map into C1 blocks of C0, and matrices into blocks of
16 by 16, filled up with zeros. The original shape says where the filling begins.

    NC1HWC0      N  C1  H  W  C0              a feature map; NC1HWC0_C04 has C0 = 4
    NDC1HWC0     N  D  C1  H  W  C0           a feature map with depth
    FRACTAL_Z    C1·H·W  N1  N0  C0           the weight of a convolution
    FRACTAL_Z_3D D·C1·H·W  N1  N0  C0         the weight of a convolution with depth
    FRACTAL_NZ   …  N1  M1  M0  N0            matrices of M rows and N columns
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from math import prod
from typing import Any, Final

from numpy.typing import NDArray

Shape = tuple[int, ...]


class Layout(IntEnum):
    """Orders of elements, by the numbers that files give them."""

    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    FRACTAL_Z_C04 = 13
    CHWN = 14
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    DHWCN = 31
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    CN = 34
    NC = 35
    NCL = 47


class LayoutError(ValueError):
    """The elements cannot be reordered; the message says why."""


PLAIN: Final = {
    layout.name: layout
    for layout in (
        Layout.NCHW, Layout.NHWC, Layout.CHWN, Layout.HWCN, Layout.NCDHW, Layout.NDHWC,
        Layout.DHWCN, Layout.NC, Layout.CN, Layout.NCL,
    )
}  # fmt: skip
"""Orders whose name has one letter for each dimension."""

STORED: Final = "STORED"
"""Keeps the order in which the elements are stored."""

_CANONICAL: Final = ("NCHW", "NCDHW", "NC", "NCL")
# The original shape does not say in which order it counts: MindSpore's first.
_IMAGES: Final = ("NCHW", "NHWC", "HWCN", "CHWN")
_VOLUMES: Final = ("NCDHW", "NDHWC", "DHWCN")


def restore_layout(
    array: NDArray[Any], layout: Layout, original: Shape, *, groups: int = 0, wanted: str = ""
) -> tuple[NDArray[Any], str]:
    """Return the elements in the order of the program.

    Args:
        array: the elements, in the shape in which they are stored.
        layout: their order.
        original: sizes as the program sees them; empty if unknown.
        groups: groups of a convolution whose weight this is; below 2 for none.
        wanted: a name of `PLAIN` or ``ND``; empty for NCHW and its kin. Where the tensor has other
            dimensions than this name, it is as if empty.

    Returns:
        The elements without filling, and the name of their order.

    Raises:
        LayoutError: shape and order do not fit together, or the order is not known in detail.
    """
    if layout is Layout.ND:
        return _as_original(array, original), "ND"
    if layout.name in PLAIN:
        return _permuted(array, layout.name, wanted)
    if layout is Layout.FRACTAL_NZ:
        return _from_matrices(array, original), "ND"
    restore = _BLOCKED.get(layout)
    if restore is None:
        raise LayoutError(f"the layout {layout.name} ({layout.value}) cannot be converted")
    if groups > 1:
        raise LayoutError(f"the weight of a convolution with {groups} groups cannot be converted")
    restored, letters = restore(array, original)
    return _permuted(restored, letters, wanted)


def _as_original(array: NDArray[Any], original: Shape) -> NDArray[Any]:
    """Return the elements in their original shape; a device may have reshaped them."""
    if original and array.shape != original and prod(original) == array.size:
        return array.reshape(original)
    return array


def _permuted(array: NDArray[Any], letters: str, wanted: str) -> tuple[NDArray[Any], str]:
    if array.ndim != len(letters):
        raise LayoutError(f"the layout {letters} has {len(letters)} dimensions, not {array.ndim}")
    same = [name for name in (wanted, *_CANONICAL) if sorted(name) == sorted(letters)]
    target = same[0] if same else letters
    return array.transpose([letters.index(letter) for letter in target]), target


def _from_matrices(array: NDArray[Any], original: Shape) -> NDArray[Any]:
    if array.ndim < 4:
        raise LayoutError(f"the layout FRACTAL_NZ has 4 dimensions at least, not {array.ndim}")
    *batch, columns1, rows1, rows0, columns0 = array.shape
    whole = array.swapaxes(-4, -3).swapaxes(-3, -2)
    whole = whole.reshape(*batch, rows1 * rows0, columns1 * columns0)
    if not original:
        return whole
    # A vector is a matrix of one row.
    rows, columns = (1, *original)[-2:] if len(original) < 2 else original[-2:]
    if prod(original[:-2]) != prod(batch) or not (
        _fits(rows, rows1, rows0) and _fits(columns, columns1, columns0)
    ):
        raise _mismatch("FRACTAL_NZ", array.shape, original)
    return whole[..., :rows, :columns].reshape(original)


def _from_feature_map(array: NDArray[Any], original: Shape) -> tuple[NDArray[Any], str]:
    _require_rank(array, 5, "NC1HWC0")
    batch, channels1, height, width, channels0 = array.shape
    whole = array.transpose(0, 1, 4, 2, 3).reshape(batch, channels1 * channels0, height, width)
    for letters in _IMAGES:
        sizes = _by_letter(letters, original)
        if (
            sizes
            and (batch, height, width) == (sizes["N"], sizes["H"], sizes["W"])
            and _fits(sizes["C"], channels1, channels0)
        ):
            return whole[:, : sizes["C"]], "NCHW"
    if original:
        raise _mismatch("NC1HWC0", array.shape, original)
    return whole, "NCHW"


def _from_volume(array: NDArray[Any], original: Shape) -> tuple[NDArray[Any], str]:
    _require_rank(array, 6, "NDC1HWC0")
    batch, depth, channels1, height, width, channels0 = array.shape
    whole = array.transpose(0, 2, 5, 1, 3, 4)
    whole = whole.reshape(batch, channels1 * channels0, depth, height, width)
    for letters in _VOLUMES:
        sizes = _by_letter(letters, original)
        if (
            sizes
            and (batch, depth) == (sizes["N"], sizes["D"])
            and (height, width) == (sizes["H"], sizes["W"])
            and _fits(sizes["C"], channels1, channels0)
        ):
            return whole[:, : sizes["C"]], "NCDHW"
    if original:
        raise _mismatch("NDC1HWC0", array.shape, original)
    return whole, "NCDHW"


def _from_weight(array: NDArray[Any], original: Shape) -> tuple[NDArray[Any], str]:
    return _from_any_weight(array, original, "FRACTAL_Z", _IMAGES), "NCHW"


def _from_volume_weight(array: NDArray[Any], original: Shape) -> tuple[NDArray[Any], str]:
    return _from_any_weight(array, original, "FRACTAL_Z_3D", _VOLUMES), "NCDHW"


def _from_any_weight(
    array: NDArray[Any], original: Shape, name: str, candidates: tuple[str, ...]
) -> NDArray[Any]:
    _require_rank(array, 4, name)
    blocks, count1, count0, channels0 = array.shape
    for letters in candidates:
        sizes = _by_letter(letters, original)
        if not sizes:
            continue
        depth, height, width = sizes.get("D", 1), sizes["H"], sizes["W"]
        channels1 = -(-sizes["C"] // max(channels0, 1))
        if blocks != depth * channels1 * height * width or not _fits(sizes["N"], count1, count0):
            continue
        split = array.reshape(depth, channels1, height, width, count1 * count0, channels0)
        whole = split.transpose(4, 1, 5, 0, 2, 3)
        whole = whole.reshape(count1 * count0, channels1 * channels0, depth, height, width)
        whole = whole[: sizes["N"], : sizes["C"]]
        return whole if "D" in sizes else whole[:, :, 0]
    if not original:
        raise LayoutError(f"the layout {name} cannot be converted without the original shape")
    raise _mismatch(name, array.shape, original)


_BLOCKED: Final[dict[Layout, Callable[[NDArray[Any], Shape], tuple[NDArray[Any], str]]]] = {
    Layout.NC1HWC0: _from_feature_map,
    Layout.NC1HWC0_C04: _from_feature_map,
    Layout.NDC1HWC0: _from_volume,
    Layout.FRACTAL_Z: _from_weight,
    Layout.FRACTAL_Z_3D: _from_volume_weight,
}


def _by_letter(letters: str, original: Shape) -> dict[str, int]:
    return dict(zip(letters, original, strict=True)) if len(letters) == len(original) else {}


def _fits(size: int, blocks: int, block: int) -> bool:
    """Return whether so many elements take exactly these blocks."""
    return block > 0 and -(-size // block) == blocks


def _require_rank(array: NDArray[Any], rank: int, name: str) -> None:
    if array.ndim != rank:
        raise LayoutError(f"the layout {name} has {rank} dimensions, not {array.ndim}")


def _mismatch(name: str, shape: Shape, original: Shape) -> LayoutError:
    return LayoutError(
        f"the layout {name} with the sizes {list(shape)} does not fit the original "
        f"sizes {list(original)}"
    )
