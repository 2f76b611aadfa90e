# SPDX-License-Identifier: Apache-2.0
"""Gradients that hold infinities on one side alone are other ones, whichever side it is."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = pytest.mark.torch


def recorded(folder: Path, value: float | None, scale: float = 1.0) -> Path:
    """Record a step whose gradients have one element overwritten before the optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(folder, "L1") as observed, observed.step_of(model):
        (model(torch.randn(7, 3)).square().sum() * scale).backward()
        for parameter in model.parameters():
            if value is not None:
                parameter.grad.numpy().flat[0] = value  # not recorded
        optimizer.step()
    return folder


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_one_side_alone_holds_them(tmp_path: Path, value: float, side: str) -> None:
    sides = [recorded(tmp_path / "bad", value), recorded(tmp_path / "good", None)]
    if side == "reference":
        sides.reverse()

    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    word = "NaN" if value != value else "infinite"
    assert verdict["class"] == "gradient", verdict["sentence"]
    assert f"{word} in the {side}" in verdict["sentence"]


def test_both_sides_overflow_alike(tmp_path: Path) -> None:
    sides = [recorded(tmp_path / name, float("inf"), scale) for name, scale in (("a", 1), ("b", 1))]
    assert run_comparison(*sides, CompareOptions()).summary["verdict"]["class"] == "equal"


def test_where_both_overflow_the_rest_is_compared(tmp_path: Path) -> None:
    sides = [recorded(tmp_path / name, float("inf"), scale) for name, scale in (("a", 3), ("b", 1))]
    assert not run_comparison(*sides, CompareOptions()).summary["equal"]
