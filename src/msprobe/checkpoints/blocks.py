# SPDX-License-Identifier: Apache-2.0
"""Tensors that were cut into blocks along any of their dimensions, put together again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checkpoints.parameters import storage_dtype
from msprobe.checkpoints.spans import JoinedSpan, MemorySpan, PartSpan, Span

# Rows longer than this are put together in pieces: 64 MiB of float32.
_MAX_ROW: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a tensor: where it begins in each dimension, its shape, and its elements."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    span: Span


def joined_blocks(shape: tuple[int, ...], blocks: Sequence[Block], dtype: str) -> Span:
    """Return the elements of a tensor that was cut into blocks.

    Args:
        shape: the tensor's shape.
        blocks: its parts.
        dtype: type of its elements.

    Raises:
        ValueError: the blocks do not cover the tensor, or overlap.
    """
    blocks = [block for block in blocks if math.prod(block.shape)]
    _check_cover(shape, blocks)
    if not blocks:
        return MemorySpan(np.empty(0, storage_dtype(dtype)))
    return _joined(shape, blocks)


def _joined(shape: tuple[int, ...], blocks: Sequence[Block]) -> Span:
    if len(blocks) == 1:
        return blocks[0].span
    if all(block.shape[1:] == shape[1:] for block in blocks):
        ordered = sorted(blocks, key=lambda block: block.offset)
        return JoinedSpan([(block.span, math.prod(block.shape)) for block in ordered])
    if math.prod(shape[1:]) <= _MAX_ROW:
        return _BlocksSpan(shape, tuple(blocks))
    rows = ((_row(shape, blocks, number), math.prod(shape[1:])) for number in range(shape[0]))
    return JoinedSpan(list(rows))


def _row(shape: tuple[int, ...], blocks: Sequence[Block], number: int) -> Span:
    """Return one element of the first dimension, joined from the blocks that hold some of it."""
    parts = []
    for block in blocks:
        place = number - block.offset[0]
        if 0 <= place < block.shape[0]:
            span = PartSpan(block.span, place * math.prod(block.shape[1:]))
            parts.append(Block(block.offset[1:], block.shape[1:], span))
    return _joined(shape[1:], parts)


def _check_cover(shape: tuple[int, ...], blocks: Sequence[Block]) -> None:
    for block in blocks:
        if len(block.offset) != len(shape) or len(block.shape) != len(shape):
            raise ValueError("a part has another number of dimensions")
        for begin, size, whole in zip(block.offset, block.shape, shape, strict=True):
            if begin + size > whole:
                raise ValueError("a part lies outside")
    volume = sum(math.prod(block.shape) for block in blocks)
    if volume != math.prod(shape):
        raise ValueError(f"there are {volume} elements of {math.prod(shape)}")
    if all(block.shape[1:] == shape[1:] for block in blocks):
        ordered = sorted(blocks, key=lambda block: block.offset)
        if any(one.offset[0] + one.shape[0] != two.offset[0] for one, two in pairwise(ordered)):
            raise ValueError("parts overlap")
    elif _overlap(shape, blocks):
        raise ValueError("parts overlap")


def _overlap(shape: tuple[int, ...], blocks: Sequence[Block]) -> bool:
    """Whether two blocks share an element, found on the grid of all their borders."""
    borders = [
        sorted({border for block in blocks
                for border in (block.offset[axis], block.offset[axis] + block.shape[axis])})
        for axis in range(len(shape))
    ]  # fmt: skip
    if math.prod(len(each) for each in borders) > _MAX_ROW:
        raise ValueError("there are too many parts")
    counts = np.zeros([len(each) for each in borders], np.int32)
    for block in blocks:
        cells = tuple(
            slice(each.index(begin), each.index(begin + size))
            for each, begin, size in zip(borders, block.offset, block.shape, strict=True)
        )
        counts[cells] += 1
    return bool(counts.max() > 1)


@dataclass(frozen=True, slots=True)
class _BlocksSpan:
    """Blocks side by side; reads whole elements of the first dimension."""

    shape: tuple[int, ...]
    blocks: tuple[Block, ...]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        row = math.prod(self.shape[1:])
        if start == stop:
            return self.blocks[0].span.read(0, 0)
        first, last = start // row, -(-stop // row)
        found: NDArray[Any] | None = None
        for block in self.blocks:
            begin = max(first, block.offset[0])
            end = min(last, block.offset[0] + block.shape[0])
            if begin >= end:
                continue
            size = math.prod(block.shape[1:])
            at = begin - block.offset[0]
            part = block.span.read(at * size, (at + end - begin) * size)
            if found is None:
                found = np.empty((last - first, *self.shape[1:]), part.dtype)
            place = (slice(begin - first, end - first), *_slices(block))
            found[place] = part.reshape(end - begin, *block.shape[1:])
        assert found is not None
        return found.reshape(-1)[start - first * row : stop - first * row]


def _slices(block: Block) -> tuple[slice, ...]:
    return tuple(
        slice(begin, begin + size)
        for begin, size in zip(block.offset[1:], block.shape[1:], strict=True)
    )
