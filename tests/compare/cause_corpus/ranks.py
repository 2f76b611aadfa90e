# SPDX-License-Identifier: Apache-2.0
"""A data-parallel training of two processes (gloo), whose reduction can be replaced.

Run as a program: ``python ranks.py FOLDER RANK PORT CAUSE LEVEL``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2
STEPS = 2


def mean(model: nn.Module) -> None:
    """Average the gradients over all ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= RANKS


def total(model: nn.Module) -> None:
    """Add up the gradients of all ranks, and do not divide."""
    for p in model.parameters():
        dist.all_reduce(p.grad)


def nothing(model: nn.Module) -> None:
    """Leave each rank its own gradients."""


def alone(model: nn.Module) -> None:
    """Average over a group that has one rank only."""
    groups = [dist.new_group([rank]) for rank in range(RANKS)]
    for p in model.parameters():
        dist.all_reduce(p.grad, group=groups[dist.get_rank()])


REDUCTIONS: dict[str, Callable[[nn.Module], None]] = {
    "mean": mean,
    "total": total,
    "nothing": nothing,
    "alone": alone,
}


def train(folder: Path, rank: int, cause: str, level: str) -> None:
    """Train and record."""
    from msprobe.pytorch import PrecisionDebugger

    logging.getLogger("msprobe").setLevel(logging.ERROR)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = folder / f"config{rank}.json"
    config.write_text(
        json.dumps({"task": "statistics", "level": level, "dump_path": str(folder / "dump")})
    )
    debugger = PrecisionDebugger(config_path=str(config))
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        debugger.start(model)
        loss = nn.functional.cross_entropy(model(torch.randn(5, 6)), torch.randint(0, 3, (5,)))
        loss.backward()
        REDUCTIONS[cause](model)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


if __name__ == "__main__":
    place, number, port, planted, recorded = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=int(number), world_size=RANKS)
    train(Path(place), int(number), planted, recorded)
    dist.destroy_process_group()
