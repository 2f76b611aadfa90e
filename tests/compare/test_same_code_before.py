# SPDX-License-Identifier: Apache-2.0
"""Other code that computed the same in earlier steps, where an optimizer amplifies rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Field(nn.Module):
    """Its activation is a tanh, or made of the sigmoid of twice as much."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.layers = nn.ModuleList([nn.Linear(8, 20), nn.Linear(20, 20), nn.Linear(20, 1)])
        self.slope = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *inner, last = self.layers
        for layer in inner:
            if self.change == "sigmoid":
                x = 2 * torch.sigmoid(20 * self.slope * layer(x)) - 1
            else:
                x = torch.tanh(10 * self.slope * layer(x))
        return last(x)


def fitted(debugger: PrecisionDebugger, change: str | None) -> None:
    """Adam first, then L-BFGS, whose line search enlarges rounding."""
    model = Field(change)
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    search = torch.optim.LBFGS(
        model.parameters(), max_iter=8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )
    x, wanted = torch.randn(48, 8), torch.randn(48, 1)

    def closure() -> torch.Tensor:
        model.zero_grad()
        factor = 3 if change == "factor" and late else 2
        loss = (factor * (model(x) - wanted)).square().mean()
        loss.backward()
        return loss

    for number in recorded_steps(debugger, model, 4):
        late = number > 1
        (search if late else adam).step(closure)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_same_arguments_as_in_earlier_steps_accuse_nobody(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, fitted, "sigmoid", level=level)
    assert verdict["class"] in ("rounding", "unexplained"), verdict["sentence"]
    assert verdict["confidence"] != "proved"


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_argument_that_differs_in_later_steps_alone_is_the_cause(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, fitted, "factor", level=level)
    assert verdict["class"] == "argument", verdict["sentence"]
