# SPDX-License-Identifier: Apache-2.0
"""A term of the loss, a backward pass, or a clearing of gradients that one side leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "L1", "mix"]


def regularised(debugger: PrecisionDebugger, change: Any) -> None:
    """Train with a term that is computed all the same where it is not added."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs, labels = torch.randn(3, 5, 6), torch.randint(0, 4, (3, 5))
    for number in recorded_steps(debugger, model):
        scores = model(inputs[number])
        loss = functional.cross_entropy(scores, labels[number])
        if change == "no backward, written otherwise":
            size = scores.exp().sum(-1).log().square().mean()
        else:
            size = scores.logsumexp(-1).square().mean()
        total = loss if change == "no term" else loss + 0.3 * size
        optimizer.zero_grad()
        if change not in ("no backward", "no backward, written otherwise"):
            total.backward()
        optimizer.step()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_term_that_is_computed_but_not_added_is_a_call(
    tmp_path: Path, level: str, swapped: bool
) -> None:
    sides = (None, "no term") if swapped else ("no term", None)
    verdict = verdict_on(tmp_path, regularised, *sides, level)
    assert verdict["class"] == "call", verdict["sentence"]
    side = "target" if swapped else "reference"
    assert verdict["sentence"].startswith(f"call: only the {side} calls Tensor.__mul__.")
    assert "test_left_out.py" in verdict["sentence"]


def through_one_number(debugger: PrecisionDebugger, change: Any) -> None:
    """Train what comes to one number in between: the gradient before it is then only scaled."""
    first, last = nn.Linear(8, 1, bias=False), nn.Sequential(nn.Linear(1, 6), nn.Linear(6, 4))
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], 0.1)
    inputs = torch.randn(3, 1, 8)

    def loss(number: int) -> torch.Tensor:
        middle = first(inputs[number])
        loss = last(middle).square().mean()
        if not change:
            loss = loss + 0.05 * middle.square().mean()
        return loss

    fit(debugger, [first, last], optimizer, loss)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_a_term_by_which_one_gradient_is_scaled_is_a_call(
    tmp_path: Path, level: str, swapped: bool
) -> None:
    sides = (None, "no term") if swapped else ("no term", None)
    verdict = verdict_on(tmp_path, through_one_number, *sides, level)
    assert verdict["class"] == "call", verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_backward_pass_that_one_side_leaves_out_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, regularised, "no backward", None, level)
    assert verdict["class"] == "gradient", verdict["sentence"]
    words = "backward is called never in the target, once in the reference; no gradient gets to"
    assert words in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_calls_written_otherwise_are_not_taken_for_it(tmp_path: Path, level: str) -> None:
    change = "no backward, written otherwise"
    verdict = verdict_on(tmp_path, regularised, change, None, level)
    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "backward is called never in the target" in verdict["sentence"]


def by_limit(parameters: list[nn.Parameter]) -> None:
    nn.utils.clip_grad_norm_(parameters[:2], 0.1)
    nn.utils.clip_grad_norm_(parameters[2:], 0.2)


def by_hand(parameters: list[nn.Parameter]) -> None:
    norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    for p in parameters:
        if p.grad is not None:
            p.grad.mul_(0.1 / norm)


def none(parameters: list[nn.Parameter]) -> None:
    """Clip nothing."""


def clipped(clip: Callable[[list[nn.Parameter]], None]) -> Callable[[PrecisionDebugger, Any], None]:
    """Return a training that clips, and does something else to the gradients by `change`."""

    def run(debugger: PrecisionDebugger, change: Any) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        parameters = list(model.parameters())
        optimizer = torch.optim.Adam(parameters, 0.01)
        inputs, labels = torch.randn(3, 5, 6), torch.randint(0, 4, (3, 5))
        last: list[Any] = []
        for number in recorded_steps(debugger, model):
            if change != "not cleared":
                optimizer.zero_grad()
            functional.cross_entropy(model(inputs[number]), labels[number]).backward()
            if change == "smoothed" and last:
                for p, before in zip(parameters, last, strict=True):
                    p.grad.mul_(0.3).add_(before, alpha=0.7)
            last[:] = [p.grad.clone() for p in parameters if p.grad is not None]
            clip(parameters)
            optimizer.step()

    return run


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clip", [by_limit, by_hand, none])
def test_gradients_that_are_not_cleared_are_told_behind_clipping(
    tmp_path: Path, clip: Callable[[list[nn.Parameter]], None], level: str, swapped: bool
) -> None:
    sides = (None, "not cleared") if swapped else ("not cleared", None)
    verdict = verdict_on(tmp_path, clipped(clip), *sides, level)
    assert verdict["class"] == "gradient", verdict["sentence"]
    side = "reference" if swapped else "target"
    assert f"the {side}'s gradients are not cleared" in verdict["sentence"]
    assert "(step 1)" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_smoothed_over_steps_are_not_said_to_be_uncleared(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, clipped(none), "smoothed", None, level)
    assert verdict["class"] in ("call", "gradient"), verdict["sentence"]
    assert "not cleared" not in verdict["sentence"]


def replayed(debugger: PrecisionDebugger, change: Any) -> None:
    """Train twice a step on advantages that a loop makes without gradients."""
    actor, critic = nn.Linear(4, 3), nn.Linear(4, 1)
    optimizer = torch.optim.Adam(actor.parameters(), 0.01)
    states, rewards = torch.randn(3, 7, 4), torch.randn(3, 6)
    actions = torch.randint(0, 3, (3, 6, 1))
    for number in recorded_steps(debugger, [actor, critic]):
        gains, running = torch.zeros(6), torch.zeros(())
        with torch.no_grad():
            values = critic(states[number]).squeeze(-1)
            old = actor(states[number, :-1]).log_softmax(-1).gather(1, actions[number])
            for t in reversed(range(6)):
                later = 0.9 * values[t + 1]
                reward = rewards[number, t]
                total = reward - later if change else reward + later
                running = total - values[t] + 0.8 * running
                gains[t] = running
            gains = (gains - gains.mean()) / gains.std()
        for _ in range(2):
            logs = actor(states[number, :-1]).log_softmax(-1).gather(1, actions[number])
            optimizer.zero_grad()
            (-((logs - old).exp() * gains[:, None]).mean()).backward()
            optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_before_an_update_of_the_same_step_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, replayed, "other sign", None, level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert "calls Tensor.__sub__.0.forward (test_left_out.py" in verdict["sentence"]


class Scale(nn.Module):
    def __init__(self, is_used: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.forward = self.scaled if is_used else self.plain  # type: ignore[method-assign]

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x


def scaled(debugger: PrecisionDebugger, change: Any) -> None:
    """Train with scales that are all ones when the training begins."""
    parts = [nn.Linear(6, 6), Scale(not change), nn.Tanh(), nn.Linear(6, 6), Scale(not change)]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(3, 5, 6)

    fit(debugger, model, optimizer, lambda number: model(inputs[number]).square().mean())


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_parameters_of_ones_that_one_side_does_not_use_are_a_call(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, scaled, "not used", None, level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Tensor.__mul__.0.forward" in verdict["sentence"]


def turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotated(debugger: PrecisionDebugger, change: Any) -> None:
    model = nn.Linear(6, 8)
    inputs, angles = torch.randn(3, 5, 6), torch.rand(8)

    def loss(number: int) -> torch.Tensor:
        scores = model(inputs[number])
        if not change:
            scores = turned(scores) * angles + scores
        return scores.square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_line_that_leads_to_several_calls_is_told(tmp_path: Path, level: str) -> None:
    sentence = verdict_on(tmp_path, rotated, "plain", None, level)["sentence"]
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "turned(scores) *" in text
    )
    words = rf"one of the calls that test_left_out.py:{line} makes in the reference alone"
    assert re.search(words, sentence), sentence
