# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor on a GPU in one reading, by a kernel written in Triton.

A tensor takes one kernel launch, a large one two, where torch's reductions take about thirty and
copies in float64. Sums are added in float64, in an order that depends on the number of elements
alone: two runs, on whatever GPU, have the same bits. The meaning of the numbers:
`msprobe.capture.statistics`.

Imported when the first tensor of a GPU is read: Triton comes with PyTorch for GPUs, elsewhere this
raises ImportError.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
INTEGERS: Final = frozenset(
    {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)

_BLOCK: Final = 2048
_ELEMENTS_PER_PROGRAM: Final = 4 * _BLOCK
_MOST_PROGRAMS: Final = 1024
_MOST_DIMENSIONS: Final = 4
_FLAT: Final = (1, 1, 1, 0, 0, 0, 0)
"""Sizes and strides of a tensor that lies in memory without gaps: they are not used."""
# These would be compiled anew for numbers that are 1 or divisible by 16.
_ANY_NUMBER: Final = (
    *("row", "count", "size1", "size2", "size3"),
    *("step0", "step1", "step2", "step3"),
)
_ANY_PROGRAMS: Final = ("row", "programs")
_SCRATCH_SHAPE: Final = (7, _MOST_PROGRAMS)


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


@triton.jit(do_not_specialize=_ANY_NUMBER)
def _read_floats(
    values,
    scratch,
    floats,
    words,
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
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Reduce a part of a tensor: into its row if it is all, else into a column of the scratch."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    inf = float("inf")
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    high = tl.full([BLOCK], -inf, tl.float32)
    low = tl.full([BLOCK], inf, tl.float32)
    nans = tl.zeros([BLOCK], tl.int32)
    ups = tl.zeros([BLOCK], tl.int32)
    downs = tl.zeros([BLOCK], tl.int32)
    start = program.to(tl.int64) * BLOCK
    while start < count:
        index = start + lanes
        is_here = index < count
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
        start += tl.num_programs(0).to(tl.int64) * BLOCK
    _write_floats(
        tl.sum(total, 0),
        tl.sum(squares, 0),
        tl.max(high, 0).to(tl.float64),
        tl.min(low, 0).to(tl.float64),
        tl.sum(nans.to(tl.int64), 0),
        tl.sum(ups.to(tl.int64), 0),
        tl.sum(downs.to(tl.int64), 0),
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
        first = row.to(tl.int64) * 11
        top = tl.where(ups > 0, inf, tl.where(high < low, -inf, high))
        bottom = tl.where(downs > 0, -inf, tl.where(high < low, inf, low))
        tl.store(floats + first, tl.where(nans > 0, nan, top))
        tl.store(floats + first + 1, tl.where(nans > 0, nan, bottom))
        tl.store(floats + first + 2, total)
        tl.store(floats + first + 3, squares)
        tl.store(floats + first + 4, high)
        tl.store(floats + first + 5, low)
        tl.store(words + first + 7, nans)
        tl.store(words + first + 8, ups)
        tl.store(words + first + 9, downs)
    else:
        tl.store(scratch + program, total)
        tl.store(scratch + PROGRAMS + program, squares)
        tl.store(scratch + 2 * PROGRAMS + program, high)
        tl.store(scratch + 3 * PROGRAMS + program, low)
        tl.store(scratch + 4 * PROGRAMS + program, nans.to(tl.float64))
        tl.store(scratch + 5 * PROGRAMS + program, ups.to(tl.float64))
        tl.store(scratch + 6 * PROGRAMS + program, downs.to(tl.float64))


@triton.jit(do_not_specialize=_ANY_PROGRAMS)
def _join_floats(
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
    _write_floats(
        tl.sum(total, 0),
        tl.sum(squares, 0),
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
def _read_integers(
    values,
    scratch,
    floats,
    words,
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
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Same as `_read_floats` for integers, whose sum goes in two halves of 32 bits."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float64)
    high = tl.full([BLOCK], -0x7FFFFFFFFFFFFFFF - 1, tl.int64)
    low = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64)
    lower = tl.zeros([BLOCK], tl.int64)
    upper = tl.zeros([BLOCK], tl.int64)
    start = program.to(tl.int64) * BLOCK
    while start < count:
        index = start + lanes
        is_here = index < count
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
        start += tl.num_programs(0).to(tl.int64) * BLOCK
    _write_integers(
        tl.sum(squares, 0),
        tl.max(high, 0),
        tl.min(low, 0),
        tl.sum(lower, 0),
        tl.sum(upper, 0),
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
        first = row.to(tl.int64) * 11
        tl.store(floats + first, squares)
        tl.store(words + first + 7, high)
        tl.store(words + first + 8, low)
        tl.store(words + first + 9, lower)
        tl.store(words + first + 10, upper)
    else:
        counts = scratch.to(tl.pointer_type(tl.int64))
        tl.store(scratch + program, squares)
        tl.store(counts + PROGRAMS + program, high)
        tl.store(counts + 2 * PROGRAMS + program, low)
        tl.store(counts + 3 * PROGRAMS + program, lower)
        tl.store(counts + 4 * PROGRAMS + program, upper)


@triton.jit(do_not_specialize=_ANY_PROGRAMS)
def _join_integers(
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
    _write_integers(
        tl.sum(squares, 0),
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


def reads(t: Tensor) -> bool:
    """Return whether `Reader` can read a strided tensor where it lies."""
    return (
        (t.dtype in FLOATS or t.dtype in INTEGERS)
        and (t.is_contiguous() or len(_geometry(t)) <= _MOST_DIMENSIONS)
        and not t.is_neg()
    )


class Reader:
    """Puts the numbers of tensors into the rows of one buffer, on one stream of one device."""

    __slots__ = ("_device", "_floats", "_launcher", "_pointers", "_scratch", "_stream", "_words")

    def __init__(self, words: Tensor, stream: int, launcher: _Launcher | None) -> None:
        """Create it, on the stream that will write.

        Args:
            words: the rows, int64; numbers of type float64 have their bits.
            stream: the address of the stream.
            launcher: launches what is compiled; None to leave it to Triton.
        """
        self._device = words.device
        self._words = words
        self._floats = words.view(torch.float64)
        # The numbers of the parts of one large tensor.
        self._scratch = torch.empty(_SCRATCH_SHAPE, dtype=torch.float64, device=words.device)
        base = words.data_ptr()
        self._pointers = (self._scratch.data_ptr(), base, base)
        self._stream = stream
        self._launcher = launcher

    def read(self, t: Tensor, row: int) -> None:
        """Start to fill a row with the numbers of a tensor that `reads` accepts, with elements.

        The tensor's device must be the current one.
        """
        count = t.numel()
        is_flat, dimensions = True, _FLAT
        if not t.is_contiguous():
            found = _geometry(t)
            is_flat = len(found) == 1 and found[0][1] == 1
            padded = (*((1, 0),) * (_MOST_DIMENSIONS - len(found)), *found)
            sizes, steps = zip(*padded, strict=True)
            dimensions = (*sizes[1:], *steps)
        programs = min(_MOST_PROGRAMS, -(-count // _ELEMENTS_PER_PROGRAM))
        is_float = t.dtype in FLOATS
        address = t.data_ptr()
        numbers = (row, count, *dimensions)
        key = (self._device, t.dtype, is_flat, programs == 1, address % 16 == 0)
        if self._launcher is None or not self._launcher.launch(
            (key, programs, self._stream, 4, address, *self._pointers, *numbers)
        ):
            held = t.view(torch.uint8) if t.dtype is torch.bool else t
            kernel = _read_floats if is_float else _read_integers
            arguments = (held, self._scratch, self._floats, self._words, *numbers)
            options: dict[str, object] = {
                "IS_FLAT": is_flat,
                "IS_WHOLE": programs == 1,
                "BLOCK": _BLOCK,
            }
            self._start(kernel, key, programs, arguments, options)
        if programs > 1:
            self._join(is_float, row, programs)

    def _join(self, is_float: bool, row: int, programs: int) -> None:
        """Start to fill a row with what the programs of a large tensor have found."""
        key = (self._device, is_float)
        if self._launcher is None or not self._launcher.launch(
            (key, 1, self._stream, 3, *self._pointers, row, programs)
        ):
            kernel = _join_floats if is_float else _join_integers
            arguments = (self._scratch, self._floats, self._words, row, programs)
            self._start(kernel, key, 1, arguments, {})

    def _start(
        self,
        kernel: Any,
        key: tuple[object, ...],
        programs: int,
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> None:
        """Launch a kernel by Triton, compiled if need be."""
        compiled = kernel[(programs,)](
            *arguments, **options, PROGRAMS=_MOST_PROGRAMS, enable_fp_fusion=False
        )
        if self._launcher is not None:
            self._launcher.learn(key, compiled)


class _Launcher:
    """Launches kernels that Triton has compiled and loaded, without Triton's look at arguments."""

    __slots__ = ("_is_right", "_kernels", "_launch")

    def __init__(self) -> None:
        self._kernels: dict[tuple[object, ...], tuple[int, int, int]] = {}
        self._launch: Any = None
        self._is_right: bool | None = None

    def launch(self, call: tuple[Any, ...]) -> bool:
        """Launch a kernel: (key, programs, stream, pointers, *arguments); False if not known."""
        key, programs, *rest = call
        known = self._kernels.get(key)
        if known is None:
            return False
        function, threads, shared_bytes = known
        try:
            self._launch(function, programs, threads, shared_bytes, *rest)
        except OverflowError:  # a number needs 64 bits: Triton compiles that anew
            return False
        return True

    def learn(self, key: tuple[object, ...], compiled: Any) -> None:
        """Note a compiled kernel, if this version of Triton lets its function be seen."""
        function = getattr(compiled, "function", None)
        found: Any = getattr(compiled, "metadata", None)
        if isinstance(function, int) and getattr(found, "num_ctas", 0) == 1:
            self._kernels[key] = (function, 32 * found.num_warps, found.shared)

    def is_right(self, device: torch.device, stream: int) -> bool:
        """Return whether it does the same as Triton here; the first time, waits for the device."""
        if self._is_right is None:
            self._is_right = device.type == "cuda" and torch.version.hip is None
            self._is_right = self._is_right and self._open() and self._agrees(device, stream)
        return self._is_right

    def _open(self) -> bool:
        try:
            native: Any = import_module("msprobe.pytorch.values._cuda")
        except ImportError:
            return False
        self._launch = native.launch
        return bool(native.open_driver())

    def _agrees(self, device: torch.device, stream: int) -> bool:
        """Compare both ways, which depend on where a version of Triton puts arguments."""
        words = torch.full((2, 11), -1, dtype=torch.int64, device=device)
        reader = Reader(words, stream, self)
        values = torch.arange(9, dtype=torch.float32, device=device)
        reader.read(values, 0)
        is_known = bool(self._kernels)
        reader.read(values, 1)
        return is_known and torch.equal(words[0], words[1]) and bool(words[0, 7] == 0)


_LAUNCHER: Final = _Launcher()


def reader_of(words: Tensor, stream: int) -> Reader:
    """Return what fills the rows of `words`; its device must be the current one."""
    is_right = _LAUNCHER.is_right(words.device, stream)
    return Reader(words, stream, _LAUNCHER if is_right else None)


def _geometry(t: Tensor) -> Sequence[tuple[int, int]]:
    """Return sizes and strides with as few dimensions as hold the same elements, in any order."""
    pairs = [(size, step) for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]
    pairs.sort(key=lambda pair: -pair[1])
    merged: list[tuple[int, int]] = []
    for size, step in pairs:
        if merged and merged[-1][1] == size * step:
            merged[-1] = (merged[-1][0] * size, step)
        else:
            merged.append((size, step))
    return merged or [(1, 1)]
