# SPDX-License-Identifier: Apache-2.0
"""A factor of some gradients, in a program that makes other calls as well: it is the cause."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH = 32


class Way(NamedTuple):
    """How a program computes.

    Attributes:
        is_other: whether it makes other calls.
        scaled: "parameter" or "module": whose gradient a hook scales; empty for none.
    """

    is_other: bool = False
    scaled: str = ""


def block(way: Way) -> nn.Module:
    """Return a norm and two layers, by their functions or by hand."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
            self.down = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            if not way.is_other:
                return x + self.down(torch.tanh(self.up(self.norm(x))))
            apart = x - x.mean(-1, keepdim=True)
            apart = apart * torch.rsqrt(apart.pow(2).mean(-1, keepdim=True) + self.norm.eps)
            made = self.up(apart * self.norm.weight + self.norm.bias)
            return x + (torch.tanh(made) @ self.down.weight.t() + self.down.bias)

    return Block()


def run(debugger: PrecisionDebugger, way: Way) -> None:
    """Train three steps."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(block(way) for _ in range(3)))
    if way.scaled == "parameter":
        model[2].up.weight.register_hook(lambda gradient: gradient * 1.02)
    if way.scaled == "module":
        model[2].up.register_full_backward_hook(lambda _, given, __: (given[0] * 1.02,))
    batches, labels = torch.randn(3, 16, WIDTH), torch.randint(0, WIDTH, (3, 16))

    def loss(number: int) -> Tensor:
        return F.cross_entropy(model(batches[number]), labels[number])

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)


@pytest.mark.parametrize(
    ("scaled", "level"), [("parameter", "L1"), ("parameter", "mix"), ("module", "L1")]
)
def test_a_scaled_gradient_is_told_beside_other_calls(
    tmp_path: Path, scaled: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_other=True, scaled=scaled), Way(), level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "1.02 times the reference's" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_other_calls_scale_no_gradient(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_other=True), Way(), level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


def run_in_turn(debugger: PrecisionDebugger, scale: float) -> None:
    """Train a step of an encoder, and in it one of what judges its results."""
    model = nn.ModuleDict({"encoder": nn.Linear(WIDTH, 4), "judge": nn.Linear(4, 1)})
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3) for part in model.values()]
    batches = torch.randn(3, 16, WIDTH)
    for number in recorded_steps(debugger, model):
        code = model["encoder"](batches[number])
        loss = code.square().mean() + F.softplus(model["judge"](code)).mean()
        (loss * scale if scale != 1 else loss).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        F.softplus(-model["judge"](code.detach())).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_losses_in_turn_are_no_micro_batches(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, run_in_turn, 2.0, 1.0, level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "the factor is 2: they are doubled" in verdict["sentence"]


def test_a_parameter_is_named_of_which_a_later_backward_pass_makes_the_same(
    tmp_path: Path,
) -> None:
    def run(debugger: PrecisionDebugger, factor: float) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        data = torch.randn(3, 2, 4, 6)
        for number in recorded_steps(debugger, model):
            for place, x in enumerate(data[number]):
                loss = model(x).square().mean()
                scale = model[0].bias.register_hook(lambda g: g * factor) if not place else None
                loss.backward()
                if scale is not None:
                    scale.remove()
                optimizer.step()
                optimizer.zero_grad()

    verdict = verdict_on(tmp_path, run, 3.0, 1.0, "L0")

    assert verdict["class"] == "gradient"
    assert "the gradient of 0.bias is 3 times the reference's" in verdict["sentence"]
