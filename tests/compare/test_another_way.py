# SPDX-License-Identifier: Apache-2.0
"""The same training written in another way accuses nobody; a fault beside it is still told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L1", "mix"]
Change = Callable[..., None]


def lowered(is_lowered: bool) -> torch.autocast | nullcontext[None]:
    """Return autocast to bfloat16, or nothing."""
    return torch.autocast("cpu", torch.bfloat16) if is_lowered else nullcontext()


def update(model: nn.Module, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# --- averages of weights ----------------------------------------------------------------------


def average(debugger: PrecisionDebugger, change: Change) -> None:
    """Train towards the hidden values of an average of the weights."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    slow = copy.deepcopy(model).requires_grad_(change is not ema)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    data, wanted = torch.randn(3, 5, 6), torch.randn(3, 5, 2)

    def step(number: int) -> None:
        with torch.no_grad():
            other = slow(data[number])
        made = model(data[number])
        update(model, F.mse_loss(made, wanted[number]) + (made - other).square().mean(), optimizer)
        with torch.no_grad():
            for own, new in zip(slow.parameters(), model.parameters(), strict=True):
                change(own, new)

    for number in recorded_steps(debugger, [model, slow]):
        step(number)


def ema(own: Tensor, new: Tensor) -> None:
    own.mul_(0.9).add_(new, alpha=0.1)


def ema_by_copy(own: Tensor, new: Tensor) -> None:
    own.copy_(0.9 * own + 0.1 * new)


def ema_by_difference(own: Tensor, new: Tensor) -> None:
    own.sub_(0.1 * (own - new))


def ema_by_new_tensor(own: Tensor, new: Tensor) -> None:
    own.data = 0.9 * own.data + 0.1 * new.data


def other_rate(own: Tensor, new: Tensor) -> None:
    own.copy_(0.8 * own + 0.2 * new)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", [ema_by_copy, ema_by_difference, ema_by_new_tensor])
def test_averages_are_written_in_any_way(tmp_path: Path, change: Change, level: str) -> None:
    verdict = verdict_on(tmp_path, average, change, ema, level)

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_another_average_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, average, other_rate, ema, level)

    assert verdict["class"] in ("call", "update", "argument"), verdict["sentence"]


def queue(debugger: PrecisionDebugger, change: Change) -> None:
    """Train beside a queue of earlier results."""
    model = nn.Linear(6, 4)
    kept = torch.randn(4, 4)
    model.register_buffer("queue", kept)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(3, 5, 6)

    def step(number: int) -> None:
        made = model(data[number])
        update(model, (made @ kept.t()).logsumexp(1).mean(), optimizer)
        with torch.no_grad():
            change(kept, made.detach())

    for number in recorded_steps(debugger, model):
        step(number)


def joined(kept: Tensor, made: Tensor) -> None:
    kept.copy_(torch.cat([made[:2], kept[:2]]))


def rolled(kept: Tensor, made: Tensor) -> None:
    kept.copy_(kept.roll(2, 0))
    kept[:2] = made[:2]


def rolled_with_others(kept: Tensor, made: Tensor) -> None:
    kept.copy_(kept.roll(2, 0))
    kept[:2] = made[2:4]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_buffer_is_written_in_any_way(tmp_path: Path, is_swapped: bool, level: str) -> None:
    both = (joined, rolled) if is_swapped else (rolled, joined)
    verdict = verdict_on(tmp_path, queue, *both, level)

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_another_buffer_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, queue, rolled_with_others, joined, level)

    assert verdict["class"] not in ("equal", "rounding", "precision"), verdict["sentence"]


# --- losses -----------------------------------------------------------------------------------


def loss_of(debugger: PrecisionDebugger, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data, wanted = torch.randn(3, 5, 6), torch.randn(3, 5, 2)
    for n in recorded_steps(debugger, model):
        update(model, loss(model(data[n]), wanted[n]), optimizer)


@pytest.mark.parametrize("level", LEVELS)
def test_a_mean_is_taken_by_another_call(tmp_path: Path, level: str) -> None:
    def by_hand(made: Tensor, wanted: Tensor) -> Tensor:
        return F.smooth_l1_loss(made, wanted, reduction="none").mean(0).mean()

    verdict = verdict_on(tmp_path, loss_of, by_hand, F.smooth_l1_loss, level)

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_sum_in_place_of_a_mean_is_told(tmp_path: Path, level: str) -> None:
    def by_hand(made: Tensor, wanted: Tensor) -> Tensor:
        return F.smooth_l1_loss(made, wanted, reduction="none").sum(0).mean()

    verdict = verdict_on(tmp_path, loss_of, by_hand, F.smooth_l1_loss, level)

    assert verdict["class"] in ("call", "argument"), verdict["sentence"]


# --- another precision ------------------------------------------------------------------------


def classify(debugger: PrecisionDebugger, way: tuple[bool, str]) -> None:
    """Train a classifier, whose bias before a norm gets no gradient but rounding."""
    is_lowered, loss = way
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data, labels = torch.randn(3, 2, 12, 6), torch.randint(0, 4, (3, 2, 12, 1))

    def step(number: int) -> None:
        total = torch.zeros(())
        for part, label in zip(data[number], labels[number], strict=True):
            with lowered(is_lowered):
                made = model(part)
                if loss in ("cross entropy", "smoothed"):
                    smoothing = 0.02 if loss == "smoothed" else 0.0
                    total = total + F.cross_entropy(made, label[:, 0], label_smoothing=smoothing)
                else:
                    taken = (label + 1) % 4 if loss == "other labels" else label
                    total = total - made.softmax(1).gather(1, taken).log().mean()
        update(model, total, optimizer)

    for number in recorded_steps(debugger, model):
        step(number)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", ["by hand", "cross entropy"])
def test_another_precision_beside_other_calls(tmp_path: Path, loss: str, level: str) -> None:
    verdict = verdict_on(tmp_path, classify, (True, loss), (False, "by hand"), level)

    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_other_labels_are_told_beside_another_precision(tmp_path: Path, level: str) -> None:
    way = True, "other labels"
    verdict = verdict_on(tmp_path, classify, way, (False, "cross entropy"), level)

    assert verdict["confidence"] != "proved", verdict["sentence"]
    assert verdict["class"] not in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_an_argument_beside_another_precision_leaves_no_proof(tmp_path: Path, level: str) -> None:
    way = True, "smoothed"
    verdict = verdict_on(tmp_path, classify, way, (False, "cross entropy"), level)

    assert verdict["class"] == "argument" or verdict["confidence"] != "proved", verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_cell_computes_in_the_type_of_autocast(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, is_lowered: bool) -> None:
        model = nn.LSTMCell(6, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = torch.randn(3, 4, 5, 6)

        def step(number: int) -> None:
            with lowered(is_lowered):
                state = torch.zeros(5, 8), torch.zeros(5, 8)
                for part in data[number]:
                    state = model(part, state)
            update(model, state[0].float().square().mean(), optimizer)

        for number in recorded_steps(debugger, model):
            step(number)

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_penalty_of_gradients_in_another_precision(tmp_path: Path, level: str) -> None:
    def run(debugger: PrecisionDebugger, is_lowered: bool) -> None:
        model = nn.ModuleDict({"maker": nn.Linear(4, 6), "critic": nn.Linear(6, 1)})
        inner = nn.Linear(6, 6)
        model["inner"] = inner
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        noise = torch.randn(3, 8, 4)

        def step(number: int) -> None:
            with lowered(is_lowered):
                made = model["maker"](noise[number])
            made = made.float()
            score = model["critic"](torch.tanh(inner(made)) + made)
            (slope,) = torch.autograd.grad(score.sum(), made, create_graph=True)
            update(model, score.mean() + (slope.norm(dim=1) - 1).square().mean(), optimizer)

        for number in recorded_steps(debugger, model):
            step(number)

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]


def test_two_updates_in_a_step_in_another_precision(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_lowered: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        data = torch.randn(3, 5, 6)

        def step(number: int) -> None:
            for _ in range(2):
                with lowered(is_lowered):
                    made = model(data[number])
                update(model, made.float().square().mean(), optimizer)

        for number in recorded_steps(debugger, model):
            step(number)

    verdict = verdict_on(tmp_path, run, True, False, "L1")

    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]


def test_another_scale_beside_another_precision(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, way: tuple[bool, float]) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=way[1])
        data = torch.randn(3, 5, 6)

        def step(number: int) -> None:
            with lowered(way[0]):
                made = model(data[number])
            optimizer.zero_grad()
            scaler.scale(made.float().square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

        for number in recorded_steps(debugger, model):
            step(number)

    verdict = verdict_on(tmp_path, run, (True, 1024.0), (False, 256.0))

    assert (verdict["class"], verdict["confidence"]) == ("precision", "proved"), verdict["sentence"]


# --- targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.1, 0.11])
def test_smoothed_labels_are_given_in_any_way(tmp_path: Path, smoothing: float) -> None:
    def run(debugger: PrecisionDebugger, is_soft: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
        data, labels = torch.randn(4, 6, 6), torch.randint(0, 5, (4, 6))
        soft = F.one_hot(labels, 5) * (1 - smoothing) + smoothing / 5

        def loss(number: int) -> Tensor:
            made = model(data[number])
            if is_soft:
                return F.cross_entropy(made, soft[number])
            return F.cross_entropy(made, labels[number], label_smoothing=0.1)

        for number in recorded_steps(debugger, model, 4):
            update(model, loss(number), optimizer)

    verdict = verdict_on(tmp_path, run, True, False)

    expected = ("equal", "proved") if smoothing == 0.1 else ("data", "likely")
    assert (verdict["class"], verdict["confidence"]) == expected, verdict["sentence"]


# --- parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_what_nobody_trains_may_be_frozen(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, average, ema_by_copy, ema, level)

    assert verdict["class"] == "equal", verdict["sentence"]  # requires gradients, and gets none


def test_what_is_trained_may_not_be_frozen(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_frozen: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        model[0].requires_grad_(not is_frozen)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = torch.randn(3, 5, 6)
        for n in recorded_steps(debugger, model):
            update(model, model(data[n]).square().mean(), optimizer)

    verdict = verdict_on(tmp_path, run, True, False)

    assert verdict["class"] == "mode", verdict["sentence"]


def test_another_parameter_is_named_without_modules(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, order: tuple[int, int]) -> None:
        model = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = torch.randn(3, 5, 6)

        def step(number: int) -> None:
            first, second = (model[place] for place in order)
            update(model, second(torch.tanh(first(data[number]))).square().mean(), optimizer)

        for number in recorded_steps(debugger, model):
            step(number)

    verdict = verdict_on(tmp_path, run, (1, 0), (0, 1), "L1")

    assert verdict["class"] == "argument", verdict["sentence"]
    words = "called with the parameter 1.weight instead of the parameter 0.weight"
    assert words in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("rate", [0.01, 0.02])
def test_two_optimizers_may_step_in_either_order(tmp_path: Path, rate: float, level: str) -> None:
    def run(debugger: PrecisionDebugger, is_turned: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        first = torch.optim.SGD(model[0].parameters(), 0.1, momentum=0.9)
        second = torch.optim.Adagrad(model[2].parameters(), rate if is_turned else 0.01)
        data = torch.randn(3, 5, 6)
        for number in recorded_steps(debugger, model):
            model.zero_grad()
            model(data[number]).square().mean().backward()
            for each in (second, first) if is_turned else (first, second):
                each.step()

    verdict = verdict_on(tmp_path, run, True, False, level)

    expected = ("equal" if rate == 0.01 else "optimizer_setting", "proved")
    assert (verdict["class"], verdict["confidence"]) == expected, verdict["sentence"]
