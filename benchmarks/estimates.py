# SPDX-License-Identifier: Apache-2.0
"""Hold `debugger.estimate` against recordings: ten models, records, time, disk and memory.

Each model and task has a process of its own, which trains with an optimizer, recorded at level mix.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from bench_models import GPT, WORKLOADS, build
from torch import nn

STEPS = 6


def _mlp() -> tuple[nn.Module, torch.Tensor]:
    widths = (64, 128, 128, 10)
    pairs = itertools.pairwise(widths)
    layers = [each for a, b in pairs for each in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(32, 64)


def _lstm() -> tuple[nn.Module, torch.Tensor]:
    return nn.LSTM(32, 64, num_layers=2, batch_first=True), torch.randn(8, 20, 32)


def _encoder() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 3), torch.randn(8, 32, 64)


def _autoencoder() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.GroupNorm(4, 16)]
    layers += [nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*layers), torch.rand(8, 3, 32, 32)


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    return nn.Sequential(*(Residual() for _ in range(8))), torch.randn(4, 32, 16, 16)


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "mlp": _mlp,
    "lstm": _lstm,
    "encoder": _encoder,
    "autoencoder": _autoencoder,
    "resnet": _resnet,
    "gpt-wide": lambda: (GPT(2, 512, 8, 64, 512), torch.randint(0, 512, (2, 64))),
}


def _case(name: str) -> tuple[nn.Module, Any, Callable[[nn.Module, Any], Any]]:
    torch.manual_seed(1)
    if name in WORKLOADS:
        workload = build(name)
        return workload.model, None, lambda _model, _batch: workload.forward()
    model, batch = MODELS[name]()

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        output = model(batch)
        return (output[0] if isinstance(output, tuple) else output).float().square().mean()

    return model, batch, loss


def _estimated(name: str, task: str) -> dict[str, Any]:
    from dataclasses import asdict

    from msprobe.pytorch import PrecisionDebugger

    model, batch, loss = _case(name)
    with TemporaryDirectory() as folder:
        debugger = PrecisionDebugger(dump_path=folder, level="mix", task=task)
        optimizer = torch.optim.AdamW(model.parameters())
        (found,) = debugger.estimate(
            model, batch, run_model=loss, optimizer=optimizer, levels=["mix"], tasks=[task]
        )
    return asdict(found)


def _recorded(name: str, task: str) -> dict[str, Any]:
    from msprobe.dump.estimates import peak_memory, recorded_step
    from msprobe.pytorch import PrecisionDebugger

    model, batch, loss = _case(name)
    optimizer = torch.optim.AdamW(model.parameters())
    with TemporaryDirectory() as folder:
        debugger = PrecisionDebugger(dump_path=folder, level="mix", task=task)
        for _ in range(STEPS):
            debugger.start(model)
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            debugger.stop()
            debugger.step()
        steps = [recorded_step(Path(folder), number) for number in range(1, STEPS)]
        assert all(steps)
    return {
        "records": steps[-1].records,
        "capture_s": statistics.median(each.capture_s for each in steps),
        "size_bytes": steps[-1].size_bytes,
        "memory_bytes": peak_memory("self"),
    }


def main() -> None:
    """Print how far the estimates are off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=3, metavar=("WHAT", "MODEL", "TASK"))
    parser.add_argument("--models", nargs="*", default=[*MODELS, *WORKLOADS])
    options = parser.parse_args()
    if options.measure:
        torch.set_num_threads(1)
        what, name, task = options.measure
        print(json.dumps({"estimate": _estimated, "record": _recorded}[what](name, task)))
        return
    keys = ("records", "capture_s", "size_bytes", "memory_bytes")
    print(f"{'model':12}{'task':12}" + "".join(f"{key:>14}" for key in keys))
    for name in options.models:
        for task in ("statistics", "tensor"):
            found = {}
            for what in ("estimate", "record"):
                command = [sys.executable, __file__, "--measure", what, name, task]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[what] = json.loads(done.stdout.splitlines()[-1])
            shares = [found["estimate"][key] / found["record"][key] - 1 for key in keys]
            cells = "".join(f"{share:14.1%}" for share in shares)
            print(f"{name:12}{task:12}{cells}", flush=True)


if __name__ == "__main__":
    main()
