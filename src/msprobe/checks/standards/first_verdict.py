# SPDX-License-Identifier: Apache-2.0
"""The documented first verdict: one output of a device against its reference.

It depends on the size of the values (an absolute error below 0.001 always passes) and on shares of
elements, so it misses small tensors of large errors and single wrong elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.standards.metrics import Metrics, as_floats, zero_share
from msprobe.checks.standards.standard import Standards
from msprobe.numerics.number_types import Kind, kind_of

_LOW_PRECISION: Final = frozenset(("float16", "bfloat16"))
# Below this, a tensor counts as zero throughout: the resolution of float64.
_ZERO: Final = 2.0**-52


class Status(StrEnum):
    """Result of one check, as the documented files spell it."""

    PASS = "pass"
    WARNING = "warning"
    ERROR = "error"
    SKIP = "SKIP"


_ORDER: Final = (Status.SKIP, Status.PASS, Status.WARNING, Status.ERROR)


@dataclass(frozen=True, slots=True)
class Judged:
    """A status and the number that decided, in words; empty for a plain pass."""

    status: Status
    reason: str = ""


def worst(statuses: list[Status]) -> Status | None:
    """Return the worst of several statuses; None if there are none."""
    return max(statuses, key=_ORDER.index, default=None)


def first_verdict(
    target: NDArray[Any],
    reference: NDArray[Any],
    metrics: Metrics,
    *,
    dtype: str,
    api: str,
    standards: Standards,
) -> Judged:
    """Return the documented verdict of one output.

    Args:
        target: the device's output, in numbers to compute with.
        reference: the trusted output.
        metrics: of the two.
        dtype: type of the device's output.
        api: the operator's bare name.
        standards: the limits.
    """
    if target.shape != reference.shape:
        return Judged(Status.ERROR, f"shape {target.shape} instead of {reference.shape}")
    if reference.size == 0:
        return Judged(Status.SKIP, "the reference is empty")
    if kind_of(dtype) not in (Kind.FLOAT, Kind.COMPLEX):
        return _discrete(target, reference, metrics, api, standards)
    a, b = as_floats(target), as_floats(reference)
    if "dropout" in api:
        return _dropout(zero_share(a), zero_share(b), a.size, standards)
    return _direction(a, b, metrics, standards) or _errors(metrics, dtype, standards)


def _discrete(
    target: NDArray[Any],
    reference: NDArray[Any],
    metrics: Metrics,
    api: str,
    standards: Standards,
) -> Judged:
    if standards.is_quantization(api):
        largest = float(np.max(np.abs(as_floats(target) - as_floats(reference))))
        if largest <= standards.first.quantization_max_abs_error:
            return Judged(Status.PASS)
        return Judged(Status.ERROR, f"max abs error {largest:.6g}")
    if metrics.binary_error == 0:
        return Judged(Status.PASS)
    return Judged(Status.ERROR, f"{metrics.binary_error:.6g} of the elements are unequal")


def _dropout(target: float, reference: float, count: int, standards: Standards) -> Judged:
    limits = standards.first
    if count >= limits.dropout_elements and abs(target - reference) >= limits.dropout_zeros:
        return Judged(Status.ERROR, f"{target:.6g} of the elements are zero, not {reference:.6g}")
    return Judged(Status.PASS, "only the share of zeros is looked at")


def _direction(
    a: NDArray[np.float64], b: NDArray[np.float64], metrics: Metrics, standards: Standards
) -> Judged | None:
    zero_target, zero_reference = (bool(np.max(np.abs(x)) <= _ZERO) for x in (a, b))
    if zero_target != zero_reference:
        side = "output" if zero_target else "reference"
        return Judged(Status.ERROR, f"only the {side} is zero throughout")
    cosine = metrics.cosine
    if a.size > 1 and cosine is not None and cosine <= standards.first.cosine:
        return Judged(Status.ERROR, f"cosine {cosine:.6g}")
    return None


def _errors(metrics: Metrics, dtype: str, standards: Standards) -> Judged:
    largest, limit = metrics.max_abs_error or 0.0, standards.first.max_abs_error
    if largest < limit:
        return Judged(Status.PASS, f"max abs error below {limit:g}")
    shares = {
        0.01: metrics.hundredth or 0.0,
        0.001: metrics.thousandth or 0.0,
        0.0001: metrics.ten_thousandth or 0.0,
    }
    coarse, fine = (0.01, 0.001) if dtype in _LOW_PRECISION else (0.001, 0.0001)
    for bound, status in ((coarse, Status.ERROR), (fine, Status.WARNING)):
        if not shares[bound] > 1 - bound:
            share = math.floor(1e6 * shares[bound]) / 1e6
            return Judged(status, f"only {share:g} have a relative error below {bound:g}")
    return Judged(Status.PASS)
