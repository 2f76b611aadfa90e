# SPDX-License-Identifier: Apache-2.0
"""Compare the tensors in two files, in pieces that fit the processor's cache.

Equal bytes need one comparison at the speed of memory. Only when a byte differs, or an element is
NaN or infinite, is every element measured. Memory does not grow with the tensors, unless one is
stored in an unusual way (transposed, as a view, in the other byte order), which is read whole.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.compare.tensors.processing import MatrixProduct, multiply
from msprobe.dump.crc import crc32
from msprobe.dump.formats.zip import check_checksum
from msprobe.dump.open_file import OpenFile
from msprobe.dump.tensor_files import StoredTensor, read_open_tensor
from msprobe.dump.tensor_span import FoundTensor, SpanFinder
from msprobe.errors import MsprobeError, UnsupportedError
from msprobe.numerics.element_metrics import ElementMetrics
from msprobe.numerics.element_types import Category, element_type
from msprobe.numerics.elementwise import ElementAccumulator, Tolerance

# Both sides together fit a core's second-level cache; smaller pieces cost more system calls.
_PIECE_BYTES: Final = 512 << 10

_Bytes = NDArray[np.uint8]
_Buffers = tuple[_Bytes, _Bytes]
_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorJob:
    """Two tensors to compare; can be pickled.

    Attributes:
        index: number of the job, given back with the outcome.
        target: file of the values under test.
        reference: file of the trusted values.
        tolerance: the tolerance of `ElementMetrics.mismatches`.
        target_matrices: matrices to multiply the target with before, None for none.
        reference_matrices: matrices to multiply the reference with before, None for none.
        size: bytes of both files, None where they are not known yet.
    """

    index: int
    target: str | Path
    reference: str | Path
    tolerance: Tolerance
    target_matrices: MatrixProduct | None = None
    reference_matrices: MatrixProduct | None = None
    size: int | None = None


@dataclass(slots=True)
class TensorOutcome:
    """Result of a job.

    Attributes:
        index: number of the job.
        metrics: how the elements differ, None if they could not be compared.
        problem: why not, naming the file; or a warning beside metrics; else empty.
        bytes_read: bytes of elements that were read from files.
    """

    index: int
    metrics: ElementMetrics | None
    problem: str
    bytes_read: int


class Workspace:
    """Buffers and file layouts that a thread reuses from job to job."""

    def __init__(self) -> None:
        self.finder = SpanFinder()
        self._buffers: _Buffers | None = None

    def buffers(self) -> _Buffers:
        """Return two buffers for pieces, each of `_PIECE_BYTES`."""
        if self._buffers is None:
            self._buffers = np.empty(_PIECE_BYTES, np.uint8), np.empty(_PIECE_BYTES, np.uint8)
        return self._buffers


def measure_pair(job: TensorJob, workspace: Workspace | None = None) -> TensorOutcome:
    """Compare two tensors; a bad file makes a `problem`, never an exception.

    Shapes may differ by dimensions of size 1, types in any way that numbers can be compared.

    Args:
        job: the files.
        workspace: of the calling thread, to use again from job to job.
    """
    try:
        with OpenFile(job.target) as target, OpenFile(job.reference) as reference:
            return _measure_open(job, target, reference, workspace or Workspace())
    except UnsupportedError as exc:
        return TensorOutcome(job.index, None, "" if _are_alike(job) else str(exc), 0)
    except MsprobeError as exc:
        return TensorOutcome(job.index, None, str(exc), 0)
    except MemoryError:
        # Only tensors stored in an unusual way are read whole.
        problem = f"{job.target}, {job.reference}: too large to be read whole, as it must be"
        return TensorOutcome(job.index, None, problem, 0)


def _are_alike(job: TensorJob) -> bool:
    """Return whether two files that only a framework can read (sparse, quantised …) are the same.

    Their statistics then are, too, and decide.
    """
    if job.target_matrices != job.reference_matrices:
        return False
    try:
        return filecmp.cmp(job.target, job.reference, shallow=False)
    except OSError:
        return False


def _measure_open(
    job: TensorJob, target: OpenFile, reference: OpenFile, workspace: Workspace
) -> TensorOutcome:
    found = workspace.finder.find(target), workspace.finder.find(reference)
    spans = found[0].span, found[1].span
    is_processed = job.target_matrices is not None or job.reference_matrices is not None
    if not is_processed and not _fit(spans[0].shape, spans[1].shape):
        problem = _shapes_differ(job, spans[0].shape, spans[1].shape)
        return TensorOutcome(job.index, None, problem, 0)
    if is_processed or not (spans[0].is_plain and spans[1].is_plain):
        return _measure_whole(job, target, reference)
    if target.content is not None and reference.content is not None:
        metrics = _measure_small((target, found[0]), (reference, found[1]), job.tolerance)
        return TensorOutcome(job.index, metrics, "", spans[0].size + spans[1].size)
    sides = _Side(target, found[0]), _Side(reference, found[1])
    metrics = _measure_large(sides, job.tolerance, workspace.buffers())
    return TensorOutcome(job.index, metrics, "", sides[0].bytes_read + sides[1].bytes_read)


def _fit(target: _Shape, reference: _Shape) -> bool:
    """Return whether two shapes are equal up to dimensions of size 1."""
    if target == reference:
        return True
    return [size for size in target if size != 1] == [size for size in reference if size != 1]


def _shapes_differ(job: TensorJob, target: _Shape, reference: _Shape) -> str:
    shapes = f"{list(target)} and {list(reference)}"
    return f"{job.target}: shapes {shapes} cannot be compared element by element"


def _measure_whole(job: TensorJob, target: OpenFile, reference: OpenFile) -> TensorOutcome:
    tensors = read_open_tensor(target), read_open_tensor(reference)
    size = tensors[0].array.nbytes + tensors[1].array.nbytes
    left, left_warning = multiply(tensors[0], job.target_matrices)
    right, right_warning = multiply(tensors[1], job.reference_matrices)
    warning = "; ".join(filter(None, (left_warning, right_warning)))
    if not _fit(left.array.shape, right.array.shape):
        problem = _shapes_differ(job, left.array.shape, right.array.shape)
        return TensorOutcome(job.index, None, "; ".join(filter(None, (problem, warning))), size)
    accumulator = ElementAccumulator(left.dtype, right.dtype, job.tolerance, count=left.array.size)
    accumulator.update(left.array.reshape(-1), right.array.reshape(-1))
    return TensorOutcome(job.index, accumulator.finish(), warning, size)


def _measure_small(
    target: tuple[OpenFile, FoundTensor],
    reference: tuple[OpenFile, FoundTensor],
    tolerance: Tolerance,
) -> ElementMetrics:
    """Compare two tensors whose files are in memory as a whole."""
    left, right = _elements(*target), _elements(*reference)
    spans = target[1].span, reference[1].span
    if spans[0].dtype == spans[1].dtype and left.tobytes() == right.tobytes():
        is_finite = _finite_test(spans[0].dtype)
        if is_finite is None or is_finite(left.view(np.uint8)):
            return equal_metrics(spans[0].dtype, spans[0].count)
    accumulator = ElementAccumulator(
        spans[0].dtype, spans[1].dtype, tolerance, count=spans[0].count
    )
    accumulator.update(left, right)
    return accumulator.finish()


def _elements(file: OpenFile, found: FoundTensor) -> NDArray[Any]:
    span = found.span
    assert file.content is not None
    elements = np.frombuffer(file.content, span.storage_type, span.count, span.start)
    if found.checksum:
        check_checksum(file.name, found.checksum, crc32(elements))
    return elements


class _Side:
    """The bytes of a plain tensor in a large file, read piece by piece from the beginning."""

    def __init__(self, file: OpenFile, found: FoundTensor) -> None:
        self.span = found.span
        self.bytes_read = 0
        self._wanted_checksum = found.checksum
        self._file = file
        self._checksum = 0

    def rewind(self) -> None:
        """Begin again."""
        self._checksum = 0

    def piece(self, at: int, size: int, buffer: _Bytes) -> _Bytes:
        """Return the next `size` bytes, from byte `at` of the tensor on.

        Raises:
            DumpFormatError: the file became shorter.
        """
        piece = buffer[:size]
        self._file.read_into(self.span.start + at, piece)
        self.bytes_read += size
        if self._wanted_checksum:
            self._checksum = crc32(piece, self._checksum)
        return piece

    def finish(self) -> None:
        """Make sure that all bytes are as they were written.

        Raises:
            DumpFormatError: they are not.
        """
        check_checksum(self._file.name, self._wanted_checksum, self._checksum)

    def is_same_file(self, other: _Side) -> bool:
        """Return whether both sides are links to one file."""
        return self._file.identity == other._file.identity


def _measure_large(
    sides: tuple[_Side, _Side], tolerance: Tolerance, buffers: _Buffers
) -> ElementMetrics:
    spans = sides[0].span, sides[1].span
    if spans[0].dtype == spans[1].dtype and _are_equal_and_finite(sides, buffers):
        return equal_metrics(spans[0].dtype, spans[0].count)
    for side in sides:
        side.rewind()
    accumulator = ElementAccumulator(
        spans[0].dtype, spans[1].dtype, tolerance, count=spans[0].count
    )
    step = _PIECE_BYTES // max(spans[0].itemsize, spans[1].itemsize)
    types = [np.dtype(span.storage_type) for span in spans]
    for first in range(0, spans[0].count, step):
        count = min(step, spans[0].count - first)
        raw = [
            side.piece(first * span.itemsize, count * span.itemsize, buffer).view(kind)
            for side, span, buffer, kind in zip(sides, spans, buffers, types, strict=True)
        ]
        accumulator.update(raw[0], raw[1])
    for side in sides:
        side.finish()
    return accumulator.finish()


def _are_equal_and_finite(sides: tuple[_Side, _Side], buffers: _Buffers) -> bool:
    """Return whether all bytes are equal and no element is NaN or infinite."""
    target, reference = sides
    is_finite = _finite_test(target.span.dtype)
    is_one_file = target.is_same_file(reference)
    for at in range(0, target.span.size, _PIECE_BYTES):
        size = min(_PIECE_BYTES, target.span.size - at)
        piece = target.piece(at, size, buffers[0])
        if not is_one_file and not _equal(piece, reference.piece(at, size, buffers[1])):
            return False
        if is_finite is not None and not is_finite(piece):
            return False
    target.finish()
    if not is_one_file:
        reference.finish()
    return True


def _equal(target: _Bytes, reference: _Bytes) -> bool:
    if target.size % 8 == 0:
        return bool((target.view(np.uint64) == reference.view(np.uint64)).all())
    return bool((target == reference).all())


def equal_metrics(dtype: str, count: int) -> ElementMetrics:
    """Return the metrics of two tensors that are equal and finite; their norms stay unknown."""
    has_ulp = element_type(dtype).has_ulp
    if count == 0:
        return ElementAccumulator(dtype, dtype, Tolerance(0.0, 0.0), count=0).finish()
    return ElementMetrics(
        count=count,
        is_equal=True,
        max_ulp=0 if has_ulp else None,
        cosine=1.0,
        ratio_1e3=1.0,
        ratio_5e3=1.0,
        legacy_max_rel_err=0.0,
    )


_FiniteTest = Callable[[_Bytes], bool]
# The exponent bits; all of them set means NaN or infinite.
_HALF_EXPONENTS: Final = {"float16": 0x7C00, "bfloat16": 0x7F80}


@cache
def _finite_test(dtype: str) -> _FiniteTest | None:
    """Return a test of whether all elements in a piece are finite; None if they always are."""
    kind = element_type(dtype)
    if kind.category in (Category.INTEGER, Category.BOOLEAN):
        return None
    if dtype in _HALF_EXPONENTS:
        exponent = np.uint16(_HALF_EXPONENTS[dtype])
        return lambda piece: not bool(((piece.view(np.uint16) & exponent) == exponent).any())
    if kind.storage == "u1":
        codes = StoredTensor(array=np.arange(256, dtype=np.uint8), dtype=dtype)
        finite: NDArray[np.bool_] = np.isfinite(codes.values())
        return lambda piece: bool(finite[piece].all())
    part: Any = np.float32 if dtype in ("float32", "complex64") else np.float64
    return lambda piece: bool(np.isfinite(piece.view(part)).all())
