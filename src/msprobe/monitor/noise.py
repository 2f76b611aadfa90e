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

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from msprobe.monitor.collecting.run_numbers import GRAD_NORM, GRAD_NORM_CLIPPED, LOSS_SCALE
from msprobe.monitor.rows import VALUE, Stream, Values, is_missing

if TYPE_CHECKING:
    import polars as pl

    from msprobe.monitor.reader import MonitorRun

NORM: Final = "norm"
_SIZES: Final = re.compile(r"\d+")


def gradient_noise(run: MonitorRun, *, window: int = 10) -> pl.DataFrame:
    """Return noise and signal of each step, and the noise scale of up to `window` steps before it.

    Needs the norms of `grad_unreduced` on all ranks and of `grad_reduced`, averages of them. Ranks
    that were told as ``dp_group`` belong together, otherwise all. Clipping is taken back; steps
    with a loss scale are left out, because it lies on one of the two only.

    Returns:
        Columns step, noise, signal, scale; without rows where something is missing. `scale` is
        infinite where the signal is not above 0: the noise hides it.
    """
    import polars as pl

    factors = _clipping(run)
    found: dict[int, tuple[float, float]] = {}
    for place, members in enumerate(_groups(run)):
        of_group = {
            step: _estimates(small, big * factors.get(step, 1.0), len(members))
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


def _groups(run: MonitorRun) -> list[tuple[int, ...]]:
    """Return the ranks that belong together, without those that are alone."""
    found: dict[tuple[int, ...], None] = {}
    for rank in run.ranks:
        told = run.heads(rank)[-1].get("groups", {})
        if "dp" in told:
            found[tuple(told["dp"])] = None
        elif not told:
            found[tuple(run.ranks)] = None
    return [one for one in found if len(one) > 1 and set(one) <= set(run.ranks)]


def _clipping(run: MonitorRun) -> dict[int, float]:
    """Return by step what takes clipping back from the square of a norm; NaN where unknown."""
    rank = run.ranks[0]
    if Stream.RUN not in run.streams:
        return {}
    matrix = run.matrix(Stream.RUN, VALUE, rank=rank)
    columns = dict(zip(matrix.names, matrix.values.T, strict=True))
    factors: Values = np.ones(len(matrix.steps))
    before, after = columns.get(GRAD_NORM), columns.get(GRAD_NORM_CLIPPED)
    if before is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = factors * np.nan if after is None else np.square(before / after)
    if LOSS_SCALE in columns:
        factors = np.where(columns[LOSS_SCALE] == 1, factors, np.nan)
    return dict(zip(matrix.steps.tolist(), factors.tolist(), strict=True))


def _squares(run: MonitorRun, members: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return by step the mean square of the ranks' norms, and the square of the reduced one's."""
    before = [_Side(run, Stream.GRAD_UNREDUCED, rank) for rank in members]
    after = [_Side(run, Stream.GRAD_REDUCED, rank) for rank in members]
    read: dict[int, list[str]] = {place: [] for place in range(len(after))}
    names = []
    for name, size in before[0].sizes.items():
        if not all(one.sizes.get(name) == size for one in before):
            continue
        held = [place for place, one in enumerate(after) if one.sizes.get(name)]
        whole = [place for place in held if after[place].sizes[name] == size]
        if not whole and sum(after[place].sizes[name] for place in held) != size:
            continue  # neither copies nor one part on each rank
        names.append(name)
        for place in whole[:1] or held:
            read[place].append(name)
    sides = [(one, names) for one in before]
    sides += [(after[place], found) for place, found in read.items() if found]
    if not names:
        return {}
    steps = sorted(set.intersection(*(set(one.steps) for one, _ in sides)))
    small = sum(one.squares(steps, found) for one, found in sides[: len(before)])
    big = sum(one.squares(steps, found) for one, found in sides[len(before) :])
    both = np.array([small / len(members), big]).T.tolist()
    return {step: (one, other) for step, (one, other) in zip(steps, both, strict=True)}


class _Side:
    """The norms of the gradients of one rank, before or after reduction."""

    def __init__(self, run: MonitorRun, stream: Stream, rank: int) -> None:
        matrix = run.matrix(stream, NORM, rank=rank)
        self._squares: Values = np.square(np.where(is_missing(matrix.values), 0, matrix.values))
        self._columns = {name: place for place, name in enumerate(matrix.names)}
        self.steps = {step: place for place, step in enumerate(matrix.steps.tolist())}
        self.sizes = {
            name: math.prod(map(int, _SIZES.findall(shape)))
            for name, shape in run.shapes(stream, rank).items()
            if name in self._columns
        }

    def squares(self, steps: Sequence[int], names: Sequence[str]) -> Values:
        """Return the sum of the squares of norms in each step; an absent gradient has none."""
        rows = [self.steps[step] for step in steps]
        columns = [self._columns[name] for name in names]
        return np.asarray(self._squares[np.ix_(rows, columns)].sum(axis=1))
