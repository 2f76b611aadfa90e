# SPDX-License-Identifier: Apache-2.0
"""Two recorded runs of a deep model on several ranks, one of them with a fault in its middle layer.

    python benchmarks/compare_model.py /path/to/scratch --layers 200 --steps 5 --ranks 2

The run under test is in ``target``, the other in ``reference``: task statistics, level mix, and
data-parallel. 200 layers, 5 steps and 2 ranks make 1.6 million rows and 0.7 GB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional

from msprobe.pytorch import PrecisionDebugger

WIDTH = 8
HEADS = 2
FAULT = 1e-3


class Attention(nn.Module):
    """Attention with rotary positions, in small operations."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.drop = nn.Dropout(0.0)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), HEADS, WIDTH // HEADS).transpose(1, 2)

    def rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        return (x * cos) + (torch.cat((-right, left), dim=-1) * sin)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.size(1)
        angles = torch.arange(length, dtype=x.dtype).unsqueeze(-1) / 10.0
        cos, sin = torch.cos(angles), torch.sin(angles)
        query = self.rotated(self.heads(self.query(x)), cos, sin)
        key = self.rotated(self.heads(self.key(x)), cos, sin)
        value = self.heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-2, -1)) / 2.0
        mask = torch.triu(torch.full((length, length), -1e4), diagonal=1)
        weights = self.drop(functional.softmax(scores + mask, dim=-1, dtype=torch.float32))
        mixed = torch.matmul(weights, value).transpose(1, 2).contiguous()
        return self.drop(self.out(mixed.reshape(x.size(0), length, WIDTH)))


class Block(nn.Module):
    """Two attentions and a gated network, each with its norm before it."""

    def __init__(self, fault: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.attentions = nn.ModuleList([Attention() for _ in range(2)])
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = nn.Dropout(0.0)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, attention in zip(self.norms, self.attentions, strict=False):
            x = x + attention(norm(x))
        y = self.norms[-1](x)
        y = functional.silu(self.gate(y)) * self.up(y)
        return x + self.drop(self.down(y)) * (1.0 + self.fault)


def train(folder: Path, layers: int, steps: int, rank: int, ranks: int, fault: float) -> None:
    """Train and record one rank."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}.rendezvous", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(fault if at == layers // 2 else 0.0) for at in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level="mix")
    torch.manual_seed(rank)
    for _ in range(steps):
        batch = torch.randn(2, 4, WIDTH)
        debugger.start(model)
        model(batch).square().mean().backward()
        debugger.stop()
        gradients = [parameter.grad for parameter in model.parameters()]
        for gradient in gradients:
            distributed.all_reduce(gradient)
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
    distributed.destroy_process_group()


def record(folder: Path, layers: int, steps: int, ranks: int) -> None:
    """Write the dumps ``target`` and ``reference`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for side, fault in (("target", FAULT), ("reference", 0.0)):
        words = map(str, (folder / side, "--layers", layers, "--steps", steps, "--ranks", ranks))
        command = [sys.executable, __file__, *words, "--fault", str(fault), "--rank"]
        running = [subprocess.Popen([*command, str(rank)]) for rank in range(ranks)]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError(f"recording {side} failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--fault", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is None:
        record(given.folder, given.layers, given.steps, given.ranks)
        return
    train(given.folder, given.layers, given.steps, given.rank, given.ranks, given.fault)


if __name__ == "__main__":
    main()
