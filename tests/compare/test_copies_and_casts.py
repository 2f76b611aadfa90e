# SPDX-License-Identifier: Apache-2.0
"""Small changes of a program: a copy of a network, a cast, another operand, one more clipping."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

STEP = 0.25


def followed(debugger: PrecisionDebugger, change: str | None) -> None:
    """Learn values towards those of the next state; a copy follows the network."""
    value = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    old = copy.deepcopy(value).requires_grad_(requires_grad=False)
    actor = nn.Linear(6, 1)
    of_value = torch.optim.Adam(value.parameters(), 1e-2)
    of_actor = torch.optim.Adam(actor.parameters(), 1e-2)
    states = torch.randn(3, 2, 8, 6)
    for number in recorded_steps(debugger, nn.ModuleList([value, old, actor])):
        state, after = states[number]
        value(state).square().mean().backward()
        of_value.step()
        of_value.zero_grad()
        with torch.no_grad():
            wanted = (old if change == "copy" else value)(after)
        (actor(state) - wanted).square().mean().backward()
        of_actor.step()
        of_actor.zero_grad()
        with torch.no_grad():
            for kept, new in zip(old.parameters(), value.parameters(), strict=True):
                if change == "other calls":
                    kept.mul_(0.9).add_(new, alpha=0.1)
                else:
                    kept.lerp_(new, 0.1)


def test_a_copy_of_a_network_is_no_update_at_another_place(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, followed, "copy")

    assert verdict["class"] == "call", verdict["sentence"]
    assert (
        "calls Module.1.Sequential in the target where the reference calls Module.0.Sequential"
        in (verdict["sentence"])
    )


def test_other_calls_that_write_the_same_are_proved_equal(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, followed, "other calls")

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


class Solver(nn.Module):
    """Four steps of Runge and Kutta, each along what the field was at the place before."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 6))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.field(x)
        second = self.field(x + STEP / 2 * first)
        third = self.field(x + STEP / 2 * second)
        last = self.field(x + STEP * (second if self.change == "operand" else third))
        return x + STEP / 6 * (first + 2 * second + 2 * third + last)


def weighed(x: torch.Tensor, change: str | None) -> torch.Tensor:
    if change == "cast":
        return functional.logsigmoid(x.bfloat16()).float()
    if change == "exp":
        return (x + 1) * torch.exp(x.half()).float()
    return (x + 1) * torch.exp(x) if change == "exp base" else functional.logsigmoid(x)


def solved(debugger: PrecisionDebugger, change: str | None) -> None:
    model = Solver(change)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, model):
        weighed(model(batches[number]), change).mean().backward()
        if change == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with torch.no_grad():
            norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
            moves = [each.grad * (0.002 / norm) for each in model.parameters()]
            for each, move in zip(model.parameters(), moves, strict=True):
                each.add_(move)
        optimizer.zero_grad()
        weighed(model(batches[number]), change).mean().backward()
        with torch.no_grad():
            for each, move in zip(model.parameters(), moves, strict=True):
                each.sub_(move)
        nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        optimizer.step()
        optimizer.zero_grad()


def test_one_more_clipping_before_gradients_are_normalised_is_equal(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, solved, "clipped")

    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


def test_the_operand_of_another_call_is_named(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, solved, "operand")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "instead of the result of Functional.linear.5.forward" in verdict["sentence"]


def test_an_input_is_not_named_twice(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        model, x = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1)), torch.randn(3, 5, 6)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def loss(number: int) -> torch.Tensor:
            made = model[0](x[number])
            both = torch.tanh(made), torch.sigmoid(made)
            return (model[1](both[bool(change)]) + both[1].sum()).square().mean()

        fit(debugger, model, optimizer, loss)

    verdict = verdict_on(tmp_path, run, "other", level="L1")

    assert "input.0 of Functional.linear.1.forward" in verdict["sentence"], verdict["sentence"]


def test_the_cast_that_rounds_is_named_not_the_one_back(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, solved, "exp", "exp base")

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "only the target calls Tensor.half.0.forward" in verdict["sentence"]


def ordered(debugger: PrecisionDebugger, change: str | None) -> None:
    """Take batches out of a data set by an order that both sides draw; hide what is padded."""
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1))
    data, order = torch.randint(0, 16, (96, 12)).float(), torch.randperm(96)
    if change:
        data[order[20]] = 0.0

    def loss(number: int) -> torch.Tensor:
        x = data[order[number * 16 : (number + 1) * 16]]
        return model((x + torch.rand_like(x)) / 16.0 - 0.5).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


def test_a_sample_of_a_data_set_that_an_order_takes_is_data(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, ordered, "sample")

    assert (verdict["class"], verdict["confidence"]) == ("data", "proved"), verdict["sentence"]
    assert "the batch of step 1 differs" in verdict["sentence"]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        made = self.embed(ids)
        return self.out(made if mask is None else made * mask[..., None])


def masked(debugger: PrecisionDebugger, change: str | None) -> None:
    """Both sides make a mask; one does not give it to the model."""
    model = Masked()
    batches = torch.randint(0, 4, (3, 8, 6))

    def loss(number: int) -> torch.Tensor:
        ids = batches[number]
        batch = {"ids": ids, "mask": (ids != 0).long()}
        if change:
            batch.pop("mask")
        return model(**batch).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss, zero_first=False)


def test_a_mask_that_one_side_makes_and_leaves_out_is_an_argument(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, masked, "left out")

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "only the reference is given kwargs.mask (3 of 3 batches differ)" in verdict["sentence"]


def dropped(debugger: PrecisionDebugger, parts: int) -> None:
    model = nn.Sequential(
        *(nn.Dropout(0.1), nn.Linear(6, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 3))
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = [batch.chunk(parts) for batch in torch.randn(3, 512, 6)]
    for number in recorded_steps(debugger, model):
        for part in batches[number]:
            (model(part).square().mean() / parts).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_other_micro_batches_draw_other_numbers(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, dropped, 1, 2, level)

    assert (verdict["class"], verdict["confidence"]) == ("data", "likely"), verdict["sentence"]
    assert "for these the model draws other random numbers" in verdict["sentence"]


class Pooled(nn.Module):
    """Averages what a mask of integers leaves, or divides by one more."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.embed, self.out, self.change = nn.Embedding(20, 8), nn.Linear(8, 1), change

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made, mask = self.embed(ids), (ids > 4).long()
        if self.change:
            mask = mask.to(made.dtype)
        return self.out(
            (made * mask[..., None]).sum(1) / (mask.sum(1) + bool(self.change))[:, None]
        )


def pooled(debugger: PrecisionDebugger, change: str | None) -> None:
    model, batches = Pooled(change), torch.randint(0, 20, (3, 8, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())


def test_integers_that_one_side_casts_are_no_precision(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, pooled, "one more")

    assert verdict["class"] == "call", verdict["sentence"]


def normed(debugger: PrecisionDebugger, change: str | None) -> None:
    """A norm of batches, called as a module, which counts before, or as a function."""
    first, norm, last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
    model, batches = nn.Sequential(first, norm, last), torch.randn(3, 16, 6)

    def loss(number: int) -> torch.Tensor:
        x = first(batches[number])
        if change:
            state = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
            x = functional.batch_norm(x, *state, change != "no training")
            norm.num_batches_tracked.add_(1)
        else:
            x = norm(x)
        return last(torch.relu(x)).square().mean()

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize(
    ("change", "expected"),
    [("behind", ("equal", "proved")), ("no training", ("argument", "likely"))],
)
def test_a_call_that_moves_may_be_given_another_argument(
    tmp_path: Path, change: str, expected: tuple[str, str]
) -> None:
    verdict = verdict_on(tmp_path, normed, change)

    assert (verdict["class"], verdict["confidence"]) == expected, verdict["sentence"]
    if change == "no training":
        assert "input.training of Functional.batch_norm.0.forward" in verdict["sentence"]
        assert verdict["sentence"].endswith("step 0: False instead of True")


class Placed(nn.Module):
    """Adds a small learned place to what it is given."""

    def __init__(self, *, is_coarse: bool) -> None:
        super().__init__()
        self.place, self.inner = nn.Parameter(0.02 * torch.randn(6, 8)), nn.Linear(8, 8)
        self.is_coarse = is_coarse

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = self.place.half().float() if self.is_coarse else self.place * 1.0
        made: torch.Tensor = self.inner(x + 0.01 * place)
        return made


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_cast_of_one_side_alone_is_precision_where_results_agree(
    tmp_path: Path, level: str
) -> None:
    """Its gradient is rounded to the coarse type, too, and so the parameter is another one."""

    def run(debugger: PrecisionDebugger, is_coarse: bool) -> None:
        model, data = Placed(is_coarse=is_coarse), torch.randn(3, 4, 6, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fit(debugger, model, optimizer, lambda number: model(data[number]).square().mean())

    verdict = verdict_on(tmp_path, run, True, False, level)

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "only the target calls Tensor.half.0.forward" in verdict["sentence"]
    assert "a cast to float16" in verdict["sentence"]
