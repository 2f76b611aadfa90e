# SPDX-License-Identifier: Apache-2.0
"""Cost of facts.json, of signatures and of noise: CPU time of steps taken in turns.

    python benchmarks/facts.py                  # GPT at mix, stop() on either side of the optimizer
    python benchmarks/facts.py --case small-ops --level L0

Each round runs every variant twice, in an order drawn anew, and times the second step: as in a run
of several steps, it finds the parameters as its own last step left them. What else the machine
does, and what one leaves behind for the next, touches all of them. The ratios are those of the
lower quartiles, which a busy machine disturbs least. In brackets: the middle half of the ratios of
one round each.

The last line is a control: how long the machine takes to read once, and do nothing else with, what
facts read in a step (gradients, states, parameters after the update). No summary can cost less.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from bench_models import WORKLOADS, Workload, build, keep_freed_memory

from msprobe.config import load_config
from msprobe.pytorch.run import Run

# name -> keys of config.json (None: msprobe is not used), and whether stop() follows the optimizer
VARIANTS: Final[dict[str, tuple[dict[str, Any] | None, bool]]] = {
    "plain": (None, False),
    "stop before the optimizer": ({}, False),
    "stop before, no facts": ({"facts": False}, False),
    "stop behind the optimizer": ({}, True),
    "stop behind, its APIs recorded": ({"optimizer_apis": True}, True),
    "task signature": ({"task": "signature"}, True),
    "task noise_floor": ({"task": "noise_floor"}, True),
}
WARM_UP: Final = 2


def run_of(folder: Path, level: str, keys: dict[str, Any]) -> Run:
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps({"level": level, "dump_path": str(folder / "dump"), **keys}))
    return Run(load_config(path))


def train_once(work: Workload, run: Run | None, *, stops_behind: bool) -> None:
    if run is not None:
        run.start((work.model,), None, None)
    work.optimizer.zero_grad()
    work.forward().backward()
    if run is not None and not stops_behind:
        run.stop()
    work.optimizer.step()
    if run is not None:
        run.stop()
        run.step()


def measure(case: str, level: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return the CPU seconds of each step of each variant."""
    work = build(case)
    runs = {
        name: None if keys is None else run_of(folder / str(place), level, keys)
        for place, (name, (keys, _)) in enumerate(VARIANTS.items())
    }
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(rounds + WARM_UP):
        for name, (_, stops_behind) in random.sample(list(VARIANTS.items()), len(VARIANTS)):
            train_once(work, runs[name], stops_behind=stops_behind)
            gc.collect()
            started = time.process_time()
            train_once(work, runs[name], stops_behind=stops_behind)
            if number >= WARM_UP:
                found[name].append(time.process_time() - started)
    return found


def read_only(case: str, rounds: int) -> tuple[int, float]:
    """Return the bytes that facts read in a step, and the CPU seconds of a bare pass over them."""
    work = build(case)
    train_once(work, None, stops_behind=False)
    state = [one for each in work.optimizer.state.values() for one in each.values()]
    parameters = list(work.model.parameters())
    read = [*parameters, *(one.grad for one in parameters), *state]
    views = [
        one.detach().view(-1).numpy().view(np.int32)
        for one in read
        if one is not None and one.numel() > 1 and one.dtype is torch.float32
    ]
    times = []
    for _ in range(rounds):
        started = time.process_time()
        for view in views:
            view.max()
        times.append(time.process_time() - started)
    return sum(view.nbytes for view in views), statistics.quantiles(times, n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=WORKLOADS, default="gpt")
    parser.add_argument("--level", choices=("L0", "L1", "mix"), default="mix")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        found = measure(args.case, args.level, args.rounds, Path(folder))
    plain = found["plain"]
    for name, times in found.items():
        ratios = [a / b for a, b in zip(times, plain, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        lower, base = (statistics.quantiles(one, n=4)[0] for one in (times, plain))
        print(f"{name:34} {lower * 1e3:8.1f} ms  {lower / base:6.3f}x  ({low:.3f} to {high:.3f})")
    size, took = read_only(args.case, args.rounds)
    print(
        f"{f'control: {size / 1e6:.0f} MB read once':34} {took * 1e3:8.1f} ms  {took / base:6.3f} "
        f"of the plain step, {size / took / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
