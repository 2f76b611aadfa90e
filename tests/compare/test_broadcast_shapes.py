# SPDX-License-Identifier: Apache-2.0
"""Values of another shape that hold the same blame what made them, where a call broadcasts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import Run, fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


def valued(debugger: PrecisionDebugger, change: Any) -> None:
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    states, rewards = torch.randn(3, 6, 5), torch.randn(3, 6)

    def loss(number: int) -> torch.Tensor:
        found = critic(states[number])
        if change == "left out":
            values = found
        else:
            values = found.squeeze(-2 if change == "other dimension" else -1)
        returns = 0.9 * values.detach() + rewards[number]
        apart = critic(states[number]).squeeze(-1) - returns
        return apart.square().mean()

    fit(debugger, critic, torch.optim.SGD(critic.parameters(), 0.1), loss)


def in_a_loss(debugger: PrecisionDebugger, change: Any) -> None:
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    states, rewards = torch.randn(3, 6, 5), torch.randn(3, 6)

    def loss(number: int) -> torch.Tensor:
        values = critic(states[number])
        if change != "left out":
            values = values.squeeze(-2 if change else -1)
        return functional.smooth_l1_loss(values, rewards[number])

    fit(debugger, critic, torch.optim.SGD(critic.parameters(), 0.1), loss)


def in_a_module(debugger: PrecisionDebugger, change: Any) -> None:
    """The shape is made in the model, whose result holds the same numbers on both sides."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values: torch.Tensor = self.net(x)
            if change == "left out":
                return values
            return values.squeeze(-2 if change else -1)

    critic = Critic()
    states, rewards = torch.randn(3, 6, 5), torch.randn(3, 6)

    def loss(number: int) -> torch.Tensor:
        return functional.huber_loss(critic(states[number]), rewards[number])

    fit(debugger, critic, torch.optim.SGD(critic.parameters(), 0.1), loss)


def same(debugger: PrecisionDebugger, change: Any) -> None:
    """Train by values whose further dimension has no consequence."""
    model = nn.Linear(5, 1)
    inputs = torch.randn(3, 6, 5)

    def loss(number: int) -> torch.Tensor:
        found = model(inputs[number])
        values = found if change else found.squeeze(-1)
        return (values * 0.5).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected"), [("left out", "call"), ("other dimension", "argument")]
)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("program", [valued, in_a_loss, in_a_module])
def test_the_call_that_made_the_shape_is_named(
    tmp_path: Path, program: Run, change: str, expected: str, level: str, swapped: bool
) -> None:
    sides = (None, change) if swapped else (change, None)
    verdict = verdict_on(tmp_path, program, *sides, level)
    assert verdict["class"] == expected, verdict["sentence"]
    assert "Tensor.squeeze.0.forward (test_broadcast_shapes.py" in verdict["sentence"]


def wanted(debugger: PrecisionDebugger, change: Any) -> None:
    """Train towards values made without a gradient, with a further dimension all the way."""
    model, slow = nn.Linear(5, 1), nn.Linear(5, 1)
    inputs, rewards = torch.randn(3, 6, 5), torch.randn(3, 6, 1)

    def loss(number: int) -> torch.Tensor:
        found, reward = model(inputs[number]), rewards[number]
        if not change:
            found, reward = found.squeeze(-1), reward.squeeze(-1)
        with torch.no_grad():
            later = slow(inputs[number])
            if not change:
                later = later.squeeze(-1)
            goal = torch.tanh(0.9 * later + 0.1).clamp(-1, 1) + reward
        return ((found - goal) * 0.5).square().mean()

    fit(debugger, [model, slow], torch.optim.SGD(model.parameters(), 0.1), loss)


def _overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of each box with each other one."""
    areas = [(box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) for box in (a, b)]
    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(dim=-1)
    return both / (areas[0][:, None] + areas[1][None] - both)


def _overlap_of_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    both = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
    return both / ((a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1) - both)


def paired(debugger: PrecisionDebugger, change: Any) -> None:
    """Train by the overlaps of pairs of boxes, or by the diagonal of those of all with all."""
    model, inputs, low = nn.Linear(5, 4), torch.randn(3, 6, 5), torch.rand(3, 6, 2) * 0.2
    wanted = torch.cat([low, low + 0.5], -1)

    def loss(number: int) -> torch.Tensor:
        near, far = model(inputs[number]).sigmoid().chunk(2, -1)
        boxes = torch.cat([near, near + far], -1)
        if change:
            return (1 - _overlap_of_pairs(boxes, wanted[number])).mean()
        return (1 - _overlap(boxes, wanted[number]).diag()).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.01), loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("training", [same, wanted, paired])
def test_a_shape_without_consequence_accuses_nobody(
    tmp_path: Path, training: Run, level: str
) -> None:
    verdict = verdict_on(tmp_path, training, True, None, level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
