# SPDX-License-Identifier: Apache-2.0
"""Statistics of tensors where they lie: reduced on the device, fetched many at a time.

To read a tensor's values on the host is to wait for the device. So only the numbers of
`device_reductions` come to the host, those of all tensors so far in one copy.

An operator without a kernel must not be met by chance: MindSpore says so late, at whatever comes
next, and a failure destroys the graph that the user's gradients are recorded into. So the operators
are tried on known values, type by type and one at a time, where a failure does no harm (`prepare`).
A type that was not tried yet, or did not come out right, is read on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
from mindspore.common import dtype as mstype

import mindspore
from mindspore import Tensor, ops
from msprobe.capture.array_statistics import summarise_array
from msprobe.capture.statistics import Summary
from msprobe.mindspore.device_reductions import (
    FLOATS,
    INTEGERS,
    Constants,
    Reduction,
    is_reducible,
    reduce,
)
from msprobe.mindspore.guard import Guard, may_fail, must_not_run
from msprobe.mindspore.immediate_operators import (
    are_immediate,
    set_immediate,
    wait_for_launched,
)

# Float64 would leave the vector units of an Ascend for its slow general-purpose processor.
_IN_FLOAT32: Final = frozenset({"Ascend"})
_MOST_INPUTS: Final = 256  # of one concatenation
_TOLERANCE: Final = 1e-5

_ADD: Final = ops.Add()
_CAST: Final = ops.Cast()
_CONCAT: Final = ops.Concat(0)
_MULTIPLY: Final = ops.Mul()
SLICE: Final = ops.Slice()

_USUAL: Final = (
    mstype.float32,
    mstype.float16,
    mstype.bfloat16,
    mstype.int32,
    mstype.int64,
    mstype.bool_,
)

Crop = tuple[tuple[int, ...], tuple[int, ...]]
"""Begins and sizes, one for each dimension."""

_Waiting = tuple[Summary, Reduction]


class Fetch(NamedTuple):
    """Numbers on their way to the host.

    Attributes:
        parts: vectors on the device; one, as a rule.
        waiting: the summaries that they complete, in the order of the numbers.
    """

    parts: list[Any]
    waiting: list[_Waiting]

    def collect(self) -> None:
        """Wait for the device, and complete the summaries."""
        numbers: list[float] = []
        for part in self.parts:
            numbers += part.asnumpy().tolist()
        start = 0
        for summary, reduction in self.waiting:
            pieces = []
            for column in reduction.columns:
                pieces.append(numbers[start : start + column.size])
                start += column.size
            reduction.fill(summary, pieces, reduction.counts)
            summary.ready = True


class DeviceStatistics:
    """Summarises tensors on the device, and copies and adds gradients there.

    Args:
        accumulate: the type of sums, MindSpore's float32 or float64; None for what the device is
            good at.
    """

    def __init__(self, accumulate: Any = None) -> None:
        """Create it; the device is not used before `prepare`."""
        self._accumulate = accumulate
        self._constants: dict[Any, Constants] = {}
        # By type: the type of sums, None for types that are read on the host.
        self._plans: dict[Any, Constants | None] = {}
        self._calculates: dict[Any, bool] = {}
        self._untried: set[Any] = set(_USUAL)
        self._waiting: dict[Any, list[_Waiting]] = {}

    def prepare(self) -> None:
        """Try the operators on the types that were not tried yet, if now is the time for it."""
        if not self._untried or not may_fail():
            return
        untried, self._untried = self._untried, set()
        with one_at_a_time():
            for dtype in untried:
                self._plans[dtype] = None
                for accumulate in self._candidates(dtype):
                    constants = self._constants_for(accumulate)
                    if _comes_out_right(partial(_is_right, dtype, constants)):
                        self._plans[dtype] = constants
                        break
                if dtype in FLOATS:
                    self._calculates[dtype] = _comes_out_right(partial(_adds_up, dtype))

    # -- statistics ----------------------------------------------------------------------------

    def summarise(self, tensor: Any, crop: Crop | None = None) -> Summary | None:
        """Start to summarise a tensor; the summary is filled by the result of `take_batch`.

        Args:
            tensor: only read.
            crop: the part that counts, smaller than the whole; None for all of it.

        Returns:
            A summary with `ready` false; a ready one of an empty tensor; None for a tensor that
            must be read on the host.
        """
        if 0 in (tensor.shape if crop is None else crop[1]):
            return Summary()
        if must_not_run():
            return None
        constants = self._plans.get(tensor.dtype)
        if constants is None:
            self._note(tensor.dtype)
            return None
        try:
            with Guard():
                if crop is not None:
                    tensor = SLICE(tensor, *crop)
                reduction = reduce(tensor, constants)
        except Exception:  # noqa: BLE001 - whatever it is: it must not come again
            self._plans[tensor.dtype] = None
            return None
        summary = Summary(ready=False)
        self._waiting.setdefault(constants.accumulate, []).append((summary, reduction))
        return summary

    def take_batch(self) -> Callable[[], None] | None:
        """Return a function that fetches the numbers so far, None when there are none.

        It may run in another thread, while further tensors are summarised here.
        """
        self.prepare()
        batches, self._waiting = list(self._waiting.values()), {}
        if not batches:
            return None
        fetches = [_fetch(waiting) for waiting in batches]

        def collect() -> None:
            for fetch in fetches:
                fetch.collect()

        return collect

    def _note(self, dtype: Any) -> None:
        # To try a type is to wait for the device: not for those that are read on the host anyway.
        if dtype not in self._plans and is_reducible(dtype):
            self._untried.add(dtype)

    def _candidates(self, dtype: Any) -> tuple[Any, ...]:
        """Return the types that sums of `dtype` may be taken in, the best first."""
        wanted = self._accumulate
        if wanted is None and mindspore.get_context("device_target") in _IN_FLOAT32:
            wanted = mstype.float32
        types = (mstype.float64, mstype.float32) if wanted is None else (wanted,)
        return tuple(one for one in types if one == mstype.float64 or dtype != mstype.float64)

    def _constants_for(self, accumulate: Any) -> Constants:
        if accumulate not in self._constants:
            self._constants[accumulate] = Constants(accumulate)
        return self._constants[accumulate]

    # -- gradients -----------------------------------------------------------------------------

    def copy(self, tensor: Any) -> Any:
        """Return a copy on the device; None where the device cannot make one."""
        return self._computed(_copy, tensor)

    def add(self, total: Any, share: Any) -> Any:
        """Return a new tensor, the sum in the type of `total`; None where the device cannot."""
        return self._computed(_add, total, share)

    def _computed(self, compute: Callable[..., Any], *tensors: Any) -> Any:
        for tensor in tensors:
            self._note(tensor.dtype)
        types = [tensor.dtype for tensor in tensors]
        if must_not_run() or not all(self._calculates.get(dtype, False) for dtype in types):
            return None
        try:
            with Guard():
                return compute(*tensors)
        except Exception:  # noqa: BLE001 - whatever it is: it must not come again
            self._calculates.update(dict.fromkeys(types, False))
            return None


def _fetch(waiting: list[_Waiting]) -> Fetch:
    parts = [column for _, reduction in waiting for column in reduction.columns]
    if must_not_run():
        return Fetch(parts, waiting)
    with Guard():
        while len(parts) > 1:
            groups = range(0, len(parts), _MOST_INPUTS)
            parts = [_CONCAT(parts[start : start + _MOST_INPUTS]) for start in groups]
    return Fetch(parts, waiting)


def _copy(tensor: Any) -> Any:
    return _MULTIPLY(tensor, _one(tensor.dtype))


@cache
def _one(dtype: Any) -> Any:
    # Kept: each new one would be brought to the device again.
    return Tensor(1, dtype)


def _add(total: Any, share: Any) -> Any:
    found = _ADD(total, share)
    return found if found.dtype == total.dtype else _CAST(found, total.dtype)


# ---- known values -------------------------------------------------------------------------------


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Have every operator finish, or raise, before the next one begins."""
    wait_for_launched()  # the user's operators come first
    before = are_immediate()
    set_immediate(True)
    try:
        yield
    finally:
        set_immediate(before)


def _comes_out_right(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:  # noqa: BLE001 - a device may raise anything where it lacks something
        return False


def _is_right(dtype: Any, constants: Constants) -> bool:
    """Return whether reductions of known values agree with NumPy's."""
    samples = _samples(dtype)
    tensors = [_CAST(Tensor(values), dtype) for values in samples]
    # Crops and pieces are cut out of a tensor in its own type.
    tensors.append(SLICE(tensors[0], (0,), (1,)))
    samples.append(samples[0][:1])
    waiting = [(Summary(), reduce(tensor, constants)) for tensor in tensors]
    expected = [summarise_array(values) for values in samples]
    _fetch(waiting).collect()
    return all(_agree(got, want) for (got, _), want in zip(waiting, expected, strict=True))


def _samples(dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Return arrays that the type holds exactly, so many elements that sums go in steps."""
    if dtype == mstype.bool_:
        return [np.array([True, False]), np.array([[True]]), np.array(False)]
    count = 5000
    if dtype in INTEGERS:
        small = np.arange(count, dtype=np.int64) % 7
        if dtype == mstype.int64:
            small = np.concatenate((small, [2**53 + 1, -(2**62) - 1]))
        return [small, small[3:4].reshape(())]
    finite = (np.arange(count) % 7 - 2.5).astype(np.float32)
    odd = finite.copy()
    odd[[1, 500, 501]] = math.nan, math.inf, -math.inf
    return [finite, odd, odd[1:2], odd[500:501], finite[3:4].reshape(())]


def _agree(got: Summary, want: Summary) -> bool:
    pairs: tuple[tuple[Any, Any], ...] = ((got.mean, want.mean), (got.norm, want.norm))
    if (got.max, got.min) != (want.max, want.min) and not _is_nan(want.max):
        return False
    if got.nonfinite != want.nonfinite:
        return False
    return all(
        a is b or (_is_nan(a) and _is_nan(b)) or math.isclose(a, b, rel_tol=_TOLERANCE)
        for a, b in pairs
    )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _adds_up(dtype: Any) -> bool:
    one = _CAST(Tensor(np.array([1.5, -2.0, 0.0], np.float32)), dtype)
    two = _add(_copy(one), one)
    return bool(np.array_equal(_CAST(two, mstype.float32).asnumpy(), np.array([3.0, -4.0, 0.0])))
