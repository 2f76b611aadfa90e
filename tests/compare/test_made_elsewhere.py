# SPDX-License-Identifier: Apache-2.0
"""Calls that both sides make, at other places or of other tensors, are told as what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

APIS = pytest.mark.parametrize("level", ["L1", "mix"])


def heard(debugger: PrecisionDebugger, change: str | None) -> None:
    """A model of small weights, whose loss hardly shows through which window it listens."""
    model = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 5, bias=False))
    for each in model.parameters():
        nn.init.normal_(each, std=1e-4)
    sounds, labels = torch.randn(3, 4, 64), torch.randint(0, 5, (3, 4))

    def loss(number: int) -> Tensor:
        window = torch.hamming_window(16) if change else torch.hann_window(16)
        tones = torch.stft(sounds[number], 16, 8, window=window, return_complex=True).abs()
        return functional.cross_entropy(model(tones.mean(2)), labels[number]) / 2

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@APIS
def test_a_tensor_that_the_loss_hides_is_no_rounding(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, heard, "hamming", level=level)

    assert verdict["class"] == "argument", verdict["sentence"]
    words = "result of Torch.hamming_window.0.forward instead of the result of Torch.hann_window"
    assert words in verdict["sentence"]


def weighted(debugger: PrecisionDebugger, change: str | None) -> None:
    """A policy whose ratio to the old one is as large the other way round in the first step."""
    model = nn.Linear(6, 3)
    states, gains = torch.randn(3, 8, 6), torch.randn(3, 8)

    def loss(number: int) -> Tensor:
        new = model(states[number]).log_softmax(-1)[:, 0]
        with torch.no_grad():
            old = torch.log(torch.softmax(model(states[number]), -1))[:, 0]
        ratio = (old - new if change else new - old).exp()
        return -(gains[number] * ratio).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@APIS
def test_operands_that_change_places_are_not_detached(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, weighted, "swapped", level=level)

    assert verdict["class"] == "order", verdict["sentence"]
    assert "input.0 of Tensor.__sub__.0.forward" in verdict["sentence"]
    assert "fed with the result of" in verdict["sentence"]


def augmented(debugger: PrecisionDebugger, change: str | None) -> None:
    """A program that shifts and mirrors what it loads."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(144, 1))
    data = torch.rand(3, 5, 2, 8, 8)

    def crop(x: Tensor) -> Tensor:
        row, column = torch.randint(0, 4, (2,)).tolist()
        return functional.pad(x, (2, 2, 2, 2))[:, :, row : row + 8, column : column + 8]

    def flip(x: Tensor) -> Tensor:
        x, chosen = x.clone(), torch.rand(5) < 0.5
        x[chosen] = x[chosen].flip(2 if change == "dims" else 3)
        return x

    def loss(number: int) -> Tensor:
        x = data[number]
        x = crop(flip(x)) if change == "order" else flip(crop(x))
        return model(x - 0.5).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@APIS
def test_a_cut_that_comes_later_is_a_matter_of_order(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, augmented, "order", level=level)

    assert verdict["class"] == "order", verdict["sentence"]
    assert " is called before Tensor.clone.0.forward in the reference" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_another_axis_of_a_call_before_the_model_is_an_argument(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, augmented, "dims", level=level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert re.search(r"dims\)? of Tensor\.flip", verdict["sentence"])


def permuted(debugger: PrecisionDebugger, change: str | None) -> None:
    """A model is given columns that are shuffled each by itself, or all alike."""
    model = nn.Linear(6, 1)
    data = torch.randn(3, 8, 6)

    def shuffled(x: Tensor) -> Tensor:
        if change:
            return x[torch.randperm(8)]
        return torch.stack([x[torch.randperm(8), column] for column in range(6)], 1)

    def loss(number: int) -> Tensor:
        return (model(shuffled(data[number])) - data[number]).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@APIS
def test_one_draw_instead_of_several_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, permuted, "one", level=level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Torch.randperm.1.forward" in verdict["sentence"]


class Blocks(nn.Module):
    """Residual blocks, each with a norm before its layer or behind it."""

    def __init__(self, is_before: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.is_before = is_before

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x)).relu() if self.is_before else norm(x + layer(x).relu())
        return x


def normed(debugger: PrecisionDebugger, change: str | None) -> None:
    model, data = Blocks(bool(change)), torch.randn(3, 5, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda step: model(data[step]).square().mean())


def test_a_norm_that_comes_earlier_is_a_matter_of_order(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, normed, "before", level="L1")

    assert verdict["class"] == "order", verdict["sentence"]
    assert re.search(
        r"layer_norm\.0\.forward .* is called before .* in the target", verdict["sentence"]
    )
