# SPDX-License-Identifier: Apache-2.0
"""Every implementation of the element metrics, and tensors to try them on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.element_types import element_type, zero_shift
from msprobe.numerics.elementwise import Tolerance
from msprobe.numerics.numpy_elementwise import NumpyAccumulator
from msprobe.numerics.quantile import kept_for
from msprobe.numerics.raw_metrics import RawMetrics, element_metrics

try:
    from msprobe.numerics import _elementwise, native_elementwise
except ImportError:
    IMPLEMENTATIONS = ["numpy"]
else:
    IMPLEMENTATIONS = ["numpy", *_elementwise.use_isa(None)]

FLOAT8 = [
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
FLOATS = ["float64", "float32", "float16", "bfloat16", *FLOAT8]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPLEX = ["complex64", "complex128"]
ALL_TYPES = [*FLOATS, *INTEGERS, "bool", *COMPLEX]


def measure_raw(
    implementation: str,
    target: StoredTensor,
    reference: StoredTensor,
    tolerance: Tolerance,
    cuts: Sequence[int] = (),
    count: int | None = None,
) -> RawMetrics:
    """Feed flat tensors, cut at these places."""
    types = (element_type(target.dtype), element_type(reference.dtype))
    size = target.array.size
    keep = kept_for(size if count is None else count)
    if implementation == "numpy":
        accumulator: Any = NumpyAccumulator(*types, tolerance.rtol, tolerance.atol, keep)
    else:
        _elementwise.use_isa(implementation)
        accumulator = native_elementwise.NativeAccumulator(
            *types, tolerance.rtol, tolerance.atol, keep
        )
    try:
        edges = [0, *sorted(cuts), size]
        for start, end in pairwise(edges):
            accumulator.update(target.array[start:end], reference.array[start:end])
        return accumulator.finish()
    finally:
        if implementation != "numpy":
            _elementwise.use_isa(None)


def measure(
    implementation: str,
    target: StoredTensor,
    reference: StoredTensor,
    tolerance: Tolerance,
    cuts: Sequence[int] = (),
) -> ElementMetrics:
    raw = measure_raw(implementation, target, reference, tolerance, cuts)
    return element_metrics(raw, element_type(target.dtype), element_type(reference.dtype))


def shift_of(target: StoredTensor, reference: StoredTensor) -> float:
    return zero_shift(element_type(target.dtype), element_type(reference.dtype))


def stored(values: Any, dtype: str) -> StoredTensor:
    """Make a tensor of a type that NumPy has."""
    return StoredTensor(array=np.array(values, dtype=dtype), dtype=dtype)


def random_bits(rng: np.random.Generator, dtype: str, count: int) -> StoredTensor:
    """Draw any bit patterns: NaN, infinities and subnormal numbers among them."""
    storage = np.dtype(element_type(dtype).storage)
    if storage == np.bool_:
        return StoredTensor(array=rng.integers(0, 2, count).astype(np.bool_), dtype=dtype)
    raw = rng.integers(0, 256, count * storage.itemsize, dtype=np.uint8).view(storage)
    return StoredTensor(array=raw, dtype=dtype)


def moderate(rng: np.random.Generator, dtype: str, count: int) -> StoredTensor:
    """Draw numbers between -3 and 3, as the type can say them."""
    values = rng.uniform(-3, 3, count)
    kind = element_type(dtype)
    if dtype in COMPLEX:
        values = values + 1j * rng.uniform(-3, 3, count)
    if dtype == "bfloat16":
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    elif dtype in FLOAT8:
        table = StoredTensor(array=np.arange(256, dtype=np.uint8), dtype=dtype).values()
        usable = np.flatnonzero(np.abs(np.nan_to_num(table, nan=99)) < 3).astype(np.uint8)
        raw = rng.choice(usable, count)
    elif dtype in ("uint8", "uint16", "uint32", "uint64"):
        raw = np.abs(values * 20).astype(dtype)
    elif dtype == "bool":
        raw = values > 0
    else:
        raw = (values * 20 if dtype in INTEGERS else values).astype(kind.storage)
    return StoredTensor(array=raw, dtype=dtype)


def nudged(rng: np.random.Generator, tensor: StoredTensor, share: float) -> StoredTensor:
    """Change the last bits of some elements."""
    raw = tensor.array.copy()
    if raw.dtype == np.bool_:
        return StoredTensor(array=raw ^ (rng.random(raw.size) < share), dtype=tensor.dtype)
    word = raw.view(f"u{min(raw.dtype.itemsize, 8)}")
    change = rng.integers(0, 4, word.size).astype(word.dtype) * (rng.random(word.size) < share)
    return StoredTensor(
        array=(word ^ change.astype(word.dtype)).view(raw.dtype), dtype=tensor.dtype
    )
