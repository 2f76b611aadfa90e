# SPDX-License-Identifier: Apache-2.0
"""Level L0: parts of a module that one side alone calls, or calls in another order."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Encoder(nn.Module):
    """Two parts, then code of its own, then a head."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change, self.norm_first = change, change == "set to norm first"
        self.into, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        is_first = self.norm_first or self.change == "norm first"
        x = self.into(self.norm(x)) if is_first else self.norm(self.into(x))
        if self.change == "norm twice":
            x = self.norm(x)
        made: Tensor = self.head(0.5 * x[:, 0] + 0.5 * x[:, 1:].mean(1))
        return made


def encoding(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Encoder(change)
    batches = torch.randn(3, 4, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("norm first", "order", "Module.norm.LayerNorm.forward.0 (test_other_parts.py:"),
        ("set to norm first", "order", "norm_first is True in the target, False in the reference"),
        ("norm twice", "call", "only the target calls Module.norm.LayerNorm.forward.1"),
    ],
)
def test_parts_are_named(tmp_path: Path, change: str, expected: str, words: str) -> None:
    verdict = verdict_on(tmp_path, encoding, change, level="L0")

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]


def dropping(debugger: PrecisionDebugger, change: str | None) -> None:
    """Two micro batches; the model draws random numbers each time that it is called."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    batches = torch.randn(3, 2, 4, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(number: int) -> Tensor:
        losses = []
        for batch in batches[number]:
            if change == "twice":
                model(batch)
            losses.append(model(batch).square().mean())
        losses[0].backward()
        return losses[1]

    fit(debugger, model, optimizer, loss)


def test_a_model_that_is_called_too_often_is_told(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, dropping, "twice", level="L0")

    assert verdict["class"] == "call", verdict["sentence"]
    assert "calls the model 4 times in the target, twice in the reference" in verdict["sentence"]
