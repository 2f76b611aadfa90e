# SPDX-License-Identifier: Apache-2.0
"""Random numbers that one program alone draws are named, not what is drawn differently later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "mix"]


def training(debugger: PrecisionDebugger, change: Any) -> None:
    """Train with dropout; draw in front of the model, or behind the update."""
    rate = 0.0 if change in ("without consequence", "no dropout") else 0.3
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(rate), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 5)

    def loss(number: int) -> torch.Tensor:
        batch = batches[number]
        if change == "in front":
            batch = torch.where(torch.rand(8, 1) < 0.0, batch.flip(0), batch)
        result = model(batch).square().mean()
        if change == "behind" or change == "without consequence":
            torch.rand(3)
        if change == "another":
            torch.randperm(3)
        return result

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_draw_behind_the_model_is_named(tmp_path: Path, swapped: bool, level: str) -> None:
    sides = (None, "behind") if swapped else ("behind", None)
    verdict = verdict_on(tmp_path, training, *sides, level)
    side = "reference" if swapped else "target"
    assert verdict["class"] == "random", verdict["sentence"]
    assert f"only the {side} calls Torch.rand" in verdict["sentence"]
    assert (
        "which draws random numbers, step 0; the state of the generator cpu differs"
        in (verdict["sentence"])
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_draw_in_front_of_the_model_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, training, "in front", None, level)
    assert verdict["class"] == "call", verdict["sentence"]
    if level == "mix":
        assert "only the target calls Torch.rand.0.forward" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_another_draw_is_named_beside_that_of_the_reference(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, training, "another", "behind", level)
    assert verdict["class"] == "random", verdict["sentence"]
    assert "the target calls Torch.randperm" in verdict["sentence"]
    assert "the reference Torch.rand" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_draw_that_nothing_follows_accuses_nobody(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, training, "without consequence", "no dropout", level)
    assert verdict["class"] == "equal", verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_draw_for_a_log_is_named_before_what_is_made_of_it(tmp_path: Path, level: str) -> None:
    class Dropped(nn.Module):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            kept: torch.Tensor = torch.empty(len(data), 1).bernoulli_(0.8)
            return data * kept

    def run(debugger: PrecisionDebugger, logs: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), Dropped(), nn.Linear(8, 3))
        data, labels = torch.randn(3, 8, 6), torch.randint(0, 3, (3, 8))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in recorded_steps(debugger, model):
            wanted = labels[number]
            if logs:
                wanted[torch.randint(8, ()).item()].item()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data[number]), wanted).backward()
            optimizer.step()

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == ("call" if level == "L0" else "random"), verdict["sentence"]
    assert "only the target calls Torch.randint" in verdict["sentence"]
    assert "which draws random numbers" in verdict["sentence"]
