# SPDX-License-Identifier: Apache-2.0
"""Verdicts that need more than one call or step: schedules, several networks, unused generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from msprobe.capture.session import reset_session  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]


def verdict_on(
    folder: Path, run: Callable[[PrecisionDebugger, Any], None], change: Any, base: Any, level: str
) -> dict[str, Any]:
    for name, option in (("target", change), ("reference", base)):
        torch.manual_seed(1)
        reset_session()
        run(PrecisionDebugger(dump_path=str(folder / name), task="statistics", level=level), option)
    reset_session()
    found = run_comparison(folder / "target", folder / "reference", CompareOptions()).summary
    verdict: dict[str, Any] = found["verdict"]
    return verdict


def scheduled(debugger: PrecisionDebugger, share: float) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 20, pct_start=share)
    for _ in range(3):
        debugger.start(model)
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_momentum_that_a_scheduler_moves_is_the_schedules(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, scheduled, 0.2, 0.4, level)

    assert verdict["class"] == "schedule"
    assert "the learning rate is" in verdict["sentence"]


def two_networks(debugger: PrecisionDebugger, slope: float) -> None:
    maker = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(slope), nn.Linear(8, 4))
    judge = nn.Linear(4, 1)
    debugger.start([maker, judge])
    judge(torch.linspace(-1, 1, 20).view(5, 4)).sum().backward()
    judge(maker(torch.randn(5, 3)).detach()).square().mean().backward()
    debugger.stop()
    debugger.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_results_of_another_network_are_no_data(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, two_networks, 0.3, 0.01, level)

    assert verdict["class"] == "argument"
    assert "negative_slope" in verdict["sentence"] or "0.3 instead of 0.01" in verdict["sentence"]


class Doubled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = nn.Linear(3, 3), factor

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x) * self.factor
        return made


def unused_generator(debugger: PrecisionDebugger, option: tuple[int, float]) -> None:
    seed, factor = option
    random.seed(seed)
    model = Doubled(factor)
    for _ in range(2):
        debugger.start(model)
        model(torch.ones(2, 3)).sum().backward()
        debugger.stop()
        debugger.step()


def test_a_generator_that_nothing_draws_from_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, unused_generator, (3, 3.0), (4, 2.0), "L0")

    assert verdict["class"] != "random"
    assert "Module.Doubled" in verdict["sentence"]


def branching(debugger: PrecisionDebugger, seed: int) -> None:
    """Teacher forcing: a draw of Python's generator says which calls are made."""
    random.seed(seed)
    model = nn.Linear(3, 3)
    for _ in range(2):
        debugger.start(model)
        x = torch.ones(2, 3)
        for _ in range(6):
            x = model(x) if random.random() < 0.5 else model(x).tanh()
        x.sum().backward()
        debugger.stop()
        debugger.step()


def test_calls_that_hang_on_drawn_numbers_are_randoms(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, branching, 3, 4, "L1")

    assert verdict["class"] == "random"
    assert "generator python" in verdict["sentence"]


def preferred(debugger: PrecisionDebugger, name: str) -> None:
    """A margin to a frozen copy of itself, which is zero at first."""
    model = nn.Linear(3, 4)
    frozen = nn.Linear(3, 4).requires_grad_(False)
    frozen.load_state_dict(model.state_dict())
    x = torch.arange(12.0).view(4, 3)
    debugger.start(model)
    for part in x.split(2):
        margin = getattr(model(part), name)() - getattr(frozen(part), name)()
        (margin.sigmoid() / 2).backward()
    debugger.stop()
    debugger.step()


def test_a_factor_behind_an_equal_loss_is_no_count_of_micro_batches(tmp_path: Path) -> None:
    module = verdict_on(tmp_path / "L0", preferred, "mean", "sum", "L0")
    calls = verdict_on(tmp_path / "L1", preferred, "mean", "sum", "L1")

    assert "the factor is" not in module["sentence"]
    assert "mean" in calls["sentence"]


def clipped(debugger: PrecisionDebugger, by_hand: bool) -> None:
    model = nn.Linear(3, 2)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, 0.1)
    for _ in range(2):
        debugger.start(model)
        model(torch.ones(4, 3)).sum().backward()
        if by_hand:
            norm = torch.stack([p.grad.norm() for p in weights if p.grad is not None]).norm()
            for p in weights:
                if p.grad is not None:
                    p.grad.mul_(0.2 / (norm + 1e-6))
        else:
            nn.utils.clip_grad_norm_(weights, 0.2)
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def test_clipping_by_other_code_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, clipped, False, True, "L0")

    assert verdict["class"] in ("equal", "rounding")
