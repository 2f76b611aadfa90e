# SPDX-License-Identifier: Apache-2.0
"""What loaders say of data that differ: calls make the inputs of a model of fewer samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from builders.two_runs import fit, recorded_steps, verdict_on
from msprobe.pytorch import PrecisionDebugger


def denoise(debugger: PrecisionDebugger, options: dict[str, Any]) -> None:
    """Train on two micro batches a step; noise is added to each before the model gets it."""
    generator = torch.Generator().manual_seed(2)
    samples = TensorDataset(torch.randn(48, 5, generator=generator), torch.arange(48))
    how = {"batch_size": 4, "shuffle": True, "seed": 3} | options
    shuffled = torch.Generator().manual_seed(how.pop("seed"))
    loader = DataLoader(samples, generator=shuffled, **how)
    batches = iter(loader)
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for _ in range(2):
            clean, label = next(batches)
            noise = torch.randn(clean.shape, generator=generator) * (label + 1)[:, None] / 48
            loss = (model(clean + noise) - noise).square().mean()
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 2}, "batch_size of a data loader is 2 instead of 4"),
        ({"seed": 4}, "generator_seed of a data loader is 4 instead of 3"),
    ],
)
def test_the_setting_of_the_loader_is_named(
    tmp_path: Path, options: dict[str, Any], words: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, denoise, options, {}, level)
    assert (verdict["class"], verdict["where"]["step"]) == ("data", 0)
    assert words in verdict["sentence"]


def test_how_a_loader_works_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, denoise, {"pin_memory": False, "timeout": 0}, {})
    assert verdict["class"] == "equal"


def noisy(debugger: PrecisionDebugger, seed: int) -> None:
    """Draw the noise of each batch in the step, from a generator of the program's own."""
    model, data = nn.Linear(6, 3), torch.randn(3, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(seed)

    def loss(step: int) -> torch.Tensor:
        noise = torch.rand(data[step].shape, generator=generator)
        return model(data[step] * (1 + noise)).square().mean()

    fit(debugger, model, optimizer, loss)


def test_numbers_that_are_drawn_for_a_batch_are_told_beside_it(tmp_path: Path) -> None:
    """At L0 nothing tells whether the loaded batch differs, or what is drawn for it."""
    verdict = verdict_on(tmp_path, noisy, 1, 2, level="L0")

    assert verdict["class"] in ("data", "random"), verdict["sentence"]
    assert "the program draws random numbers by Torch.rand (" in verdict["sentence"]


def sampled(debugger: PrecisionDebugger, epoch: int) -> None:
    """Train on batches in the order of a sampler of the program's own, of one epoch."""
    samples, model = torch.randn(64, 6), nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(3 + epoch)

    def loss(step: int) -> torch.Tensor:
        order = torch.randperm(64, generator=generator)
        return model(samples[order[8 * step : 8 * step + 8]]).square().mean()

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_another_order_of_samples_is_data_though_it_is_drawn(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, sampled, 1, 0, level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "Torch.randperm" in verdict["sentence"]


class Judge(nn.Module):
    """A loss that is a module, and is given the labels."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores, labels)


def judged(debugger: PrecisionDebugger, spoilt: int | None) -> None:
    """Train a model by a loss that is recorded with it; one batch may be spoilt."""
    model, judge = nn.Linear(6, 3), Judge()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches, labels = torch.randn(3, 8, 6), torch.randint(0, 3, (3, 8))
    if spoilt is not None:
        batches[spoilt, 0] = 0.0
        labels[spoilt, 0] = (labels[spoilt, 0] + 1) % 3

    def loss(step: int) -> torch.Tensor:
        found: torch.Tensor = judge(model(batches[step]), labels[step])
        return found

    fit(debugger, [model, judge], optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_what_a_loss_is_given_is_no_batch_of_its_own(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, judged, 1, None, level)

    assert (verdict["class"], verdict["where"]["step"]) == ("data", 1), verdict["sentence"]
    assert "(in 1 of 3 steps)" in verdict["sentence"]


class Windows(Dataset):
    """Windows of one series, each with the one that follows it, or with itself."""

    def __init__(self, *, follows: bool) -> None:
        self.series, self.follows = torch.randn(65), follows

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        given = self.series[4 * place : 4 * place + 4]
        wanted = self.series[4 * place + 1 : 4 * place + 5] if self.follows else given.clone()
        return given, wanted


class Forecast(nn.Module):
    """A model that computes its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, given: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.layer(given) - wanted).square().mean()
        return loss


def forecast(debugger: PrecisionDebugger, how: tuple[bool, int]) -> None:
    """Train on windows, perhaps on some batches behind the first ones."""
    follows, skipped = how
    torch.manual_seed(5)
    data, model = Windows(follows=follows), Forecast()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(7)
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=generator)
    batches = (batch for _ in range(3) for batch in loader)
    for _ in range(skipped):
        next(batches)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(*next(batches)).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_copy_in_place_of_another_part_of_the_data_is_data(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, forecast, (False, 0), (True, 0), level)

    assert verdict["class"] == "data", verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_batches_that_are_not_skipped_are_data(tmp_path: Path, level: str) -> None:
    """One side begins a further epoch within the recorded steps, and draws its order there."""
    verdict = verdict_on(tmp_path, forecast, (True, 0), (True, 2), level)

    assert verdict["class"] == "data", verdict["sentence"]
