# SPDX-License-Identifier: Apache-2.0
"""NaN and infinities of calls run again: unavoidable in their type, or the device's fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np

from msprobe.checks.accuracy_check import CheckPlan
from msprobe.checks.standards.metrics import as_floats, largest_value
from msprobe.checks.verify_call import ResultRow, VerifyOptions, verify_call
from msprobe.dump.formats.dtypes import COMPLEX_PARTS
from msprobe.dump.record_names import call_name
from msprobe.dump.tensor_files import StoredTensor
from msprobe.errors import DumpFormatError
from msprobe.numerics.number_types import Kind, kind_of
from msprobe.replay.recorded_calls import recorded_call
from msprobe.replay.tensors import TensorSource
from msprobe.replay.workers import Crash, run_tasks


class OverflowKind(StrEnum):
    """Kind of the NaN and infinities of a call."""

    NONE = "no overflow"
    NORMAL = "normal overflow"
    ABNORMAL = "abnormal overflow"
    UNKNOWN = "not run"

    @property
    def severity(self) -> int:
        """Rank among the kinds; larger is worse."""
        return list(OverflowKind).index(self)


@dataclass(frozen=True, slots=True)
class Overflow:
    """NaN and infinities of one result or call.

    Attributes:
        kind: whether the type explains them.
        words: how many elements, and the value that the type would need.
    """

    kind: OverflowKind
    words: str = ""


_NONE: Final = Overflow(OverflowKind.NONE)


def overflow_of(found: StoredTensor, reference: StoredTensor) -> Overflow:
    """Return the kind of NaN and infinities that a result has.

    They are normal if float64 has the same, or if the true value is beyond the range of the
    result's type.

    Args:
        found: the result of a device.
        reference: the same in float64, of the same shape.
    """
    if kind_of(found.dtype) not in (Kind.FLOAT, Kind.COMPLEX):
        return _NONE
    a, b = as_floats(found.values()), as_floats(reference.values())
    if a.shape != b.shape or (np.isfinite(a).all() and np.isfinite(b).all()):
        return _NONE
    largest = largest_value(COMPLEX_PARTS.get(found.dtype, found.dtype))
    needs_more = np.isfinite(b) & (np.abs(b) > largest)
    beyond = needs_more & np.isinf(a) & (np.signbit(a) == np.signbit(b))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    odd = ~(np.isfinite(a) & np.isfinite(b)) & ~beyond & ~same
    if odd.any():
        place = int(np.argmax(odd))
        words = f"{int(odd.sum())} of {a.size} elements; element {place} is {a[place]:g}"
        return Overflow(OverflowKind.ABNORMAL, f"{words}, in float64 {b[place]:.6g}")
    if beyond.any():
        needed = float(np.max(np.abs(b[beyond])))
        words = f"{int(beyond.sum())} of {a.size} elements are beyond {found.dtype}"
        return Overflow(OverflowKind.NORMAL, f"{words}, which would have to hold {needed:.6g}")
    count = int((~np.isfinite(a)).sum())
    return Overflow(OverflowKind.NORMAL, f"{count} of {a.size} elements, the same in float64")


def find_overflows(
    plan: CheckPlan,
    names: Sequence[str],
    *,
    device: str = "",
    workers: int = 1,
) -> Iterator[tuple[str, Overflow]]:
    """Run the forward calls of a recording again; yield each call's name and its overflow.

    Args:
        plan: which recording.
        names: records of the calls.
        device: the user's word for the device.
        workers: number of processes; 0 to work in this one.

    Raises:
        MsprobeError: there is no such device.
    """
    start = partial(start_overflows, plan, device, max(workers, 1))
    for name, answer in run_tasks(names, start, count=workers):
        if isinstance(answer, Crash):
            yield call_name(name), Overflow(OverflowKind.UNKNOWN, answer.reason)
        else:
            yield call_name(name), answer


def start_overflows(plan: CheckPlan, word: str, processes: int) -> Callable[[str], Overflow]:
    """Return the function that runs calls of a recording; for a worker process."""
    view, runner = plan.opened()
    runner.share_cores(processes)
    device = runner.device(word, jit_compile=plan.jit_compile)
    tensors = TensorSource(view, seed=plan.seed)

    def find(name: str) -> Overflow:
        found: list[Overflow] = []

        def seen(_: ResultRow, result: StoredTensor, reference: StoredTensor) -> None:
            found.append(overflow_of(result, reference))

        options = VerifyOptions(device=device, rerun=True)
        try:
            call = replace(recorded_call(view, name), passes=())
        except DumpFormatError as exc:
            return Overflow(OverflowKind.UNKNOWN, str(exc))
        report = verify_call(call, runner, tensors, options, seen)
        if not found:
            words = ": ".join(filter(None, (str(report.reason or ""), report.detail)))
            return Overflow(OverflowKind.UNKNOWN, words)
        return max(found, key=lambda one: one.kind.severity)

    return find
