# SPDX-License-Identifier: Apache-2.0
"""Verdicts on small programs: optimizers that ask again, other orders, data beside the model."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import compared, fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]


def asked_again(debugger: PrecisionDebugger, option: dict[str, Any] | None) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = (
        torch.optim.LBFGS(model.parameters(), **{"lr": 0.5, "max_iter": 2, **option})
        if option is not None
        else torch.optim.Adam(model.parameters(), 0.5)
    )
    x = torch.linspace(-1, 1, 12).view(4, 3)

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = (model(x) - 1).square().mean()
        found.backward()
        return found

    for _ in recorded_steps(debugger, model):
        optimizer.step(loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 1.0}, "LBFGS lr is 1 in the target, 0.5 in the reference"),
        ({"max_iter": 3}, "LBFGS max_iter is 3 in the target, 2 in the reference"),
        (None, "the optimizer is torch.optim.adam.Adam in the target"),
    ],
)
def test_an_optimizer_that_asks_for_the_loss_again(
    tmp_path: Path, change: dict[str, Any] | None, words: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, asked_again, change, {}, level)

    assert verdict["class"] == "optimizer_setting"
    assert words in verdict["sentence"]


def cut_out(debugger: PrecisionDebugger, option: tuple[int, int]) -> None:
    seed, width = option
    np.random.seed(seed)  # noqa: NPY002
    model, batch = nn.Linear(24, 1), torch.randn(4, 24)
    for _ in recorded_steps(debugger, model):
        start = np.random.randint(0, 12)  # noqa: NPY002
        x = batch.clone()
        x[:, start : start + width] = 0
        model(x).square().mean().backward()


@pytest.mark.parametrize(
    ("option", "wanted", "words"),
    [
        ((2, 3), "random", "the state of the generator numpy differs"),
        ((1, 4), "argument", "instead of [5, 8, None]"),
    ],
)
def test_where_a_mask_begins_may_be_drawn_by_the_program(
    tmp_path: Path, option: tuple[int, int], wanted: str, words: str
) -> None:
    verdict = verdict_on(tmp_path, cut_out, option, (1, 3), "L1")

    assert verdict["class"] == wanted
    assert words in verdict["sentence"]


class Attention(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.scale = scale

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        y: Tensor = self.inner(x)
        return y if positions is None else y + positions.view(-1, 1) * self.scale


class Block(nn.Module):
    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.attention = Attention(scale or 0.0)
        self.is_given = scale is not None

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(4.0)
        y: Tensor = self.attention(x, **({"positions": positions} if self.is_given else {}))
        return y + positions.view(-1, 1)


def positioned(debugger: PrecisionDebugger, scale: float | None) -> None:
    model, batch = Block(scale), torch.randn(4, 3)

    for _ in recorded_steps(debugger, model):
        model(batch).square().mean().backward()


def test_a_tensor_that_one_side_gives_alone_is_blamed_for_its_effect_only(tmp_path: Path) -> None:
    harmless = verdict_on(tmp_path / "harmless", positioned, 0.0, None, "mix")
    harmful = verdict_on(tmp_path / "harmful", positioned, 0.5, None, "mix")

    assert harmless["class"] == "equal"
    assert harmful["class"] in ("call", "argument")


def inner_steps(debugger: PrecisionDebugger, count: int) -> None:
    model = nn.Linear(3, 1)
    x, later = torch.randn(4, 3), torch.randn(4, 3)

    def loss(_: int) -> Tensor:
        weights = dict(model.named_parameters())
        for _ in range(count):
            loss = torch.func.functional_call(model, weights, (x,)).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {n: w - 0.1 * g for (n, w), g in zip(weights.items(), gradients, strict=True)}
        return torch.func.functional_call(model, weights, (later,)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


def test_an_inner_step_too_few_is_no_micro_batch(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, inner_steps, 1, 2, "L1")

    assert verdict["class"] == "call"
    words = "calls the model twice in the target, 3 times in the reference, on the same data"
    assert words in verdict["sentence"]


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(5, 1)


def delayed(debugger: PrecisionDebugger, every: int) -> None:
    agent = Agent()
    actor = torch.optim.SGD(agent.actor.parameters(), 0.1)
    critic = torch.optim.SGD(agent.critic.parameters(), 0.1)
    state, action = torch.randn(4, 3), torch.randn(4, 2)
    for number in recorded_steps(debugger, agent):
        critic.zero_grad()
        agent.critic(torch.cat([state, action], 1)).square().mean().backward()
        critic.step()
        if number % every == every - 1:
            actor.zero_grad()
            (-agent.critic(torch.cat([state, agent.actor(state)], 1)).mean()).backward()
            actor.step()


def test_a_further_optimizer_explains_further_calls_of_the_model(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, delayed, 1, 2, "L1")

    assert verdict["class"] == "update"
    assert "is called once in the target, never in the reference (step 0)" in verdict["sentence"]


def part_alone(debugger: PrecisionDebugger, penalty: bool) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 1))
    words = torch.randint(10, (4, 3))

    def loss(_: int) -> Tensor:
        loss = model(words).square().mean()
        if penalty:
            loss = loss + model[0](words[:, 0]).square().sum()
        return loss

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_a_part_that_is_called_by_itself_is_no_call_of_the_model(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, part_alone, True, False, "L1")

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.__getitem__.0.forward" in verdict["sentence"]


class Ordered(nn.Module):
    def __init__(self, early: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.early = nn.Conv1d(3, 8, 3), nn.GroupNorm(2, 8), early

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.norm(functional.relu(h)) if self.early else functional.relu(self.norm(h))


def ordered(debugger: PrecisionDebugger, early: bool) -> None:
    model = Ordered(early)
    x = torch.randn(2, 3, 9)
    for _ in recorded_steps(debugger, model):
        model(x).square().mean().backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_two_calls_in_another_order(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, ordered, True, False, level)

    assert verdict["class"] == "order"
    assert (
        "fed with the result of Functional.conv1d.0.forward instead of the result of "
        "Functional.group_norm.0.forward" in verdict["sentence"]
    )


def broadcast(debugger: PrecisionDebugger, flat: bool) -> None:
    model = nn.Linear(3, 1)
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    for _ in recorded_steps(debugger, model):
        goal = y * 2
        functional.l1_loss(model(x), goal.squeeze(-1) if flat else goal).backward()


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_dimension_that_is_broadcast_is_no_kernel(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, broadcast, True, False, "L1")

    assert verdict["class"] == "call"
    assert "only the target calls Tensor.squeeze.0.forward" in verdict["sentence"]


def rewarded(debugger: PrecisionDebugger, option: str) -> None:
    model = nn.Linear(3, 1)
    x, reward, weights = torch.randn(12, 3), torch.rand(12), torch.tensor([0.1, 0.4, 0.9])
    if option == "reward":
        reward = reward * 5
    elif option == "weights":
        weights = weights + 0.1
    for number in recorded_steps(debugger, model):
        rows = torch.arange(4) + 4 * number
        loss = (model(x[rows]) - reward[rows, None]).abs()
        (weights * loss).mean().backward()


@pytest.mark.parametrize(("option", "kind"), [("reward", "data"), ("weights", "argument")])
def test_a_row_for_each_sample_is_data(tmp_path: Path, option: str, kind: str) -> None:
    verdict = verdict_on(tmp_path, rewarded, option, "", "L1")

    assert verdict["class"] == kind
    slot = "input.0 of Tensor.__getitem__.1.forward" if kind == "data" else "input.0 of Tensor"
    assert slot in verdict["sentence"]


def clipped(debugger: PrecisionDebugger, forgets: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    trained = list(model[0].parameters()) if forgets else list(model.parameters())
    optimizer = torch.optim.SGD(trained, 0.1)
    x = torch.randn(4, 3)
    for _ in recorded_steps(debugger, model):
        model.zero_grad()
        (model(x) - 3).square().mean().backward()
        nn.utils.clip_grad_norm_(trained, 0.1)
        optimizer.step()


def test_what_the_optimizer_lacks_is_not_clipped(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, clipped, True, False, "L1")

    assert verdict["class"] == "update"
    assert "only the reference's optimizer updates 2 of 4 parameters" in verdict["sentence"]


def hidden(debugger: PrecisionDebugger, activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(3, 8), activation, nn.Linear(8, 2))
    nn.init.zeros_(model[2].weight)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(4, 3)

    fit(debugger, model, optimizer, lambda _: (model(x) - 1).square().mean())


def test_a_call_whose_result_meets_zeros_is_named_in_its_first_step(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, hidden, nn.ELU(), nn.ReLU(), "L1")

    assert "only the target calls Functional.elu.0.forward" in verdict["sentence"]
    assert verdict["where"]["step"] == 0


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        kept: Tensor = self.inner(x) * mask.to(x.dtype)
        return kept


def masked(debugger: PrecisionDebugger, dtype: torch.dtype) -> None:
    model = Masked()
    x, mask = torch.randn(4, 3), torch.tensor([[1, 0, 1]]).to(dtype)
    for _ in recorded_steps(debugger, model):
        model(x, mask).square().mean().backward()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_mask_of_truth_values_holds_the_same_as_one_of_integers(
    tmp_path: Path, level: str
) -> None:
    assert verdict_on(tmp_path, masked, torch.bool, torch.int64, level)["class"] == "equal"


def averaged(debugger: PrecisionDebugger, rate: float) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.swa_utils.SWALR(optimizer, rate, anneal_epochs=2)
    x = torch.randn(4, 3)
    for _ in recorded_steps(debugger, model):
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()


def test_a_rate_that_only_a_scheduler_reads_is_the_schedules(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, averaged, 0.05, 0.02, "L1")

    assert verdict["class"] == "schedule"


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.last(functional.silu(self.norm(self.first(x)))))


def detect(debugger: PrecisionDebugger, option: str) -> None:
    model = Detector()
    x, goal = torch.rand(2, 3, 12, 12), torch.rand(2, 4, 8, 8) + 0.1
    if option == "channels_last":
        model, x = (
            model.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, nesterov=True)

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=option == "bfloat16"):
            y = model(x)
        inside = torch.min(y.float(), goal).sum(1)
        found = (inside + 1e-6) / (goal.sum(1) + y.float().sum(1) - inside + 1e-6)
        return (-found.log()).mean()

    fit(debugger, model, optimizer, loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("option", ["channels_last", "bfloat16"])
def test_rounding_that_a_steep_loss_enlarges_accuses_nobody(
    tmp_path: Path, option: str, level: str
) -> None:
    summary = compared(tmp_path, detect, option, "", level)

    assert not summary["introduced"]
    # L0 records no call inside a module that would prove it; how much differs depends on threads.
    unproved = ("unexplained",) if level == "L0" else ()
    assert summary["verdict"]["class"] in ("equal", "rounding", "precision", *unproved)


def by_other_kernels(debugger: PrecisionDebugger, option: tuple[bool, float, float]) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv1d(4, 4, 3))
    groups = [
        {"params": [p], "lr": option[1 + name.endswith("bias")]}
        for name, p in model.named_parameters()
    ]
    optimizer = torch.optim.SGD(groups)
    x, apart = torch.randn(16, 3, 20), torch.randn(16, 4, 16)
    with torch.no_grad():
        # The gradient of the bias is the small sum of large terms.
        goal = model(x) - apart + apart.mean((0, 2), keepdim=True) * (1 - 1e-4)
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        with torch.backends.mkldnn.flags(enabled=option[0]):
            (model(x) - goal).square().sum().backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("rates", [(1e-5, 10.0), (0.1, 0.1)])
def test_a_parameter_is_as_far_apart_as_its_gradients_were(
    tmp_path: Path, rates: tuple[float, float], level: str
) -> None:
    """With the second rates the training diverges: gradients grow from step to step."""
    summary = compared(tmp_path, by_other_kernels, (True, *rates), (False, *rates), level)

    assert not summary["introduced"]
    assert summary["verdict"]["class"] in ("equal", "rounding")


class Field(nn.Module):
    def __init__(self, swaps: bool) -> None:
        super().__init__()
        self.inner, self.swaps = nn.Linear(2, 4), swaps

    def forward(self, time: Tensor, place: Tensor) -> Tensor:
        found: Tensor = self.inner(torch.cat([place, time] if self.swaps else [time, place], 1))
        return found


def fields(debugger: PrecisionDebugger, swaps: bool) -> None:
    model = Field(swaps)
    time, place = torch.rand(6, 1), torch.randn(6, 1)
    for _ in recorded_steps(debugger, model):
        model(time, place).square().mean().backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_two_inputs_of_the_model_are_exchanged(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, fields, True, False, level)

    assert verdict["class"] == "order"
    assert "fed with the model's input.1 instead of its input.0" in verdict["sentence"]


class Averaged(nn.Module):
    """Keeps an average of what it is given, and uses that of the steps before."""

    average: Tensor
    other: Tensor

    def __init__(self, option: str) -> None:
        super().__init__()
        self.inner, self.option = nn.Linear(4, 4), option
        self.register_buffer("average", torch.rand(4))
        self.register_buffer("other", torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x * self.average)
        if self.training and self.option != "none":
            with torch.no_grad():
                self.average.mul_(0.75 if self.option == "decay" else 0.5).add_(x.mean(0))
                self.other[1] = 3.0 if self.option == "value" else 2.5
        return y


def averages(debugger: PrecisionDebugger, option: str) -> None:
    model = Averaged(option)

    def loss(number: int) -> Tensor:
        if option == "eval" and number:
            model.eval()
        return model(torch.rand(8, 4)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("option", "kind", "words"),
    [
        ("decay", "argument", "0.75 instead of 0.5"),
        ("value", "argument", "3.0 instead of 2.5"),
        ("none", "call", "only the reference calls Tensor.mul_"),
    ],
)
def test_a_call_that_changes_a_buffer_alone_is_named(
    tmp_path: Path, option: str, kind: str, words: str, level: str
) -> None:
    """Neither loss nor gradients of the first step show it."""
    verdict = verdict_on(tmp_path, averages, option, "", level)

    assert verdict["class"] == kind
    assert words in verdict["sentence"]
    assert verdict["where"]["step"] == 0


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_eval_mode_that_leaves_a_buffer_alone_is_the_cause(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, averages, "eval", "", level)

    assert verdict["class"] == "mode"
    assert verdict["where"]["step"] == 1


class Keys(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            key = self.key(x)
        found: Tensor = self.query(x) * key
        return found


def keys(debugger: PrecisionDebugger, is_moved: bool) -> None:
    model = Keys()

    def loss(_: int) -> Tensor:
        if is_moved:
            for own, other in zip(model.query.parameters(), model.key.parameters(), strict=True):
                other.data = other.data * 0.9 + own.data * 0.1
        return model(torch.rand(8, 4)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_calls_that_move_parameters_before_the_optimizer_are_named(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, keys, False, True, level)

    assert verdict["class"] == "call"
    assert "only the reference calls Tensor.__mul__" in verdict["sentence"]


def test_at_level_l0_the_side_that_moves_parameters_is_named(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, keys, False, True, "L0")

    assert verdict["class"] == "update"
    assert "in the reference alone" in verdict["sentence"]


def denoise(debugger: PrecisionDebugger, option: str) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Dropout(0.3 * (option == "drop")))
    head = nn.Linear(8, 4)
    scales = torch.linspace(0.1, 1, 20)
    data = torch.rand(4, 6, 4)
    for number in recorded_steps(debugger, model):
        for micro in range(2):
            x = data[2 * (number % 2) + micro]
            noise = torch.randn(6, 4)
            if option == "offset":
                noise = noise + 0.1 * torch.randn(6, 1)
            if option == "unit":
                noise = noise / noise.norm(dim=1, keepdim=True)
            place = torch.randint(0, 10 if option == "range" else 20, (6,))
            noisy = x + scales[place][:, None] * noise
            found = model(torch.cat([noisy, place[:, None] / 20], 1))
            (head(found) - noise).square().mean().backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("option", "kind", "words"),
    [
        ("offset", "call", "only the target calls"),
        ("unit", "call", "only the target calls Tensor.norm"),
        ("range", "argument", "10 instead of 20"),
        # It draws numbers, from the generator from which the noise after it comes.
        ("drop", "argument", "0.3 instead of 0.0"),
    ],
)
def test_what_a_blamed_call_makes_of_drawn_numbers_is_no_data(
    tmp_path: Path, option: str, kind: str, words: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, denoise, option, "", level)

    assert verdict["class"] == kind
    assert words in verdict["sentence"]


def jittered(debugger: PrecisionDebugger, option: str) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 1))
    data = torch.linspace(-1, 1, 90).view(3, 6, 5)
    if option == "data":
        data[1, 2, 3] = 4
    for number in recorded_steps(debugger, model):
        noise = torch.randn(6, 5)
        if option == "draw":
            torch.rand(1)
        model(data[number] + (noise * 0.1).clamp(-0.2, 0.2)).square().mean().backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("option", "kind", "words"),
    [
        ("draw", "random", "the generator cpu differs when step 1 starts"),
        ("data", "data", "step 1"),
    ],
)
def test_other_noise_on_the_same_data_is_no_other_data(
    tmp_path: Path, option: str, kind: str, words: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, jittered, option, "", level)

    assert verdict["class"] == kind
    assert words in verdict["sentence"]


def two_schedules(debugger: PrecisionDebugger, factor: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    parts = [model[0], model[1:]]
    optimizers = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, factor) for each in optimizers]
    for _ in recorded_steps(debugger, model):
        model(torch.rand(6, 4)).square().mean().backward()
        for each in (*optimizers, *schedulers):
            each.step()


def test_a_rate_of_two_optimizers_is_told_of_the_parameters_of_both(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, two_schedules, 0.5, 0.9, "L1")

    assert verdict["class"] == "schedule"
    assert "all 6 parameters" in verdict["sentence"]


def quantised(debugger: PrecisionDebugger, is_straight: bool) -> None:
    inner, outer = nn.Linear(4, 4), nn.Linear(4, 2)
    codes = torch.linspace(-1, 1, 5)

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = inner, outer

        def forward(self, x: Tensor) -> Tensor:
            z = self.inner(x)
            nearest = codes[(z[..., None] - codes).abs().argmin(-1)]
            commitment = (nearest.detach() - z).square().mean()
            found = self.outer(z + (nearest - z).detach() if is_straight else nearest)
            return found.square().mean() + commitment  # type: ignore[no-any-return]

    model, x = Quantised(), torch.rand(8, 4)
    for _ in recorded_steps(debugger, model):
        model(x).backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_call_by_which_one_side_alone_gets_a_gradient_is_named(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, quantised, False, True, level)

    assert verdict["class"] == "call"
    assert "only the reference calls Tensor.__add__" in verdict["sentence"]


def sure(debugger: PrecisionDebugger, is_by_hand: bool) -> None:
    """Its loss is the small difference of large numbers."""
    model = nn.Linear(6, 5)
    with torch.no_grad():
        model.bias += torch.tensor([14.0, 0, 0, 0, 0])
    x, labels = torch.rand(8, 6), torch.zeros(8, dtype=torch.long)
    for _ in recorded_steps(debugger, model):
        found = model(x)
        loss = (
            (torch.logsumexp(found, 1) - found[:, 0]).mean()
            if is_by_hand
            else functional.cross_entropy(found, labels)
        )
        loss.backward()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_terms_that_cancel_in_calls_of_one_side_are_rounding(tmp_path: Path, level: str) -> None:
    summary = compared(tmp_path, sure, True, False, level)

    assert not summary["introduced"]
    assert summary["verdict"]["class"] in ("equal", "rounding")


class Styled(nn.Module):
    """A network whose cheap steps are modules or calls; the bias before a batch norm is idle."""

    def __init__(self, *, has_modules: bool, p: float, slope: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.rest = nn.Linear(8, 5)
        self.slope = slope
        if has_modules:
            self.pool = nn.MaxPool2d(2)
            self.act = nn.LeakyReLU(slope)
            self.drop = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if not hasattr(self, "pool"):
            x = functional.leaky_relu(functional.max_pool2d(x, 2), self.slope)
            return self.rest(x.mean((2, 3)))
        return self.rest(self.drop(self.act(self.pool(x)).mean((2, 3))))


def in_a_style(debugger: PrecisionDebugger, option: dict[str, Any]) -> None:
    model = Styled(
        has_modules=option.get("has_modules", False),
        p=option.get("p", 0.0),
        slope=option.get("slope", 0.1),
    )
    x, labels = torch.randn(4, 3, 8, 8), torch.arange(4)

    def loss(number: int) -> Tensor:
        smoothing = option.get("smoothing", 0.0)
        return functional.cross_entropy(model(x), labels, label_smoothing=smoothing)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_modules_in_place_of_calls_are_equal(tmp_path: Path, level: str) -> None:
    found = verdict_on(tmp_path, in_a_style, {"has_modules": True}, {}, level)
    assert found["class"] == "equal", found["sentence"]


@pytest.mark.parametrize(
    ("change", "kind", "record"),
    [
        ({"p": 0.3}, "call", "Module.drop.Dropout.forward.0"),
        ({"smoothing": 0.2}, "argument", "Module.rest.Linear.backward.0"),
        ({"slope": 0.5}, "argument", "Module.Styled.forward.0"),
    ],
)
def test_modules_of_one_side_are_not_blamed_for_what_others_do(
    tmp_path: Path, change: dict[str, Any], kind: str, record: str
) -> None:
    found = verdict_on(tmp_path, in_a_style, {"has_modules": True, **change}, {}, "L0")
    assert found["class"] == kind, found["sentence"]
    assert found["where"]["record"] == record, found["sentence"]


def broken_off(debugger: PrecisionDebugger, option: int) -> None:
    model = nn.Linear(4, 2)

    with suppress(RuntimeError):
        for number in recorded_steps(debugger, model):
            model(torch.ones(1, 4 + (number == option))).sum().backward()
    debugger.stop()
    debugger.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_runs_that_break_off_alike_are_equal_up_to_there(tmp_path: Path, level: str) -> None:
    found = verdict_on(tmp_path, broken_off, 1, 1, level)
    assert found["class"] == "equal"
    assert "; step 1 of both sides was interrupted by RuntimeError" in found["sentence"]
    assert found["sentence"].endswith("no later value is known")


def test_whole_runs_are_not_said_to_break_off(tmp_path: Path) -> None:
    assert "both sides" not in verdict_on(tmp_path, broken_off, 9, 9, "mix")["sentence"]


def over_the_count(debugger: PrecisionDebugger, is_summed: bool) -> None:
    model = nn.Linear(4, 3)
    x, labels = torch.randn(6, 4), torch.arange(6) % 3
    for _ in recorded_steps(debugger, model):
        if is_summed:
            loss = functional.cross_entropy(model(x), labels, reduction="sum") / len(labels)
        else:
            loss = functional.cross_entropy(model(x), labels)
        loss.backward()


def test_a_loss_by_other_calls_is_the_same_without_facts(tmp_path: Path) -> None:
    """Nothing but the calls tells so at L1: no module, no optimizer."""
    found = verdict_on(tmp_path, over_the_count, True, False, "L1")
    assert found["class"] == "equal", found["sentence"]


def even_out(debugger: PrecisionDebugger, approximate: str) -> None:
    """A model that is used, not trained; little of what its first part makes is left in the end."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return functional.gelu(self.line(x), approximate=approximate)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.head = Part(), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) + 1e-4 * self.part(x)

    model = Whole().eval()
    with torch.no_grad():
        for _ in recorded_steps(debugger, model):
            model(torch.linspace(-1, 1, 16).view(2, 8))


def test_equal_results_tell_what_makes_the_values_before_them_differ(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, even_out, "tanh", "none", "mix")

    assert verdict["class"] == "equal"
    assert "first module part by " in verdict["sentence"]
    assert "approximate of Functional.gelu.0.forward" in verdict["sentence"]
    assert any("test_verdict_programs.py" in each for each in verdict["next"])
    assert "part" not in verdict_on(tmp_path / "same", even_out, "none", "none", "mix")["sentence"]


def residual(debugger: PrecisionDebugger, options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(not options.get("is_frozen"))
    optimizer = torch.optim.LBFGS(model.parameters(), options.get("lr", 0.5), 3)
    x = torch.linspace(-1, 1, 12).view(6, 2)

    def loss() -> Tensor:
        optimizer.zero_grad()
        given = x.clone().requires_grad_()
        found = model(given)
        (slope,) = torch.autograd.grad(found.sum(), given, create_graph=True)
        total = (slope.sum(-1) - found[:, 0]).square().mean() + (found - 1).square().mean()
        total.backward()
        if options.get("is_clipped"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return total

    for _ in recorded_steps(debugger, model):
        optimizer.step(loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"lr": 0.4}, "optimizer_setting"),
        ({"is_frozen": True}, "mode"),
        ({"is_clipped": True}, "clipping"),
    ],
)
def test_what_an_optimizer_asks_again_follows_from_its_first_answer(
    tmp_path: Path, change: dict[str, Any], kind: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, residual, change, {}, level)

    assert verdict["class"] == kind, verdict["sentence"]


class Biased(nn.Module):
    def __init__(self, is_added: bool) -> None:
        super().__init__()
        self.entries, self.bias = nn.Embedding(5, 3), nn.Embedding(5, 1)
        nn.init.zeros_(self.bias.weight)
        self.is_added = is_added

    def forward(self, taken: Tensor) -> Tensor:
        made: Tensor = self.entries(taken).sum(-1)
        return made + self.bias(taken)[:, 0] if self.is_added else made


def biased(debugger: PrecisionDebugger, is_added: bool) -> None:
    model = Biased(is_added)

    def loss(_: int) -> Tensor:
        return (model(torch.tensor([0, 2, 4])) - 1).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_call_with_zeros_is_named_by_the_gradient_that_it_gives(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, biased, False, True, level)

    assert verdict["class"] == "call"
    assert "only the reference calls Functional.embedding.1" in verdict["sentence"]
    assert "bias.weight gets no gradient" in verdict["sentence"]


def recurrent(debugger: PrecisionDebugger, dtype: Any) -> None:
    """A network whose kernel computes in the type of autocast, and hands float32 back."""
    model = nn.GRU(6, 5)
    x = torch.linspace(-1, 1, 72).view(4, 3, 6)

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            return model(x)[0].float().square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_kernel_that_computes_in_the_type_of_autocast(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, recurrent, torch.bfloat16, torch.float32, level)

    assert verdict["class"] == "precision"
    assert "autocast is torch.bfloat16 on cpu in the target" in verdict["sentence"]


class SharedWeight(nn.Module):
    """Two layers with one weight, which autocast casts once for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(torch.tanh(self.first(x))))


def sharing(debugger: PrecisionDebugger, dtype: Any) -> None:
    model = SharedWeight()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    # Exact in bfloat16, as is the sum of the first row, but not that of the second.
    weights = 1 + torch.arange(2).view(2, 1, 1) * torch.arange(16).view(16, 1) / 128
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        batches = torch.linspace(-1, 1 + number, 160).view(2, 16, 5)
        for x, weight in zip(batches, weights, strict=True):
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                found = model(x)
            (found.float() * weight).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_weight_that_autocast_casts_once_for_two_calls(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, sharing, torch.bfloat16, torch.float32, level)

    assert verdict["class"] == "precision", verdict["sentence"]


class Matching(nn.Module):
    """Two results by one weight; the program reads the first, and chooses by it."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype = dtype
        self.enter, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        with torch.no_grad():
            self.head.weight[0], self.head.weight[1] = 0.3, 0.3001
            self.head.weight[2] = -2.0
            self.head.bias.fill_(0.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not torch.float32):
            x = torch.sigmoid(self.enter(x))
            return self.head(x), self.head(x.square())


def matching(debugger: PrecisionDebugger, dtype: Any) -> None:
    model = Matching(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for x in torch.linspace(-1, 1 + number, 64).view(2, 8, 4):
            first, second = model(x)
            with torch.no_grad():
                scores = (first.float() * 3).double().numpy().sum(0)
            target = torch.tensor([int(scores.argmax())]).expand(8)
            loss = nn.functional.cross_entropy(first.float(), target)
            (loss + second.float().square().mean()).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_the_program_chooses_by_values_of_another_precision(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, matching, torch.bfloat16, torch.float32, level)

    assert verdict["class"] == "precision", verdict["sentence"]


class Density(nn.Module):
    """The logarithm of a normal density, in bfloat16: by hand, or as torch.distributions has it."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.moments = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            mean, log_variance = self.moments(x).chunk(2, 1)
            scale = (0.5 * log_variance).exp()
            z = mean + scale * torch.ones_like(scale)
            if self.by_hand:
                return (-0.5 * ((z - mean) / scale) ** 2 - scale.log() - 0.9189385332).sum(1)
            normal = torch.distributions.Normal(mean, scale, validate_args=False)
            return normal.log_prob(z).sum(-1)


def densities(debugger: PrecisionDebugger, by_hand: bool) -> None:
    model = Density(by_hand=by_hand)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    fit(debugger, model, optimizer, lambda _: model(torch.randn(4, 6)).float().mean())


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_backward_records_of_calls_that_are_no_partners(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, densities, True, False, level)

    assert verdict["class"] in ("rounding", "precision", "equal"), verdict["sentence"]


def sampled(debugger: PrecisionDebugger, temperature: float) -> None:
    model = nn.Linear(3, 4)
    for _ in recorded_steps(debugger, model):
        with torch.no_grad():
            scores = model(torch.eye(3)) * 9
            torch.multinomial((scores / temperature).softmax(-1), 1).add(1)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_other_probabilities_are_an_effect_though_the_same_is_drawn(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, sampled, 1.01, 1.0, level)

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "1.01 instead of 1.0" in verdict["sentence"]


def counted(debugger: PrecisionDebugger, is_counted: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(3):
        debugger.start(model)
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        debugger.stop()
        if is_counted:
            debugger.step()


@pytest.mark.parametrize("is_counted", [True, False])
def test_trainings_that_one_side_does_not_count(tmp_path: Path, *, is_counted: bool) -> None:
    verdict = verdict_on(tmp_path, counted, is_counted, not is_counted)
    side = "reference" if is_counted else "target"

    assert verdict["class"] == "incomplete"
    assert f"step 0 of the {side} holds 3 times the batches" in verdict["sentence"]
    assert f"record the {side} again" in verdict["next"][0]


def flipped(debugger: PrecisionDebugger, flips: bool) -> None:
    model = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    samples = torch.randn(24, 3, 8)
    for number in recorded_steps(debugger, model):
        for half in range(2):
            x = samples[8 * number + 4 * half :][:4] / 2
            model(x.flip(-1) if flips else x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("flips", [True, False])
def test_what_one_side_makes_of_each_batch_is_no_data(tmp_path: Path, *, flips: bool) -> None:
    verdict = verdict_on(tmp_path, flipped, flips, not flips)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "calls Tensor.flip.0.forward" in verdict["sentence"]
