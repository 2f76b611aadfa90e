# SPDX-License-Identifier: Apache-2.0
"""Faults that a loss hides, and programs that split or store a gradient in another way."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]


class Block(nn.Module):
    """Attention and a layer; `change` is what a person may have written otherwise."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.one(x)).chunk(3, dim=-1)
        if self.change == "normalised":
            q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        inner = functional.gelu(self.up(self.two(x)))
        if self.change == "shared":
            inner = functional.gelu(self.up(self.one(x)))
        return x + self.down(inner)


class WithLoss(nn.Module):
    """A model of small weights that returns its loss, which hardly shows what a block does."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList([Block(change), Block(change)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20)
        for each in self.parameters():
            if each.ndim > 1:
                nn.init.normal_(each, std=0.02)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def language(debugger: PrecisionDebugger, change: str | None) -> None:
    model = WithLoss(change)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = torch.randint(0, 20, (3, 2, 4, 9))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for micro in ids[number]:
            (model(micro[:, :-1], micro[:, 1:]) / 2).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("normalised", "call: only the target calls Functional.normalize"),
        ("shared", "call: only the target calls Functional.layer_norm"),
    ],
)
def test_a_call_is_named_whose_effect_the_loss_hides(
    change: str, words: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, language, change, level="L0")
    assert verdict["sentence"].startswith(words), verdict["sentence"]


class Twice(nn.Module):
    """Attends to what it is given as queries and as keys."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = (self.q(x) @ self.k(y).transpose(-1, -2)).softmax(-1)
        return x + self.out(weight @ y).tanh()


class Attending(nn.Module):
    """Gives its part one value twice."""

    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.first, self.part, self.head = nn.Linear(4, 8), Twice(), nn.Linear(8, 3)
        self.is_reentrant = is_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        return self.head(checkpoint(self.part, z, z, use_reentrant=self.is_reentrant).mean(1))


def checkpointing(debugger: PrecisionDebugger, is_reentrant: bool) -> None:
    model = Attending(is_reentrant)
    data, labels = torch.randn(3, 6, 5, 4), torch.randint(0, 3, (6,))

    def loss(number: int) -> torch.Tensor:
        return functional.cross_entropy(model(data[number]), labels)

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-2), loss)


@pytest.mark.parametrize(("target", "reference"), [(True, False), (False, True)])
def test_a_gradient_that_is_split_between_arguments_is_the_same(
    target: bool, reference: bool, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, checkpointing, target, reference, level="L0")
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]


def accumulating(debugger: PrecisionDebugger, change: str | None) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data, labels = torch.randn(2, 6, 4), torch.randint(0, 3, (6,))
    for _ in recorded_steps(debugger, model):
        optimizer.zero_grad()
        for micro in data:
            loss = functional.cross_entropy(model(micro), labels)
            if change != "summed":
                loss = loss / 2
            if change == "doubled":
                loss = loss * 2
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("change", ["summed", "doubled"])
def test_a_division_is_missing_where_one_side_alone_divides(
    change: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, accumulating, change, level=level)
    assert verdict["class"] == "gradient"
    words = "the factor is 2, as the number of micro batches; only the target calls Tensor.__mul__"
    if change == "summed":
        words = "the factor is the number of micro batches, 2: they are summed, not averaged; only"
    assert words in verdict["sentence"], verdict["sentence"]


def test_a_number_that_may_be_that_of_ranks_is_said_to_be_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    sentence = verdict_on(tmp_path, accumulating, "doubled")["sentence"]

    words = "the factor is 2, as the number of micro batches or world size; only the target calls"
    assert words in sentence


class Scaled(nn.Module):
    """Scales its levels by numbers of their own."""

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(1.0)) for _ in range(2)])
        self.levels = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])
        self.is_shared = is_shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = (
            level(x) * self.scales[0 if self.is_shared else number]
            for number, level in enumerate(self.levels)
        )
        return one + two


def scaling(debugger: PrecisionDebugger, is_shared: bool) -> None:
    model = Scaled(is_shared)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data, labels = torch.randn(6, 4), torch.randint(0, 3, (6,))

    fit(debugger, model, optimizer, lambda _: functional.cross_entropy(model(data), labels))


def test_a_gradient_that_does_not_exist_has_no_factor(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, scaling, True, False, level="L0")
    assert "scales.1 gets no gradient in the target" in verdict["sentence"], verdict["sentence"]


def valuing(debugger: PrecisionDebugger, is_online: bool) -> None:
    online = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    target = deepcopy(online).requires_grad_(False)
    data = torch.randn(2, 6, 4)

    def loss(_: int) -> torch.Tensor:
        value = online(data[0]).max(1).values
        with torch.no_grad():
            later = (online if is_online else target)(data[1]).max(1).values
        return functional.mse_loss(value, 1 + 0.9 * later)

    fit(debugger, [online, target], torch.optim.SGD(online.parameters(), 0.1), loss)


def test_the_network_in_place_of_its_target(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, valuing, True, False, level="L1")
    words = "called with the parameter 0.0.weight instead of the parameter 1.0.weight"
    assert words in verdict["sentence"], verdict["sentence"]


def looking_up(debugger: PrecisionDebugger, change: str | None) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=change is not None), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ids, labels = torch.randint(0, 9, (12,)), torch.randint(0, 3, (12,))
    if change == "scaled":
        model[0].weight.register_hook(lambda gradient: gradient * 3)

    fit(debugger, model, optimizer, lambda _: functional.cross_entropy(model(ids), labels))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_sparse_gradient_is_that_of_a_dense_one(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, looking_up, "sparse", level=level)
    assert verdict["class"] == "equal", verdict["sentence"]


def test_a_sparse_gradient_that_is_another_one_shows_in_the_update(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, looking_up, "scaled")
    assert verdict["class"] not in ("equal", "rounding", "precision"), verdict["sentence"]


class Part(nn.Module):
    """Mixes tokens and then channels; its results hardly show its second activation."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.tokens, self.channels = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mix, self.back = nn.Linear(6, 12), nn.Linear(12, 6)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = functional.gelu(self.mix(self.tokens(x).transpose(1, 2)))
        x = x + self.back(mixed).transpose(1, 2)
        return x + self.down(self.act(self.up(self.channels(x))))


class Halves(nn.Module):
    """A network in bfloat16."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embed, self.parts = nn.Linear(10, 16), nn.ModuleList([Part(act), Part(act)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for part in self.parts:
            x = part(x)
        return self.head(self.norm(x).mean(1))


def halving(debugger: PrecisionDebugger, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = Halves(act)
    for part in model.parts:
        part.down.weight.data.mul_(0.3)
    model = model.to(torch.bfloat16)
    data, labels = torch.randn(3, 16, 6, 10, dtype=torch.bfloat16), torch.randint(0, 8, (16,))

    def loss(number: int) -> torch.Tensor:
        return functional.cross_entropy(model(data[number]).float(), labels)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


def test_a_gradient_that_moves_is_told_with_the_call_of_one_side_alone(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, halving, functional.silu, functional.gelu)
    assert "only the target calls Functional.silu" in verdict["sentence"], verdict["sentence"]


def of_a_slope(debugger: PrecisionDebugger, change: str | None) -> None:
    """A loss of a slope, whose gradient is taken twice, and a penalty of the parameters."""
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    points = torch.rand(3, 10, 2)

    def loss(number: int) -> torch.Tensor:
        x = points[number].clone().requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        loss = (slope[:, :1] + u).square().mean()
        if change != "no penalty":
            loss = loss + 0.01 * sum(each.square().sum() for each in model.parameters())
        return loss

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_term_that_a_later_pass_lacks_is_named(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, of_a_slope, "no penalty", level=level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Tensor." in verdict["sentence"]


def playing(debugger: PrecisionDebugger, change: str | None) -> None:
    """A judge with a penalty on its slope, which learns first, and what it judges."""
    maker = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    of_maker, of_judge = (torch.optim.Adam(each.parameters(), 1e-3) for each in (maker, judge))
    data = torch.randn(3, 8, 6)
    for number in recorded_steps(debugger, [maker, judge]):
        made = maker(torch.randn(8, 4))
        if change != "not cleared":
            of_judge.zero_grad()
        up = functional.softplus(-judge(data[number])).mean()
        down = functional.softplus(judge(made.detach())).mean()
        mixed = (0.5 * data[number] + 0.5 * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        loss = 0.1 * (slope.norm(dim=1) - 1).square().mean()
        if change != "penalty alone":
            loss = up + down + loss
        if change != "no pass":
            loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        of_maker.step()


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("penalty alone", "call: only the reference calls Tensor.__add__"),
        ("no pass", "gradient: backward is called twice in the target, 3 times in the reference"),
        ("not cleared", "gradient: "),
    ],
)
def test_the_first_of_several_passes_is_told(
    change: str, expected: str, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, playing, change, level=level)
    assert verdict["sentence"].startswith(expected), verdict["sentence"]


def limiting(debugger: PrecisionDebugger, change: str | None) -> None:
    """Of two equal products, the gradient is split between both, unless one needs none."""
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    data, gains, taken = torch.randn(3, 8, 5), torch.randn(3, 8), torch.randint(0, 3, (3, 8))

    def loss(number: int) -> torch.Tensor:
        new = model(data[number]).log_softmax(-1).gather(1, taken[number][:, None]).squeeze(1)
        ratio, gain = (new - new.detach()).exp(), gains[number]
        limited = gain if change else ratio.clamp(0.8, 1.2) * gain
        return -torch.min(ratio * gain, limited).mean()

    fit(debugger, model, torch.optim.Adam(model.parameters(), 3e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_gradient_of_equal_elements_is_not_taken_for_none(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, limiting, "unlimited", level=level)
    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Tensor.__mul__" in verdict["sentence"]


def dividing(debugger: PrecisionDebugger, divisor: float) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    data, labels = torch.randn(3, 8, 5), torch.randint(0, 3, (3, 8))

    def loss(number: int) -> torch.Tensor:
        return functional.cross_entropy(model(data[number]), labels[number]) / divisor

    fit(debugger, model, torch.optim.Adam(model.parameters(), 3e-3), loss)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_known_divisor_is_no_scale_of_a_scaler(level: str, tmp_path: Path) -> None:
    sentence = verdict_on(tmp_path, dividing, 64.0, 2.0, level)["sentence"]
    assert "the factor is 2^-5; " in sentence, sentence
    assert "64" in sentence


class Weighed(nn.Module):
    """Learns how much two losses count, which begin with equal weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.logs = nn.Linear(4, 3), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def weighing(debugger: PrecisionDebugger, change: bool) -> None:
    model, batches = Weighed(), torch.randn(3, 8, 4)

    def loss(number: int) -> torch.Tensor:
        made = model(batches[number])
        terms = torch.stack([made.square().mean(), made.abs().mean()])
        total = (torch.exp(-model.logs) * terms).sum()
        return total if change else total + model.logs.sum()

    fit(debugger, model, torch.optim.Adam(model.parameters(), 1e-2), loss)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_term_that_is_zero_has_a_gradient(level: str, tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, weighing, True, False, level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "only the reference calls Tensor." in verdict["sentence"]


def limited(debugger: PrecisionDebugger, change: str | None) -> None:
    """The program limits gradients by itself, which hides by what the loss is multiplied."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    inputs = torch.randn(3, 16, 4)
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        squares = model(inputs[number]).square()
        loss = squares.sum() if change == "sum" else squares.mean()
        (loss * 32.0 if change == "scale" else loss).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))
        for gradient in gradients:
            gradient.mul_((0.1 / total).clamp(max=1.0))
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_sum_in_place_of_a_mean_is_no_scale_of_the_loss(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, limited, "sum", level=level)

    assert verdict["class"] == "call", verdict["sentence"]
    assert "the target calls Tensor.sum" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_scale_that_the_program_takes_back_by_a_limit_is_equal(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, limited, "scale", level=level)

    assert verdict["class"] == "equal", verdict["sentence"]
