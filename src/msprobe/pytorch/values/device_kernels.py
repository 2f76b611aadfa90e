# SPDX-License-Identifier: Apache-2.0
"""Kernels in Triton that read a tensor once for all statistics and projections.

A part of a tensor is read by one program, block by block. A tensor of one part has its row at once;
of a larger one, a second kernel joins what the parts have put into a scratch. Sums are added in
float64, in an order that depends on the number of elements alone: two runs, on whatever GPU, have
the same bits. Columns of a row: `device_statistics`.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

ROW_COLUMNS: Final = 13
MOST_PROGRAMS: Final = 1024
"""A power of two: how many parts a tensor is read in, at most."""
SCRATCH_ROWS: Final = 9
BLOCK: Final = 1008
"""Elements with the same repeated signs: see `msprobe.capture.projections`."""
BLOCKS: Final = 2
LANES: Final = 1024
"""The power of two that holds a block."""

# These would be compiled anew for numbers that are 1 or divisible by 16.
_ANY_NUMBER: Final = (
    *("row", "count", "size1", "size2", "size3"),
    *("step0", "step1", "step2", "step3"),
)
_ANY_PROGRAMS: Final = ("row", "programs")


@triton.jit
def _place(index, size1, size2, size3, step0, step1, step2, step3):
    """Return where the elements of a strided tensor of four dimensions lie."""
    rest = index // size3
    last = index - rest * size3
    outer = rest // size2
    third = rest - outer * size2
    first = outer // size1
    second = outer - first * size1
    return first * step0 + second * step1 + third * step2 + last * step3


@triton.jit
def _random(n):
    """Return the n-th output of splitmix64, as `msprobe.capture.projections` defines the signs."""
    z = 2035 + (n + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _signs(signs, blocks, lanes):
    """Return whether the elements of blocks of 1008 count as they are, in either projection."""
    drawn = _random(blocks.to(tl.uint64) + 11)
    place = lanes % 144
    first = tl.load(signs + (drawn >> 55).to(tl.int32) + place)
    second = tl.load(signs + ((drawn >> 46) & 511).to(tl.int32) + place)
    return first != 0, second != 0


@triton.jit(do_not_specialize=_ANY_NUMBER)
def read_floats(
    values,
    scratch,
    floats,
    words,
    signs,
    row,
    count,
    size1,
    size2,
    size3,
    step0,
    step1,
    step2,
    step3,
    IS_FLAT: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Reduce a part of a tensor: into its row if it is all, else into a column of the scratch."""
    program = tl.program_id(0)
    lanes = tl.arange(0, LANES)[None, :]
    blocks = tl.arange(0, BLOCKS)[:, None] + program.to(tl.int64) * BLOCKS
    inf = float("inf")
    total = tl.zeros([BLOCKS, LANES], tl.float64)
    squares = tl.zeros([BLOCKS, LANES], tl.float64)
    high = tl.full([BLOCKS, LANES], -inf, tl.float32)
    low = tl.full([BLOCKS, LANES], inf, tl.float32)
    nans = tl.zeros([BLOCKS, LANES], tl.int32)
    ups = tl.zeros([BLOCKS, LANES], tl.int32)
    downs = tl.zeros([BLOCKS, LANES], tl.int32)
    first = tl.zeros([BLOCKS, LANES], tl.float64)
    second = tl.zeros([BLOCKS, LANES], tl.float64)
    start = program.to(tl.int64) * BLOCKS * 1008
    while start < count:
        index = blocks * 1008 + lanes
        is_here = (index < count) & (lanes < 1008)
        if IS_FLAT:
            place = index
        else:
            place = _place(index, size1, size2, size3, step0, step1, step2, step3)
        x = tl.load(values + place, mask=is_here, other=0.0).to(tl.float32)
        is_finite = is_here & (tl.abs(x) < inf)
        nans += (x != x).to(tl.int32)
        ups += (x == inf).to(tl.int32)
        downs += (x == -inf).to(tl.int32)
        high = tl.maximum(high, tl.where(is_finite, x, -inf))
        low = tl.minimum(low, tl.where(is_finite, x, inf))
        wide = tl.where(is_finite, x, 0.0).to(tl.float64)
        total += wide
        squares += wide * wide
        signs1, signs2 = _signs(signs, blocks, lanes)
        first += tl.where(signs1, wide, -wide)
        second += tl.where(signs2, wide, -wide)
        blocks += tl.num_programs(0).to(tl.int64) * BLOCKS
        start += tl.num_programs(0).to(tl.int64) * BLOCKS * 1008
    _write_floats(
        tl.sum(total),
        tl.sum(squares),
        tl.sum(first),
        tl.sum(second),
        tl.max(high).to(tl.float64),
        tl.min(low).to(tl.float64),
        tl.sum(nans.to(tl.int64)),
        tl.sum(ups.to(tl.int64)),
        tl.sum(downs.to(tl.int64)),
        scratch,
        floats,
        words,
        row,
        program,
        IS_WHOLE,
        PROGRAMS,
    )


@triton.jit
def _write_floats(
    total,
    squares,
    first,
    second,
    high,
    low,
    nans,
    ups,
    downs,
    scratch,
    floats,
    words,
    row,
    program,
    IS_WHOLE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    if IS_WHOLE:
        nan = float("nan")
        inf = float("inf")
        start = row.to(tl.int64) * 13
        top = tl.where(ups > 0, inf, tl.where(high < low, -inf, high))
        bottom = tl.where(downs > 0, -inf, tl.where(high < low, inf, low))
        tl.store(floats + start, tl.where(nans > 0, nan, top))
        tl.store(floats + start + 1, tl.where(nans > 0, nan, bottom))
        tl.store(floats + start + 2, total)
        tl.store(floats + start + 3, squares)
        tl.store(floats + start + 4, high)
        tl.store(floats + start + 5, low)
        tl.store(floats + start + 11, first)
        tl.store(floats + start + 12, second)
        tl.store(words + start + 7, nans)
        tl.store(words + start + 8, ups)
        tl.store(words + start + 9, downs)
    else:
        tl.store(scratch + program, total)
        tl.store(scratch + PROGRAMS + program, squares)
        tl.store(scratch + 2 * PROGRAMS + program, high)
        tl.store(scratch + 3 * PROGRAMS + program, low)
        tl.store(scratch + 4 * PROGRAMS + program, nans.to(tl.float64))
        tl.store(scratch + 5 * PROGRAMS + program, ups.to(tl.float64))
        tl.store(scratch + 6 * PROGRAMS + program, downs.to(tl.float64))
        tl.store(scratch + 7 * PROGRAMS + program, first)
        tl.store(scratch + 8 * PROGRAMS + program, second)


@triton.jit(do_not_specialize=_ANY_PROGRAMS)
def join_floats(
    scratch,
    floats,
    words,
    row,
    programs,
    PROGRAMS: tl.constexpr,
):
    """Reduce the scratch into a row."""
    lanes = tl.arange(0, PROGRAMS)
    is_here = lanes < programs
    inf = float("inf")
    total = tl.load(scratch + lanes, mask=is_here, other=0.0)
    squares = tl.load(scratch + PROGRAMS + lanes, mask=is_here, other=0.0)
    high = tl.load(scratch + 2 * PROGRAMS + lanes, mask=is_here, other=-inf)
    low = tl.load(scratch + 3 * PROGRAMS + lanes, mask=is_here, other=inf)
    nans = tl.load(scratch + 4 * PROGRAMS + lanes, mask=is_here, other=0.0)
    ups = tl.load(scratch + 5 * PROGRAMS + lanes, mask=is_here, other=0.0)
    downs = tl.load(scratch + 6 * PROGRAMS + lanes, mask=is_here, other=0.0)
    first = tl.load(scratch + 7 * PROGRAMS + lanes, mask=is_here, other=0.0)
    second = tl.load(scratch + 8 * PROGRAMS + lanes, mask=is_here, other=0.0)
    _write_floats(
        tl.sum(total, 0),
        tl.sum(squares, 0),
        tl.sum(first, 0),
        tl.sum(second, 0),
        tl.max(high, 0),
        tl.min(low, 0),
        tl.sum(nans, 0).to(tl.int64),
        tl.sum(ups, 0).to(tl.int64),
        tl.sum(downs, 0).to(tl.int64),
        scratch,
        floats,
        words,
        row,
        0,
        True,
        PROGRAMS,
    )


@triton.jit(do_not_specialize=_ANY_NUMBER)
def read_integers(
    values,
    scratch,
    floats,
    words,
    signs,
    row,
    count,
    size1,
    size2,
    size3,
    step0,
    step1,
    step2,
    step3,
    IS_FLAT: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Same as `read_floats` for integers, whose sum goes in two halves of 32 bits."""
    program = tl.program_id(0)
    lanes = tl.arange(0, LANES)[None, :]
    blocks = tl.arange(0, BLOCKS)[:, None] + program.to(tl.int64) * BLOCKS
    squares = tl.zeros([BLOCKS, LANES], tl.float64)
    high = tl.full([BLOCKS, LANES], -0x7FFFFFFFFFFFFFFF - 1, tl.int64)
    low = tl.full([BLOCKS, LANES], 0x7FFFFFFFFFFFFFFF, tl.int64)
    lower = tl.zeros([BLOCKS, LANES], tl.int64)
    upper = tl.zeros([BLOCKS, LANES], tl.int64)
    first = tl.zeros([BLOCKS, LANES], tl.float64)
    second = tl.zeros([BLOCKS, LANES], tl.float64)
    start = program.to(tl.int64) * BLOCKS * 1008
    while start < count:
        index = blocks * 1008 + lanes
        is_here = (index < count) & (lanes < 1008)
        if IS_FLAT:
            place = index
        else:
            place = _place(index, size1, size2, size3, step0, step1, step2, step3)
        x = tl.load(values + place, mask=is_here, other=0).to(tl.int64)
        high = tl.where(is_here, tl.maximum(high, x), high)
        low = tl.where(is_here, tl.minimum(low, x), low)
        lower += x & 0xFFFFFFFF
        upper += x >> 32
        wide = x.to(tl.float64)
        squares += wide * wide
        signs1, signs2 = _signs(signs, blocks, lanes)
        first += tl.where(signs1, wide, -wide)
        second += tl.where(signs2, wide, -wide)
        blocks += tl.num_programs(0).to(tl.int64) * BLOCKS
        start += tl.num_programs(0).to(tl.int64) * BLOCKS * 1008
    _write_integers(
        tl.sum(squares),
        tl.sum(first),
        tl.sum(second),
        tl.max(high),
        tl.min(low),
        tl.sum(lower),
        tl.sum(upper),
        scratch,
        floats,
        words,
        row,
        program,
        IS_WHOLE,
        PROGRAMS,
    )


@triton.jit
def _write_integers(
    squares,
    first,
    second,
    high,
    low,
    lower,
    upper,
    scratch,
    floats,
    words,
    row,
    program,
    IS_WHOLE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    if IS_WHOLE:
        start = row.to(tl.int64) * 13
        tl.store(floats + start, squares)
        tl.store(words + start + 7, high)
        tl.store(words + start + 8, low)
        tl.store(words + start + 9, lower)
        tl.store(words + start + 10, upper)
        tl.store(floats + start + 11, first)
        tl.store(floats + start + 12, second)
    else:
        counts = scratch.to(tl.pointer_type(tl.int64))
        tl.store(scratch + program, squares)
        tl.store(counts + PROGRAMS + program, high)
        tl.store(counts + 2 * PROGRAMS + program, low)
        tl.store(counts + 3 * PROGRAMS + program, lower)
        tl.store(counts + 4 * PROGRAMS + program, upper)
        tl.store(scratch + 7 * PROGRAMS + program, first)
        tl.store(scratch + 8 * PROGRAMS + program, second)


@triton.jit(do_not_specialize=_ANY_PROGRAMS)
def join_integers(
    scratch,
    floats,
    words,
    row,
    programs,
    PROGRAMS: tl.constexpr,
):
    """Reduce the scratch into a row."""
    lanes = tl.arange(0, PROGRAMS)
    is_here = lanes < programs
    counts = scratch.to(tl.pointer_type(tl.int64))
    squares = tl.load(scratch + lanes, mask=is_here, other=0.0)
    high = tl.load(counts + PROGRAMS + lanes, mask=is_here, other=-0x7FFFFFFFFFFFFFFF - 1)
    low = tl.load(counts + 2 * PROGRAMS + lanes, mask=is_here, other=0x7FFFFFFFFFFFFFFF)
    lower = tl.load(counts + 3 * PROGRAMS + lanes, mask=is_here, other=0)
    upper = tl.load(counts + 4 * PROGRAMS + lanes, mask=is_here, other=0)
    first = tl.load(scratch + 7 * PROGRAMS + lanes, mask=is_here, other=0.0)
    second = tl.load(scratch + 8 * PROGRAMS + lanes, mask=is_here, other=0.0)
    _write_integers(
        tl.sum(squares, 0),
        tl.sum(first, 0),
        tl.sum(second, 0),
        tl.max(high, 0),
        tl.min(low, 0),
        tl.sum(lower, 0),
        tl.sum(upper, 0),
        scratch,
        floats,
        words,
        row,
        0,
        True,
        PROGRAMS,
    )
