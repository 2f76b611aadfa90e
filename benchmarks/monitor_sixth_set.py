# SPDX-License-Identifier: Apache-2.0
"""A sixth set: other models, optimizers and schedules, and kinds of troubles that no set had.

It was written after the rules and scored once before anything was changed: no false incident in 8
healthy runs, 6 of 8 troubles caught, 6 at the right place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Final

import torch
from monitor_runs import MODELS, OPTIMIZERS, SCHEDULES, STEPS, Recipe, Run
from monitor_troubles import FORWARD, GRADIENTS, UPDATES, Trouble, once, parameter
from torch import nn
from torch.nn import functional


class Patches(nn.Module):
    """Transformer over patches with a class token; blocks are left out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.head = nn.Linear(24, 5)
        self.centres = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(41))

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        kind = torch.randint(5, (size,), generator=generator)
        noise = 2.0 * torch.randn(size, 3, 8, 8, generator=generator)
        return self.centres[kind] + noise, kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        for number, block in enumerate(self.blocks):
            kept = (torch.rand(len(x), 1, 1) > 0.1 * number).float()
            x = x + kept * (block(x) - x)
        return self.head(x[:, 0])


class Waves(nn.Module):
    """A network of sines from coordinates to a picture (Sitzmann et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, 24) for size in (2, 24, 24))
        self.out = nn.Linear(24, 3)
        for number, layer in enumerate(self.layers):
            bound = 0.5 if number == 0 else math.sqrt(6 / 24) / 10
            nn.init.uniform_(layer.weight, -bound, bound)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = 2 * torch.rand(size, 2, generator=generator) - 1
        u, v = x.T
        return x, torch.stack([(3 * u).sin(), (4 * u * v).cos(), (u - v).abs()], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(10 * layer(x))
        return self.out(x)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, y)


class StateSpace(nn.Module):
    """Diagonal linear recurrences with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 20)
        self.decay = nn.ParameterList(nn.Parameter(torch.linspace(-2, 3, 20)) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))
        self.mixes = nn.ModuleList(nn.Linear(20, 20) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(20) for _ in range(2))
        self.head = nn.Linear(20, 2)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 10, 4, generator=generator)
        return x, (x[..., 0].cumsum(1)[:, -1] > x[:, 0, 1]).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x)
        for decay, gate, mix, norm in zip(
            self.decay, self.gates, self.mixes, self.norms, strict=True
        ):
            keep, state, states = decay.sigmoid(), torch.zeros_like(x[:, 0]), []
            for column in norm(x).unbind(1):
                state = keep * state + (1 - keep) * column
                states.append(state)
            x = x + mix(torch.stack(states, 1)) * functional.silu(gate(x))
        return self.head(x[:, -1])


class Flow(nn.Module):
    """Coupling layers that learn the density of two arcs."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(2, 24), nn.ReLU(), nn.Linear(24, 4)) for _ in range(4)
        )

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        angle = math.pi * torch.rand(size, generator=generator)
        side = (torch.rand(size, generator=generator) < 0.5).float()
        arcs = torch.stack([angle.cos() + side, angle.sin() * (1 - 2 * side)], 1)
        noise = 0.1 * torch.randn(size, 4, generator=generator)
        return torch.cat([arcs, arcs.flip(1)], 1) + noise, side

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.zeros(len(x))
        for net in self.nets:
            left, right = x.chunk(2, 1)
            scale, shift = net(left).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([right * scale.exp() + shift, left], 1)
            size = size + scale.sum(1)
        return torch.cat([x, size[:, None]], 1)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        del y
        return (0.5 * output[:, :4].square().sum(1) - output[:, 4]).mean()


class Values(nn.Module):
    """Learns the values of states from its own slowly following copy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)
        self.slow = [one.detach().clone() for one in self.parameters()]

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 2, 6, generator=generator)
        return x, torch.randint(3, (size,), generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now, following = x.unbind(1)
        values = self.head(self.body(now))
        with torch.no_grad():
            for slow, one in zip(self.slow, self.parameters(), strict=True):
                slow.lerp_(one, 0.02)
            first, first_bias, second, second_bias, last, last_bias = self.slow
            hidden = functional.linear(following, first, first_bias).relu()
            hidden = functional.linear(hidden, second, second_bias).relu()
            later = functional.linear(hidden, last, last_bias).amax(1)
            target = now[:, :3] * now[:, 3:].cos() + 0.9 * later[:, None]
        return torch.stack([values, target], 1)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        values, target = output.unbind(1)
        index = y[:, None]
        return functional.smooth_l1_loss(values.gather(1, index), target.gather(1, index))


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024)."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.95, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is None:
                    continue
                mean = self.state[one].setdefault("momentum_buffer", torch.zeros_like(one))
                mean.mul_(group["momentum"]).add_(one.grad)
                update = mean / (mean.norm() + 1e-7)
                if one.dim() == 2:
                    for _ in range(5):
                        product = update @ update.T
                        update = 1.5 * update - 0.5 * product @ update
                one.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])


_NEW_MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "patches": Patches,
    "waves": Waves,
    "state space": StateSpace,
    "flow": Flow,
    "values": Values,
}
_NEW_OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "muon": Muon,
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=5e-3),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "adamw, heavy decay": lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=0.3),
}
_NEW_SCHEDULES: Final[dict[str, Callable[[int], float]]] = {
    "cosine to a tenth": lambda step: (
        min(1.0, (step + 1) / 25) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    ),
    "polynomial": lambda step: (1 - step / STEPS) ** 2,
    "sawtooth": lambda step: 1 - 0.8 * (step % 50) / 50,
    "warmed again": lambda step: (
        min(1.0, (step + 1) / 20) if step < 150 else min(1.0, 0.1 + 0.9 * (step - 150) / 30)
    ),
}
MODELS.update(_NEW_MODELS)
OPTIMIZERS.update(_NEW_OPTIMIZERS)
SCHEDULES.update(_NEW_SCHEDULES)


def healthy_recipes() -> list[Recipe]:
    """Return 8 healthy runs."""
    return [
        Recipe("patches", "adamw, heavy decay", "cosine to a tenth", ranks=2, seed=1000, clip=1.0),
        Recipe("patches", "muon", "warmed again", seed=1001),
        Recipe("waves", "adafactor", "polynomial", seed=1002),
        Recipe("waves", "adamw, heavy decay", "sawtooth", seed=1003),
        Recipe("state space", "muon", "sawtooth", ranks=2, seed=1004),
        Recipe("state space", "plain sgd", "warmed again", seed=1005, scaled=True),
        Recipe("flow", "adafactor", "cosine to a tenth", seed=1006, clip=1.0),
        Recipe("values", "adamw, heavy decay", "polynomial", seed=1007),
    ]


@torch.no_grad()
def _drift_of_one_rank(run: Run) -> None:
    parameter(run.replicas[1], "head.weight").mul_(1.001)


@torch.no_grad()
def _dead(run: Run) -> None:
    parameter(run.replicas[0], "body.2.bias").fill_(-50.0)


def _clip_lost(run: Run) -> None:
    run.recipe = dataclasses.replace(run.recipe, clip=1e9)


def _undivided(run: Run) -> None:
    def grown(replica: Any) -> None:
        for one in replica.parameters:
            if one.grad is not None:
                one.grad.mul_(8)

    run.before_gradients = grown


def _heavier(run: Run) -> None:
    for group in run.replicas[0].optimizer.param_groups:
        group["weight_decay"] *= 100


def _labels_off(run: Run) -> None:
    model = run.replicas[0].model
    true = type(model).batch

    def shifted(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = true(model, size, generator)
        return x, (y + 1) % 5

    model.batch = shifted


def _detached(run: Run) -> None:
    for name in ("gates.1.weight", "gates.1.bias"):
        parameter(run.replicas[0], name).requires_grad_(False)


@torch.no_grad()
def _rounded(run: Run, _step: int) -> None:
    for one in run.replicas[0].parameters:
        one.copy_(one.bfloat16())


def troubles() -> list[Trouble]:
    """Return 8 troubles, each of a kind that no other set has."""
    patches = Recipe("patches", "adamw, heavy decay", "cosine to a tenth", seed=1052)
    patches2 = Recipe("patches", "muon", "warmed again", ranks=2, seed=1051)
    waves = Recipe("waves", "plain sgd", "cosine to a tenth", seed=1053, clip=0.05)
    waves_adam = Recipe("waves", "adafactor", "sawtooth", seed=1054)
    space = Recipe("state space", "muon", "sawtooth", seed=1055)
    flow = Recipe("flow", "adamw, heavy decay", "polynomial", seed=1056)
    flow_sgd = Recipe("flow", "plain sgd", "polynomial", seed=1057)
    values = Recipe("values", "adafactor", "warmed again", seed=1058)
    states = ("exp_avg", "exp_avg_sq", "state")
    return [
        Trouble("weights of one rank", patches2, ("head",), FORWARD, once(_drift_of_one_rank)),
        Trouble("dead units", values, ("body.2", "body.3"), FORWARD, once(_dead)),
        Trouble("clipping lost", waves, ("clipped", ""), ("run", *UPDATES), once(_clip_lost)),
        Trouble("gradients undivided", waves_adam, ("",), ("run", *GRADIENTS), once(_undivided)),
        Trouble("weight decay x100", flow, ("weight_decay",), ("run",), once(_heavier)),
        Trouble(
            "labels off by one", patches, ("loss", "head"), ("run", *GRADIENTS), once(_labels_off)
        ),
        Trouble(
            "detached layer", space, ("gates.1",), (*GRADIENTS, *UPDATES, *states), once(_detached)
        ),
        Trouble("weights in bfloat16", flow_sgd, ("",), UPDATES, _rounded),
    ]
