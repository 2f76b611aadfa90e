# SPDX-License-Identifier: Apache-2.0
"""Cost of the checks that run while a model trains: CPU time against the plain step, in turns.

    python benchmarks/checks.py [--rounds N] [--only TEXT]

Variants of a group take turns in one process on one thread; a ratio is the median of the ratios of
a turn, so that what else runs on the machine meets both sides. Freed memory stays with the process
while they do, see `keep_freed_memory`. `bar` is what must be reached.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from bench_models import GPT, keep_freed_memory
from torch import nn

from msprobe.config import load_config
from msprobe.pytorch import live_compare
from msprobe.pytorch.run import Run

PLAIN: Final = "plain"
_KEPT: Final = 20


class Training:
    """A GPT and its optimizer."""

    def __init__(self, layers: int, width: int, batch: int, length: int) -> None:
        torch.manual_seed(0)
        self.model = GPT(layers, width, heads=8, length=length, vocabulary=512)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=False)
        self.ids = torch.randint(0, 512, (batch, length))

    def forward(self) -> torch.Tensor:
        logits = self.model(self.ids)
        return nn.functional.cross_entropy(logits.flatten(0, 1), self.ids.flatten())

    def forward_and_backward(self) -> None:
        self.optimizer.zero_grad()
        self.forward().backward()

    def step(self) -> None:
        self.forward_and_backward()
        self.optimizer.step()


@dataclass
class Group:
    """Variants that are timed in turns.

    Attributes:
        title: of the group.
        action: the timed part of the program.
        training: its model.
        variants: name → how the action is observed; a run, or a context.
        bars: name → name of the variant that it is measured against, and the largest ratio.
    """

    title: str
    action: Callable[[], object]
    training: Training
    variants: dict[str, Run | AbstractContextManager[Any]] = field(default_factory=dict)
    bars: dict[str, tuple[str, float]] = field(default_factory=dict)


def run_of(folder: Path, task: str, level: str, **section: Any) -> Run:
    folder.mkdir(parents=True)
    path = folder / "config.json"
    keys = {"task": task, "level": level, "dump_path": str(folder / "out"), task: section}
    path.write_text(json.dumps(keys))
    return Run(load_config(path))


def seconds(group: Group, how: Run | AbstractContextManager[Any]) -> float:
    """Return the CPU time of one run of the action, the ends of the step included."""
    begun = time.process_time()
    if isinstance(how, Run):
        how.start((group.training.model,), None, None)
        group.action()
        how.stop()
        how.step()
    else:
        with how:
            group.action()
    return time.process_time() - begun


def groups(folder: Path) -> list[Group]:
    gpt = Training(layers=8, width=256, batch=4, length=128)
    small = Training(layers=12, width=64, batch=1, length=16)
    made = []
    for name, training, bar in (("GPT", gpt, 1.10), ("small operators", small, 3.5)):
        at = folder / name.split()[0]
        statistics_l1 = run_of(at / "l1", "statistics", "L1")
        made.append(
            Group(
                f"{name}, step, level L1",
                training.step,
                training,
                {
                    PLAIN: nullcontext(),
                    "nan_check": run_of(at / "nan", "nan_check", "L1", stop_on="never"),
                    "statistics": statistics_l1,
                    "flight recorder": run_of(at / "keep", "statistics", "L1", keep_last=_KEPT),
                },
                {"nan_check": (PLAIN, bar), "flight recorder": ("statistics", 1.0)},
            )
        )
        made.append(
            Group(
                f"{name}, step, level mix",
                training.step,
                training,
                {
                    "statistics": run_of(at / "mix", "statistics", "mix"),
                    "overflow_check": run_of(at / "over", "overflow_check", "mix"),
                },
                {"overflow_check": ("statistics", 1.15)},
            )
        )
    made.append(
        Group(
            "GPT, forward",
            gpt.forward,
            gpt,
            {PLAIN: nullcontext(), "ulp_noise": run_of(folder / "ulp", "free_benchmark", "L1")},
            {"ulp_noise": (PLAIN, 2.5)},
        )
    )
    one = run_of(folder / "one", "free_benchmark", "L1", list=["layer_norm"])
    made.append(
        Group(
            "GPT, step, free_benchmark",
            gpt.step,
            gpt,
            {PLAIN: nullcontext(), "one listed operator": one},
            {"one listed operator": (PLAIN, 1.15)},
        )
    )
    untrained = Training(layers=8, width=256, batch=4, length=128)
    made.append(
        Group(
            "GPT, forward and backward",
            untrained.forward_and_backward,
            untrained,
            {
                PLAIN: nullcontext(),
                "every call": live_compare(dump_path=folder / "live"),
                "one in 20": live_compare(dump_path=folder / "some", every_n=20),
            },
            {"every call": (PLAIN, 8.0), "one in 20": (PLAIN, 1.6)},
        )
    )
    return made


def kept_bytes(folder: Path, training: Training, level: str) -> tuple[int, int]:
    """Return the size of the records of 20 kept steps, and what the process gives back for them."""
    run = run_of(folder / "memory" / level, "statistics", level, keep_last=_KEPT)
    group = Group("", training.step, training)
    assert run.session.flight is not None
    for _ in range(2 * _KEPT):
        seconds(group, run)
    records = sum(step.dump.size_bytes for step in run.session.flight.kept)
    kept = resident_bytes()
    run.session.flight.forget()
    gc.collect()
    return records, max(kept - resident_bytes(), 0)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def time_in_turns(group: Group, rounds: int) -> None:
    """Time the variants of a group in turns, after one round that does not count; print ratios."""
    times: dict[str, list[float]] = {variant: [] for variant in group.variants}
    for turn in range(rounds + 1):
        for variant, how in group.variants.items():
            spent = seconds(group, how)
            if turn:
                times[variant].append(spent)
    for variant, found in times.items():
        against, bar = group.bars.get(variant, (next(iter(times)), math.nan))
        ratio = statistics.median(a / b for a, b in zip(found, times[against], strict=True))
        said = "" if math.isnan(bar) else f"bar {bar:.2f} {'ok' if ratio <= bar else 'MISSED'}"
        print(
            f"{group.title:28} {variant:20} {statistics.median(found):7.4f} s "
            f"{ratio:6.3f} x {against:12} {said}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        for level in ("L1", "mix"):
            run, kept = kept_bytes(Path(name), Training(8, 256, 4, 128), level)
            print(
                f"20 steps of the GPT in memory, {level}: {run / 2**20:.1f} MiB of records, "
                f"{kept / 2**20:.1f} MiB of the process, bar 64 MB"
            )
        keep_freed_memory()
        for group in groups(Path(name)):
            if options.only in group.title:
                time_in_turns(group, options.rounds)


if __name__ == "__main__":
    main()
