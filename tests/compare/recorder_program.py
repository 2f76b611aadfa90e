# SPDX-License-Identifier: Apache-2.0
"""A small program that two recorders record: ``python recorder_program.py FOLDER LEVEL MODE``.

``data/mindstudio_26.2.0_dumps.zip`` holds what mindstudio-probe 26.2.0 made of it with PyTorch 2.13
(without call stacks). Nothing in it is random, so that every version computes the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LEVELS = ("L0", "L1", "mix")
MODES = ("statistics", "md5")


def wave(*shape: int, scale: float = 1.0) -> Tensor:
    """Return numbers that look random and are not."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (torch.sin(count * 12.9898 + 1) * scale).reshape(shape).float()


class Attention(nn.Module):
    """Attention that is called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        q, k, v = self.qkv(hidden).chunk(3, dim=-1)
        scores = torch.matmul(q, k.transpose(-1, -2)) * 8**-0.5
        weights = F.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = F.dropout(weights, p=0.0, training=self.training)
        return self.out(torch.matmul(weights, v)), None


class Model(nn.Module):
    """Calls of the kinds that recorders treat differently."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.embed = nn.Embedding(16, 8)
        self.attention = Attention()
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.Linear(8, 16)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Linear(16, 8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embed(tokens)
        mixed, _ = self.attention(hidden=F.layer_norm(x, (8,)))
        x = x + (mixed * 1.5 if self.fault == "scale" else mixed)
        x = x + self.heads(x, x, x, need_weights=False)[0]
        x = x + self.down(self.relu(self.up(x)))
        logits = self.head(F.silu(x))
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:]
        options = {"label_smoothing": 0.1} if self.fault == "smoothing" else {}
        loss = F.cross_entropy(logits.view(-1, 16), labels.reshape(-1), **options)
        return {"loss": loss + F.normalize(x).mean(), "logits": logits}


def build(fault: str = "") -> Model:
    """Return the model with its weights."""
    model = Model(fault)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(wave(*parameter.shape, scale=0.3 + 0.01 * number))
        if fault == "weight":
            model.down.weight.mul_(1.05)
    return model


def record(folder: Path, level: str, mode: str = "", *, fault: str = "") -> Path:
    """Record one step; return the dump path.

    Args:
        folder: an empty folder.
        level: ``L0``, ``L1`` or ``mix``.
        mode: ``statistics`` or ``md5``; tensors without it.
        fault: ``scale``, ``smoothing`` or ``weight``.
    """
    from msprobe.pytorch import PrecisionDebugger

    folder.mkdir(parents=True, exist_ok=True)
    task = "statistics" if mode else "tensor"
    section: dict[str, Any] = {"list": [], "data_mode": ["all"]}
    if mode:
        section["summary_mode"] = mode
    config = {
        "task": task,
        "dump_path": str(folder / "dump"),
        "rank": [],
        "step": [],
        "level": level,
        task: section,
    }
    (folder / "config.json").write_text(json.dumps(config))
    model = build(fault)
    tokens = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    debugger = PrecisionDebugger(config_path=str(folder / "config.json"))
    debugger.start(model=model)
    model(tokens, labels=tokens)["loss"].backward()
    debugger.stop()
    debugger.step()
    return folder / "dump"


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
