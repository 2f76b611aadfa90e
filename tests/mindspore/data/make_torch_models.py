# SPDX-License-Identifier: Apache-2.0
"""Records the PyTorch twins of `test_twin_models`; their dumps are kept beside this file.

cd tests/mindspore/data
python make_torch_models.py transformer torch_transformer
python make_torch_models.py convolutions torch_convolutions
python make_torch_models.py masked torch_masked
python make_torch_models.py masked_modules torch_masked_modules
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from msprobe.pytorch import PrecisionDebugger

WIDTH, WORDS = 8, 11


def values(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        query, key, value = self.qkv(self.norm(x)).split(WIDTH, -1)
        weights = torch.softmax(torch.matmul(query, key.transpose(-1, -2)) / WIDTH**0.5, -1)
        x = x + self.out(torch.matmul(weights, value))
        x = x + self.down(nn.functional.gelu(self.up(x)))
        return self.head(self.last(x)).reshape(-1, WORDS)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2, 2)
        self.flat, self.head = nn.Flatten(), nn.Linear(36, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.flat(self.pool(self.relu(self.norm(self.conv(x))))))


def record(folder: Path, net: nn.Module, loss: nn.Module, *data: torch.Tensor) -> None:
    for seed, (_, parameter) in enumerate(sorted(net.named_parameters())):
        parameter.data = values(seed, *parameter.shape)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    debugger = PrecisionDebugger(dump_path=folder, level="L1")
    debugger.start(net)
    loss(net(data[0]), data[1]).backward()
    debugger.stop()
    optimizer.step()
    debugger.step()


class Masked(nn.Module):
    """Convolutions, and attention among their pixels that sees no later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.second = nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1, bias=False)
        self.norm, self.qkv = nn.BatchNorm2d(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = nn.functional.leaky_relu(self.norm(self.first(images)))
        x = torch.flatten(self.second(x), 2).transpose(1, 2)
        query, key, value = self.qkv(x).split(WIDTH, -1)
        scores = torch.matmul(query, key.transpose(-1, -2)) / WIDTH**0.5
        later = torch.triu(torch.ones(x.shape[1], x.shape[1]), diagonal=1).bool()
        weights = nn.functional.softmax(scores.masked_fill(later, -1e9), dim=-1)
        return self.head(torch.matmul(weights, value)[:, -1])


def record_masked(folder: Path, level: str) -> None:
    net = Masked()
    for seed, (_, parameter) in enumerate(sorted(net.named_parameters())):
        parameter.data = 0.3 * values(seed, *parameter.shape)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    debugger = PrecisionDebugger(dump_path=folder, level=level)
    for step in range(2):
        labels = torch.from_numpy(np.random.default_rng(70 + step).integers(0, 5, 4))
        debugger.start(net)
        loss = nn.functional.cross_entropy(net(values(50 + step, 4, 3, 6, 6)), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        debugger.stop()
        optimizer.step()
        debugger.step()


name, folder = sys.argv[1], Path(sys.argv[2])
if name == "transformer":
    words = np.random.default_rng(99).integers(0, WORDS, (2, 4))
    inputs, targets = torch.tensor(words[:, :-1], dtype=torch.int32), torch.tensor(words[:, 1:])
    record(folder, Transformer(), nn.CrossEntropyLoss(), inputs, targets.reshape(-1))
elif name.startswith("masked"):
    record_masked(folder, "L0" if name == "masked_modules" else "mix")
else:
    images, targets = values(40, 2, 3, 6, 6), values(41, 2, 2)
    record(folder, Convolutions(), nn.MSELoss(), images, targets)
for stack in folder.glob("step*/rank/stack.json"):
    stack.unlink()  # places in this file
for path in folder.glob("step*/rank/facts.json"):
    facts = json.loads(path.read_text())
    # The rest is of this machine.
    facts["settings"] = {
        name: text
        for name, text in facts["settings"].items()
        if name.startswith(("torch.version", "module."))
    }
    path.write_text(json.dumps(facts).replace(f"{Path(__file__).resolve().parent}/", ""))
