# SPDX-License-Identifier: Apache-2.0
"""One rank of a data-parallel training runs its bad step again while the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from families.process_group import run_ranks

from msprobe import open_dump

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAINING = """
import hashlib, json, pathlib, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
folder = pathlib.Path(options["folder"])

def train_step(batch):
    optimizer.zero_grad()
    if options["collective"]:
        torch.distributed.all_reduce(torch.ones(1))
    torch.log(model(batch).square()).mean().backward()
    for parameter in model.parameters():
        parameter.grad.nan_to_num_(0.0)
    optimizer.step()

debugger = None
if options["watched"]:
    config = folder / f"config{rank}.json"
    config.write_text(json.dumps({"statistics": {"keep_last": 2, "replay_step": True}}))
    debugger = PrecisionDebugger(str(config), level="L1", dump_path=str(folder / "dump"))
    train_step = debugger.replay_with(train_step, optimizer)
torch.manual_seed(1 + rank)
for step in range(5):
    batch = torch.randn(4, 6)
    if step == 3 and rank == 1:
        batch[0, 0] = float("nan")
    if debugger is not None:
        debugger.start(model)
    train_step(batch)
    if debugger is not None:
        debugger.stop()
        debugger.step()
bits = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
report({"bits": hashlib.sha256(bits + torch.get_rng_state().numpy().tobytes()).hexdigest()})
"""


def train(folder: Path, *, watched: bool, collective: bool = False) -> list[str]:
    folder.mkdir(exist_ok=True)
    options = {"folder": str(folder), "watched": watched, "collective": collective}
    return [one["bits"] for one in run_ranks(TRAINING, folder, options=options)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the ranks have at the end without msprobe."""
    return train(tmp_path_factory.mktemp("plain"), watched=False)


def test_the_bad_step_of_one_rank_runs_again_without_the_others(
    plain: list[str], tmp_path: Path
) -> None:
    assert train(tmp_path / "watched", watched=True) == plain
    replay = tmp_path / "watched" / "dump" / "replay"
    found = json.loads((replay / "step3" / "rank1" / "replay.json").read_text())
    assert (found["step"], found["differ"], found["exception"]) == (3, [], None)
    records = open_dump(replay).step(3).rank(1).records
    assert any(name.startswith("Functional.linear.0.forward") for name in records)
    assert list((replay / "step3" / "rank1").rglob("*.pt"))


def test_communication_of_the_step_function_ends_the_replay(
    plain: list[str], tmp_path: Path
) -> None:
    assert train(tmp_path / "watched", watched=True, collective=True) == plain
