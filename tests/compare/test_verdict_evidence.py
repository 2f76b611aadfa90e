# SPDX-License-Identifier: Apache-2.0
"""Verdicts that need more than one call or step: schedules, several networks, unused generators."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]

ROWS = 24
"""The signs of projections are alike at the last two of as many places."""


def scheduled(debugger: PrecisionDebugger, share: float) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 20, pct_start=share)
    for _ in recorded_steps(debugger, model):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_momentum_that_a_scheduler_moves_is_the_schedules(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, scheduled, 0.2, 0.4, level)

    assert verdict["class"] == "schedule"
    assert "the learning rate is" in verdict["sentence"]


def cycled(debugger: PrecisionDebugger, top: float) -> None:
    """OneCycleLR chooses the first learning rate, too."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, top, 20, cycle_momentum=False)
    for _ in recorded_steps(debugger, model, 2):
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def test_a_first_learning_rate_that_a_scheduler_chooses_is_the_schedules(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, cycled, 0.1, 0.05, "mix")

    assert verdict["class"] == "schedule"
    assert "the learning rate is 0.004 in the target, 0.002" in verdict["sentence"]


def repeated(debugger: PrecisionDebugger, again: bool) -> None:
    """Two micro batches, each with steps of its own."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model, 2):
        for batch in torch.randn(2, 4, 3):
            optimizer.zero_grad()
            model(batch).square().sum().backward()
            for _ in range(1 + again):
                optimizer.step()


def test_gradients_of_further_updates_are_not_those_of_the_next_micro_batch(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, repeated, True, False, "mix")

    assert verdict["class"] == "update"
    assert "optimizer.step() is called 4 times in the target, twice in" in verdict["sentence"]


def gathered(debugger: PrecisionDebugger, dense: bool) -> None:
    """Sum rows by a matrix, or one by one; Adagrad moves a bias by the sign of its rounding."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    to, every = torch.randint(0, 5, (60,)), torch.arange(60)
    for step in recorded_steps(debugger, model):
        made = model(torch.randn(60, 3))
        weights = (made * (1 + step * model.bias)).softmax(0)
        if dense:
            places = torch.zeros(5, 60)
            places[to, every] = 1.0
            sums = (places.double() @ weights.double()).float()
        else:
            sums = torch.zeros(5, 4).index_add(0, to, weights)
        optimizer.zero_grad()
        sums.square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_result_of_another_shape_is_as_harmless_as_in_the_step_before(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, gathered, True, False, level)

    assert verdict["class"] in ("rounding", "equal", "unexplained")
    assert "Torch.zeros" not in verdict["sentence"]


def sorted_rows(debugger: PrecisionDebugger, most: float) -> None:
    """Clamping makes the two largest scores equal, and so exchanges two integers."""
    model = nn.Linear(3, 2)
    scores = torch.linspace(0, 1, ROWS).flip(0)
    for _ in recorded_steps(debugger, model, 1):
        places = scores.clamp(max=most).argsort(stable=True)
        first = torch.where(places == 0)[0]
        (model(torch.randn(ROWS, 3))[first].sum() * first.sum()).backward()


def test_integers_made_of_other_values_are_not_the_same_as_their_projections_are(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, sorted_rows, 0.94, 2.0, "mix")

    assert verdict["class"] == "argument"
    assert "clamp" in verdict["sentence"]
    assert not any("introduces one" in each for each in verdict["next"])


def two_networks(debugger: PrecisionDebugger, slope: float) -> None:
    maker = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(slope), nn.Linear(8, 4))
    judge = nn.Linear(4, 1)
    for _ in recorded_steps(debugger, [maker, judge], 1):
        judge(torch.linspace(-1, 1, 20).view(5, 4)).sum().backward()
        judge(maker(torch.randn(5, 3)).detach()).square().mean().backward()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_the_results_of_another_network_are_no_data(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, two_networks, 0.3, 0.01, level)

    assert verdict["class"] == "argument"
    assert "negative_slope" in verdict["sentence"] or "0.3 instead of 0.01" in verdict["sentence"]


def fed_with_its_result(debugger: PrecisionDebugger, slope: float) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(slope), nn.Linear(8, 3))
    for _ in recorded_steps(debugger, model, 1):
        x = torch.randn(5, 3)
        for _ in range(2):
            x = model(x).detach() * 0.5 + 1
        model(x).sum().backward()


def test_what_modules_without_calls_show_as_data_follows_from_the_call_before(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, fed_with_its_result, 0.3, 0.01, "L0")

    assert verdict["class"] == "argument"
    assert "negative_slope is 0.3 in the target" in verdict["sentence"]


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
    for _ in recorded_steps(debugger, model, 2):
        model(torch.ones(2, 3)).sum().backward()


def test_a_generator_that_nothing_draws_from_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, unused_generator, (3, 3.0), (4, 2.0), "L0")

    assert verdict["class"] != "random"
    assert "Module.Doubled" in verdict["sentence"]


def branching(debugger: PrecisionDebugger, seed: int) -> None:
    """Teacher forcing: a draw of Python's generator says which calls are made."""
    random.seed(seed)
    model = nn.Linear(3, 3)
    for _ in recorded_steps(debugger, model, 2):
        x = torch.ones(2, 3)
        for _ in range(6):
            x = model(x) if random.random() < 0.5 else model(x).tanh()
        x.sum().backward()


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
    for _ in recorded_steps(debugger, model, 1):
        for part in x.split(2):
            margin = getattr(model(part), name)() - getattr(frozen(part), name)()
            (margin.sigmoid() / 2).backward()


def test_a_factor_behind_an_equal_loss_is_no_count_of_micro_batches(tmp_path: Path) -> None:
    module = verdict_on(tmp_path / "L0", preferred, "mean", "sum", "L0")
    calls = verdict_on(tmp_path / "L1", preferred, "mean", "sum", "L1")

    assert "the factor is" not in module["sentence"]
    assert "mean" in calls["sentence"]


def clipped(debugger: PrecisionDebugger, by_hand: bool) -> None:
    model = nn.Linear(3, 2)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, 0.1)
    for _ in recorded_steps(debugger, model, 2):
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


def test_clipping_by_other_code_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, clipped, False, True, "L0")

    assert verdict["class"] in ("equal", "rounding")


def penalised(debugger: PrecisionDebugger, option: dict[str, Any]) -> None:
    """Two networks; a penalty on the gradient at points between true and made samples."""
    slope, is_cut, margin = option.get("slope", 0.2), option.get("cut", True), option.get("at", 1)
    maker = nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(slope), nn.Linear(4, 3))
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    for _ in recorded_steps(debugger, [maker, critic], 1):
        true, noise, mix = torch.randn(5, 3), torch.randn(5, 2), torch.rand(5, 1)
        for _ in range(2):
            made = maker(noise).detach() if is_cut else maker(noise)
            between = (mix * true + (1 - mix) * made.detach()).requires_grad_()
            (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = (margin - critic(true)).relu().mean() + (margin + critic(made)).relu().mean()
            optimizer.zero_grad()
            (loss + (slopes.norm(2, 1) - 1).square().mean()).backward()
            optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_values_made_of_another_networks_result_are_no_data(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, penalised, {"slope": 0.1}, {}, level)

    assert verdict["class"] == "argument"
    assert "negative_slope" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_result_is_no_micro_batch_because_it_is_detached(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, penalised, {"cut": False}, {}, level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_losses_of_later_backward_passes_are_results(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, penalised, {"at": 2}, {}, level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "2 instead of 1" in verdict["sentence"]


def labelled(debugger: PrecisionDebugger, swapped: bool) -> None:
    model = nn.Conv2d(1, 3, 1)
    images, labels = torch.randn(2, 1, 4, 4), torch.arange(32).view(2, 4, 4) % 3
    if swapped:
        labels = labels.flip(0)
    for _ in recorded_steps(debugger, model, 1):
        hot = torch.nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2)
        (1 - (model(images).softmax(1) * hot).sum((2, 3)).mean()).backward()


def test_a_call_is_not_blamed_for_elements_in_another_order(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, labelled, True, False, "L1")

    assert verdict["class"] == "data", verdict["sentence"]


def by_groups(debugger: PrecisionDebugger, option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    groups = [
        {"params": model[0].parameters()},
        {"params": model[2].parameters(), "lr": option.get("lr", 0.05)},
    ]
    optimizer = torch.optim.SGD(groups, 0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
    for hook in [lambda gradient: gradient / 2] * option.get("halved", False):
        model[0].weight.register_hook(hook)
    images = torch.randn(3, 5, 3)
    for step in range(3):
        if option.get("decay") == step:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        debugger.start(model)
        loss = (model(images[step]) - 1).square().mean()
        loss.backward()
        if option.get("clips"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if option.get("clears", True):
            optimizer.zero_grad()
        schedule.step(-step)
        debugger.stop()
        debugger.step()


@pytest.mark.parametrize(
    ("change", "base", "wanted", "words"),
    [
        ({"lr": 0.1}, {}, "optimizer_setting", r"lr is 0\.1 .*0\.05 .*\(2\.weight, 2\.bias\)\)$"),
        ({"decay": 1}, {}, "optimizer_setting", r"weight_decay is 0\.1 .*step 1"),
        ({"clips": True, "clears": False}, {"clips": True}, "gradient", r"step 1.*not cleared|"
         r"not cleared.*step 1"),
        ({"halved": True}, {}, "gradient", r"0\.weight is 0\.5 times .*: the factor is 1/2"),
    ],
)  # fmt: skip
def test_settings_and_gradients_of_some_parameters(
    tmp_path: Path, change: dict[str, Any], base: dict[str, Any], wanted: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, by_groups, change, base, "L1")

    assert verdict["class"] == wanted, verdict["sentence"]
    assert re.search(words, verdict["sentence"]), verdict["sentence"]


class Learner:
    """A network and a slowly following copy of it, whose values it learns from."""

    def __init__(self) -> None:
        self.model, self.copy = nn.Linear(3, 3), nn.Linear(3, 3)
        self.copy.load_state_dict(self.model.state_dict())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.copy.parameters(), self.model.parameters(), strict=True):
            slow.lerp_(fast, 0.3)


def followed(debugger: PrecisionDebugger, follows: bool) -> None:
    learner = Learner()
    for _ in recorded_steps(debugger, learner.model):
        x = torch.randn(4, 3)
        with torch.no_grad():
            goal = learner.copy(x + 1)
        learner.step((learner.model(x) - goal).square().mean())
        if follows:
            learner.follow()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_missing_call_of_the_step_before_is_named(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, followed, False, True, level)

    assert verdict["class"] == "call"
    assert "only the reference calls Tensor.lerp_.0.forward" in verdict["sentence"]
    assert "in step 0, and step 1 uses its result" in verdict["sentence"]


def asked_twice(debugger: PrecisionDebugger, own: bool) -> None:
    learner = Learner()
    for _ in recorded_steps(debugger, learner.model, 2):
        x, later = torch.randn(4, 3), torch.randn(4, 3)
        with torch.no_grad():
            goal = (learner.model if own else learner.copy)(later).tanh()
        learner.step((learner.model(x) - goal).square().mean())
        learner.follow()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_further_call_of_the_model_is_no_micro_batch(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, asked_twice, True, False, level)

    assert verdict["class"] == "call"
    assert "calls the model twice in the target, once in the reference" in verdict["sentence"]


def looked_at(debugger: PrecisionDebugger, looks: bool) -> None:
    learner = Learner()
    for _ in recorded_steps(debugger, learner.model, 2):
        x = torch.randn(4, 3)
        learner.step(learner.model(x).square().mean())
        if looks:
            learner.model(x + 1)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_further_call_of_the_model_without_consequence(tmp_path: Path, level: str) -> None:
    assert verdict_on(tmp_path, looked_at, True, False, level)["class"] == "equal"


def noised(debugger: PrecisionDebugger, draw: Callable[..., Tensor] | None) -> None:
    learner = Learner()
    for _ in recorded_steps(debugger, learner.model, 2):
        x = torch.arange(12.0).view(4, 3)
        if draw is not None:
            x = x * 0.9 + draw(4, 3) * 0.1
        learner.step(learner.model(x).square().mean())


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("draw", "found"),
    [(torch.rand, "Torch.rand.0.forward"), (None, "only the reference calls Tensor.__mul__.0")],
)
def test_a_batch_that_a_wrong_or_missing_call_made_is_no_data(
    tmp_path: Path, level: str, draw: Callable[..., Tensor] | None, found: str
) -> None:
    verdict = verdict_on(tmp_path, noised, draw, torch.randn, level)

    assert verdict["class"] == "call"
    assert found in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_same_numbers_drawn_by_another_call_are_proved_equal(
    tmp_path: Path, level: str
) -> None:
    def draw(*size: int) -> Tensor:
        return torch.randn_like(torch.zeros(size))

    verdict = verdict_on(tmp_path, noised, draw, torch.randn, level)
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def shared(debugger: PrecisionDebugger, is_tied: bool) -> None:
    table, head = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False)
    model = nn.Sequential(table, head)
    if is_tied:
        head.weight = table.weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model, 2):
        model(torch.tensor([1, 2, 5])).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("side", ["target", "reference"])
def test_a_parameter_that_is_tied_on_one_side_is_told_as_such(
    tmp_path: Path, level: str, side: str
) -> None:
    verdict = verdict_on(tmp_path, shared, side == "target", side == "reference", level)

    assert verdict["class"] == "parameters"
    assert f"1.weight is tied to 0.weight in the {side}" in verdict["sentence"]


def clipped_by_hand(debugger: PrecisionDebugger, by_hand: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in recorded_steps(debugger, model, 2):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if by_hand:
            norm = torch.stack([g.norm() for g in gradients]).norm()
            for gradient in gradients:
                gradient.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def test_gradients_that_a_program_clips_itself_are_used_by_the_optimizer(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, clipped_by_hand, True, False, "L1")

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved")
