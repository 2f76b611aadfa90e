# SPDX-License-Identifier: Apache-2.0
"""Distributed families: each rank is a process of its own, talking over gloo.

The processes meet in a file, not at a port, so that several runs do not get in each other's way.
What a rank found is written before the process group is torn down.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from builders.warm_python import WarmProcess

from .training import Fingerprint, TrainCase, seed_everything

WIDTH: Final = 8
_TESTS = [str(folder) for folder in Path(__file__).resolve().parents[1:3]]


def data_parallel(seed: int) -> TrainCase:
    """DDP with several buckets, an unused parameter, `no_sync` accumulation and own collectives."""
    seed_everything(seed)
    layers = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True)]
    inner = nn.Sequential(*layers, nn.Linear(WIDTH, 2))
    inner.register_parameter("unused", nn.Parameter(torch.ones(3)))
    model = DistributedDataParallel(inner, find_unused_parameters=True, bucket_cap_mb=0.0001)
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    x = torch.randn(2, 4, WIDTH, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        with model.no_sync():
            model(x[0]).square().mean().backward()
        loss = F.softplus(model(x[1])).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        pending = dist.all_reduce(norm, async_op=True)
        gathered = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, loss.detach())
        case.extra["waited"] = pending.wait()
        case.extra.update(total=total, norm=norm, gathered=gathered)
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


def pipeline(seed: int) -> TrainCase:
    """Two stages in two processes: activations sent forward, gradients sent back."""
    seed_everything(seed)
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    x, y = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def first_stage() -> Tensor:
        hidden = model(x)
        dist.send(hidden.detach(), 1)
        grad = torch.empty_like(hidden)
        dist.recv(grad, 1)
        hidden.backward(grad)
        return hidden.mean()

    def second_stage() -> Tensor:
        received = torch.empty(4, WIDTH)
        dist.irecv(received, 0).wait()
        received.requires_grad_()
        loss = F.mse_loss(model(received), y)
        loss.backward()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, received.grad, 0)]):
            work.wait()
        return loss

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        loss = second_stage() if rank else first_stage()
        optimizer.step()
        return loss

    return TrainCase(model, run_step, [optimizer])


def fully_sharded(seed: int) -> TrainCase:
    """FSDP2: parameters and gradients are DTensors, whole weights exist only while in use."""
    from torch.distributed.fsdp import fully_shard

    seed_everything(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    )
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    x = _own_batch(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run_step(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(x + step).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return TrainCase(model, run_step, [optimizer])


def tensor_parallel(seed: int) -> TrainCase:
    """A feed-forward block cut by columns and rows, with sequence parallelism around it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    seed_everything(seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential()
    model.add_module("norm", nn.LayerNorm(WIDTH))
    model.add_module("up", nn.Linear(WIDTH, 2 * WIDTH))
    model.add_module("act", nn.ReLU())
    model.add_module("down", nn.Linear(2 * WIDTH, WIDTH))
    model.add_module("head", nn.Linear(WIDTH, 2))
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(),
        "head": PrepareModuleInput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Replicate(),),
            use_local_output=True,
        ),
    }
    model = parallelize_module(model, mesh, plan)
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run_step(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(x + step).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return TrainCase(model, run_step, [optimizer])


def scheduled_pipeline(seed: int) -> TrainCase:
    """Two stages of `torch.distributed.pipelining` under the 1F1B schedule, four micro-batches."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    seed_everything(seed)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
    x, y = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"), input_args=(x[:2],))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            case.extra["output"] = schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        return torch.stack(losses).mean() if losses else torch.zeros(())

    case = TrainCase(model, run_step, [optimizer])
    return case


def _own_batch(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    return torch.randn(4, WIDTH, generator=generator)


SHARDED_FAMILIES: Final[dict[str, Callable[[int], TrainCase]]] = {
    build.__name__: build for build in (fully_sharded, tensor_parallel, scheduled_pipeline)
}
"""Families of torch's newer parallelisms; DTensor digests are those of the local shard."""

DISTRIBUTED_FAMILIES: Final[dict[str, Callable[[int], TrainCase]]] = {
    build.__name__: build for build in (data_parallel, pipeline)
}


def run_ranks(
    code: str, folder: Path, *, ranks: int = 2, options: Mapping[str, object] | None = None
) -> list[Fingerprint]:
    """Run `code` once for each rank, each in its own process, and return what each one reported.

    The code finds ``rank``, ``world_size``, ``options`` and the function ``report(fingerprint)``;
    the process group is up already.

    Raises:
        AssertionError: a rank failed or did not report; the message holds its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    arguments = [[str(rank), str(ranks), str(folder)] for rank in range(ranks)]
    program = _PROLOGUE.format(tests=_TESTS, options=json.dumps(json.dumps(options or {})))
    processes = [WarmProcess("-c", program + code, *argument) for argument in arguments]
    outputs = [process.output() for process in processes]
    reports = [folder / f"report{rank}.json" for rank in range(ranks)]
    # A process group may abort while it is torn down; by then the report is already written.
    # Where one rank fails the others wait for it in vain: only all outputs together tell why.
    missing = [rank for rank, report in enumerate(reports) if not report.exists()]
    assert not missing, f"ranks {missing} did not report:\n" + "\n-----\n".join(outputs)
    return [json.loads(report.read_text()) for report in reports]


def join(rank: int, ranks: int, folder: Path) -> None:
    """Set this process up as one rank of the group."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks
    )


def write_report(folder: Path, rank: int, fingerprint: Fingerprint) -> None:
    """Write what this rank found; complete or not at all."""
    temporary = folder / f"report{rank}.part"
    temporary.write_text(json.dumps(fingerprint))
    temporary.rename(folder / f"report{rank}.json")


_PROLOGUE = """
import json, sys
from pathlib import Path
sys.path[:0] = {tests!r}
from families.process_group import DISTRIBUTED_FAMILIES, SHARDED_FAMILIES, join, write_report
from families.training import train
rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
options = json.loads({options})
def report(fingerprint):
    write_report(folder, rank, fingerprint)
join(rank, world_size, folder)
"""
