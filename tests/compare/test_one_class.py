# SPDX-License-Identifier: Apache-2.0
"""One cause has one class, at whichever level it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def classify(debugger: PrecisionDebugger, change: str) -> None:
    """Train three steps of two micro batches."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    inputs, labels = torch.randn(3, 2, 8, 8), torch.randint(0, 4, (3, 2, 8))
    if change == "hook of a parameter":
        model[0].weight.register_hook(lambda gradient: gradient * 0.5)

    def backward(loss: Tensor) -> None:
        match change:
            case "no division":
                loss.backward()
            case "a third":
                (loss / 2 / 3).backward()
            case "other division":
                (loss / 4).backward()
            case "scaled":
                (loss / 2 * 1024.0).backward()
            case _:
                (loss / 2).backward()

    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for x, y in zip(inputs[number], labels[number], strict=True):
            made = model[:2](x)
            if change == "hook of a tensor":
                made.register_hook(lambda gradient: gradient * 0.5)
            backward(F.cross_entropy(model[2:](made), y))
        optimizer.step()
        write(model, change)


@torch.no_grad()
def write(model: nn.Module, change: str) -> None:
    """Write parameters after they were updated."""
    for parameter in model.parameters():
        match change:
            case "clamped":
                parameter.clamp_(-0.1, 0.1)
            case "shrunk":
                parameter.data.mul_(0.9)
            case "shrunk more":
                parameter.data.mul_(0.8)
            case "left":
                parameter.copy_(torch.full_like(parameter, 0.01))


SUMMED = "the factor is the number of micro batches, 2"
WRITTEN = "written between the update of step 0 and the start of step 1"


@LEVELS
@pytest.mark.parametrize(
    ("change", "base", "expected", "words", "call"),
    [
        ("no division", "", "gradient", SUMMED, "only the reference calls Tensor.__truediv__"),
        ("a third", "", "gradient", "factor is 0.333333", "only the target calls Tensor.__truediv"),
        ("scaled", "", "gradient", "the factor is 2^10", "only the target calls Tensor.__mul__"),
        ("other division", "", "gradient", "the inverse of the number", "of Tensor.__truediv__"),
        ("clamped", "", "update", WRITTEN, "only the target calls Tensor.clamp_"),
        ("shrunk", "", "update", WRITTEN, "only the target calls Tensor.mul_"),
        ("left", "", "update", WRITTEN, "only the target calls Tensor.copy_"),
        ("shrunk more", "shrunk", "update", "written", "of Tensor.mul_"),
    ],
)
def test_a_cause_has_one_class_and_names_its_call(
    change: str, base: str, expected: str, words: str, call: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, classify, change, base, level)

    assert verdict["class"] == expected, verdict["sentence"]
    assert words in verdict["sentence"]
    assert call in verdict["sentence"]
    assert "test_one_class.py:" in verdict["sentence"]


@LEVELS
@pytest.mark.parametrize("change", ["hook of a parameter", "hook of a tensor"])
def test_what_a_hook_multiplies_is_named_with_the_factor(
    change: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, classify, change, "", level)

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "0.5 times the reference's" in verdict["sentence"]
    assert "micro batches" not in verdict["sentence"]
    assert ("0.weight" in verdict["sentence"]) is (change == "hook of a parameter")


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are drawn, as those of an augmentation are."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return drawn, torch.tensor(index % 4)


def load(debugger: PrecisionDebugger, size: int) -> None:
    """Train three steps; batches are put together within them."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    loaded = iter(DataLoader(Rows(), batch_size=size))
    ahead: list[list[Tensor]] = []

    def loss(_: int) -> Tensor:
        while len(ahead) < 2:  # one more, as Accelerate does
            ahead.append(next(loaded))
        x, y = ahead.pop(0)
        return F.cross_entropy(model(x), y)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss, zero_first=False)


@LEVELS
def test_another_batch_size_is_data(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, load, 16, 8, level)

    assert verdict["class"] == "data", verdict["sentence"]
    assert "input.0 holds 16 samples instead of 8" in verdict["sentence"]


PENALTIES = ["input", "parameters", "loss", "twice", "other call"]


def penalize(debugger: PrecisionDebugger, change: str) -> None:
    """Train three steps, perhaps with a penalty on gradients."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, labels = torch.randn(3, 8, 8), torch.randint(0, 4, (3, 8))
    for number in recorded_steps(debugger, model):
        x = inputs[number].clone().requires_grad_()
        out = model(x)
        loss = F.cross_entropy(out, labels[number])
        if change == "twice":
            loss.backward(retain_graph=True)
            loss = 0.1 * out.square().mean()
        elif change:
            of, made = x, loss if change == "loss" else out.sum()
            if change == "parameters":
                of = model[0].weight
            if change == "other call":
                of = (x + 0.1).detach().requires_grad_()
                made = model(of).sum()
            (gradient,) = torch.autograd.grad(made, of, create_graph=True)
            loss = loss + 0.1 * gradient.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@LEVELS
@pytest.mark.parametrize("is_target", [True, False], ids=["of the target", "of the reference"])
@pytest.mark.parametrize("change", PENALTIES)
def test_a_penalty_on_gradients_is_a_call(
    change: str, is_target: bool, level: str, tmp_path: Path
) -> None:
    both = (change, "") if is_target else ("", change)
    verdict = verdict_on(tmp_path, penalize, *both, level)

    assert verdict["class"] == "call", verdict["sentence"]


@LEVELS
def test_another_width_is_told_where_batches_are_drawn_after_it(level: str, tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, width: int) -> None:
        parts = nn.Linear(8, width, bias=False), nn.Tanh(), nn.Linear(width, 4, bias=False)
        model = nn.Sequential(*parts)

        def loss(_: int) -> Tensor:
            return F.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 4, (8,)))

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss, zero_first=False)

    verdict = verdict_on(tmp_path, run, 32, 16, level)

    assert verdict["class"] == "parameters", verdict["sentence"]
    assert "have another shape, the first (32, 8) instead of (16, 8)" in verdict["sentence"]


def on_threads(debugger: PrecisionDebugger, option: tuple[int, bool]) -> None:
    """Train in bfloat16, where threads sum the gradient of a norm's weight in that type."""
    threads, is_changed = option
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    parts = nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64)
    model = nn.Sequential(*parts, nn.Linear(64, 16)).bfloat16()
    if is_changed:
        weights = torch.linspace(0.5, 1.5, 64).bfloat16()
        model[1].bias.register_hook(lambda gradient: gradient * weights)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, labels = torch.randn(3, 2048, 64).bfloat16(), torch.randint(0, 16, (3, 2048))

    def loss(number: int) -> torch.Tensor:
        return F.cross_entropy(model(inputs[number]).float(), labels[number])

    try:
        fit(debugger, model, optimizer, loss, zero_first=False)
    finally:
        torch.set_num_threads(before)


@LEVELS
def test_threads_that_sum_in_a_coarse_type_accuse_nobody(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, on_threads, (2, False), (1, False), level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_gradient_that_is_changed_beside_them_is_told(threads: int, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, on_threads, (threads, True), (1, False))

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "bias of Module.1.LayerNorm.parameters_grad" in verdict["sentence"]


LABELS = {
    "rolled": lambda labels: labels.roll(1),
    "raised": lambda labels: (labels + 1) % 4,
    "clamped": lambda labels: labels.clamp(max=2),
}


@LEVELS
@pytest.mark.parametrize("is_given", [True, False], ids=["to the model", "to the loss"])
@pytest.mark.parametrize("change", [*LABELS, "loaded"])
def test_labels_made_by_other_calls_are_told_by_these(
    change: str, is_given: bool, level: str, tmp_path: Path
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
            made = self.layer(x)
            return made if labels is None else F.cross_entropy(made, labels)

    def run(debugger: PrecisionDebugger, change: str) -> None:
        model = Model()
        inputs, labels = torch.randn(3, 8, 8), torch.randint(0, 4, (3, 8))
        labels[:, 0] = 3
        if change == "loaded":
            labels = labels.flip(1)

        def loss(number: int) -> Tensor:
            x, y = inputs[number], LABELS.get(change, torch.clone)(labels[number])
            return model(x, y) if is_given else F.cross_entropy(model(x), y)

        fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss, zero_first=False)

    verdict = verdict_on(tmp_path, run, change, "", level)

    assert verdict["class"] == ("data" if change == "loaded" else "call"), verdict["sentence"]
