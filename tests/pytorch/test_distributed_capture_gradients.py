# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters under data parallelism: the rank's own, and as left by the reduction.

The oracle trains a plain copy of the model on every rank's batch and averages by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families.process_group import run_ranks

from builders.recordings import read

pytestmark = [pytest.mark.torch, pytest.mark.slow]

CODE = """
import copy, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

torch.manual_seed(3)
plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
batches = [torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(r)) for r in range(2)]

def norms(gradients):
    return {name: value.double().norm().item() for name, value in gradients.items()}

def gradients(batch, model):
    model = copy.deepcopy(model)
    model(batch).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}

def dumped(name, model, run):
    config = folder / f"{name}{rank}.json"
    content = {"task": "statistics", "level": "L0", "dump_path": str(folder / name)}
    config.write_text(json.dumps(content | {"statistics": {}}))
    reset_session()
    PrecisionDebugger(config_path=str(config))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PrecisionDebugger.start(model)
    run(model)
    optimizer.step()
    PrecisionDebugger.stop()
    PrecisionDebugger.step()
    reset_session()

def accumulate(model):
    with model.no_sync():
        model(batches[rank][0]).square().mean().backward()
    model(batches[rank][1]).square().mean().backward()

shares = [[gradients(part, plain) for part in batch] for batch in batches]
own, names = shares[rank], list(shares[0][0])
total = [{n: share[0][n] + share[1][n] for n in names} for share in shares]
mean = {n: (total[0][n] + total[1][n]) / 2 for n in names}
first_mean = {n: (shares[0][0][n] + shares[1][0][n]) / 2 for n in names}
found = {"first": norms(own[0]), "total": norms(total[rank]), "mean": norms(mean)}
for view in (False, True):
    model = DistributedDataParallel(
        copy.deepcopy(plain), bucket_cap_mb=0.0001, gradient_as_bucket_view=view
    )
    dumped(f"ddp{view}", model, accumulate)

sharded = copy.deepcopy(plain)
for layer in (sharded[0], sharded[2], sharded):
    fully_shard(layer)
def once(model):
    model(batches[rank][0]).square().mean().backward()
dumped("fsdp", sharded, once)
found["shard"] = norms({n: value.chunk(2)[rank] for n, value in first_mean.items()})
report(found)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The folder with all dumps and what the oracle says on each rank."""
    folder = tmp_path_factory.mktemp("gradients")
    return folder, run_ranks(CODE, folder)


def recorded(folder: Path, rank: int, kind: str) -> dict[str, float]:
    """The norms of one kind of parameter gradient, by parameter."""
    data = read(folder, 0, f"rank{rank}", "dump.json")["data"]
    found = {}
    for name, record in data.items():
        if name.endswith(f".{kind}"):
            layer = name.removesuffix(f".{kind}").split(".")[-2]
            found |= {f"{layer}.{key}": value[0]["Norm"] for key, value in record.items()}
    return found


@pytest.mark.parametrize("view", [False, True], ids=["own-gradients", "bucket-views"])
def test_data_parallel_gradients_are_those_before_and_after_the_reduction(
    view: bool, ran: tuple[Path, list[dict[str, Any]]]
) -> None:
    folder, reports = ran
    for rank, expected in enumerate(reports):
        dump = folder / f"ddp{view}"
        assert recorded(dump, rank, "parameters_grad") == pytest.approx(expected["first"], rel=1e-5)
        second = recorded(dump, rank, "parameters_grad.1")
        assert second == pytest.approx(expected["total"], rel=1e-5)
        reduced = recorded(dump, rank, "parameters_grad_reduced")
        assert reduced == pytest.approx(expected["mean"], rel=1e-5)
        assert expected["mean"] != pytest.approx(expected["total"], rel=1e-2)


def test_sharded_gradients_are_this_ranks_part_of_the_mean(
    ran: tuple[Path, list[dict[str, Any]]],
) -> None:
    folder, reports = ran
    for rank, expected in enumerate(reports):
        for kind in ("parameters_grad", "parameters_grad_reduced"):
            found = recorded(folder / "fsdp", rank, kind)
            assert found == pytest.approx(expected["shard"], rel=1e-5)


def test_two_processes_without_a_group_do_not_share_a_folder(tmp_path: Path) -> None:
    code = """
import torch, torch.distributed as dist
from msprobe.pytorch import PrecisionDebugger
dist.barrier()
torch.distributed.is_initialized = lambda: False  # as before init_process_group
PrecisionDebugger(dump_path=str(folder / "dump"), level="L1")
PrecisionDebugger.start()
torch.ones(rank + 1) * 2
PrecisionDebugger.stop()
PrecisionDebugger.step()
torch.distributed.is_initialized = lambda: True
dist.barrier()
report({"done": "yes"})
"""
    run_ranks(code, tmp_path)
    folders = sorted(path.name for path in (tmp_path / "dump" / "step0").iterdir())
    assert len(folders) == 2
    assert folders[0].startswith("proc")
    assert folders[1] == "rank"
    shapes = {
        tuple(record["output"][0]["shape"])
        for folder in folders
        for name, record in read(tmp_path / "dump", 0, folder, "dump.json")["data"].items()
        if name.startswith("Torch.ones")
    }
    assert shapes == {(1,), (2,)}
