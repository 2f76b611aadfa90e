# SPDX-License-Identifier: Apache-2.0
"""Gradients of data-parallel ranks before and after reduction, the one beside the other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from msprobe.monitor.collecting.run_numbers import (
    GRAD_NORM,
    GRAD_NORM_CLIPPED,
    GRAD_NORM_CLIPPED_PART,
    GRAD_NORM_PART,
    LOSS_SCALE,
)
from msprobe.monitor.rows import VALUE, Stream, Values, is_missing

if TYPE_CHECKING:
    import polars as pl

    from msprobe.monitor.reader import MonitorRun

NORM: Final = "norm"
_SIZES: Final = re.compile(r"\d+")


class Gradients:
    """The gradients of ranks that average theirs, in one operation.

    Attributes:
        names: of those that all ranks have in one size before, and that are whole or in parts
            afterwards.
        before: of each rank.
        are_parts: whether any is in parts afterwards.
        after: ranks to read afterwards, with the names: one copy of each gradient, or all parts.
        steps: that all have.
    """

    def __init__(self, run: MonitorRun, members: Sequence[int], op: str) -> None:
        """Read them.

        Args:
            run: the run.
            members: the ranks.
            op: the operation.
        """
        self.before = [Side(run, Stream.GRAD_UNREDUCED, rank, op) for rank in members]
        sides = [Side(run, Stream.GRAD_REDUCED, rank, op) for rank in members]
        read: list[list[str]] = [[] for _ in sides]
        self.names: list[str] = []
        self.are_parts = False
        for name, size in self.before[0].sizes.items():
            if not all(one.sizes.get(name) == size for one in self.before):
                continue
            held = [place for place, one in enumerate(sides) if one.sizes.get(name)]
            whole = [place for place in held if sides[place].sizes[name] == size]
            if not whole and sum(sides[place].sizes[name] for place in held) != size:
                continue  # neither copies nor one part on each rank
            self.names.append(name)
            self.are_parts = self.are_parts or not whole
            for place in whole[:1] or held:
                read[place].append(name)
        self.after = [(side, found) for side, found in zip(sides, read, strict=True) if found]
        everything = [*self.before, *(side for side, _ in self.after)]
        self.steps = sorted(set.intersection(*(set(one.steps) for one in everything)))

    def averages(self, names: Sequence[str]) -> Values:
        """Return the average over the ranks before reduction, shape (steps, names)."""
        total = sum(one.values(self.steps, names) for one in self.before)
        return np.asarray(total) / len(self.before)

    def reduced_means(self) -> Values:
        """Return the means of whole reduced gradients, shape (steps, names); for op ``mean``."""
        found = np.zeros((len(self.steps), len(self.names)))
        places = {name: place for place, name in enumerate(self.names)}
        for side, names in self.after:
            shares = [side.sizes[one] / max(self.before[0].sizes[one], 1) for one in names]
            found[:, [places[one] for one in names]] += side.values(self.steps, names) * shares
        return found


class Side:
    """The gradients of one rank, before or after reduction, in one operation.

    Attributes:
        steps: rows by step.
        sizes: how many elements each has.
    """

    def __init__(self, run: MonitorRun, stream: Stream, rank: int, op: str) -> None:
        """Read it."""
        matrix = run.matrix(stream, op, rank=rank)
        self._values: Values = np.where(is_missing(matrix.values), 0, matrix.values)
        self._columns = {name: place for place, name in enumerate(matrix.names)}
        self.steps = {step: place for place, step in enumerate(matrix.steps.tolist())}
        self.sizes = {
            name: math.prod(map(int, _SIZES.findall(shape)))
            for name, shape in run.shapes(stream, rank).items()
            if name in self._columns
        }

    def values(self, steps: Sequence[int], names: Sequence[str]) -> Values:
        """Return the values, shape (steps, names); an absent gradient has zero."""
        rows = [self.steps[step] for step in steps]
        columns = [self._columns[name] for name in names]
        return np.asarray(self._values[np.ix_(rows, columns)])


def data_parallel(run: MonitorRun) -> list[tuple[int, ...]]:
    """Return the ranks that belong together, without those that are alone."""
    found: dict[tuple[int, ...], None] = {}
    for rank in run.ranks:
        told = run.heads(rank)[-1].get("groups", {})
        if "dp" in told:
            found[tuple(told["dp"])] = None
        elif not told:
            found[tuple(run.ranks)] = None
    return [one for one in found if len(one) > 1 and set(one) <= set(run.ranks)]


def total_norms(run: MonitorRun) -> dict[int, float]:
    """Return by step the norm of all reduced gradients together; nothing where ranks are missing.

    Gradients of one shape and norm on several ranks are copies and count once: those of ranks that
    average theirs, of parameters that tensor-parallel ranks share, of tied embeddings.
    """
    import polars as pl

    sizes = (run.heads(rank)[-1].get("world_size", 1) for rank in run.ranks)
    if NORM not in run.ops(Stream.GRAD_REDUCED) or len(run.ranks) < max(sizes, default=1):
        return {}
    table = run.table(Stream.GRAD_REDUCED)
    copies = table.group_by("step", "rank", "shape", NORM).len()
    once = copies.group_by("step", "shape", NORM).agg(pl.col("len").max())
    squares = once.group_by("step").agg((pl.col(NORM).pow(2) * pl.col("len")).sum().sqrt())
    return dict(squares.iter_rows())


def gradient_norms(run: MonitorRun) -> pl.DataFrame:
    """Return the norm of all gradients of each step, of a run whose ranks have parts of it.

    Returns:
        Columns step, `GRAD_NORM` and `GRAD_NORM_CLIPPED`; without rows where ranks are missing.
    """
    import polars as pl

    names = {GRAD_NORM_PART: GRAD_NORM, GRAD_NORM_CLIPPED_PART: GRAD_NORM_CLIPPED}
    count = max((run.heads(rank)[-1].get("world_size", 1) for rank in run.ranks), default=1)
    if Stream.RUN not in run.streams or GRAD_NORM_PART not in run.names(Stream.RUN):
        return pl.DataFrame(schema=dict.fromkeys(("step", *names.values()), pl.Float64))
    table = run.table(Stream.RUN, names=list(names))
    parts = table.pivot("name", index=["step", "rank"], values=VALUE)
    sums = [pl.col(part).pow(2).sum().sqrt().alias(one) for part, one in names.items()]
    norms = parts.group_by("step").agg(pl.len(), *sums).sort("step")
    return norms.filter(pl.col("len") == count).drop("len")


def clipping(run: MonitorRun) -> dict[int, float]:
    """Return by step the factor that takes clipping back from gradients; NaN where unknown.

    It is 1 where the gradients are those before clipping: some optimizers clip in their step.
    """
    rank = run.ranks[0]
    if Stream.RUN not in run.streams:
        return {}
    matrix = run.matrix(Stream.RUN, VALUE, rank=rank)
    columns = dict(zip(matrix.names, matrix.values.T, strict=True))
    factors: Values = np.ones(len(matrix.steps))
    before, after = columns.get(GRAD_NORM), columns.get(GRAD_NORM_CLIPPED)
    if before is None and GRAD_NORM_PART in columns:
        rows = {step: both for step, *both in gradient_norms(run).iter_rows()}
        unknown = (np.nan, np.nan)
        before, after = np.array([rows.get(one, unknown) for one in matrix.steps.tolist()]).T
    if before is not None and after is None:
        factors = factors * np.nan
    elif before is not None and after is not None and np.any(before != after):
        norms = total_norms(run)
        found = np.array([norms.get(step, np.nan) for step in matrix.steps.tolist()])
        with np.errstate(divide="ignore", invalid="ignore"):
            is_before = np.abs(found - before) < np.abs(found - after)
            factors = np.where(is_before, 1.0, before / after)
    if LOSS_SCALE in columns:
        factors = np.where(columns[LOSS_SCALE] == 1, factors, np.nan)
    return dict(zip(matrix.steps.tolist(), factors.tolist(), strict=True))
