# SPDX-License-Identifier: Apache-2.0
"""Writes binary kernel dumps from the description of their format, and lays tensors out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .protobuf import block, number, varint


def shape_message(shape: tuple[int, ...], packed: bool = True) -> bytes:
    if packed:
        return block(1, b"".join(map(varint, shape)))
    return b"".join(number(1, size) for size in shape)


@dataclass
class Value:
    io: str
    data_type: int
    layout: int
    shape: tuple[int, ...]
    raw: bytes
    original: tuple[int, ...] = ()
    sub_layout: int = 0
    size: int | None = None
    packed: bool = True

    def message(self) -> bytes:
        size, original, sub = (6, 7, 8) if self.io == "output" else (5, 6, 7)
        return b"".join(
            [
                number(1, self.data_type),
                number(2, self.layout),
                block(3, shape_message(self.shape, self.packed)),
                number(size, len(self.raw) if self.size is None else self.size),
                block(original, shape_message(self.original, self.packed)),
                number(sub, self.sub_layout),
            ]
        )


def binary(values: list[Value], *, extra: bytes = b"") -> bytes:
    ordered = [value for io in ("output", "input") for value in values if value.io == io]
    header = block(1, b"2.0") + number(2, 1_795_182_233_644_492)
    for value in ordered:
        header += block(3 if value.io == "output" else 4, value.message())
    header += block(5, number(1, 1)) + block(6, b"Default/MatMul-op1") + extra
    return struct.pack("<Q", len(header)) + header + b"".join(value.raw for value in ordered)


def write(path: Path, values: list[Value]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(binary(values))
    return path


def padded(array: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Fill up with a number that must not come back."""
    out = np.full(sizes, 77, array.dtype)
    out[tuple(map(slice, array.shape))] = array
    return out


def blocks(size: int, block_size: int) -> int:
    return -(-size // block_size)


# Each is written element by element, from the definition of its layout.


def to_nc1hwc0(x: np.ndarray, c0: int) -> np.ndarray:
    n, c, h, w = x.shape
    out = np.full((n, blocks(c, c0), h, w, c0), 77, x.dtype)
    for place in np.ndindex(n, c, h, w):
        i, j, k, m = place
        out[i, j // c0, k, m, j % c0] = x[place]
    return out


def to_ndc1hwc0(x: np.ndarray, c0: int) -> np.ndarray:
    n, c, d, h, w = x.shape
    out = np.full((n, d, blocks(c, c0), h, w, c0), 77, x.dtype)
    for place in np.ndindex(*x.shape):
        i, j, e, k, m = place
        out[i, e, j // c0, k, m, j % c0] = x[place]
    return out


def to_fractal_z(x: np.ndarray, n0: int, c0: int) -> np.ndarray:
    n, c, h, w = x.shape
    out = np.full((blocks(c, c0) * h * w, blocks(n, n0), n0, c0), 77, x.dtype)
    for place in np.ndindex(*x.shape):
        i, j, k, m = place
        out[(j // c0 * h + k) * w + m, i // n0, i % n0, j % c0] = x[place]
    return out


def to_fractal_z_3d(x: np.ndarray, n0: int, c0: int) -> np.ndarray:
    n, c, d, h, w = x.shape
    c1 = blocks(c, c0)
    out = np.full((d * c1 * h * w, blocks(n, n0), n0, c0), 77, x.dtype)
    for place in np.ndindex(*x.shape):
        i, j, e, k, m = place
        out[((e * c1 + j // c0) * h + k) * w + m, i // n0, i % n0, j % c0] = x[place]
    return out


def to_fractal_nz(x: np.ndarray, m0: int, n0: int) -> np.ndarray:
    *batch, m, n = x.shape
    out = np.full((*batch, blocks(n, n0), blocks(m, m0), m0, n0), 77, x.dtype)
    for place in np.ndindex(*x.shape):
        *b, i, j = place
        out[(*b, j // n0, i // m0, i % m0, j % n0)] = x[place]
    return out
