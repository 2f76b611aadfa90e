# SPDX-License-Identifier: Apache-2.0
"""Programs in bfloat16 that compute the same by other calls, and causes as small as its rounding.

Rounding moves elements up and down, and the norms of gradients hardly; a factor moves them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from builders.recordings import recording  # noqa: E402
from builders.two_runs import compared, fit, verdict_on  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

WIDTH = 64


class Way(NamedTuple):
    """How a program computes, and what is wrong in it.

    Attributes:
        is_other: whether it makes other calls.
        factor: of the gradient of a weight.
        dropped: how many samples the loss leaves out.
        eps: of the layer norm.
        is_autocast: whether autocast computes in bfloat16, not the model.
    """

    is_other: bool = False
    factor: float = 1.0
    dropped: int = 0
    eps: float = 1e-5
    is_autocast: bool = False


class Recurrent(nn.Module):
    """Uses its weights in each time step; the other way takes the inputs of all of them at once."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._is_other = way.is_other
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.state = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        given = self.inner(x).unbind(1) if self._is_other else map(self.inner, x.unbind(1))
        state, made = torch.zeros_like(x[:, 0]), []
        for each in given:
            state = torch.tanh(each + self.state(state))
            made.append(state)
        return self.head(torch.stack(made).sum(0) if self._is_other else sum(made))


class Plain(nn.Module):
    """The same with parameters of its own; its product has the shape of its input."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._is_other = way.is_other
        self.inner = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.state = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        state, made = torch.zeros_like(x[:, 0]), []
        given = x @ self.inner if self._is_other else x
        for time in range(x.shape[1]):
            each = given[:, time] if self._is_other else given[:, time] @ self.inner
            state = torch.tanh(each + state @ self.state)
            made.append(state)
        return self.head(torch.stack(made).sum(0) if self._is_other else sum(made))


class Joined(nn.Module):
    """Calls a layer for each part of its input, or for all of them at once."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._is_other = way.is_other
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.state = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inner(x).unbind(1)
        if self._is_other:
            made = torch.relu(self.state(torch.cat(parts))).chunk(len(parts))
            return self.head(torch.stack(made).sum(0))
        return self.head(sum(torch.relu(self.state(each)) for each in reversed(parts)))


class Normed(nn.Module):
    """Normalises by a layer, or by calls in float32."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._is_other = way.is_other
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.state = nn.LayerNorm(WIDTH, eps=way.eps)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x).mean(1)
        if not self._is_other:
            return self.head(torch.relu(self.state(made)))
        wide = made.float()
        variance, mean = torch.var_mean(wide, -1, unbiased=False, keepdim=True)
        wide = (wide - mean) * torch.rsqrt(variance + self.state.eps) * self.state.weight
        return self.head(torch.relu((wide + self.state.bias).to(made.dtype)))


class Convolved(nn.Module):
    """Convolves by one call, or by a product of unfolded inputs."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self._is_other = way.is_other
        self.inner = nn.Conv1d(6, 8, 3, padding=1)
        self.state = nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        made, weight, bias = torch.relu(self.inner(x)), self.state.weight, self.state.bias
        if self._is_other:
            parts = F.unfold(made[:, :, None], (1, 3), padding=(0, 1))
            made = weight.flatten(1) @ parts + bias[:, None]
        else:
            made = F.conv1d(made, weight, bias, padding=1)
        return self.head(torch.relu(made).flatten(1))


def run(kind: type[nn.Module]):
    """Return a training of a model."""

    def training(debugger: PrecisionDebugger, way: Way) -> None:
        model = kind(way)
        if not way.is_autocast:
            model.bfloat16()
        if way.factor != 1.0:
            model.state.weight.register_hook(lambda gradient: gradient * way.factor)
        batches, labels = torch.randn(3, 64, 6, WIDTH), torch.randint(0, 10, (3, 64))

        def loss(number: int) -> Tensor:
            x = batches[number]
            with torch.autocast("cpu", torch.bfloat16, enabled=way.is_autocast):
                made = model(x if way.is_autocast else x.bfloat16())
                if way.dropped:
                    made = made[way.dropped :]
                loss = F.cross_entropy(made, labels[number][way.dropped :])
            return loss / 1

        fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss, zero_first=False)

    return training


MODELS = [Recurrent, Plain, Joined, Normed, Convolved]


@pytest.mark.parametrize("is_autocast", [True, False], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_other_calls_in_a_coarse_type_are_rounding(
    tmp_path: Path, kind: type[nn.Module], level: str, is_autocast: bool
) -> None:
    target = Way(is_other=True, is_autocast=is_autocast)
    reference = Way(is_autocast=is_autocast)
    summary = compared(tmp_path, run(kind), target, reference, level)

    verdict = summary["verdict"]
    assert summary["introduced"] == []
    assert verdict["class"] in ("equal", "rounding", "precision"), verdict["sentence"]
    assert verdict["confidence"] == "proved", verdict["sentence"]


@pytest.mark.parametrize("is_other", [True, False])
@pytest.mark.parametrize("is_autocast", [True, False], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_sample_that_a_loss_leaves_out_is_no_rounding(
    tmp_path: Path, level: str, is_autocast: bool, is_other: bool
) -> None:
    target = Way(is_other=is_other, is_autocast=is_autocast, dropped=1)
    reference = Way(is_autocast=is_autocast)
    verdict = compared(tmp_path, run(Recurrent), target, reference, level)["verdict"]

    assert verdict["class"] not in ("equal", "rounding", "precision"), verdict["sentence"]


@pytest.mark.parametrize(
    ("level", "is_other"), [("L1", False), ("mix", False), ("mix", True)], ids=str
)
@pytest.mark.parametrize("kind", [Recurrent, Joined, Convolved], ids=lambda kind: kind.__name__)
def test_a_gradient_that_moves_as_a_whole_is_told(
    tmp_path: Path, kind: type[nn.Module], level: str, is_other: bool
) -> None:
    # Kernels without fast bfloat16 round by 3 % where programs compute otherwise.
    target = Way(is_other=is_other, factor=1.03 if is_other else 1.01)
    verdict = compared(tmp_path, run(kind), target, Way(), level)["verdict"]

    assert verdict["confidence"] != "proved", verdict["sentence"]
    assert "state.weight" in verdict["sentence"]


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_gradients_that_two_batches_add_to_a_weight_used_by_the_module_around(
    tmp_path: Path, level: str
) -> None:
    sides = []
    for is_coarse in (True, False):
        torch.manual_seed(3)
        model = nn.ModuleList([nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(6)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = torch.randn(4, 4, 6, 16)
        with recording(tmp_path / str(is_coarse), level) as observed, observed.step_of(model):
            for x in batches:
                with torch.autocast("cpu", torch.bfloat16, enabled=is_coarse):
                    made = x
                    for layer in model:
                        made = made + layer(made, made, made, need_weights=False)[0]
                F.layer_norm(made.float(), (16,)).pow(3).mean().backward()
            optimizer.step()
        sides.append(tmp_path / str(is_coarse))
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    assert verdict["class"] == "precision", verdict["sentence"]


def normed(debugger: PrecisionDebugger, change: object) -> None:
    """Train a bfloat16 model whose norm computes in float32, or in bfloat16 as well."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            wide = x if change else x.float()
            size = wide.pow(2).mean(-1, keepdim=True) + 1e-6
            return (wide * size.rsqrt()).to(x.dtype) * self.weight

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Norm(), nn.Linear(WIDTH, 10)).bfloat16()
    batches, labels = torch.randn(3, 16, WIDTH).bfloat16(), torch.randint(0, 10, (3, 16))

    def loss(number: int) -> Tensor:
        return F.cross_entropy(model(batches[number]).float(), labels[number])

    fit(debugger, model, torch.optim.SGD(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_norm_that_computes_in_the_coarse_type_is_precision(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, normed, "narrow", None, level)

    assert verdict["class"] == "precision", verdict["sentence"]
    assert "bfloat16 in the target, float32 in the reference" in verdict["sentence"]


def turned(debugger: PrecisionDebugger, is_complex: bool) -> None:
    """Pairs of numbers are turned by angles: as complex numbers, or by their parts."""
    model = nn.Linear(8, 8)
    data = torch.randn(3, 5, 8)

    def loss(number: int) -> Tensor:
        angles = torch.outer(torch.arange(5.0), 0.1 ** torch.arange(4.0))
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = model(data[number]).reshape(5, 4, 2)
        if is_complex:
            made = torch.view_as_real(torch.view_as_complex(pairs) * turns)
        else:
            own, other = pairs.unbind(-1)
            real, imaginary = turns.real, turns.imag
            parts = own * real - other * imaginary, own * imaginary + other * real
            made = torch.stack(parts, -1)
        return (made.flatten(1) * data[number].sin()).sum(1).tanh().mean()

    fit(debugger, model, torch.optim.AdamW(model.parameters(), 1e-3), loss)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("is_complex", [True, False])
def test_complex_numbers_are_no_other_precision(
    is_complex: bool, level: str, tmp_path: Path
) -> None:
    verdict = verdict_on(tmp_path, turned, is_complex, not is_complex, level)
    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert "complex" not in verdict["sentence"]
