# SPDX-License-Identifier: Apache-2.0
"""Steps with several updates: what one changes is seen by the calls and updates behind it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from builders.two_runs import verdict_on

LEVELS = ("L0", "L1", "mix")


@dataclass(frozen=True)
class Change:
    until: int = 2
    slope: float = 0.2
    evaluates: bool = False
    autocast: bool = False
    limit: float | None = None


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.classes = nn.Embedding(3, 16)

    def forward(self, x, label, slope):
        hidden = functional.leaky_relu(self.first(x), slope)
        return self.last(hidden).squeeze(1) + (self.classes(label) * hidden).sum(dim=1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, noise):
        return torch.tanh(self.last(functional.relu(self.norm(self.first(noise)))))


def penalty(critic, real, fake, label, slope):
    """Return a term of the loss that is made of gradients, which are differentiated again."""
    between = (0.3 * real + 0.7 * fake).requires_grad_(True)
    (slopes,) = torch.autograd.grad(critic(between, label, slope).sum(), between, create_graph=True)
    return (slopes.norm(2, dim=1) - 1.0).square().mean()


def adversarial(debugger, option):
    change = option or Change()
    generator, critic = Generator(), Critic()
    if change.evaluates:
        generator.eval()
    updates = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
    others = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.0, 0.9))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        updates, lambda step: 1.0 if step < change.until else 0.5
    )
    for _ in range(3):
        debugger.start(nn.ModuleList([generator, critic]))
        for _ in range(2):
            real, label = torch.randn(8, 4), torch.arange(8) % 3
            with torch.no_grad():
                fake = generator(torch.randn(8, 3))
            slope = change.slope
            loss = functional.relu(1 - critic(real, label, slope)).mean()
            loss = loss + functional.relu(1 + critic(fake, label, slope)).mean()
            updates.zero_grad()
            (loss + 5 * penalty(critic, real, fake, label, slope)).backward()
            if change.limit is not None:
                nn.utils.clip_grad_norm_(critic.parameters(), change.limit)
            updates.step()
            schedule.step()
        others.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=change.autocast):
            made = generator(torch.randn(8, 3))
        (-critic(made.float(), label, change.slope).mean()).backward()
        others.step()
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize("level", LEVELS)
def test_a_learning_rate_comes_before_the_updates_that_follow_in_its_step(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(until=3), level=level)
    assert verdict["class"] == "schedule"
    assert "0.01 in the target, 0.005 in the reference (step 1" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_flags_of_models_in_a_list_explain_what_their_calls_do(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(evaluates=True), level=level)
    assert verdict["class"] == "mode"
    assert "module 0 is in eval mode in the target, in training mode" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_argument_comes_before_gradients_that_are_differentiated_again(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(slope=0.02), level=level)
    assert verdict["class"] == "argument"
    assert "negative_slope of Functional.leaky_relu.0.forward" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_autocast_of_the_last_model_of_a_step(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(autocast=True), level=level)
    assert verdict["class"] == "precision"


@pytest.mark.parametrize("level", LEVELS)
def test_a_limit_of_the_first_update_comes_before_what_the_second_one_gets(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(limit=0.1), Change(limit=0.5), level=level)
    assert verdict["class"] == "clipping"
    assert "max_norm 0.1 in the target, 0.5 in the reference" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_training_is_equal(level, tmp_path):
    verdict = verdict_on(tmp_path, adversarial, Change(), level=level)
    assert verdict["class"] == "equal"
    assert verdict["confidence"] == "proved"
