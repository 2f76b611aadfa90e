# SPDX-License-Identifier: Apache-2.0
"""A run of the monitor at a glance: its incidents, its scalars, one stream over the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from msprobe.errors import UsageError
from msprobe.monitor.alerts.series import MAGNITUDES, is_loss
from msprobe.monitor.collecting.run_numbers import GRAD_NORM, GRAD_NORM_CLIPPED
from msprobe.monitor.findings import Judging, may_be_judged
from msprobe.monitor.noise import gradient_noise, no_noise
from msprobe.monitor.reader import MonitorRun
from msprobe.monitor.reduction import gradient_norms
from msprobe.monitor.rows import VALUE, Stream, is_missing

if TYPE_CHECKING:
    import polars as pl

NOISE_SCALE: Final = "gradient noise scale"
OF_ALL_RANKS: Final = (GRAD_NORM, GRAD_NORM_CLIPPED, NOISE_SCALE)
_SHOWN_SCALARS: Final = ("loss", "grad_norm", "lr.0", "loss_scale")
_PREFERRED: Final = (
    *(Stream.GRAD_REDUCED, Stream.GRAD_UNREDUCED, Stream.ACTV, Stream.PARAM_ORIGIN),
    *(Stream.EXP_AVG_SQ, Stream.UPDATE),
)


def default_stream(run: MonitorRun) -> str:
    """Return the stream that is shown first."""
    others = [one for one in run.streams if one != Stream.RUN]
    return next((one for one in _PREFERRED if one in others), others[0] if others else Stream.RUN)


def default_op(run: MonitorRun, stream: str) -> str:
    """Return the operation of a stream that is shown first."""
    ops = run.ops(stream)
    return next((one for one in MAGNITUDES if one in ops), ops[0] if ops else VALUE)


def run_facts(
    run: MonitorRun, *, stream: str | None = None, op: str | None = None, rank: int | None = None
) -> dict[str, Any]:
    """Return what the terminal shows of a run.

    Args:
        run: the run.
        stream: to show; None for gradients, or else what there is.
        op: its operation; None for the norm, or else what there is.
        rank: None for the first.

    Raises:
        UsageError: the run has no such stream or operation.
    """
    stream = default_stream(run) if stream is None else stream
    if stream not in run.streams:
        raise UsageError(f"{run.path}: no stream {stream}; it has {', '.join(run.streams)}")
    op = default_op(run, stream) if op is None else op
    if op not in run.ops(stream):
        raise UsageError(f"{run.path}: {stream} has no {op}; it has {', '.join(run.ops(stream))}")
    rank = run.ranks[0] if rank is None else rank
    steps = run.steps()
    found = Judging(run).incidents(has_ended=True)
    return {
        "run": str(run.path),
        "ranks": run.ranks,
        "streams": run.streams,
        "steps": {
            "count": len(steps),
            "first": steps[0] if steps else None,
            "last": steps[-1] if steps else None,
        },
        "incidents": found,
        "scalars": _scalars(run, rank),
        "stream": stream,
        "op": op,
        "rank": rank,
        "series": _series(run, stream, op, rank, [one["lead"]["name"] for one in found]),
    }


def _scalars(run: MonitorRun, rank: int) -> dict[str, Any]:
    if Stream.RUN not in run.streams:
        return {}
    matrix = run.matrix(Stream.RUN, VALUE, rank=rank)
    first, *others = _SHOWN_SCALARS
    losses = [name for name in matrix.names if is_loss(name) and name != first]
    shown = {
        name: _ends(matrix.values[:, matrix.names.index(name)])
        for name in (first, *losses, *others)
        if name in matrix.names
    }
    for name in OF_ALL_RANKS:
        found = of_all_ranks(run, name)
        if not found.is_empty() and name not in shown:
            shown[name] = _ends(found["value"].to_numpy())
    return shown


def of_all_ranks(run: MonitorRun, name: str) -> pl.DataFrame:
    """Return step and value of a number that no rank knows alone, one of `OF_ALL_RANKS`.

    It has no rows where there is no such number, or the run is too large to compute it each time.
    """
    if not may_be_judged(run):
        return no_noise().select("step", value="scale")
    if name == NOISE_SCALE:
        return gradient_noise(run).select("step", value="scale")
    return gradient_norms(run).select("step", value=name)


def _series(
    run: MonitorRun, stream: str, op: str, rank: int, leading: list[str]
) -> list[dict[str, Any]]:
    """Return the series of a stream, those that lead incidents first."""
    matrix = run.matrix(stream, op, rank=rank)
    found = [
        {"name": name, **_ends(matrix.values[:, place])} for place, name in enumerate(matrix.names)
    ]
    return sorted(found, key=lambda one: one["name"] not in leading)


def _ends(values: NDArray[np.float64]) -> dict[str, Any]:
    absent = is_missing(values)
    listed = [None if gone else float(one) for one, gone in zip(values, absent, strict=True)]
    known = [value for value in listed if value is not None]
    return {
        "values": listed,
        "first": known[0] if known else None,
        "last": known[-1] if known else None,
    }
