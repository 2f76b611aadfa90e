# SPDX-License-Identifier: Apache-2.0
"""Four processes that really exchange tensors: NaN planted on one of them in many ways."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders.warm_python import WarmProcess
from msprobe.overflow.analysis import analyze_overflow
from msprobe.overflow.findings import Source, StepFindings

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import json, math, os, sys
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

folder, names, size = sys.argv[1], sys.argv[2].split(","), int(os.environ["WORLD_SIZE"])
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
meeting = f"file://{folder}/meet{size}"
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
pair = dist.new_group([2, 3]) if size == 4 else None


class Net(torch.nn.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.between = between

    def forward(self, x):
        return self.last(self.between(self, torch.relu(self.first(x)) + 0.1))


def bad(x, culprit, make=lambda x: torch.log(-x.abs() - 1)):
    return make(x) if rank == culprit else x


def plain(net, x):
    return x


def all_gather(net, x):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, bad(x.detach(), 3))
    return x + sum(parts)


def broadcast(net, x):
    shared = bad(x.detach().clone(), 0)
    dist.broadcast(shared, 0)
    return x * shared


def reduce_to_root(net, x):
    total = bad(x.detach().clone(), 1)
    dist.reduce(total, 2)
    return x + total if rank == 2 else x


def sub_group(net, x):
    total = bad(x.detach().clone(), 2)
    if rank >= 2:
        dist.all_reduce(total, group=pair)
    return x + total


def ring(net, x):
    buffer, sent = torch.empty_like(x), bad(x.detach(), 1, lambda x: (x * 0) / (x * 0))
    works = [dist.isend(sent, (rank + 1) % size), dist.irecv(buffer, (rank - 1) % size)]
    for work in works:
        work.wait()
    return x + buffer


def pipeline(net, x):
    if rank:
        buffer = torch.empty_like(x)
        dist.recv(buffer, rank - 1)
        x = x + buffer
    if rank < size - 1:
        dist.send(bad(x.detach(), 1), rank + 1)
    return x


def sum_overflows(net, x):
    total = torch.full_like(x, 1.0) * 2e38
    dist.all_reduce(total)
    return x + total


def slope(net, x):
    return bad(x, 2, lambda x: torch.sqrt(x * 0) + x)


def buffer(net, x):
    return x * net.scale


def recomputed(net, x):
    return checkpoint(lambda x: torch.tanh(x.sin() * net.scale), x, use_reentrant=False)


def run(name):
    reset_session()
    torch.manual_seed(0)
    net = Net(globals().get(name, plain))
    path = f"{folder}/{name}.json"
    settings = {"task": "statistics", "level": "mix", "dump_path": f"{folder}/{name}"}
    if rank == 0:
        with open(path, "w") as file:
            json.dump(settings | {"record_recompute": True, "statistics": {}}, file)
    dist.barrier()
    x = torch.randn(3, 4)
    if name == "data" and rank == 1:
        x[0, 0] = math.nan
    if name == "parameter" and rank == 3:
        net.last.weight.data[0, 0] = math.nan
    if name == "buffer" and rank == 0:
        net.scale[0] = math.nan
    debugger = PrecisionDebugger(config_path=path)
    optimizer = torch.optim.SGD(net.parameters(), lr=math.nan if name == "update" else 0.1)
    debugger.start(net)
    loss = net(x).pow(2).mean()
    if name == "recomputed" and rank == 3:
        net.scale.numpy()[0] = math.nan
    loss.backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    debugger.stop()
    reset_session()


for name in names:
    run(name)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Expected:
    """The source that must be named first.

    Attributes:
        ranks: on which ranks.
        place: beginning of its name.
        source: its kind.
    """

    ranks: tuple[int, ...]
    place: str
    source: Source = Source.OPERATION


CASES = {
    "all_gather": Expected((3,), "Torch.log.0.forward"),
    "broadcast": Expected((0,), "Torch.log.0.forward"),
    "reduce_to_root": Expected((1,), "Torch.log.0.forward"),
    "sub_group": Expected((2,), "Torch.log.0.forward"),
    "ring": Expected((1,), "Tensor.__truediv__.0.forward"),
    "pipeline": Expected((1,), "Torch.log.0.forward"),
    "sum_overflows": Expected(
        (0, 1, 2, 3), "Distributed.all_reduce.0.forward", Source.COMMUNICATION
    ),
    "slope": Expected((2,), "Torch.sqrt.0.backward"),
    "buffer": Expected((0,), "Tensor.__mul__.0.forward", Source.UNRECORDED),
    "recomputed": Expected((3,), "Tensor.__mul__.0.forward.recompute", Source.RECOMPUTED),
    "data": Expected((1,), "Module.Net.forward.0", Source.INPUT),
    "parameter": Expected((3,), "Module.last.Linear.forward.0", Source.PARAMETER),
    "update": Expected((0, 1, 2, 3), "SGD.0.step.0", Source.UPDATE),
}


def run_ranks(folder: Path, size: int, names: Iterable[str]) -> None:
    processes = [
        WarmProcess(
            *("-c", SCRIPT, folder, ",".join(names)),
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size)},
        )
        for rank in range(size)
    ]
    for done in [process.wait(240) for process in processes]:
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def dumps(tmp_path_factory) -> Path:
    """The dumps of all cases, of a run in order, and of one that two ranks recorded again."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder, 4, (*CASES, "in_order", "fewer_ranks"))
    run_ranks(folder, 2, ["fewer_ranks"])
    return folder


def answer(path: Path) -> StepFindings:
    (step,) = analyze_overflow(path)
    return step


@pytest.mark.parametrize("name", CASES)
def test_the_planted_source_is_first(dumps: Path, name: str) -> None:
    expected, found = CASES[name], answer(dumps / name)
    assert tuple(first.place.rank for first in found.first) == expected.ranks
    assert all(first.place.name.startswith(expected.place) for first in found.first)
    assert {first.source for first in found.first} == {expected.source}


def test_a_run_in_order_has_no_source(dumps: Path) -> None:
    assert answer(dumps / "in_order").findings == ()


def test_ranks_of_the_earlier_larger_run_are_left_out(dumps: Path) -> None:
    found = answer(dumps / "fewer_ranks")
    assert set(found.affected) == {0, 1}
    assert [note.partition(":")[0] for note in found.notes] == [
        "rank 2 is left out",
        "rank 3 is left out",
    ]
