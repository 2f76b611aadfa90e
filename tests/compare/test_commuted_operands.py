# SPDX-License-Identifier: Apache-2.0
"""Operands of a sum or product pair by what they hold: ``a + b`` is ``b + a``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import compared, fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(8, 32), nn.Linear(8, 32)
        self.norm, self.last = nn.LayerNorm(32), nn.Linear(32, 5)

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.gate(x).sigmoid() + 3 * self.gate(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.joined(x)))


class Commuted(Gated):
    def joined(self, x: torch.Tensor) -> torch.Tensor:
        first, gate = self.first(x), self.gate(x)
        return 3 * gate + first / (1 + (-gate).exp())


class Subtracted(Gated):
    def joined(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) * self.gate(x).sigmoid() + 3 * -self.gate(x)


def trained(debugger: PrecisionDebugger, kind: type[Gated] | None) -> None:
    model = (kind or Gated)().bfloat16()
    inputs = torch.randn(3, 16, 8).bfloat16()
    labels = torch.randint(0, 5, (3, 16))

    def loss(number: int) -> torch.Tensor:
        scores = model(inputs[number])
        loss = functional.cross_entropy(scores, labels[number])
        small = 1e-2 * scores.logsumexp(-1).square().mean()
        return small + loss if kind else loss + small

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_commuted_operands_accuse_nobody(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, trained, Commuted, None, level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_another_operation_is_named_between_them(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, trained, Subtracted, None, level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert "Tensor.__neg__.0.forward" in verdict["sentence"]


def test_differences_exchange_nothing(tmp_path: Path) -> None:
    def subtracted(debugger: PrecisionDebugger, change: Any) -> None:
        model = nn.Linear(4, 4)
        inputs = torch.randn(3, 6, 4)
        for number in recorded_steps(debugger, model):
            found, wanted = model(inputs[number]), inputs[number] * 5
            (wanted - found if change else found - wanted).exp().mean().backward()

    verdict = verdict_on(tmp_path, subtracted, "turned")
    assert verdict["class"] == "order", verdict["sentence"]


def test_commuted_operands_and_their_gradients_pair_with_their_like(tmp_path: Path) -> None:
    def product(debugger: PrecisionDebugger, change: Any) -> None:
        one, other = nn.Linear(4, 4), nn.Linear(4, 4)
        inputs = torch.randn(3, 6, 4)
        for number in recorded_steps(debugger, [one, other]):
            a, b = one(inputs[number]).tanh(), other(inputs[number]).exp()
            made = b * a if change else a * b
            total, part = made.square().mean(), b.mean()
            (part + total if change else total + part).backward()

    summary = compared(tmp_path, product, "commuted")
    assert summary["counts"]["differs"] == 0
    assert summary["verdict"]["class"] == "equal"


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_weight_that_is_a_tensor_comes_first(tmp_path: Path, level: str) -> None:
    """Python calls the tensor's method for a number times a tensor: the number is second."""

    def weighted(debugger: PrecisionDebugger, change: Any) -> None:
        model, inputs, weight = nn.Linear(4, 4), torch.randn(3, 6, 4), torch.tensor(0.7)
        for number in recorded_steps(debugger, model):
            factor = weight if change else weight.item()
            (factor * model(inputs[number]).square().mean()).backward()

    summary = compared(tmp_path, weighted, "tensor", level=level)
    assert summary["counts"]["differs"] == 0
    assert summary["verdict"]["class"] == "equal"
