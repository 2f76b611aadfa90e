# SPDX-License-Identifier: Apache-2.0
"""What is called around an optimizer's step, how often and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "L1", "mix"]


class Order(NamedTuple):
    """What a step does beside its forward pass.

    Attributes:
        early, late: how often the scheduler is stepped before and after the optimizer.
    """

    early: int = 0
    late: int = 1


def run(debugger: PrecisionDebugger, order: Order) -> None:
    """Train three steps with a warm-up."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: (n + 1) / (4 + n))
    batches, labels = torch.randn(3, 8, 6), torch.randint(0, 3, (3, 8))
    for number in recorded_steps(debugger, model):
        loss = F.cross_entropy(model(batches[number]), labels[number])
        optimizer.zero_grad()
        loss.backward()
        for _ in range(order.early):
            schedule.step()
        optimizer.step()
        for _ in range(order.late):
            schedule.step()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("order", "words"),
    [
        (Order(late=2), "scheduler.step() is called twice in the target, once in the reference"),
        (Order(2, 0), "scheduler.step() is called twice in the target, once in the reference"),
        (Order(1, 0), "only the target calls scheduler.step() before the optimizer's step"),
        (Order(late=0), "only the reference calls scheduler.step() in step 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_how_a_scheduler_is_stepped(tmp_path: Path, order: Order, words: str, level: str) -> None:
    verdict = verdict_on(tmp_path, run, order, Order(), level=level)

    assert verdict["class"] == "schedule", verdict["sentence"]
    assert words in verdict["sentence"]
    assert "ahead" not in verdict["sentence"]


def two_players(debugger: PrecisionDebugger, steps_both: bool) -> None:
    """Train two models, each with an optimizer and a scheduler of its own."""
    models = [nn.Linear(6, 3), nn.Linear(6, 3)]
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in models]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, nn.ModuleList(models)):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(batches[number]).square().mean().backward()
            optimizer.step()
        for schedule in schedules[: None if steps_both else 1]:
            schedule.step()


def test_one_of_two_schedulers_is_not_stepped(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, two_players, False, True, level="L0")

    assert verdict["class"] == "schedule", verdict["sentence"]
    words = "scheduler.step() is called once in the target, twice in the reference (step 0)"
    assert words in verdict["sentence"]


class Clearing(NamedTuple):
    """Where a step of two micro batches clears its gradients, and how.

    Attributes:
        behind: how many backward passes come before.
        by: ``optimizer``, ``model``, or ``hand``.
        leaves_zeros: gradients are zeros afterwards.
    """

    behind: int = 0
    by: str = "optimizer"
    leaves_zeros: bool = False


def clearing(debugger: PrecisionDebugger, how: Clearing) -> None:
    """Train three steps of two micro batches, with a limit of the gradients' norm."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    batches, labels = torch.randn(3, 2, 8, 6), torch.randint(0, 3, (3, 2, 8))

    def clear() -> None:
        if how.by == "hand":
            for parameter in model.parameters():
                parameter.grad = None
        else:
            owner = {"optimizer": optimizer, "model": model}[how.by]
            owner.zero_grad(set_to_none=not how.leaves_zeros)

    for number in recorded_steps(debugger, model):
        for micro in range(2):
            if how.behind == micro:
                clear()
            loss = F.cross_entropy(model(batches[number, micro]), labels[number, micro])
            (loss / 2).backward()
        if how.behind == 2:
            clear()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("leaves_zeros", [False, True])
@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_gradients_that_are_cleared_behind_backward(
    tmp_path: Path, by: str, leaves_zeros: bool, level: str
) -> None:
    late = Clearing(2, by, leaves_zeros)
    verdict = verdict_on(tmp_path, clearing, late, Clearing(), level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    left = "zeros" if leaves_zeros else "none"
    words = f"before the optimizer's step: all 4 parameters get {left} (step 0)"
    assert f"the target's gradients are cleared after backward, {words}" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("leaves_zeros", [False, True])
def test_gradients_that_are_cleared_between_micro_batches(
    tmp_path: Path, leaves_zeros: bool, level: str
) -> None:
    between = Clearing(1, leaves_zeros=leaves_zeros)
    verdict = verdict_on(tmp_path, clearing, Clearing(), between, level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    words = "cleared after 1 of 2 backward passes, where the target adds them up (step 0)"
    assert f"the reference's gradients are {words}" in verdict["sentence"]


def by_batches(debugger: PrecisionDebugger, clears_each: bool) -> None:
    """Record each batch as a step, of which every second one ends in an update."""
    model, data = nn.Linear(6, 3), torch.randn(4, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in recorded_steps(debugger, model, 4):
        if clears_each or not number % 2:
            optimizer.zero_grad()
        model(data[number]).square().mean().backward()
        if number % 2:
            optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_are_cleared_between_recorded_batches(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, by_batches, True, False, level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    words = "cleared after 1 of 2 backward passes, where the reference adds them up (step 1)"
    assert f"the target's gradients are {words}" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_backward_pass_too_many_is_told_before_a_factor(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, is_twice: bool) -> None:
        model, data = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)), torch.randn(3, 8, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for number in recorded_steps(debugger, model):
            optimizer.zero_grad()
            loss = model(data[number]).square().mean()
            if is_twice:
                loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    verdict = verdict_on(tmp_path, run, True, False, level=level)

    assert verdict["class"] in ("gradient", "call"), verdict["sentence"]
    assert "twice in the target, once in the reference" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_a_program_clears_by_hand(tmp_path: Path, level: str) -> None:
    late = Clearing(2, "hand")
    verdict = verdict_on(tmp_path, clearing, late, Clearing(), level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "all 4 parameters get no" in verdict["sentence"].replace("none", "no")
    # At level L1 it is not recorded which parameters backward hands gradients to.
    is_told = "are cleared after backward, before the optimizer's step" in verdict["sentence"]
    assert is_told is (level != "L1")


@pytest.mark.parametrize("level", LEVELS)
def test_where_gradients_are_cleared_is_no_cause_by_itself(tmp_path: Path, level: str) -> None:
    """They are cleared twice: behind the update, and before the first backward pass or nowhere."""
    verdict = verdict_on(tmp_path, clearing, Clearing(-1), Clearing(), level=level)

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def frozen(debugger: PrecisionDebugger, without_loss: bool) -> None:
    """Train by a loss that does not reach the model's parameters in one of the runs."""
    model = nn.Linear(6, 3)
    other = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        result = model(batches[number])
        (((result.detach() if without_loss else result) + other).square().mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_that_backward_does_not_make_are_not_cleared(tmp_path: Path, level: str) -> None:
    sentence = verdict_on(tmp_path, frozen, True, False, level=level)["sentence"]

    assert "cleared" not in sentence


class Policy(nn.Sequential):
    """A model that is trained."""


class Frozen(nn.Sequential):
    """The one that it is measured by."""


def measured(debugger: PrecisionDebugger, by_itself: bool) -> None:
    """Train a model by how far it is from another one, which it is put in the place of."""
    policy = Policy(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    reference = Frozen(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).requires_grad_(False)
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    batches = torch.randn(3, 2, 8, 6)
    for number in recorded_steps(debugger, [policy, reference]):
        optimizer.zero_grad()
        for x in batches[number]:
            scores = policy(x)
            with torch.no_grad():
                known = (policy if by_itself else reference)(x)
            F.softplus(known - scores).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_that_is_called_in_place_of_another_one(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, measured, True, False, level=level)

    assert verdict["sentence"] == (
        "call: step 0 calls Module.0.Policy in the target where the reference calls "
        "Module.1.Frozen, on the same data"
    )


def penalised(debugger: PrecisionDebugger, is_derived: bool) -> None:
    """Train with a penalty on gradients, which have a gradient themselves or not."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        x = batches[number].clone().requires_grad_()
        scores = model(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=is_derived, retain_graph=True)
        (scores.square().mean() + (slope.flatten(1).norm(dim=1) - 1).square().mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("level", LEVELS)
def test_a_gradient_that_is_taken_without_a_graph(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, penalised, False, True, level=level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    if level != "L0":
        words = "given a gradient that has none itself in the target: taken without create_graph"
        assert words in verdict["sentence"]


def hardly_fed(debugger: PrecisionDebugger, clears: bool) -> None:
    """Train with an input so small that its weights move by rounding, or by Adam's division."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    batches = torch.randn(3, 8, 6)
    batches[0, :, 0] *= 1e-9
    batches[1:, :, 0] *= 1e-3
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        model(batches[number]).square().mean().backward()
        if clears and model.weight.grad is not None:
            model.weight.grad[:, 0].zero_()
        optimizer.step()


def test_rounding_has_no_proof_behind_a_call_before_anything_differs(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, hardly_fed, True, False)

    assert verdict["confidence"] != "proved", verdict["sentence"]
    assert "Tensor.__getitem__." in verdict["sentence"]


class Rate(NamedTuple):
    """How a rate is changed in a resumed training.

    Attributes:
        by_hand: it is set after the states were loaded.
        gamma: of the scheduler.
    """

    by_hand: float | None = None
    gamma: float = 0.5


def resumed(debugger: PrecisionDebugger, rate: Rate) -> None:
    """Train two epochs, load the states into new objects, and record two more."""
    model, data = nn.Linear(6, 3), torch.randn(4, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, rate.gamma)
    states = optimizer.state_dict(), schedule.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, rate.gamma)
    optimizer.load_state_dict(states[0])
    schedule.load_state_dict(states[1])
    if rate.by_hand is not None:
        for group in optimizer.param_groups:
            group["lr"] = rate.by_hand
    for number in recorded_steps(debugger, model, 4):
        optimizer.zero_grad()
        model(data[number]).square().mean().backward()
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("level", LEVELS)
def test_a_rate_that_is_set_by_hand_is_no_schedule(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, resumed, Rate(by_hand=0.04), Rate(), level)

    assert verdict["class"] == "optimizer_setting", verdict["sentence"]
    assert "SGD lr is 0.04 in the target, 0.1 in the reference (step 0" in verdict["sentence"]
    assert verdict["sentence"].endswith(", though the schedulers are set alike")


def test_another_schedule_is_one_though_it_begins_alike(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, resumed, Rate(gamma=0.1), Rate())

    assert (verdict["class"], verdict["where"]["step"]) == ("schedule", 3), verdict["sentence"]
