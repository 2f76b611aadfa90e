# SPDX-License-Identifier: Apache-2.0
"""The cost of monitoring: time of a training step by what is collected, and the store at scale.

    python benchmarks/monitor.py                     the table of steps
    python benchmarks/monitor.py --store             100,000 tensors, 1,000 steps (3.2 GB on disk)

A 6-layer transformer (width 256, batch 16 of 16 tokens, 2 micro steps, AdamW), one thread. Time is
CPU time of the process, so the thread of the recorder counts. Steps with and without run in turn
in one process: what disturbs one disturbs the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars  # noqa: F401 - its import is no part of what is measured
import torch
from torch import nn

import msprobe
from msprobe.monitor.pictures import Pictures
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter
from msprobe.pytorch import TrainerMon

SIX_OPS = ["min", "max", "norm", "mean", "zeros", "nans"]
GRADIENTS_AND_STATE = {"wg_distribution": True, "mv_distribution": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "attached, step not collected": {"start_step": 10**6, "wg_distribution": True},
    "numbers of the run": {},
    "optimizer state": {"mv_distribution": True},
    "gradients and optimizer state": GRADIENTS_AND_STATE,
    "parameters before and after": {"param_distribution": True},
    "activations and their gradients": {"xy_distribution": True},
    "everything": {**GRADIENTS_AND_STATE, "param_distribution": True, "xy_distribution": True},
}
MUST = {
    "attached, step not collected": 0.005,
    "gradients and optimizer state": 0.05,
    "parameters before and after": 0.04,
    "activations and their gradients": 0.30,
    "everything": 0.40,
}


class Training:
    """One training of the model."""

    def __init__(self, settings: dict[str, Any] | None, folder: Path) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(1000, 256), encoder, nn.Linear(256, 1000))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.monitor: TrainerMon | None = None
        self.times: list[float] = []
        if settings is not None:
            path = folder / "monitor.json"
            keys = {"ops": SIX_OPS, "output_dir": str(folder), **settings}
            path.write_text(json.dumps(keys))
            self.monitor = TrainerMon(path)
            self.monitor.set_monitor(self.model, self.optimizer, grad_acc_steps=2)

    def step(self) -> float:
        """Train one step; return its CPU time."""
        started = time.process_time()
        for _ in range(2):
            tokens = torch.randint(1000, (16, 16))
            logits = self.model(tokens)
            nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.monitor is not None and self.monitor._recorder is not None:
            self.monitor._recorder.wait()
        return time.process_time() - started


def pair(name: str, rounds: int) -> None:
    """Print the cost of one setting, from steps with and without it in turn."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        plain, monitored = Training(None, Path(folder)), Training(SETTINGS[name], Path(folder))
        for round_ in range(rounds + 2):
            for training in (plain, monitored) if round_ % 2 else (monitored, plain):
                elapsed = training.step()
                if round_ >= 2:
                    training.times.append(elapsed)
        if monitored.monitor is not None:
            monitored.monitor.close()
    before, after = (quartile(one.times) for one in (plain, monitored))
    must = f"{MUST[name]:.1%}" if name in MUST else ""
    print(f"{name:34} {before * 1e3:7.1f} {after * 1e3:9.1f} {after / before - 1:7.1%} {must:>6}")


def quartile(times: list[float]) -> float:
    """Return the lower quartile, which a busy machine disturbs least."""
    return statistics.quantiles(times, n=4)[0]


def steps_table(rounds: int, only: list[str]) -> None:
    """Print the cost of each setting; hooks on modules are global, so each has its own process."""
    print(f"{'collected':34} {'plain':>7} {'monitored':>9} {'added':>7} {'must':>6}", flush=True)
    for name in only or SETTINGS:
        own = [sys.executable, __file__, "--pair", name, "--rounds", str(rounds)]
        subprocess.run(own, check=True, env={**os.environ, "MSPROBE_LOG_LEVEL": "3"})


def store_table(tensors: int, steps: int) -> None:
    """Print size and times of a large store."""
    names = tuple(f"layers.{number}.weight" for number in range(tensors))
    zeros, empty = (0,) * tensors, ("[256, 256]",) * tensors
    ops = ("min", "max", "norm", "mean")
    layout = Layout("grad_reduced", ops, names, zeros, zeros, empty, empty)
    values = np.random.default_rng(0).standard_normal((4, tensors))

    def timed(what: str, action: Callable[[], Any]) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        result = action()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"{what:34} {wall * 1e3:9.1f} ms, CPU {cpu * 1e3:9.1f} ms")
        return result

    with tempfile.TemporaryDirectory() as folder:

        def write() -> None:
            with RunWriter(Path(folder), 0, {}) as writer:
                for step in range(steps):
                    writer.append(Rows(layout, 0, step, 0, float(step), values))
                    writer.flush()

        timed("write", write)
        size = sum(one.stat().st_size for one in Path(folder).iterdir())
        count = tensors * steps * 4
        print(f"{'size':34} {size / 1e9:.2f} GB, {size / count:.2f} bytes a value")
        run = timed("open", lambda: msprobe.open_monitor(folder))
        timed("one series", lambda: run.series("grad_reduced", names[tensors // 2], "norm"))
        _forget(Path(folder))
        timed("one series, from the disk", lambda: run.series("grad_reduced", names[7], "norm"))
        run.close()
        pictures = timed("open the page", lambda: Pictures([msprobe.open_monitor(folder)]))
        timed("its overview", pictures.overview)
        _forget(Path(folder))
        timed("first heat map, from the disk", lambda: pictures.heat("grad_reduced", "norm"))
        timed("the series of a click", lambda: pictures.series("grad_reduced", names[5], "norm"))
        _forget(Path(folder))
        timed("another one, from the disk", lambda: pictures.heat("grad_reduced", "max"))


def _forget(folder: Path) -> None:
    """Have the system forget what it keeps of files in memory."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--pair", help=argparse.SUPPRESS)
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=1_000)
    arguments = parser.parse_args()
    if arguments.pair:
        pair(arguments.pair, arguments.rounds)
    elif arguments.store:
        store_table(arguments.tensors, arguments.steps)
    else:
        steps_table(arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
