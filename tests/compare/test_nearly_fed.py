# SPDX-License-Identifier: Apache-2.0
"""A call that is given a value which is nearly the right one, with results that agree."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def integrate(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train a field that is integrated by four slopes, of which the last starts at the third."""
    torch.manual_seed(3)
    field = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    optimizer, h = torch.optim.SGD(field.parameters(), 1e-3), 0.02
    data = torch.randn(3, 8, 6)

    def loss(number: int) -> torch.Tensor:
        x = data[number]
        k1 = field(x)
        k2 = field(x + h / 2 * k1)
        k3 = field(x + h / 2 * k2)
        k4 = field(x + h * (k2 if change == "second" else k3))
        return (x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)).square().mean()

    fit(debugger, field, optimizer, loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_another_slope_is_not_the_same(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, integrate, "second", None, level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "is fed with the result of" in verdict["sentence"]
