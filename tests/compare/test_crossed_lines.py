# SPDX-License-Identifier: Apache-2.0
"""Calls of one function that two lines make in another order are no other arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(6, eps=1e-6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.out(self.norm(x))
        return made


class Stack(nn.Module):
    """Blocks, then a norm with another option; or the norm first."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.blocks, self.last = nn.ModuleList([Block(), Block()]), nn.LayerNorm(6)
        if change == "option":
            self.last.eps = 1e-2

    def forward(self, x: Tensor) -> Tensor:
        def through(x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

        def normed(x: Tensor) -> Tensor:
            made: Tensor = self.last(x)
            return made

        x = x + 0.5
        return through(normed(x)) if self.change == "norm first" else normed(through(x))


def stacked(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Stack(change)
    batches = torch.randn(3, 4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(batches[number]).sin().mean())


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(("change", "expected"), [("norm first", "order"), ("option", "argument")])
def test_another_order_is_no_other_argument(
    tmp_path: Path, level: str, change: str, expected: str
) -> None:
    verdict = verdict_on(tmp_path, stacked, change, level=level)

    assert verdict["class"] == expected, verdict["sentence"]
