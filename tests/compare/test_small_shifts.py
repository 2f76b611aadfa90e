# SPDX-License-Identifier: Apache-2.0
"""Causes below what a coarse type resolves, in programs that are written otherwise as well.

No element shows them; that a value moves as a whole does. What moves nothing as a whole, such as
another approximation of GELU, is told from rounding by no measurement of one run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH, SAMPLES = 64, 2048
LEVELS, TYPES = ["L0", "L1", "mix"], ["autocast", "bfloat16"]
PROVED = ("equal", "rounding", "precision")


class Way(NamedTuple):
    """How a program computes, and what is wrong in it.

    Attributes:
        is_other: whether it makes other calls.
        kind: "autocast", or the type of all numbers.
        eps: of the norms.
        gain: of the result of a block in the middle.
        lost: samples that the loss leaves out.
        approximate: which GELU.
    """

    is_other: bool = False
    kind: str = "bfloat16"
    eps: float = 1e-5
    gain: float = 1.0
    lost: int = 0
    approximate: str = "none"


def block(way: Way, gain: float) -> nn.Module:
    """Return a norm and two layers around a residual; numbers stay out of its attributes."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(1))
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def norm(self, x: Tensor) -> Tensor:
            if not way.is_other:
                return F.layer_norm(x, (WIDTH,), self.weight, None, way.eps) + self.bias
            wide = x.float()
            variance, mean = torch.var_mean(wide, -1, unbiased=False, keepdim=True)
            wide = (wide - mean) * torch.rsqrt(variance + way.eps) * self.weight
            return wide.to(x.dtype) + self.bias

        def forward(self, x: Tensor) -> Tensor:
            made = F.gelu(self.up(self.norm(x)), approximate=way.approximate)
            weight, bias = self.down.weight, self.down.bias
            made = made @ weight.t() + bias if way.is_other else F.linear(made, weight, bias)
            return x + (made if gain == 1.0 else made * gain)

    return Block()


def run(debugger: PrecisionDebugger, way: Way) -> None:
    """Train a deep model for three steps."""
    depth = 6
    gains = [way.gain if place == depth // 2 else 1.0 for place in range(depth)]
    enter, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
    model = nn.Sequential(enter, *(block(way, gain) for gain in gains), head)
    is_autocast = way.kind == "autocast"
    dtype = getattr(torch, "float32" if is_autocast else way.kind)
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-6)
    batches, labels = torch.randn(3, 16, 8, WIDTH), torch.randint(0, 10, (3, 16, 8))

    def loss(number: int) -> Tensor:
        x, y = batches[number], labels[number]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            made = model(x.to(dtype))[way.lost :]
            return F.cross_entropy(made.flatten(0, 1), y[way.lost :].flatten())

    fit(debugger, model, optimizer, loss, zero_first=False)


LEGAL = [(level, kind) for level in LEVELS for kind in TYPES if (level, kind) != ("L1", TYPES[0])]


@pytest.mark.parametrize(("level", "kind"), LEGAL)
def test_other_calls_alone_are_rounding(tmp_path: Path, level: str, kind: str) -> None:
    verdict = verdict_on(tmp_path, run, Way(is_other=True, kind=kind), Way(kind=kind), level)

    assert verdict["class"] in PROVED, verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


@pytest.mark.parametrize("is_other", [False, True], ids=["same calls", "other calls"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fault", [{"eps": 1e-3}, {"gain": 1.01}, {"lost": 1}], ids=str)
def test_what_moves_values_as_a_whole_is_no_proved_rounding(
    tmp_path: Path, fault: dict[str, Any], level: str, kind: str, is_other: bool
) -> None:
    target = Way(is_other=is_other, kind=kind, **fault)
    verdict = verdict_on(tmp_path, run, target, Way(kind=kind), level)

    is_proved = verdict["class"] in PROVED and verdict["confidence"] == "proved"
    assert not is_proved, verdict["sentence"]


@pytest.mark.parametrize("is_other", [False, True], ids=["same calls", "other calls"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_argument_whose_effect_hides_in_rounding_is_named(
    tmp_path: Path, level: str, is_other: bool
) -> None:
    target = Way(is_other=is_other, approximate="tanh")
    verdict = verdict_on(tmp_path, run, target, Way(), level)

    assert verdict["confidence"] != "proved", verdict["sentence"]
    assert "approximate" in verdict["sentence"]


@pytest.mark.parametrize("level", LEVELS)
def test_squares_that_vanish_in_float16_accuse_no_optimizer(tmp_path: Path, level: str) -> None:
    ways = (Way(is_other=is_other, kind="float16") for is_other in (True, False))
    verdict = verdict_on(tmp_path, run, *ways, level=level)

    assert verdict["class"] not in ("update", "gradient"), verdict["sentence"]


def hooked(debugger: PrecisionDebugger, change: str | None) -> None:
    """Train by other calls, where code that is not recorded enlarges the gradients of a block."""
    blocks = [block(Way(is_other=bool(change)), 1.0) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 10)).to(torch.bfloat16)
    for weight in blocks[1].parameters() if change else ():
        weight.register_hook(lambda g: torch.from_numpy(g.float().numpy() * 1.03).to(g.dtype))  # type: ignore[no-untyped-call]
    batches, labels = torch.randn(3, 16, 8, WIDTH), torch.randint(0, 10, (3, 16, 8))

    def loss(number: int) -> Tensor:
        scores = model(batches[number].to(torch.bfloat16))
        return F.cross_entropy(scores.flatten(0, 1), labels[number].flatten())

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)


def test_the_first_gradient_that_moves_is_named_in_every_run(tmp_path: Path) -> None:
    verdict_on(tmp_path, hooked, "moved", level="L1")
    command = (
        "import sys, msprobe; r = msprobe.compare_dumps(*sys.argv[1:3], output=sys.argv[3]); "
        "print(r.summary['verdict']['sentence'])"
    )
    folders = [str(tmp_path / name) for name in ("target", "reference", "out")]
    said = {
        subprocess.run(
            [sys.executable, "-c", command, *folders],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for seed in "1234"
    }
    assert len(said) == 1, said


def normed(debugger: PrecisionDebugger, change: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.RMSNorm(8, eps=1.3e-5 if change else 1e-5))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    inputs = torch.randn(3, 6, 8)

    fit(debugger, model, optimizer, lambda number: model(inputs[number]).exp().mean())


@pytest.mark.parametrize("level", LEVELS)
def test_an_eps_whose_effect_is_within_the_tolerance_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, normed, "eps", None, level)
    assert "eps" in verdict["sentence"]
    assert "1.3" in verdict["sentence"]
    assert verdict["class"] == "argument" or verdict["confidence"] != "proved"


@pytest.mark.parametrize("level", LEVELS)
def test_without_another_eps_none_is_told(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, normed, None, None, level)
    assert (verdict["class"], verdict["confidence"]) == ("equal", "proved"), verdict["sentence"]


class Hook(NamedTuple):
    """A hook that multiplies the gradient of a norm's parameter, and how many threads sum it."""

    parameter: str
    factor: float = 1.0
    threads: int = 1


class Normed(nn.Module):
    """A norm and two layers around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, and what the block adds."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def run_with_hook(debugger: PrecisionDebugger, hook: Hook) -> None:
    """Train norms in bfloat16, whose gradients each number of threads sums in its own order."""
    before = torch.get_num_threads()
    torch.set_num_threads(hook.threads)
    blocks = (Normed() for _ in range(3))
    last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks, *last).bfloat16()
    if hook.factor != 1.0:
        model.get_parameter(hook.parameter).register_hook(lambda grad: grad * hook.factor)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-6)
    batches, labels = torch.randn(3, SAMPLES, WIDTH).bfloat16(), torch.randint(0, 10, (3, SAMPLES))

    def loss(number: int) -> Tensor:
        return F.cross_entropy(model(batches[number]).float(), labels[number])

    fit(debugger, model, optimizer, loss, zero_first=False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 1.5])
@pytest.mark.parametrize("parameter", ["1.norm.weight", "1.norm.bias", "4.weight"])
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_the_gradient_of_a_norm_that_a_hook_scales_is_no_rounding(
    tmp_path: Path, level: str, parameter: str, factor: float
) -> None:
    target, reference = Hook(parameter, factor, threads=2), Hook(parameter)
    verdict = verdict_on(tmp_path, run_with_hook, target, reference, level)

    assert verdict["confidence"] != "proved" or verdict["class"] == "gradient", verdict["sentence"]
    assert parameter in verdict["sentence"]


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_the_gradients_of_norms_that_other_threads_sum_are_rounding(
    tmp_path: Path, level: str
) -> None:
    target, reference = Hook("1.norm.bias", threads=2), Hook("1.norm.bias")
    verdict = verdict_on(tmp_path, run_with_hook, target, reference, level)

    assert verdict["class"] in PROVED, verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


class Turning(nn.Module):
    """Attention, in which one side turns the keys by an angle for each position."""

    def __init__(self, *, turns: bool) -> None:
        super().__init__()
        self.turn = turn if turns else nn.Module()
        self.norm, self.leave = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.enter = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, and what the tokens take from each other."""
        normed = self.norm(x)
        q, k, v = (enter(normed) for enter in self.enter)
        k = k if isinstance(self.turn, nn.Module) else self.turn(k)
        return x + self.leave(F.scaled_dot_product_attention(q, k, v, is_causal=True))


def turn(x: Tensor) -> Tensor:
    """Return a tensor whose last dimension is turned as in rotary embeddings."""
    angles = torch.outer(torch.arange(x.shape[-2]).float(), 100.0 ** -torch.arange(0, 1, 2 / WIDTH))
    first, second = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def attending(debugger: PrecisionDebugger, turns: bool) -> None:
    layers = (Turning(turns=turns) for _ in range(2))
    model = nn.Sequential(nn.Embedding(32, WIDTH), *layers, nn.Linear(WIDTH, 32)).bfloat16()
    tokens = torch.randint(0, 32, (3, 4, 9))

    def loss(number: int) -> Tensor:
        x, y = tokens[number, :, :-1], tokens[number, :, 1:]
        return F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)


def test_calls_by_which_a_gradient_moves_are_no_precision(tmp_path: Path) -> None:
    verdict = verdict_on(tmp_path, attending, False, True, level="L0")

    assert (verdict["class"], verdict["confidence"]) == ("call", "possible"), verdict["sentence"]
    assert "only the reference calls Tensor.__neg__" in verdict["sentence"]


def in_bfloat16(debugger: PrecisionDebugger, is_cast: bool) -> None:
    """Reconstruct under autocast; the loss is taken in float32, or of a rounded image."""
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    images = 0.301 + 0.4 * (torch.rand(3, 24, 16) > 0.5).float()  # rounded to one side

    def loss(number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):  # which computes the loss in float32
            found, wanted = model(images[number]), images[number]
            if is_cast:
                return F.mse_loss(found, wanted.bfloat16())
            return F.mse_loss(found.float(), wanted)

    fit(debugger, model, torch.optim.SGD(model.parameters(), 0.1), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_cast_behind_which_a_value_moves_is_precision(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, in_bfloat16, True, False, level)

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "Tensor.bfloat16.0.forward (test_small_shifts.py" in verdict["sentence"]
