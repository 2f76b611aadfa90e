# SPDX-License-Identifier: Apache-2.0
"""A fifth set of runs and troubles for the alert rules, with other models, optimizers, schedules.

It was written after the rules and scored once before anything was changed: 1 false incident in 30
healthy runs, 22 of 24 troubles caught, 21 at the right place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from monitor_runs import MODELS, OPTIMIZERS, SCHEDULES, STEPS, Recipe, Run
from monitor_troubles import (
    FORWARD,
    GRADIENTS,
    UPDATES,
    Trouble,
    bad_batches,
    half_state,
    nan_weight,
    once,
    overflow,
    reset_state,
    scale_gradients,
    scale_weight,
    set_beta,
    set_factor,
)
from torch import nn
from torch.nn import functional


class Denoiser(nn.Module):
    """Predicts the noise of signals at a random level of noise, as diffusion models do."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(2, 12, 3, padding=1)
        self.middle = nn.Conv1d(12, 12, 3, padding=1)
        self.norm = nn.GroupNorm(3, 12)
        self.up = nn.Conv1d(24, 1, 3, padding=1)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        phase = 6.3 * torch.rand(size, 1, 1, generator=generator)
        level = torch.rand(size, 1, 1, generator=generator)
        noise = torch.randn(size, 1, 16, generator=generator)
        clean = torch.sin(phase + torch.arange(16) / 2)
        noisy = (1 - level).sqrt() * clean + level.sqrt() * noise
        return torch.cat([noisy, level.expand(-1, -1, 16)], 1), noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = functional.silu(self.down(x))
        return self.up(torch.cat([first, functional.silu(self.norm(self.middle(first)))], 1))

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, y)


class Graph(nn.Module):
    """Passes messages over random graphs and adds up their nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(4, 16)
        self.messages = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 1)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        edges = (torch.rand(size, 7, 7, generator=generator) < 0.4).float()
        nodes = torch.randn(size, 7, 4, generator=generator)
        return torch.cat([nodes, edges], 2), (edges @ nodes[..., :1].abs()).sum((1, 2)) / 7

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        edges, h = x[..., 4:], functional.elu(self.inlet(x[..., :4]))
        for layer in self.messages:
            h = h + functional.elu(layer(edges @ h / 3))
        return self.head(h).sum((1, 2))

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.smooth_l1_loss(output, y)


class Uncertain(nn.Module):
    """Predicts mean and variance; the loss, a likelihood, becomes negative."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 24), nn.Mish())
        self.mean, self.size = nn.Linear(24, 1), nn.Linear(24, 1)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 6, generator=generator)
        noise = torch.randn(size, 1, generator=generator)
        return x, 0.3 * x[:, :1] * x[:, 1:2] + (0.02 + 0.1 * torch.sigmoid(x[:, 2:3])) * noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return torch.cat([self.mean(h), self.size(h)], 1)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.gaussian_nll_loss(output[:, :1], y, functional.softplus(output[:, 1:]))


class Triplets(nn.Module):
    """Learns distances with a margin: of more and more triplets the loss is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 8))
        self.centres = torch.randn(6, 12, generator=torch.Generator().manual_seed(31))

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        kind = torch.randint(6, (size,), generator=generator)
        other = (kind + torch.randint(1, 6, (size,), generator=generator)) % 6
        chosen = self.centres[torch.stack([kind, kind, other], 1)]
        return chosen + 1.2 * torch.randn(chosen.shape, generator=generator), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.triplet_margin_loss(*output.unbind(1), margin=0.5)


class Recommender(nn.Module):
    """Two tables of embeddings of which a batch touches few rows, some of them hardly ever."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(60, 8), nn.Embedding(90, 8)
        self.bias = nn.Embedding(90, 1)
        self.top = nn.Sequential(nn.Linear(16, 12), nn.Hardswish(), nn.Linear(12, 1))
        self.taste = torch.randn(60, 90, generator=torch.Generator().manual_seed(32))

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        user = torch.randint(60, (size,), generator=generator)
        item = (90 * torch.rand(size, generator=generator) ** 3).long()
        return torch.stack([user, item], 1), (self.taste[user, item] > 0.5).float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        user, item = x[:, 0] % 60, x[:, 1] % 90
        pair = torch.cat([self.users(user), self.items(item)], 1)
        return (self.top(pair) + self.bias(item))[:, 0]

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(output, y)


class Signum(torch.optim.Optimizer):
    """Sign of the momentum (Bernstein et al., 2018)."""

    def __init__(self, parameters: Any, lr: float = 5e-4) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": 0.9})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    state = self.state[one]
                    mean = state.setdefault("momentum_buffer", torch.zeros_like(one))
                    mean.lerp_(one.grad, 1 - group["momentum"])
                    one.add_(mean.sign(), alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
    """Adam with a rate for each tensor, by the quotient of its norms (You et al., 2019)."""

    def __init__(self, parameters: Any, lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            first, second = group["betas"]
            for one in group["params"]:
                if one.grad is None:
                    continue
                state = self.state[one]
                mean = state.setdefault("exp_avg", torch.zeros_like(one))
                square = state.setdefault("exp_avg_sq", torch.zeros_like(one))
                mean.lerp_(one.grad, 1 - first)
                square.lerp_(one.grad.square(), 1 - second)
                update = mean / (square.sqrt() + 1e-6) + group["weight_decay"] * one
                trust = one.norm() / update.norm() if one.any() and update.any() else 1.0
                one.sub_(update * (group["lr"] * trust))


_NEW_MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "denoiser": Denoiser,
    "graph": Graph,
    "uncertain": Uncertain,
    "triplets": Triplets,
    "recommender": Recommender,
}
_NEW_OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "signum": Signum,
    "lamb": Lamb,
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.02, t0=100),
    "adam, large eps": lambda p: torch.optim.Adam(p, lr=5e-3, betas=(0.8, 0.9), eps=1e-3),
    "adamw, no first": lambda p: torch.optim.AdamW(p, lr=2e-3, betas=(0.0, 0.98)),
    "damped sgd": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.8, dampening=0.8, weight_decay=1e-3
    ),
}
_NEW_SCHEDULES: Final[dict[str, Callable[[int], float]]] = {
    "one cycle": lambda step: (
        0.04 + 0.96 * step / 90 if step < 90 else 0.5 * (1 + math.cos(math.pi * (step - 90) / 211))
    ),
    "inverse root": lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5),
    "stable, decay": lambda step: min(1.0, (step + 1) / 20, (STEPS - step) / 60),
    "exponential": lambda step: 0.99**step,
    "steps up": lambda step: 0.3 * 1.4 ** (step // 60),
}
MODELS.update(_NEW_MODELS)
OPTIMIZERS.update(_NEW_OPTIMIZERS)
SCHEDULES.update(_NEW_SCHEDULES)


def healthy_recipes() -> list[Recipe]:
    """Return 30 healthy runs: each model with each optimizer, schedules in turn."""
    models, optimizers, schedules = map(list, (_NEW_MODELS, _NEW_OPTIMIZERS, _NEW_SCHEDULES))
    return [
        Recipe(
            models[number % 5],
            optimizers[number % 6],
            schedules[(number // 2) % 5],
            ranks=2 if number % 10 == 4 else 1,
            seed=900 + number,
            clip=1.0 if number % 4 == 2 else None,
            scaled=number % 9 == 5,
        )
        for number in range(30)
    ]


def _missing(run: Run) -> None:
    run.reduces = False


def troubles() -> list[Trouble]:
    """Return 24 troubles."""
    noise = Recipe("denoiser", "adam, large eps", "one cycle", seed=951)
    noise2 = Recipe("denoiser", "lamb", "inverse root", ranks=2, seed=952)
    graph = Recipe("graph", "adamw, no first", "stable, decay", seed=953, clip=1.0)
    graph2 = Recipe("graph", "adam, large eps", "exponential", ranks=2, seed=954)
    unsure = Recipe("uncertain", "lamb", "steps up", seed=955)
    unsure3 = Recipe("uncertain", "adamw, no first", "one cycle", ranks=3, seed=956)
    triplets = Recipe("triplets", "adam, large eps", "inverse root", seed=957)
    tables = Recipe("recommender", "damped sgd", "exponential", seed=958)
    tables2 = Recipe("recommender", "signum", "stable, decay", ranks=2, seed=959)
    scaled = Recipe("graph", "lamb", "one cycle", seed=960, scaled=True)

    def weight(kind: str, recipe: Recipe, layer: str, factor: float) -> Trouble:
        act = once(lambda run: scale_weight(run, f"{layer}.weight", factor))
        return Trouble(kind, recipe, (layer,), FORWARD, act)

    def gradient(kind: str, recipe: Recipe, layer: str, factor: float) -> Trouble:
        return Trouble(kind, recipe, (layer,), GRADIENTS, once(scale_gradients((layer,), factor)))

    def of_run(kind: str, recipe: Recipe, name: str, act: Callable[[Run], None]) -> Trouble:
        return Trouble(kind, recipe, (name,), ("run",), once(act))

    def stale(recipe: Recipe, name: str) -> Trouble:
        act = once(lambda run: run.stale.add(name))
        return Trouble("stale parameter", recipe, (name,), UPDATES, act)

    def data(kind: str, recipe: Recipe, first: str, rank: int, steps: int) -> Trouble:
        act = bad_batches({rank}, steps)
        return Trouble(kind, recipe, ("loss", first), ("run", "actv"), act)

    states, half = ("exp_avg", "exp_avg_sq", "state"), half_state(torch.bfloat16)
    return [
        weight("exploding layer", noise, "middle", 40),
        weight("exploding layer", graph, "messages.1", 30),
        weight("exploding layer", tables, "top.0", 50),
        weight("vanishing", unsure, "body.2", 1e-3),
        gradient("vanishing", graph, "messages.0", 1e-4),
        Trouble("NaN", noise2, ("up",), FORWARD, once(lambda run: nan_weight(run, "up.weight"))),
        gradient("NaN", triplets, "embed.0", math.nan),
        of_run("lr x10", graph, "lr.0", set_factor(10)),
        of_run("lr x10", tables, "lr.0", set_factor(10)),
        of_run("lr zero", noise, "lr.0", set_factor(0)),
        of_run("lr zero", unsure, "lr.0", set_factor(0)),
        stale(noise, "down.weight"),
        stale(unsure, "body.0.weight"),
        data("corrupt batch", graph, "inlet", 0, 2),
        data("corrupt batch", unsure, "body.0", 0, 1),
        data("one rank's wrong data", noise2, "down", 1, 300),
        data("one rank's wrong data", graph2, "inlet", 1, 300),
        Trouble("optimizer state reset", unsure3, ("",), states, once(reset_state)),
        Trouble("optimizer state reset", tables2, ("",), states, once(reset_state)),
        Trouble("loss-scale collapse", scaled, ("loss_scale",), ("run",), overflow),
        Trouble("second moment in bfloat16", graph2, ("",), ("exp_avg_sq",), half),
        of_run("wrong beta", noise, "betas", set_beta(0.5)),
        Trouble("missing all-reduce", graph2, ("",), ("grad_reduced",), once(_missing)),
        Trouble("missing all-reduce", tables2, ("",), ("grad_reduced",), once(_missing)),
    ]
