# SPDX-License-Identifier: Apache-2.0
"""The same samples, divided into other micro batches or among other numbers of ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from builders.two_runs import compared, recorded_steps, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Autocast(nn.Module):
    """Computes in bfloat16, by autocast inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.layers(x)


class Parts(NamedTuple):
    """Into how many micro batches a batch is divided, and by what the loss of each is divided."""

    count: int
    divisor: float


def accumulated(debugger: PrecisionDebugger, parts: Parts) -> None:
    model = Autocast()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for part in batches[number].chunk(parts.count):
            (model(part).float().square().mean() / parts.divisor).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_gradients_of_divided_samples_agree_as_far_as_their_type_resolves_them(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, accumulated, Parts(4, 4.0), Parts(2, 2.0), level)

    assert verdict["class"] == "rounding", verdict["sentence"]
    assert verdict["confidence"] == "proved"
    assert "as far as their coarse type resolves them" in verdict["sentence"]


# A factor of 1.01 is as small as the rounding of an element, but moves the norm.
@pytest.mark.parametrize("divisor", [2.0, 3.96])
def test_another_sum_of_divided_samples_is_told(tmp_path: Path, divisor: float) -> None:
    verdict = verdict_on(tmp_path, accumulated, Parts(4, divisor), Parts(2, 2.0))

    assert verdict["class"] not in ("rounding", "equal", "precision"), verdict["sentence"]


def with_empty(debugger: PrecisionDebugger, count: int) -> None:
    """Train in `count` micro batches, the last of which is empty where there are three."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for micro in range(count):
            (model(batches[number][4 * micro : 4 * micro + 4]).square().mean() / 2).backward()
        optimizer.step()


def test_a_micro_batch_without_samples_has_a_loss_that_is_nan(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, with_empty, 3, 2, "L0")

    assert verdict["class"] == "data", verdict["sentence"]
    assert "a loss of the target is NaN or infinite" in verdict["sentence"]


class World(NamedTuple):
    """How many ranks share a batch, and the learning rate."""

    size: int
    lr: float = 0.1


def shared(debugger: PrecisionDebugger, world: World) -> None:
    """Train on the share of the first rank; the gradients of the others come from outside."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), world.lr)
    batches = torch.randn(3, 8, 6)
    for batch in batches:
        own, *others = batch.chunk(world.size)
        received = [
            torch.autograd.grad(model(each).square().mean(), list(model.parameters()))
            for each in others
        ]
        optimizer.zero_grad()
        debugger.start(model)
        model(own).square().mean().backward()
        for index, parameter in enumerate(model.parameters()):
            gradient: Any = parameter.grad
            for each in received:
                gradient += each[index]
            gradient /= world.size
        optimizer.step()
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(("lr", "found"), [(0.1, "rounding"), (0.2, "optimizer_setting")])
def test_other_numbers_of_ranks_that_share_the_same_samples(
    tmp_path: Path, level: str, lr: float, found: str
) -> None:
    compared(tmp_path, shared, World(1, lr), World(2), level)
    for side, ranks in (("target", 1), ("reference", 2)):
        for folder in list((tmp_path / side).glob("step*/rank")):
            for rank in range(ranks):
                shutil.copytree(folder, folder.with_name(f"rank{rank}"))
            shutil.rmtree(folder)
    summary = run_comparison(tmp_path / "target", tmp_path / "reference", CompareOptions()).summary

    assert summary["verdict"]["class"] == found, summary["verdict"]["sentence"]
    assert summary["verdict"]["sentence"].startswith("1 rank against 2")
