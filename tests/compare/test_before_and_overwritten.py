# SPDX-License-Identifier: Apache-2.0
"""What acts before the calls that show it, and what is overwritten before it is used."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from builders.two_runs import compared, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def mixed(debugger: PrecisionDebugger, draws: int) -> None:
    """Mix samples by a number that the program draws, after further draws before the training."""
    model = nn.Linear(6, 3)
    batches, labels = torch.randn(3, 8, 6), torch.randint(0, 3, (3, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.rand(draws)
    beta = torch.distributions.Beta(0.4, 0.4)
    for number in recorded_steps(debugger, model):
        share = beta.sample().item()
        x = batches[number] * share + batches[number].flip(0) * (1 - share)
        optimizer.zero_grad()
        F.cross_entropy(model(x), labels[number]).backward()
        optimizer.step()


def test_a_number_that_is_drawn_for_the_batch_follows_from_the_generator(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, mixed, 1, 0, level="L0")

    assert verdict["class"] == "random", verdict["sentence"]
    assert "the state of the generator cpu differs when step 0 starts" in verdict["sentence"]


def counted(debugger: PrecisionDebugger, seed: int) -> None:
    """Count the valid labels of each batch, as a tensor, before the model is called."""
    model = nn.Linear(6, 3)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 1, 2, -1, 1, -1, 2, 0, -1, -1, -1, 1])
    data = TensorDataset(torch.randn(12, 6), labels)
    loader = DataLoader(data, 4, shuffle=True, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(loader)
    for _ in recorded_steps(debugger, model):
        x, y = next(batches)
        count = torch.tensor(float((y >= 0).sum().item()))
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y, ignore_index=-1, reduction="sum") / count).backward()
        optimizer.step()


def test_a_loader_acts_before_the_numbers_that_a_program_takes_of_its_batches(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, counted, 2, 1, level="L0")

    assert verdict["class"] == "data", verdict["sentence"]
    assert "generator_seed of a data loader is 2 instead of 1" in verdict["sentence"]


class Scaled(nn.Module):
    """A layer with a buffer that each call writes, and may read before."""

    largest: Tensor

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.reads = reads
        self.register_buffer("largest", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / self.largest if self.reads else x
        with torch.no_grad():
            self.largest.copy_(x.abs().amax(0))
        return self.layer(scaled)


def held(debugger: PrecisionDebugger, change: tuple[float, bool]) -> None:
    """Train with a buffer that begins with another value."""
    start, reads = change
    model = Scaled(reads=reads)
    model.largest.fill_(start)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(batches[number]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_buffer_that_is_overwritten_before_it_is_used_accuses_nobody(
    tmp_path: Path, level: str
) -> None:
    summary = compared(tmp_path / "unused", held, (2.0, False), (1.0, False), level=level)
    used = verdict_on(tmp_path / "used", held, (2.0, True), (1.0, True), level=level)

    assert summary["verdict"]["class"] == "equal", summary["verdict"]["sentence"]
    assert any("largest differs when step 0" in each for each in summary["verdict"]["evidence"])
    assert used["class"] == "parameters", used["sentence"]


def cast(debugger: PrecisionDebugger, dtype: torch.dtype) -> None:
    """Compute the loss of an average of the weights within the step, in autocast or in float64."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3)).to(dtype)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.NAdam(model.parameters(), 1e-3)
    batches = torch.randn(3, 8, 6, dtype=torch.float64).to(dtype)
    for number in recorded_steps(debugger, [model, average]):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
            loss = model(batches[number]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.1)
            average(batches[number])


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_weights_that_are_used_again_after_the_update_follow_from_the_precision(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, cast, torch.float64, torch.float32, level=level)

    assert verdict["class"] == "precision", verdict["sentence"]


class Bag(nn.Module):
    """A mean of embeddings by other names."""

    def __init__(self, *, renamed: bool) -> None:
        super().__init__()
        size = 5 if renamed else 6
        parts = {"table": nn.Embedding(9, size), "head": nn.Linear(size, 3)}
        if renamed:
            parts = {"words": parts["table"], "hidden": nn.Linear(size, size), "out": parts["head"]}
        self.parts = nn.ModuleDict(parts)

    def forward(self, ids: Tensor) -> Tensor:
        first, *others = self.parts.values()
        x = first(ids).mean(1)
        for part in others:
            x = part(x)
        return x


def classified(debugger: PrecisionDebugger, renamed: bool) -> None:
    """Train one of two models that share no parameter."""
    model = Bag(renamed=renamed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids = torch.randint(0, 9, (3, 8, 4), generator=torch.Generator().manual_seed(1))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(ids[number]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_models_that_share_no_parameter_are_different_programs(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, classified, True, False, level=level)

    assert verdict["class"] == "different_programs", verdict["sentence"]
