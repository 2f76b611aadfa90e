# SPDX-License-Identifier: Apache-2.0
"""The summary of one tensor: the meaning of its numbers, and how raw sums become them.

Both ways of computing, the C kernel (`_native`) and the frameworks' own reductions, give the same
meaning:

- **Max, Min** are exact in the element type: Python ints for integers (up to uint64), floats
  otherwise. A zero is always +0.0, because -0.0 and 0.0 compare equal and the order of the
  elements must not show. With a NaN both are NaN.
- **Mean** is the arithmetic mean. Integers: the exact sum, divided with one rounding. Floats: added
  in float64 or better; the error is a few units of float64 relative to the mean of the absolute
  values. Infinities of both signs give NaN.
- **Norm** is the L2 norm over all elements, relative error below 1e-14, without overflow or
  underflow on the way. A scalar's norm is its absolute value. NaN with a NaN, else Infinity with
  an infinity.
- **Projections** are two sums of the elements with fixed pseudo-random signs by their index in
  row-major order (`projections`): over the finite elements, of the parts of complex numbers, None
  where the elements do not lie in memory in this order.
- **bool**: Max is "any", Min is "all"; no Mean, no Norm. **complex**: of the absolute values.
  **empty**: all None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

import msgspec

from msprobe.dump.records import Statistic

NATIVE_VARIABLE: Final = "MSPROBE_NATIVE"
"""Environment variable: ``0`` leaves the C kernels unused. Read once, at import."""


Projections = tuple[float, float]


class NonFinite(msgspec.Struct, frozen=True, gc=False):
    """Counts of NaN and infinities in a tensor.

    Attributes:
        nan_count: number of NaN elements.
        pos_inf_count: number of elements equal to +Inf.
        neg_inf_count: number of elements equal to -Inf.
        finite_max: largest finite element; None when there is none.
        finite_min: smallest finite element; None when there is none.
    """

    nan_count: int
    pos_inf_count: int
    neg_inf_count: int
    finite_max: float | None
    finite_min: float | None


class Summary(msgspec.Struct, gc=False, eq=False):
    """The statistics of one value, shared by reference between all records of that value.

    Mutable on purpose: on an accelerator the numbers arrive later, when `ready` turns true.

    Attributes:
        max: the largest element; None when undefined, see the module's docstring.
        min: the smallest element; None as for `max`.
        mean: the mean of the elements; None as for `max`.
        norm: the L2 norm; None as for `max`.
        nonfinite: counts, only when there is a NaN or an infinity.
        projections: two sums with pseudo-random signs (docs/metrics.md); None where not known.
        note: why the numbers are missing, in a few words; None when they are not.
        ready: whether the numbers are there.
    """

    max: Statistic = None
    min: Statistic = None
    mean: Statistic = None
    norm: Statistic = None
    nonfinite: NonFinite | None = None
    projections: Projections | None = None
    note: str | None = None
    ready: bool = True


Counts = tuple[int, int, int, float | None, float | None]
RawStatistics = tuple[Statistic, Statistic, Statistic, Statistic, Counts | None, Projections | None]


class Native(NamedTuple):
    """The functions of the C extension (see ``_native.c``)."""

    kinds: Mapping[str, int]
    stats: Callable[[int, int, int], RawStatistics]
    stats_strided: Callable[[int, int, tuple[int, ...], tuple[int, ...], int], RawStatistics]
    difference: Callable[[int, int, int, int], tuple[float, float, float]]
    products: Callable[[int, int, int, int, int, int], None]
    use_threads: Callable[[int], None]


def native_module() -> ModuleType | None:
    """Return the C extension, or None when it was not built or is switched off."""
    if os.environ.get(NATIVE_VARIABLE) == "0":
        return None
    try:
        return import_module("msprobe.capture._native")
    except ImportError:
        return None


def load_native() -> Native | None:
    """Return the C kernels, or None when there are none."""
    module = native_module()
    if module is None:
        return None
    return Native(module.KINDS, *(getattr(module, name) for name in Native._fields[1:]))


NATIVE: Final = load_native()
"""The C kernels of this process, or None."""


LOST: Final = "the device did not deliver the statistics"
"""Note of a value whose summary never came."""


def raw_of(summary: Summary) -> tuple[RawStatistics, str | None]:
    """Return the numbers of a summary as the C kernels would, and its note."""
    if not summary.ready:
        return (None,) * 6, LOST
    found = summary.nonfinite
    counts = None if found is None else msgspec.structs.astuple(found)
    four = (summary.max, summary.min, summary.mean, summary.norm)
    return (*four, counts, summary.projections), summary.note


def from_raw(raw: RawStatistics) -> Summary:
    """Return the summary for the results of the C kernels."""
    counts = raw[4]
    return Summary(*raw[:4], NonFinite(*counts) if counts is not None else None, raw[5])
