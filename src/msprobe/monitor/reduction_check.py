# SPDX-License-Identifier: Apache-2.0
"""Check a run against itself: gradients after reduction against those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from msprobe.monitor.log_check import Agreement, Apart
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.reduction import NORM, Gradients, clipping, data_parallel
from msprobe.monitor.rows import Stream, Values

# Means of gradients agree within this, as in mindstudio-probe's own check of its monitor. Where the
# elements cancel out, their rounding in bfloat16 moves the mean by this share of norm / elements.
_MEAN_RTOL: Final = 0.01
_ROUNDING_SHARE: Final = 2.0**-6
_MOST_APART: Final = 0.5
_MEAN: Final = "mean"


def check_reduction(run: MonitorRun) -> list[Agreement]:
    """Compare the means of reduced gradients with those of the ranks before their reduction.

    The ranks of a ``dp_group`` belong together, or all if no group was told. Each gradient is the
    average or the sum of theirs, all by the same factor: that of clipping, or where the run does
    not tell it (loss scales, norms that the optimizer clips) the one of most parameters.

    Returns:
        One entry for each group; none without the operation ``mean`` in both streams. None for
        parts of gradients of which most differ: ZeRO 2 and FSDP reduce each micro batch, and those
        before reduction are of the last one.
    """
    if any(_MEAN not in run.ops(one) for one in (Stream.GRAD_UNREDUCED, Stream.GRAD_REDUCED)):
        return []
    found = []
    for members in data_parallel(run):
        means = Gradients(run, members, _MEAN)
        if means.names and means.steps:
            agreement, share = _reduction(run, members, means)
            if share < _MOST_APART or not means.are_parts:
                found.append(agreement)
    return found


def _reduction(
    run: MonitorRun, members: Sequence[int], means: Gradients
) -> tuple[Agreement, float]:
    before, after = means.averages(means.names), means.reduced_means()
    slack: Values | float = 0.0
    if NORM in run.ops(Stream.GRAD_UNREDUCED):
        norms = Gradients(run, members, NORM)
        sizes = np.array([norms.before[0].sizes[name] for name in means.names])
        slack = _ROUNDING_SHARE * norms.averages(means.names) / sizes
    told = clipping(run)
    factors = np.array([1 / told.get(step, 1.0) for step in means.steps])
    unknown = np.isnan(factors)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.abs(before) > 10 * slack, after / before, np.nan)
    usual = [np.nanmedian(row) if np.isfinite(row).any() else 1.0 for row in ratios]
    factors = np.where(unknown, usual, factors)
    ways = {"average": factors, "sum": np.where(unknown, factors, factors * len(members))}
    masks = {}
    for way, factor in ways.items():
        expected = before * factor[:, None]
        allowed = _MEAN_RTOL * np.maximum(np.abs(expected), np.abs(after)) + slack
        is_equal = (np.abs(after - expected) <= allowed) | (np.isnan(after) & np.isnan(expected))
        masks[way] = ~is_equal, expected
    way = min(masks, key=lambda one: masks[one][0].sum())
    mask, expected = masks[way]
    ranks = ", ".join(map(str, members))
    agreement = Agreement(
        name=Stream.GRAD_REDUCED,
        way=f"{way} of grad_unreduced over ranks {ranks}",
        steps=len(means.steps),
        apart=tuple(
            Apart(
                step=means.steps[row],
                expected=float(expected[row, column]),
                recorded=float(after[row, column]),
                parameter=means.names[column],
            )
            for row, column in np.argwhere(mask).tolist()
        ),
    )
    return agreement, float(mask.mean())
