# SPDX-License-Identifier: Apache-2.0
"""Task `diff_check` across ranks: where the replicas of a data-parallel run part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from families.process_group import run_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAINING = """
import json, pathlib, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
folder = pathlib.Path(options["folder"])
config = folder / f"config{rank}.json"
config.write_text(json.dumps({"diff_check": {"reference": "replicas"}}))
debugger = PrecisionDebugger(
    str(config), task="diff_check", level="mix", dump_path=str(folder / "dump")
)
torch.manual_seed(1 + rank)
for step in range(3):
    if options["stale"] and step == 1 and rank == 1:
        with torch.no_grad():
            net[2].weight[0, 0] += 1e-4
    debugger.start(model)
    model(torch.randn(4, 6)).square().mean().backward()
    debugger.stop()
    optimizer.step()
    optimizer.zero_grad()
    debugger.step()
report({})
"""


def watch(folder: Path, *, stale: bool) -> dict[str, Any]:
    run_ranks(TRAINING, folder, options={"folder": str(folder), "stale": stale})
    found: dict[str, Any] = json.loads((folder / "dump/diff_check_replicas.json").read_text())
    return found


def test_replicas_of_a_healthy_run_agree(tmp_path: Path) -> None:
    found = watch(tmp_path, stale=False)
    assert found["equal"]
    assert found["steps"] == [0, 1, 2]
    assert found["ranks"] == 2


def test_a_replica_with_one_stale_parameter_is_named(tmp_path: Path) -> None:
    first = watch(tmp_path, stale=True)["findings"][0]
    assert first["step"] == 1
    assert first["kind"] == "parameter"
    assert "2" in first["module"].split(".")
    assert first["row"].endswith("weight")
    assert first["differing"] in ([0], [1])
