# SPDX-License-Identifier: Apache-2.0
"""The documented metrics of one output against its reference: errors by kind, as shares and sums.

Everything is computed in float64. Elements whose size is at most a *small value* are judged by
their absolute error, the others by their relative error, ``|a - b| / (|b| + eps)``, where eps is
the resolution of the reference's type. NaN in the same place and equal infinities are no error;
any other difference that involves NaN or an infinity is an infinite one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.checks.standards.standard import Algorithm, Standards, TypeLimits
from msprobe.dump.formats.dtypes import COMPLEX_PARTS, FLOATS, widen
from msprobe.numerics.number_types import Kind, epsilon_of, kind_of
from msprobe.replay.generated import narrow

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# So that the mean over no element is 0; of the documented formula.
_RMSE_SHIFT: Final = 1e-4
_SHARES: Final = (0.01, 0.001, 0.0001)
# Added to the references of bfloat16 results, whatever type these are in; of the documents.
_BFLOAT16_EPS: Final = 2.0**-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The documented metrics of one output; None for those that its standard does not ask for.

    Attributes:
        cosine: of the two tensors, each scaled by its maximum; NaN where one is zero throughout.
        max_abs_error: largest absolute error.
        hundredth: share of elements whose relative error is below 0.01; `thousandth` and
            `ten_thousandth` are the same for 0.001 and 0.0001.
        binary_error: share of unequal elements.
        error_balance: how far errors upwards outnumber those downwards, as a share; the reference
            is rounded to the output's type before.
        rmse: root mean square of the absolute errors of values that are not small.
        small_value_error: share of small values with too large an absolute error.
        max_rel_error: largest relative error of values that are not small; `mean_rel_error` mean.
        nonfinite_error: share of disagreeing elements among those that are not finite.
        rel_error_share: share of values that are not small with too large a relative error.
        abs_error_share: share of small values with too large an absolute error.
        max_ulp: largest error in units in the last place; `mean_ulp` mean.
        ulp_share: share of elements with an error of more ulps than the threshold.
    """

    cosine: float | None = None
    max_abs_error: float | None = None
    hundredth: float | None = None
    thousandth: float | None = None
    ten_thousandth: float | None = None
    binary_error: float | None = None
    error_balance: float | None = None
    rmse: float | None = None
    small_value_error: float | None = None
    max_rel_error: float | None = None
    mean_rel_error: float | None = None
    nonfinite_error: float | None = None
    rel_error_share: float | None = None
    abs_error_share: float | None = None
    max_ulp: float | None = None
    mean_ulp: float | None = None
    ulp_share: float | None = None


NO_METRICS: Final = Metrics()


def measure(
    target: NDArray[Any],
    reference: NDArray[Any],
    *,
    dtype: str,
    reference_dtype: str,
    api: str,
    algorithm: Algorithm,
    standards: Standards,
) -> Metrics:
    """Return the metrics of one output.

    Args:
        target: the device's output, in numbers to compute with; any shape.
        reference: the trusted output, of the same shape.
        dtype: type of the device's output: ``float32``, ``bfloat16`` …
        reference_dtype: type of the reference.
        api: the operator's bare name: ``conv1d``.
        algorithm: the standard of the second verdict.
        standards: the limits.
    """
    if kind_of(dtype) not in (Kind.FLOAT, Kind.COMPLEX):
        return Metrics(binary_error=binary_error(target, reference))
    a, b = as_floats(target), as_floats(reference)
    eps = epsilon_of(COMPLEX_PARTS.get(reference_dtype, reference_dtype))
    eps = _BFLOAT16_EPS if dtype == "bfloat16" else eps
    with np.errstate(all="ignore"):
        if a.size == 0:
            return Metrics()
        error = _errors(a, b)
        relative = np.where(np.isin(error, (0, np.inf)), error, error / (np.abs(b) + eps))
        first = _first_metrics(a, b, error, relative)
        limits = standards.limits(api, COMPLEX_PARTS.get(dtype, dtype))
        if algorithm is Algorithm.BINARY:
            return Metrics(**first, binary_error=binary_error(a, b))
        if algorithm is Algorithm.ULP:
            return Metrics(**first, **_ulp_metrics(a, b, dtype, limits))
        parts = _Parts(a, b, error, relative, dtype)
        if algorithm is Algorithm.BENCHMARK:
            return Metrics(**first, **parts.benchmark(limits))
        if algorithm is Algorithm.ABSOLUTE:
            return Metrics(**first, **parts.absolute(limits))
        if algorithm is Algorithm.ACCUMULATIVE:
            return Metrics(**first, **parts.accumulative(limits, standards))
    return Metrics(**first)


def as_floats(values: NDArray[Any]) -> Floats:
    """Return the elements in float64, flat; a complex number is two of them."""
    if np.iscomplexobj(values):
        values = np.ascontiguousarray(values.astype(np.complex128)).view(np.float64)
    return np.ascontiguousarray(values, dtype=np.float64).reshape(-1)


def _errors(a: Floats, b: Floats) -> Floats:
    error = np.abs(a - b)
    error[np.isnan(error)] = np.inf
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    return error


def binary_error(target: NDArray[Any], reference: NDArray[Any]) -> float:
    """Return the share of unequal elements; NaN equals NaN."""
    if target.size == 0:
        return 0.0
    unequal = target != reference
    if target.dtype.kind in "fc" and reference.dtype.kind in "fc":
        unequal &= ~(np.isnan(target) & np.isnan(reference))
    return float(np.mean(unequal))


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine of the angle between two tensors; NaN where one has no direction.

    Elements that are not finite on one of the sides are left out.
    """
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    with np.errstate(all="ignore"):
        a, b = a / np.max(np.abs(a), initial=0.0), b / np.max(np.abs(b), initial=0.0)
        return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def zero_share(values: Floats) -> float:
    """Return the share of zeros."""
    return float(np.mean(values == 0)) if values.size else 0.0


def _first_metrics(a: Floats, b: Floats, error: Floats, relative: Floats) -> dict[str, float]:
    hundredth, thousandth, ten_thousandth = (float(np.mean(relative < t)) for t in _SHARES)
    return {
        "cosine": cosine(a, b),
        "max_abs_error": float(np.max(error)),
        "hundredth": hundredth,
        "thousandth": thousandth,
        "ten_thousandth": ten_thousandth,
    }


class _Parts:
    """The elements of one output, divided into finite and other ones, small and other ones."""

    def __init__(self, a: Floats, b: Floats, error: Floats, relative: Floats, dtype: str) -> None:
        self._a, self._b, self._error, self._relative = a, b, error, relative
        part = COMPLEX_PARTS.get(dtype, dtype)
        self._largest = largest_value(part)
        # A reference that the device's type cannot hold is an infinity there.
        self._held = widen(narrow(b, part), part)
        self._finite: Mask = np.isfinite(a) & np.isfinite(self._held)

    def benchmark(self, limits: TypeLimits) -> dict[str, float]:
        small, normal = self._split(limits.benchmark_small_value)
        count = self._a.size
        relative = self._relative[normal]
        squares = float(np.sum(np.square(self._error[normal]))) / count
        weight = count / (np.count_nonzero(normal) + _RMSE_SHIFT) + _RMSE_SHIFT
        return {
            "error_balance": self._balance(),
            "rmse": float(np.sqrt(squares * weight)),
            "small_value_error": _share(self._error[small] > limits.benchmark_atol),
            "max_rel_error": float(np.max(relative, initial=0.0)),
            "mean_rel_error": float(np.mean(relative)) if relative.size else 0.0,
        }

    def absolute(self, limits: TypeLimits) -> dict[str, float]:
        return self._within(limits.absolute_small_value, limits.absolute_atol, limits.rtol)

    def accumulative(self, limits: TypeLimits, standards: Standards) -> dict[str, float]:
        bound = limits.accumulative_bound
        return {
            "error_balance": self._balance(),
            **self._within(standards.accumulative_small_value, bound, bound),
        }

    def _within(self, small_value: float, atol: float, rtol: float) -> dict[str, float]:
        small, normal = self._split(small_value)
        return {
            "nonfinite_error": self._nonfinite_error(rtol),
            "rel_error_share": _share(self._relative[normal] > rtol),
            "abs_error_share": _share(self._error[small] > atol),
        }

    def _split(self, small_value: float) -> tuple[Mask, Mask]:
        small = self._finite & (np.abs(self._b) <= small_value)
        return small, self._finite & ~small

    def _balance(self) -> float:
        above = np.count_nonzero(self._a > self._held)
        below = np.count_nonzero(self._a < self._held)
        return abs(above - below) / self._a.size

    def _nonfinite_error(self, rtol: float) -> float:
        a, b = self._a[~self._finite], self._b[~self._finite]
        both_nan = np.isnan(a) & np.isnan(b)
        a, b = (np.clip(x, -self._largest, self._largest) for x in (a, b))
        far = ~(np.abs(a - b) / np.abs(b) <= rtol)
        return _share(far & ~both_nan)


def largest_value(dtype: str) -> float:
    """Return the largest finite number of a floating-point type."""
    kind = FLOATS[dtype]
    if dtype == "float8_e4m3fn":  # only the last pattern is NaN
        return 448.0
    fraction = 2.0 - 2.0**-kind.fraction_bits
    top = 2**kind.exponent_bits - 1 - kind.bias
    return math.ldexp(fraction, top if dtype.endswith("fnuz") else top - 1)


def _ulp_metrics(a: Floats, b: Floats, dtype: str, limits: TypeLimits) -> dict[str, float]:
    ulps = ulp_errors(a, b, dtype)
    return {
        "max_ulp": float(np.max(ulps)),
        "mean_ulp": float(np.mean(ulps)),
        "ulp_share": float(np.mean(ulps > limits.ulp_threshold)),
    }


def ulp_errors(a: Floats, b: Floats, dtype: str) -> Floats:
    """Return the errors in units in the last place of the reference.

    The exponent of zero counts as 0, as documented. Elements that are NaN on both sides, or the
    same infinity, have none.
    """
    kind = FLOATS[COMPLEX_PARTS.get(dtype, dtype)]
    size = np.abs(b)
    exponent = np.zeros(b.shape)
    known = np.isfinite(b) & (size > 0)
    # frexp is exact where the logarithm rounds up to the next power.
    exponent[known] = np.maximum(np.frexp(size[known])[1] - 1, kind.min_exponent)
    ulps = np.abs(np.ldexp(a - b, (kind.fraction_bits - exponent).astype(np.int64)))
    ulps[~np.isfinite(_errors(a, b))] = np.inf
    ulps[_errors(a, b) == 0] = 0.0
    return ulps


def _share(mask: NDArray[np.bool_]) -> float:
    return float(np.mean(mask)) if mask.size else 0.0
