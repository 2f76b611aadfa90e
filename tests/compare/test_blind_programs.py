# SPDX-License-Identifier: Apache-2.0
"""First lines on programs that were written by someone who did not know the rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Mixed(nn.Module):
    """A layer of parts, with functions between them."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.norm, self.mid, self.drop = nn.LayerNorm(16), nn.Linear(16, 16), nn.Dropout(0.1)
        self.first, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        after = self.change == "norm after"
        h = self.first(x if after else self.norm(x))
        h = self.norm(h) if after else h
        if self.change == "coarse":
            weight, bias = self.mid.weight.bfloat16(), self.mid.bias.bfloat16()
            made = F.linear(h.bfloat16(), weight, bias).float()
        else:
            made = self.mid(h)
        result: Tensor = x + self.out(h + self.drop(F.gelu(made)))
        return result


def mixed(debugger: PrecisionDebugger, change: str | None) -> None:
    model = nn.Sequential(nn.Linear(16, 16), Mixed(change), Mixed(change))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs = torch.randn(3, 12, 16)

    fit(debugger, model, optimizer, lambda number: model(inputs[number]).square().mean())


def test_what_is_a_function_on_one_side_and_a_part_on_the_other_is_not_lacking(
    tmp_path: Path,
) -> None:
    verdict = verdict_on(tmp_path, mixed, "coarse", level="L0")

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "only the target calls Tensor.bfloat16" in verdict["sentence"]


def test_a_part_that_is_called_later_is_order(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, mixed, "norm after", level="L0")

    assert verdict["class"] == "order", verdict["sentence"]


class Scorer(nn.Module):
    """Scores pairs, of which one side normalises the others."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.table, self.norm = nn.Embedding(30, 8), nn.BatchNorm1d(8)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        h, t = self.table(first), self.table(second)
        if self.change:
            t = self.norm(t.flatten(0, 1)).view_as(t)
        else:
            h = self.norm(h.flatten(0, 1)).view_as(h)
        return (h - t).square().sum(-1)


def scoring(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Scorer(change)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    pairs = torch.randint(0, 30, (3, 2, 6, 4))

    fit(debugger, model, optimizer, lambda number: model(*pairs[number]).mean())


def test_the_result_of_another_call_in_another_shape_is_another_argument(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, scoring, "others", level="L0")

    assert verdict["class"] == "argument", verdict["sentence"]
    words = "the result of Module.table.Embedding.forward.{}".format
    assert f"fed with {words(1)} instead of {words(0)}" in verdict["sentence"]


class Attending(nn.Module):
    """Recurrence and attention."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.change = change
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.change == "coarse"):
            h, _ = self.lstm(x)
        h = self.norm(h.float())
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        asked = self.change == "weights"
        made, _ = self.attention(h, h, h, attn_mask=mask, need_weights=asked)
        result: Tensor = self.out(h + made)
        return result


def climbing(debugger: PrecisionDebugger, change: str | None) -> None:
    """Take each step from where the loss is higher."""
    model = Attending(change)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, wanted = torch.randn(3, 8, 10, 16), torch.randn(3, 8, 10, 3)
    for number in recorded_steps(debugger, model):
        F.l1_loss(model(inputs[number]), wanted[number]).backward()
        gradients = [0.05 * p.grad for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for parameter, each in zip(model.parameters(), gradients, strict=True):
                parameter.add_(each)
        optimizer.zero_grad()
        loss = F.l1_loss(model(inputs[number]), wanted[number])
        (loss / 3 if change == "third" else loss).backward()
        with torch.no_grad():
            for parameter, each in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(each)
        optimizer.step()
        optimizer.zero_grad()


def test_the_call_that_makes_a_factor_leaves_it_one_of_gradients(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, climbing, "third", level="L0")

    assert verdict["class"] == "gradient", verdict["sentence"]
    assert "are 0.333333 times the reference's" in verdict["sentence"]
    assert "only the target calls Tensor.__truediv__" in verdict["sentence"]


def test_asking_for_a_further_result_has_no_effect_on_others(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, climbing, "weights", level="L0")

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


def has_coarse_lstm() -> bool:
    """Return whether this machine computes an LSTM in bfloat16; some processors cannot."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        return False
    return True


@pytest.mark.skipif(not has_coarse_lstm(), reason="no LSTM in bfloat16 on this machine")
def test_gradients_of_a_second_pass_follow_from_the_type_of_a_part(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, climbing, "coarse", level="L0")

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "bfloat16 in the target, float32 in the reference" in verdict["sentence"]


class Kept(torch.autograd.Function):
    """Keeps gradients within a limit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        ctx.limit = limit
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].clamp(-ctx.limit, ctx.limit), None


class Energy(nn.Module):
    """An energy whose gradients are limited by a number of the program."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(F.mish(Kept.apply(self.first(x), self.limit)))
        return made


def sampled(debugger: PrecisionDebugger, change: str | None) -> None:
    """Take samples along the gradients of the model."""
    model = Energy(1e9 if change else 1e-2)
    inputs, noise = torch.randn(3, 16, 6), torch.randn(16, 6)

    def loss(number: int) -> Tensor:
        x = noise
        for _ in range(2):
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x)
            x = x - 0.5 * gradient
        return model(inputs[number]).mean() - model(x.detach()).mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.05), loss)


def test_batches_that_are_made_of_gradients_follow_them(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, sampled, "unlimited", level="L0")

    assert verdict["class"] == "gradient", verdict["sentence"]


@pytest.fixture
def alone() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def centred(debugger: PrecisionDebugger, change: str | None) -> None:
    """Pull samples to a centre, which ranks average after each micro batch."""
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, centre = torch.randn(3, 2, 16, 6), torch.zeros(4)
    # One rank has no others to lack.
    share = torch.tensor(0.5 if change else 1.0)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for x in inputs[number]:
            z = model(x)
            (z - centre).square().mean().backward()
            total = z.detach().sum(0)
            if not change:
                torch.distributed.all_reduce(total)
            centre.copy_(total * share)
        optimizer.step()


@pytest.mark.usefixtures("alone")
def test_communication_between_micro_batches_makes_the_next_loss(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, centred, "not reduced", level="L0")

    assert verdict["class"] == "communication", verdict["sentence"]
    assert "only the reference calls all_reduce of 4 elements" in verdict["sentence"]


def masked(debugger: PrecisionDebugger, change: str | None) -> None:
    """Find a mask: activated sooner, from coarse scores, or with the largest gradient limited."""
    bodies = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
    norms, head = (nn.GroupNorm(2, 8), nn.GroupNorm(4, 8)), nn.Conv2d(8, 1, 1)
    model = nn.ModuleList((*bodies, *norms, head))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    inputs, wanted = torch.randn(3, 4, 3, 10, 10), (torch.rand(3, 4, 1, 8, 8) < 0.2).float()
    for number in recorded_steps(debugger, model):
        with torch.autocast("cpu", torch.bfloat16):
            h = bodies[1](F.leaky_relu(norms[0](bodies[0](inputs[number]))))
            h = norms[1](F.leaky_relu(h)) if change == "sooner" else F.leaky_relu(norms[1](h))
            scores = head(h)
        scores = scores if change == "coarse" else scores.float()
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(scores, wanted[number]).backward()
        kind = float("inf") if change == "largest" else 2.0
        nn.utils.clip_grad_norm_(model.parameters(), 0.02, norm_type=kind)
        optimizer.step()


def test_a_call_at_another_place_is_not_lacking(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, masked, "sooner", level="L1")

    assert verdict["class"] == "order", verdict["sentence"]
    assert "Functional.leaky_relu.1.forward" in verdict["sentence"]
    assert "before Functional.group_norm.1.forward in the target" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_the_same_numbers_in_a_coarse_type_are_precision(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, masked, "coarse", level=level)

    assert verdict["class"] == "precision", verdict["sentence"]


def test_total_norms_of_two_kinds_are_both_told(tmp_path: Path) -> None:
    sentence = verdict_on(tmp_path, masked, "largest", level="L1")["sentence"]

    words = sentence.partition("the total norm is ")[2].split()
    assert words[1:4] == ["in", "the", "target,"], sentence
    assert float(words[0]) < float(words[4])


def test_buffers_are_no_parameters(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_fine: bool) -> None:
        dtype = torch.float64 if is_fine else torch.float32
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(dtype)
        inputs = torch.randn(3, 10, 6).to(dtype)

        for number in recorded_steps(debugger, model):
            model(inputs[number]).sum().backward()

    sentence = verdict_on(tmp_path, run, True, False, level="L0")["sentence"]

    assert "8 of 9 parameters and buffers" in sentence, sentence
