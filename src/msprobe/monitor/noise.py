# SPDX-License-Identifier: Apache-2.0
"""The gradient noise scale: how the gradients of data-parallel ranks scatter around their mean.

With the gradient g_r of each of n ranks before reduction and their mean G, the reduced one,

    noise   = n/(n-1) · (mean |g_r|² - |G|²)      trace of the covariance of one rank's gradient
    signal  = (n |G|² - mean |g_r|²) / (n-1)      square of the norm of the true gradient
    scale   = noise / signal                      in batches of one rank

Both are free of bias (McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix
A.1). Their ratio is not, so each is averaged over some steps first. Up to `scale` batches in one
step, doubling them nearly doubles what a step achieves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from msprobe.monitor.collecting.run_numbers import LOSS
from msprobe.monitor.reduction import NORM, Gradients, clipping, data_parallel
from msprobe.monitor.rows import VALUE, Stream

if TYPE_CHECKING:
    import polars as pl

    from msprobe.monitor.reader import MonitorRun


def gradient_noise(run: MonitorRun, *, window: int = 10) -> pl.DataFrame:
    """Return noise and signal of each step, and the noise scale of up to `window` steps before it.

    Needs the norms of `grad_unreduced` on all ranks and of `grad_reduced`, averages of them. Ranks
    that were told as ``dp_group`` belong together, otherwise all. Clipping is taken back; steps
    with a loss scale are left out, because it lies on one of the two only, and gradients in parts
    of several micro batches: each may be reduced, where those before are of the last one.

    Returns:
        Columns step, noise, signal, scale; without rows where something is missing. `scale` is
        infinite where the signal is not above 0: the noise hides it.
    """
    import polars as pl

    factors = clipping(run)
    found: dict[int, tuple[float, float]] = {}
    for place, members in enumerate(data_parallel(run)):
        of_group = {
            step: _estimates(small, big * factors.get(step, 1.0) ** 2, len(members))
            for step, (small, big) in _squares(run, members).items()
        }
        if place:  # other parts of the model
            found = {
                step: (noise + of_group[step][0], signal + of_group[step][1])
                for step, (noise, signal) in found.items()
                if step in of_group
            }
        else:
            found = of_group
    steps = sorted(step for step, both in found.items() if np.isfinite(both).all())
    if not steps:
        return no_noise()
    rows = [(step, *found[step]) for step in steps]
    frame = pl.DataFrame(rows, schema=["step", "noise", "signal"], orient="row")
    noise, signal = (pl.col(one).rolling_mean(window, min_samples=1) for one in ("noise", "signal"))
    return frame.with_columns(scale=pl.when(signal > 0).then(noise / signal).otherwise(np.inf))


def no_noise() -> pl.DataFrame:
    """Return the table without rows."""
    import polars as pl

    return pl.DataFrame(schema=dict.fromkeys(("step", "noise", "signal", "scale"), pl.Float64))


def _estimates(small: float, big: float, count: int) -> tuple[float, float]:
    return count / (count - 1) * (small - big), (count * big - small) / (count - 1)


def _has_micro_steps(run: MonitorRun) -> bool:
    if Stream.RUN not in run.streams or LOSS not in run.names(Stream.RUN):
        return False
    return bool(run.series(Stream.RUN, LOSS, VALUE)["micro_step"].max())


def _squares(run: MonitorRun, members: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return by step the mean square of the ranks' norms, and the square of the reduced one's."""
    found = Gradients(run, members, NORM)
    if not found.names or (found.are_parts and _has_micro_steps(run)):
        return {}
    small = sum(np.square(one.values(found.steps, found.names)).sum(axis=1) for one in found.before)
    big = sum(np.square(side.values(found.steps, names)).sum(axis=1) for side, names in found.after)
    both = np.array([small / len(members), big]).T.tolist()
    return {step: (one, other) for step, (one, other) in zip(found.steps, both, strict=True)}
