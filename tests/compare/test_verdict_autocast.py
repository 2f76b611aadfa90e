# SPDX-License-Identifier: Apache-2.0
"""Verdicts where both sides compute in a coarse type, under autocast, and make other calls."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.two_runs import fit, recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = [pytest.mark.torch]

WIDTH = 16


class Attention(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        projections = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        if way == "fused":
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([each.weight for each in projections]))
                self.qkv.bias.copy_(torch.cat([each.bias for each in projections]))
        else:
            self.q, self.k, self.v = projections
        torch.manual_seed(3)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            self.qkv(x).chunk(3, -1) if self.way == "fused" else (self.q(x), self.k(x), self.v(x))
        )
        if self.way == "chunks":
            parts = [functional.scaled_dot_product_attention(each, k, v) for each in q.split(3, 1)]
            y = torch.cat(parts, 1)
        elif self.way == "by hand":
            y = (q @ k.transpose(1, 2) / WIDTH**0.5).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        if self.way == "not mixed":
            y = y + v
        result: Tensor = self.out(y)
        return result


class Block(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        epsilon = {"small epsilon": 1e-3}.get(way, 1e-5)
        self.norm = nn.LayerNorm(WIDTH, eps=epsilon)
        self.attention = Attention(way)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x + self.attention(self.norm(x)))
        return result


def attend(debugger: PrecisionDebugger, way: str) -> None:
    model = Block(way)
    torch.manual_seed(5)
    with torch.no_grad():
        model.norm.weight.copy_(1 + 0.1 * torch.randn(WIDTH))
        model.head.weight.copy_(torch.randn(1, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x, y = torch.randn(4, 9, WIDTH), torch.randn(4, 9, 1)
    for _ in recorded_steps(debugger, model):
        with torch.autocast("cpu", torch.bfloat16):
            made = model(x)
        functional.mse_loss(made.float(), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("way", ["chunks", "by hand", "fused"])
def test_other_calls_round_otherwise_in_the_type_of_autocast(tmp_path: Path, way: str) -> None:
    verdict = verdict_on(tmp_path, attend, way, "plain", "mix")

    assert verdict["class"] in ("equal", "rounding")


@pytest.mark.parametrize(("way", "wanted"), [("not mixed", "call"), ("small epsilon", "argument")])
def test_a_fault_is_no_rounding_of_autocast(tmp_path: Path, way: str, wanted: str) -> None:
    verdict = verdict_on(tmp_path, attend, way, "plain", "mix")

    assert verdict["class"] == wanted


def weigh(debugger: PrecisionDebugger, is_by_hand: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 3))
    x = torch.rand(4, 1, 8, 8)
    goal = torch.rand(4, 1, 4, 4)
    for _ in recorded_steps(debugger, model):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(x)
            if is_by_hand:
                parts = functional.softplus(scores) - scores * goal
            else:
                parts = functional.binary_cross_entropy_with_logits(scores, goal, reduction="none")
        parts.sum((1, 2, 3)).mean().backward()


def test_a_loss_by_other_calls_rounds_otherwise_though_a_bias_gets_noise(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, weigh, True, False, "mix")

    assert verdict["class"] in ("equal", "rounding", "precision")


def adapt(debugger: PrecisionDebugger, option: tuple[bool, bool]) -> None:
    asks, is_coarse = option
    frozen = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())
    model = nn.ModuleDict({"frozen": frozen, "adapter": nn.Linear(WIDTH, WIDTH)})
    frozen.requires_grad_(False)
    if asks:
        frozen[0].register_forward_hook(lambda _, __, output: output.requires_grad_(True))
    x = torch.randn(4, WIDTH)
    for _ in recorded_steps(debugger, model):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_coarse):
            made = model["adapter"](frozen(x))
        made.square().mean().backward()


def test_a_gradient_that_gets_to_nothing_trained_is_no_cause(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, adapt, (True, True), (False, False), "mix")

    assert verdict["class"] == "precision", verdict["sentence"]


class Shifting(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x))
        if self.way.endswith("factor"):
            y = y * (1.004 if self.way == "small factor" else 1.01)
        elif self.way == "summand":
            y = y + 0.01
        y = functional.gelu(y)
        by_hand = self.way == "by hand"
        down = self.down
        result: Tensor = x + (y @ down.weight.t() + down.bias if by_hand else down(y))
        return result


def shift(debugger: PrecisionDebugger, way: str) -> None:
    model = nn.Sequential(nn.Embedding(20, 16), Shifting(""), Shifting(way), Shifting(""))
    words = torch.randint(0, 20, (4, 9))

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            made = model(words)
        return made.square().mean()

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("way", ["factor", "small factor", "summand"])
@pytest.mark.parametrize("level", ["mix", "L1", "L0"])
def test_what_moves_as_a_whole_is_not_proved_to_be_rounding(
    tmp_path: Path, way: str, level: str
) -> None:
    verdict = verdict_on(tmp_path, shift, way, "", level)

    assert verdict["confidence"] != "proved"
    call = "__add__.1" if way == "summand" else "__mul__.0"
    named = "moves as a whole by" if level == "L0" else f"only the target calls Tensor.{call}"
    assert named in verdict["sentence"]


@pytest.mark.parametrize("level", ["mix", "L1"])
def test_what_is_rounded_up_and_down_is_proved(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, shift, "by hand", "", level)

    assert verdict["class"] in ("equal", "rounding", "precision")
    assert verdict["confidence"] == "proved"


def accumulate(debugger: PrecisionDebugger, way: str) -> None:
    """Two micro batches with their backward passes, inside one region of autocast or none."""
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    model = nn.Sequential(first, nn.GELU(), second)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data, labels = torch.randn(3, 2, 10, 8), torch.randint(0, 4, (3, 2, 10))
    for number in recorded_steps(debugger, model):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way != "off"):
            for micro in range(2):
                out = model(data[number, micro])
                if way == "scaled" and micro:
                    out = out * 1.5
                functional.cross_entropy(out, labels[number, micro]).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["mix", "L1"])
@pytest.mark.parametrize("sides", [("", "off"), ("off", "")])
def test_weights_that_autocast_casts_once_have_their_gradients(
    tmp_path: Path, sides: tuple[str, str], level: str
) -> None:
    verdict = verdict_on(tmp_path, accumulate, *sides, level)
    assert verdict["class"] == "precision", verdict["sentence"]


@pytest.mark.parametrize("level", ["mix", "L1"])
def test_a_call_too_many_is_named_beside_autocast(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, accumulate, "scaled", "off", level)
    assert "only the target calls Tensor.__mul__.0" in verdict["sentence"], verdict["sentence"]


class Patches(nn.Module):
    """Cuts pictures into patches, with few weights, under an autocast of its own."""

    def __init__(self, is_coarse: bool) -> None:
        super().__init__()
        chosen.clear()
        chosen.add(is_coarse)
        self.patch, self.norm, self.head = nn.Conv2d(3, 4, 4, 4), nn.LayerNorm(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=True in chosen):
            x = self.patch(x).flatten(2).transpose(1, 2)
            made: torch.Tensor = self.head(self.norm(x).mean(1))
        return made.float()


chosen: set[bool] = set()  # not an attribute of a module: comparisons would name it


@pytest.mark.parametrize("seed", [1, 2])
def test_what_few_rounded_weights_move_as_a_whole_is_precision(seed: int, tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_coarse: bool) -> None:
        torch.manual_seed(seed)
        model = Patches(is_coarse)
        x, y = torch.randn(3, 512, 3, 16, 16), torch.randint(0, 5, (3, 512))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        fit(debugger, model, optimizer, lambda n: nn.functional.cross_entropy(model(x[n]), y[n]))

    verdict = verdict_on(tmp_path, run, False, True)

    assert verdict["class"] == "precision", verdict["sentence"]


@pytest.mark.parametrize(("limit", "confidence"), [(5.0, "proved"), (4.9, "likely")])
def test_autocast_beside_another_number_is_not_proved(
    tmp_path: Path, limit: float, confidence: str
) -> None:
    """At level L0, where no record shows the number and the loss alone tells its effect."""

    def run(debugger: PrecisionDebugger, is_changed: bool) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        data, share = torch.randn(3, 16, 8), 0.832 * torch.rand(3, 16, 1)

        def loss(number: int) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_changed):
                made = model(data[number])
            ratio = share[number] / (1 - share[number])
            weight = ratio.clamp(max=limit if is_changed else 5.0) / ratio
            return (weight * (made.float() - data[number])).square().mean()

        fit(debugger, model, optimizer, loss)

    verdict = verdict_on(tmp_path, run, True, False, "L0")

    assert verdict["class"] == "precision", verdict["sentence"]
    assert verdict["confidence"] == confidence, verdict["sentence"]


@pytest.mark.parametrize(("wrong", "expected"), [(0.0, "precision"), (0.5, "argument")])
def test_a_batch_near_one_made_of_a_result_under_autocast_is_no_data(
    tmp_path: Path, wrong: float, expected: str
) -> None:
    """At level L0, where no record shows of what it is made."""

    def run(debugger: PrecisionDebugger, is_coarse: bool) -> None:
        models = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 4)])
        optimizer = torch.optim.Adam(models.parameters(), 1e-3)
        data, real = torch.randn(3, 16, 6), torch.randn(3, 16, 8)

        def loss(number: int) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_coarse):
                with torch.no_grad():
                    given = real[number] + models[0](data[number])
                made = models[1](given + wrong * is_coarse)
            return made.float().square().mean() + models[0](data[number]).square().mean()

        fit(debugger, models, optimizer, loss)

    verdict = verdict_on(tmp_path, run, True, False, "L0")

    assert verdict["class"] == expected, verdict["sentence"]
