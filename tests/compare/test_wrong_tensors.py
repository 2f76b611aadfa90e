# SPDX-License-Identifier: Apache-2.0
"""Calls that are given the wrong tensor: a parameter, another network's, a gathered batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrize

from builders.two_runs import fit, recorded_steps, verdict_on
from msprobe.pytorch import PrecisionDebugger

APIS = pytest.mark.parametrize("level", ["L1", "mix"])


class Gated(nn.Module):
    """Two layers of one shape, perhaps the first one twice."""

    def __init__(self, repeats: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh((self.layers[0] if self.repeats else layer)(x))
        return x


def gated(debugger: PrecisionDebugger, repeats: bool) -> None:
    model = Gated(repeats)
    data = torch.randn(3, 5, 6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    fit(debugger, model, optimizer, lambda step: model(data[step]).square().mean())


@APIS
def test_the_layer_that_runs_twice_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, gated, True, False, level)

    words = "called with the parameter layers.0.weight instead of the parameter layers.1.weight"
    assert verdict["class"] == "argument"
    assert words in verdict["sentence"]
    assert "times the reference" not in verdict["sentence"]


def valued(debugger: PrecisionDebugger, change: str) -> None:
    """Q-learning with a target network, which trains on what the program collects."""
    online = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.RMSprop(online.parameters(), 1e-2)
    states = torch.randn(4, 7, 2, 6)
    for step in recorded_steps(debugger, online):
        optimizer.zero_grad()
        value = online(states[step])
        advantage = value - value.mean(dim=0 if change == "dim" else 1, keepdim=True)
        with torch.no_grad():
            ahead = (online if change == "network" else target)(states[step + 1])
            best = ahead.amax(1)
        # The program acts by what the model says: later batches follow from it.
        order = np.argsort(advantage.detach()[:, 0].numpy())
        acted = torch.from_numpy(states[step].numpy()[order])
        loss = (advantage[:, 0] - best).square().mean() + online(acted).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), online.parameters(), strict=True):
                old.lerp_(new, 0.1)


@APIS
def test_the_parameter_of_another_network_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, valued, "network", "", level)

    assert verdict["class"] in ("argument", "call", "order")
    assert "code that was not recorded" not in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_batch_that_follows_from_a_wrong_call_is_no_cause(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, valued, "dim", "", level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "input.dim of Tensor.mean.0.forward" in verdict["sentence"]


def fitted(debugger: PrecisionDebugger, rate: float) -> None:
    """Fit points of two batches to values that are measured before the step."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    points, walls = torch.rand(3, 12, 1), torch.rand(3, 5, 1)
    values = torch.exp(-rate * points)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(step: int) -> Tensor:
        return model(walls[step]).square().mean() + F.mse_loss(model(points[step]), values[step])

    fit(debugger, model, optimizer, loss)


@APIS
def test_values_that_one_of_several_batches_is_fitted_to_are_data(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, fitted, 2.0, 1.0, level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "it differs when it comes in" in verdict["sentence"]


class Twice(torch.autograd.Function):
    """All rows twice, as those of two ranks that hold the same."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return torch.cat([x, x])

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(2)[0]


def contrasted(debugger: PrecisionDebugger, gathers: bool) -> None:
    model = nn.Linear(6, 4)
    data = torch.randn(3, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(step: int) -> Tensor:
        rows = F.normalize(model(data[step]), dim=1)
        others = Twice.apply(rows) if gathers else rows
        return F.cross_entropy(5 * rows @ others.T, torch.arange(5))

    fit(debugger, model, optimizer, loss)


@APIS
def test_a_call_that_is_missing_before_a_view_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, contrasted, False, True, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Autograd.Twice.0.forward" in verdict["sentence"]


def scaled(debugger: PrecisionDebugger, scale: float) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    parametrize.register_parametrization(model[2], "weight", nn.Tanh())
    data = torch.randn(3, 5, 6)
    optimizer = torch.optim.Adamax(model.parameters(), 1e-2)
    for step in recorded_steps(debugger, model):
        (scale * model(data[step]).square().mean()).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_scale_that_is_taken_back_is_no_cause(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, scaled, 64.0, 256.0, level)

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


class Windows(nn.Module):
    """Attention whose scores a part is given a mask for, or none."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 6)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        scores = x @ self.project(x).transpose(1, 2)
        if mask is not None:
            scores = (scores.view(1, -1, 5, 5) + mask.unsqueeze(0)).view(-1, 5, 5)
        return scores.softmax(-1) @ x


class Masked(nn.Module):
    """Its own buffer is the mask."""

    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.inner, self.is_masked = Windows(), is_masked
        self.register_buffer("mask", torch.full((3, 5, 5), -9.0).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x, self.mask if self.is_masked else None)


def masked(debugger: PrecisionDebugger, is_masked: bool) -> None:
    model, data = Masked(is_masked), torch.randn(3, 3, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda step: model(data[step]).square().mean())


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_mask_that_a_module_is_not_given_is_an_argument(tmp_path: Path, level: str) -> None:
    """What differs inside of the module follows from it, though its record comes last."""
    verdict = verdict_on(tmp_path, masked, False, True, level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "input.1 of Module.inner.Windows.forward.0" in verdict["sentence"]
    assert "None where the reference has a tensor" in verdict["sentence"]


class Padded(nn.Module):
    """Torch's attention, which makes another mask of the one for its keys."""

    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.attention, self.is_masked = nn.MultiheadAttention(8, 2, batch_first=True), is_masked

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        kept = padding.clone()
        mask = kept if self.is_masked else None
        found: Tensor = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return x + found


def padded(debugger: PrecisionDebugger, is_masked: bool) -> None:
    model, data = Padded(is_masked), torch.randn(3, 4, 6, 8)
    padding = torch.arange(6) > torch.tensor([[5], [3], [4], [2]])
    fit(
        debugger,
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        lambda number: model(data[number], padding).square().mean(),
    )


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_mask_of_which_calls_make_another_one_is_an_argument(
    tmp_path: Path, is_masked: bool, level: str
) -> None:
    verdict = verdict_on(tmp_path, padded, is_masked, not is_masked, level)
    assert verdict["class"] == "argument", verdict["sentence"]
    call = "Functional.multi_head_attention_forward.0"
    where = "Module.attention.MultiheadAttention" if level == "mix" else call
    assert f"input.key_padding_mask of {where}" in verdict["sentence"]
    own, other = ("target", "reference") if is_masked else ("reference", "target")
    assert f"is given in the {own}, and left out in the {other}" in verdict["sentence"]


class Pair(nn.Module):
    """Looks up two lists of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.embed(target) + self.embed(source).mean(1, keepdim=True))


def paired_words(debugger: PrecisionDebugger, is_exchanged: bool) -> None:
    model = Pair()
    words = torch.randint(0, 9, (3, 2, 4, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(step: int) -> Tensor:
        source, target = words[step, 0], words[step, 1][:, :]
        given = (target, source) if is_exchanged else (source, target)
        return F.cross_entropy(model(*given).flatten(0, 1), words[step, 1].flatten())

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_inputs_of_a_model_that_change_places_are_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, paired_words, True, False, level)

    assert verdict["class"] in ("order", "argument"), verdict["sentence"]
    if level == "L0":  # the other levels record the calls that make the inputs
        words = "input.0 and input.1 of Module.Pair.forward.0 are interchanged (step 0)"
        assert words in verdict["sentence"]


def along(debugger: PrecisionDebugger, given: tuple[int, float]) -> None:
    """Attention with a mask of -1e9, whose scores are rounded otherwise on the other side."""
    dim, scale = given
    model, data = nn.Linear(6, 6), torch.randn(3, 4, 5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)

    def loss(step: int) -> Tensor:
        x = data[step]
        scores = (x * scale) @ model(x).transpose(1, 2) / scale
        return (scores.masked_fill(later, -1e9).softmax(dim) @ x).square().mean()

    fit(debugger, model, optimizer, loss)


@APIS
@pytest.mark.parametrize(("dim", "expected"), [(-2, "argument"), (-1, None)])
def test_numbers_that_mask_others_explain_no_other_softmax(
    tmp_path: Path, level: str, dim: int, expected: str | None
) -> None:
    """Their rounding is 64, and changes no exponential."""
    verdict = verdict_on(tmp_path, along, (dim, 3.0), (-1, 7.0), level)

    if expected is None:  # the scale is no cause: it is taken back
        assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    else:
        assert verdict["class"] == expected, verdict["sentence"]
        assert "of Tensor.softmax.0.forward" in verdict["sentence"]
