# SPDX-License-Identifier: Apache-2.0
"""The documented second verdict: two devices, each measured against its own reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msprobe.checks.standards.first_verdict import Status
from msprobe.checks.standards.metrics import Metrics
from msprobe.checks.standards.standard import Algorithm, Generation, RatioMetric, Standards

_LOW_PRECISION: Final = ("float16", "bfloat16")
_ULP: Final = ("max_ulp", "mean_ulp", "ulp_share")
_BOUNDED: Final = ("nonfinite_error", "rel_error_share", "abs_error_share")
_WORDS: Final = {
    RatioMetric.SMALL_VALUE_ERROR: "share of small values in error",
    RatioMetric.RMSE: "root mean square error",
    RatioMetric.MAX_REL_ERROR: "max relative error",
    RatioMetric.MEAN_REL_ERROR: "mean relative error",
    RatioMetric.ERROR_BALANCE: "error balance",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioVerdict:
    """The second verdict of one output.

    Attributes:
        status: the result.
        algorithm: the standard; None where nothing could be judged.
        ratios: ratio and its own result, by metric.
        values: further numbers shown, by the name of the metric in `Metrics`, with their result.
        ulp_ratio: ratio of the shares of elements with many ulps; None where not asked for.
        reasons: which metrics decided, in words.
    """

    status: Status
    algorithm: Algorithm | None = None
    ratios: Mapping[RatioMetric, tuple[float, Status]] = field(default_factory=dict)
    values: Mapping[str, tuple[float, Status]] = field(default_factory=dict)
    ulp_ratio: float | None = None
    reasons: tuple[str, ...] = ()


def ratio_verdict(
    target: Metrics,
    reference: Metrics,
    *,
    api: str,
    dtype: str,
    standards: Standards,
    generation: Generation,
) -> RatioVerdict:
    """Return the verdict of one output on two devices.

    The standard is the one whose metrics both sides have, so that files of either generation can
    be judged.

    Args:
        target: metrics of the device under test.
        reference: metrics of the trusted device.
        api: the operator's bare name.
        dtype: type of the output.
        standards: the limits.
        generation: whose limits of ratios.
    """
    algorithm = _algorithm_of(target, reference, api, dtype, standards)
    match algorithm:
        case None:
            return RatioVerdict(status=Status.SKIP, reasons=("no metric that both sides have",))
        case Algorithm.BENCHMARK:
            return _benchmark(target, reference, api, dtype, standards, generation)
        case Algorithm.ULP:
            return _ulp(target, reference, dtype, standards, api)
        case Algorithm.BINARY:
            return _zero(target, Algorithm.BINARY, ("binary_error",))
        case Algorithm.ABSOLUTE:
            return _zero(target, Algorithm.ABSOLUTE, _BOUNDED)
        case Algorithm.ACCUMULATIVE:
            return _accumulative(target, api, dtype, standards)
        case Algorithm.THOUSANDTH:
            return _thousandth(target, standards)


def _algorithm_of(
    target: Metrics, reference: Metrics, api: str, dtype: str, standards: Standards
) -> Algorithm | None:
    def both(*names: str) -> bool:
        return all(
            getattr(side, name) is not None for side in (target, reference) for name in names
        )

    if both("binary_error"):
        return Algorithm.BINARY
    if both(*_ULP):
        return Algorithm.ULP
    if both(*_BOUNDED):
        return Algorithm.ACCUMULATIVE if both("error_balance") else Algorithm.ABSOLUTE
    if both(*RatioMetric):
        return Algorithm.BENCHMARK
    listed = standards.algorithm(api, dtype, Generation.DOCUMENTED)
    return listed if listed is Algorithm.THOUSANDTH and both("thousandth") else None


def _benchmark(
    target: Metrics,
    reference: Metrics,
    api: str,
    dtype: str,
    standards: Standards,
    generation: Generation,
) -> RatioVerdict:
    floor = standards.limits(api, dtype).ratio_floor
    ratios, reasons = {}, []
    for metric in RatioMetric:
        ratio = _ratio(getattr(target, metric), getattr(reference, metric), floor)
        limit = standards.ratio_limit(metric, api, generation)
        status = Status.PASS if ratio <= limit else Status.ERROR
        ratios[metric] = (ratio, status)
        if status is Status.ERROR and metric is not RatioMetric.ERROR_BALANCE:
            reasons.append(f"{_WORDS[metric]}: ratio {ratio:.6g} is above {limit:g}")
    return RatioVerdict(
        status=Status.ERROR if reasons else Status.PASS,
        algorithm=Algorithm.BENCHMARK,
        ratios=ratios,
        reasons=tuple(reasons),
    )


def _ratio(target: float, reference: float, floor: float) -> float:
    """Return the ratio of two metrics; 0 where both are NaN or the same infinity."""
    if target == reference or (math.isnan(target) and math.isnan(reference)):
        return abs(target) / max(abs(reference), floor) if math.isfinite(target) else 0.0
    if not (math.isfinite(target) and math.isfinite(reference)):
        return math.inf
    return abs(target) / max(abs(reference), floor)


def _ulp(
    target: Metrics, reference: Metrics, dtype: str, standards: Standards, api: str
) -> RatioVerdict:
    rules = standards.ulp
    mean, share = target.mean_ulp or 0.0, target.ulp_share or 0.0
    ratio = _ratio(share, reference.ulp_share or 0.0, standards.limits(api, dtype).ratio_floor)
    if dtype.startswith("float8"):
        passes = share < rules.low_precision_share
    elif dtype in _LOW_PRECISION:
        passes = share < rules.low_precision_share or ratio < rules.ratio
    else:
        passes = mean < rules.float32_mean or share < rules.float32_share or ratio < rules.ratio
    status = Status.PASS if passes else Status.ERROR
    return RatioVerdict(
        status=status,
        algorithm=Algorithm.ULP,
        values={"mean_ulp": (mean, status), "ulp_share": (share, status)},
        ulp_ratio=ratio,
        reasons=() if passes else (f"{share:.6g} of the elements are off by too many ulps",),
    )


def _zero(target: Metrics, algorithm: Algorithm, names: tuple[str, ...]) -> RatioVerdict:
    """Return the verdict of a standard whose shares must all be 0."""
    values, reasons = {}, []
    for name in names:
        share: float = getattr(target, name)
        values[name] = (share, Status.PASS if share == 0 else Status.ERROR)
        if share != 0:
            reasons.append(f"{name.replace('_', ' ')} is {share:.6g}, not 0")
    return RatioVerdict(
        status=Status.ERROR if reasons else Status.PASS,
        algorithm=algorithm,
        values=values,
        reasons=tuple(reasons),
    )


def _accumulative(target: Metrics, api: str, dtype: str, standards: Standards) -> RatioVerdict:
    found = _zero(target, Algorithm.ACCUMULATIVE, _BOUNDED)
    balance = target.error_balance or 0.0
    limit = standards.limits(api, dtype).accumulative_balance
    is_balanced = balance <= limit
    reasons = () if is_balanced else (f"error balance {balance:.6g} is above {limit:g}",)
    return RatioVerdict(
        status=found.status if is_balanced else Status.ERROR,
        algorithm=Algorithm.ACCUMULATIVE,
        ratios={RatioMetric.ERROR_BALANCE: (balance, Status.ERROR if reasons else Status.PASS)},
        values=found.values,
        reasons=(*found.reasons, *reasons),
    )


def _thousandth(target: Metrics, standards: Standards) -> RatioVerdict:
    share = target.thousandth or 0.0
    passes = share >= standards.thousandth
    status = Status.PASS if passes else Status.ERROR
    return RatioVerdict(
        status=status,
        algorithm=Algorithm.THOUSANDTH,
        values={"thousandth": (share, status)},
        reasons=() if passes else (f"only {share:.6g} have a relative error below 0.001",),
    )
