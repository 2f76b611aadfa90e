# SPDX-License-Identifier: Apache-2.0
"""Data-parallel trainings of several processes (gloo), whose parts can be replaced.

Run as a program: ``python ranks.py FOLDER CAUSE:WORLD:LEVEL ...``. PyTorch is imported once; the
ranks of each training are forked from there.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # every optimizer asks for it: once here, and not in each fork
import torch.distributed as dist
from torch import nn

from msprobe.pytorch import PrecisionDebugger

STEPS = 2
Reduction = Callable[[nn.Module], None]


def mean(model: nn.Module) -> None:
    """Average the gradients over all ranks."""
    divided(dist.get_world_size())(model)


def divided(divisor: int) -> Reduction:
    """Add up the gradients of all ranks, and divide them."""

    def reduce(model: nn.Module) -> None:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= divisor

    return reduce


def total(model: nn.Module) -> None:
    """Add up the gradients of all ranks, and do not divide."""
    for p in model.parameters():
        dist.all_reduce(p.grad)


def nothing(model: nn.Module) -> None:
    """Leave each rank its own gradients."""


def in_groups(size: int) -> Reduction:
    """Average over groups that are smaller than the world."""

    def reduce(model: nn.Module) -> None:
        ranks = range(dist.get_world_size())
        groups = [dist.new_group(list(ranks[first:][:size])) for first in ranks[::size]]
        for p in model.parameters():
            dist.all_reduce(p.grad, group=groups[dist.get_rank() // size])
            p.grad /= size

    return reduce


def all_but_one(model: nn.Module) -> None:
    """Average all gradients but that of the first layer's bias."""
    for name, p in model.named_parameters():
        if name != "0.bias":
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def maximum(model: nn.Module) -> None:
    """Reduce by the maximum in place of the sum."""
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.MAX)
        p.grad /= dist.get_world_size()


@dataclass(frozen=True)
class Plan:
    """What the ranks of a training do.

    Attributes:
        reduce: makes the gradients of the ranks one.
        data_seed: seed of a rank's data.
        model_seed: seed of a rank's parameters.
        parallel: `DistributedDataParallel` reduces, in place of `reduce`.
        synchronised: whether it does so, or `no_sync()` was left on.
        killed_at: the step in which the process is killed.
    """

    reduce: Reduction = mean
    data_seed: Callable[[int], int] = lambda rank: 10 + rank
    model_seed: Callable[[int], int] = lambda _rank: 3
    parallel: bool = False
    synchronised: bool = True
    killed_at: int | None = None


PLANS = {
    "mean": Plan(),
    "total": Plan(reduce=total),
    "nothing": Plan(reduce=nothing),
    "alone": Plan(reduce=in_groups(1)),
    "halved": Plan(reduce=divided(2)),
    "pairs": Plan(reduce=in_groups(2)),
    "one parameter": Plan(reduce=all_but_one),
    "maximum": Plan(reduce=maximum),
    "same data": Plan(data_seed=lambda _rank: 10),
    "other data": Plan(data_seed=lambda rank: 10 + rank if rank < 2 else 99),
    "other start": Plan(model_seed=lambda rank: 3 if rank != 1 else 4),
    "parallel": Plan(parallel=True),
    "no_sync": Plan(parallel=True, synchronised=False),
    "killed": Plan(killed_at=1),
}


def train(folder: Path, rank: int, plan: Plan, level: str) -> None:
    """Train and record."""
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    torch.manual_seed(plan.model_seed(rank))
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model: nn.Module = nn.parallel.DistributedDataParallel(net) if plan.parallel else net
    if not plan.synchronised:
        model.require_backward_grad_sync = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = folder / f"config{rank}.json"
    config.write_text(
        json.dumps({"task": "statistics", "level": level, "dump_path": str(folder / "dump")})
    )
    debugger = PrecisionDebugger(config_path=str(config))
    torch.manual_seed(plan.data_seed(rank))
    for step in range(STEPS):
        debugger.start(model)
        output = model(torch.randn(5, 6))
        if step == plan.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        nn.functional.cross_entropy(output, torch.randint(0, 3, (5,))).backward()
        if not plan.parallel:
            plan.reduce(model)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def run_rank(folder: Path, rank: int, world: int, cause: str, level: str) -> None:
    """Be one rank of a training."""
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    train(folder, rank, PLANS[cause], level)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    forking = multiprocessing.get_context("fork")
    for job in sys.argv[2:]:
        planted, size, recorded = job.split(":")
        place = Path(sys.argv[1]) / job
        place.mkdir(parents=True)
        ranks = [
            forking.Process(target=run_rank, args=(place, rank, int(size), planted, recorded))
            for rank in range(int(size))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(60)
        expected = 0 if PLANS[planted].killed_at is None else -signal.SIGKILL
        codes = [process.exitcode for process in ranks]
        if codes != [expected] * int(size):
            sys.exit(f"{job}: the ranks ended with {codes}")
