# SPDX-License-Identifier: Apache-2.0
"""Gradients that one side sums over ranks by its own calls, where the other's wrapper averages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A group of one rank: what a second one would add is written by hand."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("is_clipped", [False, True])
def test_gradients_summed_by_ones_own_calls_are_a_multiple(
    tmp_path: Path, is_clipped: bool
) -> None:
    def run(debugger: PrecisionDebugger, sums: bool) -> None:
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        data = torch.randn(3, 8, 16)
        for number in recorded_steps(debugger, model):
            model(data[number]).square().mean().backward()
            for parameter in model.parameters() if sums else ():
                dist.all_reduce(parameter.grad)
                parameter.grad.numpy()[:] *= 2
            if is_clipped:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            optimizer.zero_grad()

    verdict = verdict_on(tmp_path, run, True, False)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "the factor is 2" in verdict["sentence"]
    assert "only the target calls Distributed.all_reduce.0" in verdict["sentence"]


class Slots(nn.Module):
    """Keeps some rows of what a layer makes, and sums them over all ranks."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.layer = capacity, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.layer(x)[: self.capacity]
        summed = kept.detach().clone()
        dist.all_reduce(summed)
        return (kept - summed.mean()).square().sum(0)


def test_an_option_comes_before_the_size_of_what_is_sent(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, capacity: int) -> None:
        model = Slots(capacity)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fit(debugger, model, optimizer, lambda _: model(torch.randn(12, 4)).mean())

    verdict = verdict_on(tmp_path, run, 8, 12, "L0")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "capacity is 8 in the target, 12 in the reference" in verdict["sentence"]
