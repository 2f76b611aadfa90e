# SPDX-License-Identifier: Apache-2.0
"""FSDP2 against DDP on two ranks: the root module holds a parameter of its own.

Its record shows the part of a rank, and the gradient of that part is the mean over ranks already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.warm_python import WarmProcess
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LEVELS = ["L0", "L1", "mix"]
PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from msprobe.pytorch import PrecisionDebugger

rank, level, folder, way = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}-{way}", rank=rank, world_size=2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(10, 24), nn.BatchNorm1d(24)
        self.second, self.scale = nn.Linear(24, 12), nn.Parameter(torch.tensor([1.5]))
    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x)))) * self.scale

torch.manual_seed(1)
model = Net()
if "sharded" in way:
    fully_shard(model)
else:
    model = DistributedDataParallel(model, broadcast_buffers=False)
rate = 2e-3 if rank and "rate" in way else 1e-3
optimizer = torch.optim.AdamW(model.parameters(), rate)
torch.manual_seed(2 + rank)
batches = torch.randn(3, 4, 10) * (1.5 if "data" in way else 1.0)
debugger = PrecisionDebugger(dump_path=f"{folder}/{way}", task="statistics", level=level)
for x in batches:
    debugger.start(model)
    ((model(x) - (0.1 if "loss" in way else 0.0)) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.step()
dist.destroy_process_group()
"""


def verdict_on(folder: Path, level: str, way: str) -> dict[str, Any]:
    """Return what a comparison of a training with that of DDP says."""
    folder.mkdir()
    ranks = [
        WarmProcess("-c", PROGRAM, str(rank), level, str(folder), each)
        for each in (way, "whole")
        for rank in range(2)
    ]
    printed = [rank.output() for rank in ranks]
    assert all((folder / each).exists() for each in (way, "whole")), printed
    summary = run_comparison(folder / way, folder / "whole", CompareOptions()).summary
    verdict: dict[str, Any] = summary["verdict"]
    return verdict


@pytest.mark.parametrize("level", LEVELS)
def test_parts_of_a_root_are_no_other_parameters(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path / "runs", level, "sharded")

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("rate", "optimizer_setting"), ("data", "data"), ("loss", "argument")],
)
def test_faults_beside_parts_are_named(tmp_path: Path, fault: str, expected: str) -> None:
    verdict = verdict_on(tmp_path / "runs", "mix", f"sharded {fault}")

    assert verdict["class"] == expected, verdict["sentence"]
