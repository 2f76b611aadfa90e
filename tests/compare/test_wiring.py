# SPDX-License-Identifier: Apache-2.0
"""A call that is given another call's result: what that is a cause of, and when it is an order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

APIS = pytest.mark.parametrize("level", ["L1", "mix"])
chosen: set[str | None] = set()  # not an attribute of a module: comparisons would name it


class Gated(nn.Module):
    """Mixes what comes in by the halves of a gate, and divides it by a size."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.value(x), functional.silu(self.gate(x))
        smooth = value.sigmoid()
        if "not smoothed" in chosen:
            smooth = value
        size = 1 / (1 + smooth.square().mean())
        first, second = gate.chunk(2, dim=-1)
        if "halves" in chosen:
            first, second = second, first
        made = self.norm(value) * torch.cat([first.tanh(), second.cos()], dim=-1)
        return made * size


def gated(debugger: PrecisionDebugger, change: str | None) -> None:
    chosen.clear()
    chosen.add(change)
    model, x = nn.Sequential(nn.Linear(4, 8), Gated(), nn.Linear(8, 1)), torch.randn(3, 6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(x[number]).square().mean())


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ("not smoothed", "argument", "fed with the result of"),
        ("halves", "order", "fed with (the result of|result 1 of) Tensor.chunk"),
    ],
)
def test_calls_are_in_another_order_where_they_change_places_alone(
    change: str, expected: str, words: str, level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, gated, change, level=level)
    assert found["class"] == expected, found["sentence"]
    assert re.search(words, found["sentence"]), found["sentence"]


class Scaled(nn.Module):
    """Normalises before it is scaled by a gate, or behind that."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.value(x), functional.silu(self.gate(x))
        is_late = "norm after gate" in chosen
        return self.norm(value * gate) if is_late else self.norm(value) * gate


def scaled(debugger: PrecisionDebugger, change: str | None) -> None:
    chosen.clear()
    chosen.add(change)
    model, x = nn.Sequential(nn.Linear(4, 8), Scaled(), nn.Linear(8, 1)), torch.randn(3, 6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(x[number]).square().mean())


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_makes_its_input_behind_it_on_the_other_side_is_order(
    level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, scaled, "norm after gate", level=level)
    assert found["class"] == "order", found["sentence"]


def adversarial(debugger: PrecisionDebugger, change: str | None) -> None:
    """A generator is trained on latents of its own, in the same step as its critic."""
    maker, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    models = nn.ModuleList([maker, critic])
    optimizer = torch.optim.SGD(models.parameters(), 0.05)
    real = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, models):
        latents = torch.randn(8, 4)
        loss = functional.relu(1 + critic(maker(latents).detach())).mean()
        loss = loss + functional.relu(1 - critic(real[number])).mean()
        fresh = latents if change == "reused" else torch.randn(8, 4)
        made = critic(maker(fresh))
        if change == "saturating":
            loss = loss + functional.softplus(-made).mean()
        else:
            loss = loss + -made.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@APIS
@pytest.mark.parametrize("is_reversed", [False, True])
def test_what_a_draw_of_one_side_alone_made_is_random(
    is_reversed: bool, level: str, tmp_path: Path
) -> None:
    runs = (None, "reused") if is_reversed else ("reused", None)
    found = verdict_on(tmp_path, adversarial, *runs, level=level)
    assert found["class"] == "random", found["sentence"]
    if is_reversed:
        words = "Torch.randn.1.forward, which only the target calls, instead of the result of Torch"
    else:
        words = "instead of the result of Torch.randn.1.forward, which only the reference calls"
    assert words in found["sentence"]


@APIS
def test_a_call_that_is_put_between_comes_before_the_order(level: str, tmp_path: Path) -> None:
    found = verdict_on(tmp_path, adversarial, "saturating", level=level)
    assert found["class"] == "call", found["sentence"]
    assert "only the target calls Functional.softplus.0.forward" in found["sentence"]


def accumulated(debugger: PrecisionDebugger, change: str | None) -> None:
    """Each micro batch has samples of its own, whose places are read from a tensor."""
    model, codes = nn.Linear(6, 1), torch.randn(200)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model):
        starts, first = torch.randint(0, 150, (8,)), torch.zeros(0)
        optimizer.zero_grad()
        for micro in range(2):
            part = starts[:4] if change == "twice" else starts[micro * 4 : micro * 4 + 4]
            first = part if micro == 0 else first
            part = first if change == "kept" else part
            x = torch.stack([codes[place : place + 6] for place in part])
            model(x).square().mean().backward()
        optimizer.step()


@APIS
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("twice", "[None, 4, None] instead of [4, 8, None]"),
        ("kept", "fed with the result of Tensor.__getitem__.0.forward instead"),
    ],
)
def test_samples_that_are_taken_twice_are_data(
    change: str, words: str, level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, accumulated, change, level=level)
    assert found["class"] == "data", found["sentence"]
    assert words in found["sentence"]


def folded(debugger: PrecisionDebugger, change: str | None) -> None:
    model, x = nn.ModuleList([nn.Conv2d(1, 3, 3), nn.Linear(12, 2)]), torch.randn(3, 2, 1, 6, 6)

    def loss(number: int) -> Tensor:
        made = model[0](x[number])
        made = made.permute(0, 2, 3, 1) if change == "axes" else made.transpose(1, 2)
        return model[1](made.reshape(2, 4, 12)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@APIS
def test_two_functions_are_not_given_another_argument(level: str, tmp_path: Path) -> None:
    found = verdict_on(tmp_path, folded, "axes", level=level)
    assert found["class"] == "call", found["sentence"]
    assert "the target calls Tensor.permute.0.forward" in found["sentence"]
    assert "the reference Tensor.transpose.0.forward" in found["sentence"]
