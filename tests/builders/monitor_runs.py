# SPDX-License-Identifier: Apache-2.0
"""Rows of a run that trains well, and ways to spoil it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from msprobe.monitor.alerts.engine import Alerts
from msprobe.monitor.alerts.incidents import Incident
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter

LAYERS = tuple(f"layers.{number}.weight" for number in range(8))
# One step of one rank: values by stream, operation and name.
Step = dict[str, dict[str, dict[str, float]]]
Spoil = Callable[[Step, int, int], None]


def config(folder: Path, **keys: Any) -> Path:
    """Write a configuration of the monitor whose runs lie beside it."""
    path = folder / "monitor.json"
    path.write_text(json.dumps({"output_dir": str(folder / "runs"), **keys}))
    return path


def healthy_step(step: int, rank: int, noise: np.random.Generator) -> Step:
    """Return a step of a run whose gradients fall slowly and whose parameters grow slowly."""
    decay = 1 / (1 + step / 80)
    gradients = {name: decay * float(np.exp(0.2 * noise.normal())) for name in LAYERS}
    modules = [name.removesuffix("weight") + "output" for name in LAYERS]
    return {
        "param_origin": {"norm": dict.fromkeys(LAYERS, 3 + step * 0.001)},
        "actv": {
            "norm": {name: 5 * float(np.exp(0.05 * noise.normal())) for name in modules},
            "nans": dict.fromkeys(modules, 0.0),
            "zeros": {name: 0.5 + 0.02 * float(noise.normal()) for name in modules},
        },
        "grad_reduced": {"norm": gradients},
        "exp_avg_sq": {"norm": dict.fromkeys(LAYERS, 0.001 * decay**2 + step * 1e-09)},
        "run": {
            "value": {
                "loss": 2 * decay * float(np.exp(0.05 * noise.normal())),
                "lr.0": 1e-3,
                "betas.1.0": 0.999,
            }
        },
        "update": {"norm": {name: 1e-3 * (1 + 0.05 * float(noise.normal())) for name in LAYERS}},
        "param_updated": {"norm": dict.fromkeys(LAYERS, 3 + (step + 1) * 0.001)},
    }


class Layouts:
    """Rows of steps; the same layout for equal names."""

    def __init__(self) -> None:
        self._known: dict[object, Layout] = {}

    def rows(
        self, step: int, rank: int, values: Step, dtype: str = "torch.float32"
    ) -> Iterator[Rows]:
        for stream, ops in values.items():
            names = tuple(next(iter(ops.values())))
            key = stream, tuple(ops), names, dtype
            count = len(names)
            layout = self._known.setdefault(
                key,
                Layout(
                    stream,
                    tuple(ops),
                    names,
                    (0,) * count,
                    (0,) * count,
                    ("[4]",) * count,
                    (dtype,) * count,
                ),
            )
            table = np.array([list(column.values()) for column in ops.values()], np.float64)
            yield Rows(layout, rank, step, 0, 1.7e9 + step, table)


def run_of(
    spoil: Spoil | None = None,
    *,
    steps: int = 90,
    ranks: int = 1,
    dtype_from: tuple[int, str] = (10**9, ""),
) -> Iterator[Rows]:
    """Yield the rows of a run; `spoil` changes the values of a step and rank."""
    layouts, noise = Layouts(), np.random.default_rng(0)
    for step in range(steps):
        shared = healthy_step(step, 0, noise)
        for rank in range(ranks):
            own = healthy_step(step, rank, noise)
            for stream in ("grad_reduced", "param_origin", "exp_avg_sq", "update", "param_updated"):
                own[stream] = {op: dict(values) for op, values in shared[stream].items()}
            if spoil is not None:
                spoil(own, step, rank)
            dtype = dtype_from[1] if step >= dtype_from[0] else "torch.float32"
            yield from layouts.rows(step, rank, own, dtype)


def incidents(rows: Iterator[Rows]) -> list[Incident]:
    """Return the incidents of rows, taken step by step as the monitor gives them."""
    alerts = Alerts()
    step = 0
    for block in rows:
        if block.step != step:
            alerts.end_step(step)
            step = block.step
        alerts.take(block)
    alerts.end_step(step)
    alerts.close()
    return alerts.incidents


def write(folder: Path, spoil: Spoil | None = None, *, steps: int = 80, ranks: int = 1) -> Path:
    """Write a run; return its folder."""
    folder.mkdir()
    for rank in range(ranks):
        with RunWriter(folder, rank=rank, head={"config": {}}) as writer:
            for rows in run_of(spoil, steps=steps, ranks=ranks):
                if rows.rank == rank:
                    writer.append(rows)
            writer.flush()
    return folder
