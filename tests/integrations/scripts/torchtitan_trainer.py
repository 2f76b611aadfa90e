# SPDX-License-Identifier: Apache-2.0
"""A trainer in the form of torchtitan's, written after its documentation.

FSDP2 over a device mesh, lists of model parts, optimizers and schedules, and losses rescaled for
accumulation.
FSDP=1 wraps the parts in `FullyShardedDataParallel` instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.w1, self.w2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w2(nn.functional.silu(self.w1(self.norm(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(31, 16)
        self.layers = nn.ModuleDict({str(number): Block(16) for number in range(2)})
        self.output = nn.Linear(16, 31)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden)
        return self.output(hidden)


class Trainer:
    def __init__(self) -> None:
        self.step, self.steps, self.accumulation = 0, 4, 2
        world = int(os.environ["WORLD_SIZE"])
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp_shard",))
        torch.manual_seed(5)
        model: nn.Module = Transformer()
        if os.environ.get("FSDP") == "1":
            model = FullyShardedDataParallel(
                model, device_id=torch.device("cpu"), use_orig_params=True
            )
        else:
            for layer in model.layers.values():
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.model_parts = [model]
        self.optimizers = [torch.optim.AdamW(part.parameters()) for part in self.model_parts]
        self.schedules = [torch.optim.lr_scheduler.LinearLR(one) for one in self.optimizers]

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(dist.get_rank())
        while True:
            tokens = torch.randint(0, 31, (2, 9), generator=generator)
            yield tokens[:, :-1], tokens[:, 1:]

    def train_step(self, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        losses = []
        for _ in range(self.accumulation):
            inputs, labels = next(batches)
            logits = self.model_parts[0](inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            (loss / self.accumulation).backward()
            losses.append(loss.detach())
        parameters = [each for part in self.model_parts for each in part.parameters()]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        print(f"step {self.step} loss {mean.item():.6f}")

    def train(self) -> None:
        batches = self.batches()
        while self.step < self.steps:
            self.step += 1
            self.train_step(batches)

    def checkpoint(self) -> None:
        shards = [
            each.to_local() if hasattr(each, "to_local") else each
            for each in self.model_parts[0].parameters()
        ]
        torch.save([each.detach().clone() for each in shards], f"shards{dist.get_rank()}.pt")


if __name__ == "__main__":
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0" if os.environ["WORLD_SIZE"] == "1" else "29515")
    dist.init_process_group("gloo")
    trainer = Trainer()
    trainer.train()
    trainer.checkpoint()
    dist.destroy_process_group()
