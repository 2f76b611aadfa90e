# SPDX-License-Identifier: Apache-2.0
"""Attention whose three weights one side holds, and multiplies by, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, HEADS, LEVELS = 32, 4, ["L0", "L1", "mix"]


class Way(NamedTuple):
    """How a program makes queries, keys and values.

    Attributes:
        is_joined: by one product.
        is_cut: without a gradient of the keys.
        is_frozen: with a first layer that is not trained.
    """

    is_joined: bool = False
    is_cut: bool = False
    is_frozen: bool = False


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        whole, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if way.is_joined:
            for name, parameter in whole.named_parameters():
                parts_of_it = [part.get_parameter(name) for part in parts]
                parameter.data = torch.cat([each.data for each in parts_of_it])
            self.whole = whole
        else:
            self.query, self.key, self.value = parts

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads gather."""
        if self.way.is_joined:
            made: Any = self.whole(x).split(WIDTH, -1)
        else:
            made = self.query(x), self.key(x), self.value(x)
        query, key, value = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in made)
        key = key.detach() if self.way.is_cut else key
        weights = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and two layers, each around a residual."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(way)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, and what both parts add."""
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


def run(debugger: PrecisionDebugger, way: Way) -> None:
    """Train three blocks in bfloat16."""
    last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)
    model = nn.Sequential(*(Block(way) for _ in range(3)), *last).bfloat16()
    model[0].requires_grad_(not way.is_frozen)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-6)
    batches, labels = torch.randn(3, 4, 9, WIDTH).bfloat16(), torch.randint(0, 11, (3, 36))

    def loss(number: int) -> Tensor:
        made = model(batches[number]).flatten(0, 1).float()
        return F.cross_entropy(made, labels[number])

    fit(debugger, model, optimizer, loss, zero_first=False)


@pytest.mark.parametrize("level", LEVELS)
def test_one_product_in_place_of_three_is_rounding(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_joined=True), Way(), level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_keys_without_a_gradient_are_no_rounding(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_joined=True, is_cut=True), Way(), level)

    is_same = verdict["class"] in ("equal", "rounding", "precision")
    assert not (is_same and verdict["confidence"] == "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_of_one_side_alone_are_frozen_parameters(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_frozen=True), Way(), level)

    assert verdict["class"] == "mode", verdict["sentence"]
