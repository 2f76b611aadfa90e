# SPDX-License-Identifier: Apache-2.0
"""Element metrics of two tensors, in one pass over them.

The work is done by the C extension `_elementwise` where it was built, else in NumPy. Counts,
errors, indices and quantiles are the same from both; sums differ in the last bits. Neither
depends on how the elements are cut into chunks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import UsageError
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.element_types import ElementType, element_type
from msprobe.numerics.numpy_elementwise import NumpyAccumulator
from msprobe.numerics.quantile import kept_for
from msprobe.numerics.raw_metrics import RawMetrics, element_metrics

NATIVE_VARIABLE: Final = "MSPROBE_NATIVE"
"""Environment variable: ``0`` leaves the C extension unused. Read once, at import."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Elements agree when |target - reference| <= atol + rtol · |reference|."""

    rtol: float
    atol: float


class ElementAccumulator:
    """The metrics of two tensors that come in chunks.

    Memory: 16 bytes for each thousand elements when `count` is given; else up to 32 MiB.
    """

    def __init__(
        self,
        target_dtype: str,
        reference_dtype: str,
        tolerance: Tolerance,
        *,
        count: int | None = None,
    ) -> None:
        """Start empty, for two element types, which may differ.

        Args:
            target_dtype: ``float32``, ``bfloat16`` …, without a framework's prefix.
            reference_dtype: type of the reference's elements.
            tolerance: `ElementMetrics.mismatches` counts the elements beyond it.
            count: how many elements will come, where that is known: saves time and memory.

        Raises:
            UnsupportedError: elements of such a type cannot be compared one by one.
        """
        self._types = (element_type(target_dtype), element_type(reference_dtype))
        self._storage = tuple(np.dtype(kind.storage) for kind in self._types)
        self._left = count
        self._inner = _ACCUMULATOR(*self._types, tolerance.rtol, tolerance.atol, kept_for(count))

    def update(self, target: NDArray[Any], reference: NDArray[Any]) -> None:
        """Add the next elements of both tensors.

        Args:
            target: raw elements as in `StoredTensor.array` (bfloat16 as uint16, float8 as uint8),
                flat, of either byte order.
            reference: the same elements of the reference, as many.

        Raises:
            UsageError: the arrays differ in length, or are not of the announced types or count.
        """
        if target.ndim != 1 or target.shape != reference.shape:
            raise UsageError(f"chunks of shape {target.shape} and {reference.shape} do not fit")
        if self._left is not None:
            self._left -= target.size
            if self._left < 0:
                raise UsageError(f"{-self._left} elements more than announced")
        self._inner.update(
            _native_order(target, self._storage[0]), _native_order(reference, self._storage[1])
        )

    def finish(self) -> ElementMetrics:
        """Return the metrics of all elements so far; call it once, at the end."""
        return element_metrics(self._inner.finish(), *self._types)


def compare_arrays(
    target: StoredTensor, reference: StoredTensor, tolerance: Tolerance
) -> ElementMetrics:
    """Return the element metrics of two arrays of one shape.

    Args:
        target: values under test.
        reference: trusted values.
        tolerance: `ElementMetrics.mismatches` counts the elements beyond it.

    Returns:
        Indices are in row-major order, for any memory layout.

    Raises:
        UsageError: the shapes differ.
        UnsupportedError: elements of such a type cannot be compared one by one.
    """
    if target.array.shape != reference.array.shape:
        shapes = f"{target.array.shape} and {reference.array.shape}"
        raise UsageError(f"arrays of shape {shapes} have no elements in common")
    accumulator = ElementAccumulator(
        target.dtype, reference.dtype, tolerance, count=target.array.size
    )
    accumulator.update(target.array.reshape(-1), reference.array.reshape(-1))
    return accumulator.finish()


def _native_order(array: NDArray[Any], storage: np.dtype[Any]) -> NDArray[Any]:
    """Return the elements contiguous and in this machine's byte order."""
    if array.dtype == storage and array.flags.c_contiguous:
        return array
    if array.dtype.newbyteorder("=") != storage:
        raise UsageError(f"elements stored as {array.dtype}, expected {storage}")
    return np.ascontiguousarray(array, dtype=storage)


class _Accumulator(Protocol):
    def update(self, target: NDArray[Any], reference: NDArray[Any], /) -> None: ...

    def finish(self) -> RawMetrics: ...


_Maker = Callable[[ElementType, ElementType, float, float, int], _Accumulator]


def _choose_accumulator() -> _Maker:
    """Return the accumulator in C, or the NumPy one if C is not built or is switched off."""
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return NumpyAccumulator
    try:
        module = import_module("msprobe.numerics.native_elementwise")
    except ImportError:
        return NumpyAccumulator
    accumulator: _Maker = module.NativeAccumulator
    return accumulator


_ACCUMULATOR: Final = _choose_accumulator()
