# SPDX-License-Identifier: Apache-2.0
"""The element metrics by the C extension; importing this fails where it was not built."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics import _elementwise
from msprobe.numerics.element_types import Category, ElementType, coarser, zero_shift
from msprobe.numerics.raw_metrics import Extreme, RawMetrics, Scaled


class NativeAccumulator:
    """Element metrics of a stream of chunks; the GIL is released over large ones."""

    def __init__(
        self,
        target_type: ElementType,
        reference_type: ElementType,
        rtol: float,
        atol: float,
        keep: int,
    ) -> None:
        unit = coarser(target_type, reference_type)
        has_ulp = target_type.has_ulp and reference_type.has_ulp
        self._inner = _elementwise.Accumulator(
            _kind(target_type),
            _kind(reference_type),
            _table(target_type),
            _table(reference_type),
            rtol,
            atol,
            zero_shift(target_type, reference_type),
            unit.fraction_bits if has_ulp else -1,
            unit.min_exponent,
            keep,
        )

    def update(self, target: NDArray[Any], reference: NDArray[Any]) -> None:
        """Take the next elements: raw, contiguous, equally many."""
        self._inner.update(target, reference)

    def finish(self) -> RawMetrics:
        """Return the raw metrics of all elements so far."""
        raw = RawMetrics(*self._inner.finish())
        return raw._replace(
            target_squares=Scaled(*raw.target_squares),
            reference_squares=Scaled(*raw.reference_squares),
            products=Scaled(*raw.products),
            error_squares=Scaled(*raw.error_squares),
            errors=Scaled(*raw.errors),
            largest=None if raw.largest is None else Extreme(*raw.largest),
            largest_relative=(
                None if raw.largest_relative is None else Extreme(*raw.largest_relative)
            ),
        )


def _kind(kind: ElementType) -> int:
    name = "table" if _is_table(kind) else kind.name
    return _elementwise.KINDS[name]


def _is_table(kind: ElementType) -> bool:
    return kind.category is Category.FLOAT and kind.storage == "u1"


@cache
def _table(kind: ElementType) -> bytes | None:
    """Return the values of all codes of an 8-bit type, as float64."""
    if not _is_table(kind):
        return None
    codes = StoredTensor(array=np.arange(256, dtype=np.uint8), dtype=kind.name)
    return codes.values().astype(np.float64).tobytes()
