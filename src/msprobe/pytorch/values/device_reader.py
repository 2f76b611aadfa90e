# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor on a GPU in one reading.

A tensor takes one kernel launch, a large one two, where torch's reductions take about thirty and
copies in float64. The kernels are `device_kernels`; the meaning of the numbers:
`msprobe.capture.statistics`.

Imported when the first tensor of a GPU is read: Triton comes with PyTorch for GPUs, elsewhere this
raises ImportError.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor

from msprobe.capture.projections import SIGNS
from msprobe.pytorch.values import device_kernels as kernels

FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
INTEGERS: Final = frozenset(
    {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)

_ELEMENTS_PER_PROGRAM: Final = 4 * kernels.BLOCKS * kernels.BLOCK
_MOST_DIMENSIONS: Final = 4
_TILE: Final = {"BLOCKS": kernels.BLOCKS, "LANES": kernels.LANES, "num_warps": 8}
_FLAT: Final = (1, 1, 1, 0, 0, 0, 0)
"""Sizes and strides of a tensor that lies in memory without gaps: they are not used."""


def reads(t: Tensor) -> bool:
    """Return whether `Reader` can read a strided tensor where it lies."""
    return (
        (t.dtype in FLOATS or t.dtype in INTEGERS)
        and (t.is_contiguous() or len(_geometry(t)) <= _MOST_DIMENSIONS)
        and not t.is_neg()
    )


class Reader:
    """Puts the numbers of tensors into the rows of one buffer, on one stream of one device."""

    __slots__ = (
        *("_device", "_floats", "_launcher", "_pointers", "_scratch", "_signs", "_stream"),
        "_words",
    )

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
        shape = (kernels.SCRATCH_ROWS, kernels.MOST_PROGRAMS)
        self._scratch = torch.empty(shape, dtype=torch.float64, device=words.device)
        self._signs = _signs_on(words.device)
        base = words.data_ptr()
        self._pointers = (self._scratch.data_ptr(), base, base, self._signs.data_ptr())
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
        programs = min(kernels.MOST_PROGRAMS, -(-count // _ELEMENTS_PER_PROGRAM))
        is_float = t.dtype in FLOATS
        address = t.data_ptr()
        numbers = (row, count, *dimensions)
        key = (self._device, t.dtype, is_flat, programs == 1, address % 16 == 0)
        if self._launcher is None or not self._launcher.launch(
            (key, programs, self._stream, 5, address, *self._pointers, *numbers)
        ):
            held = t.view(torch.uint8) if t.dtype is torch.bool else t
            kernel = kernels.read_floats if is_float else kernels.read_integers
            arguments = (held, self._scratch, self._floats, self._words, self._signs, *numbers)
            options = {"IS_FLAT": is_flat, "IS_WHOLE": programs == 1} | _TILE
            self._start(kernel, key, programs, arguments, options)
        if programs > 1:
            self._join(is_float, row, programs)

    def _join(self, is_float: bool, row: int, programs: int) -> None:
        """Start to fill a row with what the programs of a large tensor have found."""
        key = (self._device, is_float)
        if self._launcher is None or not self._launcher.launch(
            (key, 1, self._stream, 3, *self._pointers[:3], row, programs)
        ):
            kernel = kernels.join_floats if is_float else kernels.join_integers
            arguments = (self._scratch, self._floats, self._words, row, programs)
            self._start(kernel, key, 1, arguments, {})

    def _start(
        self,
        kernel: Any,
        key: tuple[object, ...],
        programs: int,
        arguments: tuple[object, ...],
        options: dict[str, int],
    ) -> None:
        """Launch a kernel by Triton, compiled if need be."""
        compiled = kernel[(programs,)](
            *arguments, **options, PROGRAMS=kernels.MOST_PROGRAMS, enable_fp_fusion=False
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
        words = torch.full((2, kernels.ROW_COLUMNS), -1, dtype=torch.int64, device=device)
        reader = Reader(words, stream, self)
        values = torch.arange(9, dtype=torch.float32, device=device)
        reader.read(values, 0)
        is_known = bool(self._kernels)
        reader.read(values, 1)
        return is_known and torch.equal(words[0], words[1]) and bool(words[0, 7] == 0)


_LAUNCHER: Final = _Launcher()


@cache
def _signs_on(device: torch.device) -> Tensor:
    """Return the signs of the projections, as bits of one byte each."""
    return torch.tensor((SIGNS > 0).tolist(), dtype=torch.uint8, device=device)


def reader_of(words: Tensor, stream: int) -> Reader:
    """Return what fills the rows of `words`; its device must be the current one."""
    is_right = _LAUNCHER.is_right(words.device, stream)
    return Reader(words, stream, _LAUNCHER if is_right else None)


def has_order(t: Tensor) -> bool:
    """Return whether each element lies in memory by itself, as projections need it."""
    return t.is_contiguous() or 0 not in t.stride()


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
