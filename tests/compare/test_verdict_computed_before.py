# SPDX-License-Identifier: Apache-2.0
"""Modules that compute the same by other calls, over steps in which rounding grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = [pytest.mark.torch]

WIDTH, TOKENS = 32, 64


class Attention(nn.Module):
    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.is_fused, self.scale = is_fused, WIDTH**-0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(x).chunk(3, -1)
        if self.is_fused:
            found = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            shares = ((q * self.scale) @ k.transpose(-1, -2)).softmax(-1)
            found = functional.dropout(shares, 0.0) @ v
        y: Tensor = self.out(found)
        return y


class Block(nn.Module):
    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(is_fused)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        y: Tensor = x + self.mlp(x)
        return y


def recorded(folder: Path, *, is_fused: bool, later: float = 1.0) -> Path:
    torch.manual_seed(2)
    blocks = [Block(is_fused) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), *blocks, nn.Linear(WIDTH, TOKENS))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            # Weights of the attention are nearly even, and the gradients of queries and keys small
            # differences of large terms: Adam makes large steps of their rounding.
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    with recording(folder, "mix") as observed:
        for number in range(3):
            words = torch.randint(0, TOKENS, (2, 8))
            with observed.step_of(model):
                if number:
                    blocks[0].attention.scale = WIDTH**-0.5 * later
                optimizer.zero_grad()
                found = model(words)
                loss: Any = functional.cross_entropy(found.flatten(0, 1), words.flatten())
                loss.backward()
                optimizer.step()
    return folder


def test_rounding_that_grows_over_steps_accuses_no_kernel(tmp_path: Path) -> None:
    fused, own = recorded(tmp_path / "a", is_fused=True), recorded(tmp_path / "b", is_fused=False)
    summary = run_comparison(fused, own, CompareOptions()).summary

    assert summary["verdict"]["class"] == "rounding", summary["verdict"]["sentence"]
    # The kernel and the dropout of one side each may draw random numbers, and did not.
    assert summary["verdict"]["confidence"] == "proved", summary["verdict"]["sentence"]
    assert summary["introduced_total"] == 0
    (furthest, *_) = summary["verdict"]["evidence"]
    assert furthest.startswith("furthest apart is "), furthest


@pytest.mark.parametrize("later", [1.02, 1.5])
def test_a_module_that_computes_something_else_later_is_no_rounding(
    tmp_path: Path, later: float
) -> None:
    fused = recorded(tmp_path / "fused", is_fused=True, later=later)
    own = recorded(tmp_path / "own", is_fused=False)
    verdict = run_comparison(fused, own, CompareOptions()).summary["verdict"]

    assert verdict["class"] not in {"equal", "rounding", "precision"}, verdict["sentence"]
