# SPDX-License-Identifier: Apache-2.0
"""Records are the same with and without the C extensions, but for `value_id`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from builders.recordings import Json, read, recording
from builders.warm_python import run_warm

pytestmark = pytest.mark.torch


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradients[0]


class Attention(nn.Module):
    """Returns a tensor that it has used itself, and one that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x: Tensor, *, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = F.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        return self.out(weights @ v), weights, bias


class Block(nn.Module):
    """Uses what it is given several times: in one node, in several, in nodes that several use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        square = x * x
        return x + self.inner(square * scale + square).tanh() * scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.same = nn.Linear(3, 4), Attention(), nn.Identity()
        self.block, self.scale = Block(), nn.Parameter(torch.full((4,), 0.5))
        self.bias = nn.Parameter(torch.zeros(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.block(self.same(self.first(x)), scale=self.scale)
        y, weights, bias = self.attention(h, bias=self.bias)
        y[0].mul_(2.0)
        return (torch.mul(y, y) + Cube.apply(h)).sum() + weights.max() + bias.sum()


def record(folder: Path) -> None:
    torch.manual_seed(3)
    model, x = Net(), torch.randn(2, 2, 3)
    with recording(folder) as run, run.step_of(model):
        model(x).backward()


def records_of(folder: Path) -> Json:
    records: Json = without_ids(read(folder, 0, "rank", "dump.json")["data"])
    return records


def without_ids(tree: Any) -> Any:
    """A record without `value_id`, which needs the extension."""
    if isinstance(tree, dict):
        return {key: without_ids(value) for key, value in tree.items() if key != "value_id"}
    return [without_ids(value) for value in tree] if isinstance(tree, list) else tree


def nearly(tree: Any) -> Any:
    """Equal to a record whose sums were added up in another order."""
    if isinstance(tree, dict):
        return {key: nearly(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [nearly(value) for value in tree]
    return pytest.approx(tree, rel=1e-5, abs=1e-7) if isinstance(tree, float) else tree


def test_records_are_the_same_without_the_extensions(tmp_path: Path) -> None:
    record(tmp_path / "with")
    code = "import sys, pathlib, test_without_extensions as t; t.record(pathlib.Path(sys.argv[1]))"
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent), *sys.path]
    environment = os.environ | {"MSPROBE_NATIVE": "0", "PYTHONPATH": os.pathsep.join(paths)}
    ended = run_warm("-c", code, tmp_path / "without", env=environment)
    assert ended.returncode == 0, ended.stderr
    records = records_of(tmp_path / "with")
    assert records == nearly(records_of(tmp_path / "without"))
    assert any("Autograd.Cube" in name for name in records)
