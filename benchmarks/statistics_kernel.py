# SPDX-License-Identifier: Apache-2.0
"""Speed of the statistics: the C kernels against torch's reductions, in GB/s of tensor read.

    python benchmarks/statistics_kernel.py [--threads N]

"torch, four passes" is what a straightforward tool does: max, min, mean and norm, each one pass, in
the tensor's own dtype where torch can (without the exactness that the others promise).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import timeit
import zlib
from collections.abc import Callable

import torch

from msprobe.capture.stacks import python_stack_key, stack_key
from msprobe.capture.statistics import NATIVE
from msprobe.pytorch.values.checksum import crc32_hex
from msprobe.pytorch.values.statistics import make_summarise, summarise

SIZES = {"64 KiB": 1 << 16, "64 MiB": 1 << 26}
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
BY_REDUCTIONS = make_summarise(None)


def four_passes(t: torch.Tensor) -> object:
    if t.is_complex():
        raise NotImplementedError  # torch orders no complex numbers; the table shows a dash
    x = t if t.is_floating_point() and t.itemsize > 1 else t.float()
    return t.max().item(), t.min().item(), x.mean().item(), x.norm().item()


def seconds(action: Callable[[], object], budget_s: float = 0.15) -> float:
    """Return the median time of one call."""
    action()
    once = max(timeit.timeit(action, number=1), 1e-7)
    number = max(1, int(budget_s / 5 / once))
    return statistics.median(timeit.repeat(action, number=number, repeat=5)) / number


def speed(function: Callable[[torch.Tensor], object], t: torch.Tensor) -> str:
    try:
        taken = seconds(lambda: function(t))
    except (RuntimeError, NotImplementedError):
        return "-"
    return f"{t.numel() * t.element_size() / taken / 1e9:.2f}"


def tensor_of(dtype: torch.dtype, size_bytes: int) -> torch.Tensor:
    count = size_bytes // dtype.itemsize
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype)
    return (torch.randn(count) * 8).abs().to(dtype)


def print_speeds() -> None:
    print(f"{'GB/s':24}{'C, one pass':>14}{'reductions':>14}{'four passes':>14}{'crc32':>10}")
    for dtype in DTYPES:
        for label, size in SIZES.items():
            t = tensor_of(dtype, size)
            columns = (
                speed(summarise, t) if NATIVE else "-",
                speed(BY_REDUCTIONS, t),
                speed(four_passes, t),
                speed(crc32_hex, t),
            )
            name = f"{str(dtype).removeprefix('torch.')} {label}"
            print(f"{name:24}{columns[0]:>14}{columns[1]:>14}{columns[2]:>14}{columns[3]:>10}")


def print_overheads() -> None:
    small = torch.randn(4, 4)
    print("\nfixed cost of one call, µs")
    for name, action in {
        "summarise, contiguous": lambda: summarise(small),
        "summarise, transposed": lambda: summarise(small.t()),
        "summarise, by reductions": lambda: BY_REDUCTIONS(small),
        "four passes": lambda: four_passes(small),
        "crc32_hex": lambda: crc32_hex(small),
        "zlib over numpy's bytes": lambda: zlib.crc32(small.numpy().tobytes()),
        "stack key, 20 frames": lambda: at_depth(20, lambda: stack_key(sys._getframe())),
        "the same in Python": lambda: at_depth(20, lambda: python_stack_key(sys._getframe())),
        "20 frames alone": lambda: at_depth(20, lambda: None),
    }.items():
        print(f"  {name:28}{seconds(action) * 1e6:8.2f}")


def at_depth(depth: int, action: Callable[[], object]) -> object:
    return action() if depth <= 1 else at_depth(depth - 1, action)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="threads that torch may use")
    torch.set_num_threads(parser.parse_args().threads)
    print(f"torch {torch.__version__}, C kernels {'on' if NATIVE else 'off'}\n")
    with torch.no_grad():
        print_speeds()
        print_overheads()


if __name__ == "__main__":
    main()
