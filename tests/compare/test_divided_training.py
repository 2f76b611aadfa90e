# SPDX-License-Identifier: Apache-2.0
"""A training of two micro batches, a head outside of its model: causes that look like others."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.side = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        near = torch.tanh(self.first(x))
        return near, near + torch.tanh(self.second(near))


def moved(gradient: Tensor) -> Tensor:
    """Return a gradient that is nearly the same multiple for all weights, as rounding may be."""
    signs = torch.ones_like(gradient)
    signs.view(-1)[::2] = -1
    return gradient * 1.004 + 0.0007 * gradient.norm() / gradient.numel() ** 0.5 * signs


def balance(model: Model, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Return by what the second loss is multiplied so that the sum's gradient is twice the first's.

    In its norm: the first alone looks like a sum that is divided by the number of micro batches.
    """
    own, other = (
        torch.cat(
            [
                gradient.flatten()
                for gradient in torch.autograd.grad(
                    F.cross_entropy(model.side(model(batch)[1]), labels), list(model.parameters())
                )
            ]
        )
        for batch in (first, second)
    )
    half, size = own @ other, other @ other
    return (torch.sqrt(half * half + 3 * size * (own @ own)) - half) / size


def divided(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train on two micro batches."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    inputs, labels = torch.randn(3, 2, 5, 6), torch.arange(5) % 3
    factors = [1.0, balance(model, *inputs[0], labels).item()]
    weights = [model.first.weight, model.second.weight]
    if change == "half":
        weights[0].register_hook(lambda g: g * 0.5)
    if change == "moved":
        for weight in weights:
            weight.register_hook(moved)
    for number in recorded_steps(debugger, model):
        for micro in range(2):
            near, far = model(inputs[number, micro])
            logits = model.side(near if change == "branch" else far)
            if change == "cast":
                logits = logits.half()
            (F.cross_entropy(logits.float(), labels) * factors[micro]).backward()
            if change == "early" and not micro:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
        optimizer.step()
        optimizer.zero_grad()
        if change == "state" and number == 0:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_state_that_the_program_writes_is_told_beside_its_calls(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, divided, "state", level=level)
    assert (verdict["class"], verdict["confidence"]) == ("optimizer_state", "proved")
    assert "exp_avg of all 6 parameters differs before step 1" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_clipping_each_micro_batch_divides_no_gradient(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, divided, "early", level=level)
    assert verdict["class"] == "clipping", verdict["sentence"]
    assert "clip_grad_norm_ 2 times" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_one_gradient_of_several_is_not_divided_by_the_micro_batches(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, divided, "half", level=level)
    assert verdict["class"] == "gradient"
    assert "first.weight is 0.5 times" in verdict["sentence"]
    assert "micro batches" not in verdict["sentence"]


def test_gradients_near_one_multiple_are_none_of_it(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, divided, "moved", level="L1")
    assert verdict["class"] == "gradient"
    assert "times the reference's" not in verdict["sentence"]


def test_a_cast_behind_a_model_is_no_rounding_without_a_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, divided, "cast", level="L0")
    assert verdict["class"] == "precision"
    assert "only the target calls Tensor.half" in verdict["sentence"]


def test_a_head_that_is_fed_another_result_gets_no_other_data(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, divided, "branch")
    assert verdict["class"] == "argument", verdict["sentence"]
    assert "instead of the result of Tensor.__add__.0.forward" in verdict["sentence"]
