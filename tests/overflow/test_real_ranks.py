# SPDX-License-Identifier: Apache-2.0
"""Two processes that really exchange tensors: the NaN is followed to where it was made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders.warm_python import WarmProcess
from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.findings import Source

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger

folder, culprit, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
debugger = PrecisionDebugger(dump_path=f"{folder}/dump", level="mix")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
debugger.start(model)
y = model(torch.randn(3, 4)).detach()
if rank == culprit:
    y = torch.log(-torch.abs(y) - 1)
if way == "all_reduce":
    dist.all_reduce(y)
elif rank == culprit:
    dist.send(y, 1 - culprit)
else:
    dist.recv(y, culprit)
z = y * 2
debugger.stop()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("way", ["all_reduce", "send"])
def test_the_rank_and_call_that_made_it_are_named(tmp_path: Path, culprit: int, way: str) -> None:
    processes = [
        WarmProcess(
            *("-c", SCRIPT, tmp_path, str(culprit), way),
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in (0, 1)
    ]
    for done in [process.wait() for process in processes]:
        assert done.returncode == 0, done.stderr
    (step,) = analyze_overflow(tmp_path / "dump")
    (first,) = step.first
    assert (first.place.rank, first.place.name) == (culprit, "Torch.log.0.forward")
    assert first.source is Source.OPERATION
    (other,) = [found for found in step.findings if found.place.rank != culprit]
    assert other.source is Source.RECEIVED
    assert other.sender.rank == culprit
    assert other.place.name.startswith("Distributed.")
