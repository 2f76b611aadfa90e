# SPDX-License-Identifier: Apache-2.0
"""Cost of the task `free_benchmark`: CPU time with and without it, taken in turns in one process.

    python benchmarks/perturbation.py           # GPT 8x256, batch 4x128, one thread

`forward` is the forward pass alone, of which every call is perturbed; `step` a whole step, of which
one operator is. The ratios are those of the medians.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from bench_models import GPT
from torch import nn

from msprobe.config import load_config
from msprobe.pytorch.run import Run

MODES: Final = (
    *("ulp_noise", "relative_noise", "permute", "rerun", "high_precision", "cpu_reference"),
)


def run_of(folder: Path, **keys: Any) -> Run:
    folder.mkdir()
    path = folder / "config.json"
    settings = {"task": "free_benchmark", "level": "L1", "dump_path": str(folder / "out")}
    path.write_text(json.dumps({**settings, "free_benchmark": keys}))
    return Run(load_config(path))


class Training:
    """The model of the figures."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT(layers=8, width=256, heads=8, length=128, vocabulary=512)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=False)
        self.ids = torch.randint(0, 512, (4, 128))

    def forward(self) -> torch.Tensor:
        logits = self.model(self.ids)
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.ids.flatten())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()


def seconds(action: Callable[[], object], run: Run | None, model: nn.Module) -> float:
    """Return the CPU time of one run of `action`, the beginning and end of the step included."""
    begun = time.process_time()
    if run is not None:
        run.start((model,), None, None)
    action()
    if run is not None:
        run.stop()
        run.step()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    training = Training()
    with TemporaryDirectory() as name:
        folder = Path(name)
        forward: dict[str, Run | None] = {"plain": None}
        forward |= {mode: run_of(folder / mode, mode=mode) for mode in options.modes}
        step: dict[str, Run | None] = {"plain": None}
        one = {"mode": "ulp_noise", "list": ["layer_norm"]}
        step["one listed operator (layer_norm)"] = run_of(folder / "listed", **one)
        step["one listed operator, backward"] = run_of(
            folder / "backward", fuzz_stage="backward", **one
        )
        for what, variants, action in (
            ("forward", forward, training.forward),
            ("step", step, training.step),
        ):
            times: dict[str, list[float]] = {variant: [] for variant in variants}
            for turn in range(options.rounds + 1):
                for variant, run in variants.items():
                    spent = seconds(action, run, training.model)
                    if turn:
                        times[variant].append(spent)
            plain = statistics.median(times["plain"])
            for variant, found in times.items():
                ratio = statistics.median(found) / plain
                print(f"{what:8} {variant:34} {statistics.median(found):8.3f} s {ratio:6.2f}x")


if __name__ == "__main__":
    main()
