# SPDX-License-Identifier: Apache-2.0
"""Speed of the element metrics on one core, in GB/s of both tensors read, by type.

    python benchmarks/element_metrics.py [--elements 4000000] [--numpy]

CPU time, best of several runs; "alike" is a tensor compared with an equal copy, "close" one with
small errors everywhere.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from msprobe.dump.tensor_files import StoredTensor
from msprobe.numerics.element_types import element_type
from msprobe.numerics.elementwise import ElementAccumulator, Tolerance
from msprobe.numerics.numpy_elementwise import NumpyAccumulator
from msprobe.numerics.quantile import kept_for

TOLERANCE = Tolerance(rtol=1.3e-6, atol=1e-5)
CHUNK = 1 << 20
PAIRS = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float16"),
    ("float64", "float64"),
    ("float8_e4m3fn", "float8_e4m3fn"),
    ("bfloat16", "float32"),
    ("float32", "float64"),
    ("int64", "int64"),
    ("int32", "int32"),
    ("uint8", "uint8"),
    ("bool", "bool"),
    ("complex64", "complex64"),
    ("complex128", "complex128"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--numpy", action="store_true", help="also what NumPy alone reaches")
    options = parser.parse_args()
    print(f"{'GB/s':32}{'close':>8}{'alike':>8}" + (f"{'NumPy':>8}" if options.numpy else ""))
    for target_dtype, reference_dtype in PAIRS:
        target, reference = pair_of(target_dtype, reference_dtype, options.elements)
        same = replace(reference, array=reference.array.copy())
        columns = [speed(target, reference), speed(same, reference)]
        if options.numpy:
            columns.append(numpy_speed(target, reference))
        label = f"{target_dtype} {reference_dtype if reference_dtype != target_dtype else ''}"
        print(f"{label:32}" + "".join(f"{column:8.2f}" for column in columns))


def pair_of(target_dtype: str, reference_dtype: str, count: int) -> tuple[StoredTensor, ...]:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal(count, dtype=np.float32)
    target = reference + rng.standard_normal(count, dtype=np.float32) * np.float32(1e-3)
    return stored(target, target_dtype), stored(reference, reference_dtype)


def stored(values: np.ndarray, dtype: str) -> StoredTensor:
    storage = element_type(dtype).storage
    if dtype == "bfloat16":
        raw = (values.view(np.uint32) >> 16).astype(np.uint16)
    elif dtype.startswith("float8"):
        raw = (values * 16 + 48).clip(0, 120).astype(np.uint8)
    elif dtype == "bool":
        raw = values > 0
    elif "int" in dtype:
        raw = (values * 50 + 100).clip(0, 255).astype(storage)
    else:
        raw = values.astype(storage)
    return StoredTensor(array=raw, dtype=dtype)


def speed(target: StoredTensor, reference: StoredTensor) -> float:
    def run() -> None:
        count = target.array.size
        accumulator = ElementAccumulator(target.dtype, reference.dtype, TOLERANCE, count=count)
        for left, right in chunks(target, reference):
            accumulator.update(left, right)
        accumulator.finish()

    return size_bytes(target, reference) / best(run) / 1e9


def numpy_speed(target: StoredTensor, reference: StoredTensor) -> float:
    def run() -> None:
        types = (element_type(target.dtype), element_type(reference.dtype))
        keep = kept_for(target.array.size)
        accumulator = NumpyAccumulator(*types, TOLERANCE.rtol, TOLERANCE.atol, keep)
        for left, right in chunks(target, reference):
            accumulator.update(left, right)
        accumulator.finish()

    return size_bytes(target, reference) / best(run, repeat=2) / 1e9


def chunks(
    target: StoredTensor, reference: StoredTensor
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, target.array.size, CHUNK):
        piece = slice(start, start + CHUNK)
        yield target.array[piece], reference.array[piece]


def size_bytes(target: StoredTensor, reference: StoredTensor) -> int:
    return target.array.nbytes + reference.array.nbytes


def best(run: Callable[[], None], repeat: int = 7) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
