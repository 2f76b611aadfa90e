# SPDX-License-Identifier: Apache-2.0
"""A third set of runs and troubles for the alert rules.

It has models, optimizers and schedules that the first two have not. It was written after the rules
and scored once before anything was changed: 3 false incidents in 30 healthy runs, 36 of 42 troubles
caught, 32 at the right place.
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
    dead_expert,
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


class Autoencoder(nn.Module):
    """Reconstructs points near a curved surface through a narrow layer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(20, 24), nn.SiLU(), nn.Dropout(0.1), nn.Linear(24, 4)
        )
        self.decoder = nn.Sequential(nn.Linear(4, 24), nn.SiLU(), nn.Linear(24, 20))
        self.mix = torch.randn(3, 20, generator=torch.Generator().manual_seed(8))

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.randn(size, 3, generator=generator)
        x = torch.tanh(hidden @ self.mix) + 0.05 * torch.randn(size, 20, generator=generator)
        return x, x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, y)


class Regression(nn.Module):
    """Residual blocks with batch normalisation; targets with heavy tails, Huber loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(12, 20)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 20)) for _ in range(5)
        )
        self.outlet = nn.Linear(20, 1)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 12, generator=generator)
        noise = torch.randn(size, 1, generator=generator) / (
            torch.rand(size, 1, generator=generator) + 0.05
        )
        return x, (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3] + 0.2 * noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x)
        for block in self.blocks:
            x = x + block(x)
        return self.outlet(x)

    def loss(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.huber_loss(output, y)


class Tied(nn.Module):
    """Post-norm transformer with tied embeddings on copied texts whose length grows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.place = nn.Parameter(torch.zeros(24, 32))
        layer = {"batch_first": True, "dropout": 0.0, "norm_first": False}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 48, **layer) for _ in range(3)
        )
        self.seen = 0

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen += 1
        half = 4 + min(self.seen // 60, 8)  # a curriculum
        first = torch.randint(20, (size, half), generator=generator)
        text = torch.cat([first, first], 1)
        return text[:, :-1], text[:, 1:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = self.embed(x) + self.place[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return (x @ self.embed.weight.T).transpose(1, 2)


class Memory(nn.Module):
    """An LSTM on sums of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 5)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 9, 3, generator=generator)
        return x, ((x.sum((1, 2)) / 4).clamp(-2, 2).round() + 2).long()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Groups(nn.Module):
    """Depth-wise convolutions with group normalisation, imbalanced classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.GELU()),
            *(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 12, 1), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 6)),
        )
        self.centres = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(9))

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        shares = torch.tensor([16.0, 8, 4, 2, 1, 1])
        kind = torch.multinomial(shares, size, replacement=True, generator=generator)
        return self.centres[kind] + torch.randn(size, 3, 8, 8, generator=generator), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


MODELS.update(
    {
        "autoencoder": Autoencoder,
        "regression": Regression,
        "tied transformer": Tied,
        "lstm": Memory,
        "groups": Groups,
    }
)
OPTIMIZERS.update(
    {
        "nadam": lambda p: torch.optim.NAdam(p, lr=2e-3),
        "radam": lambda p: torch.optim.RAdam(p, lr=2e-3),
        "adamax": lambda p: torch.optim.Adamax(p, lr=4e-3),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=2e-2),
        "nesterov": lambda p: torch.optim.SGD(
            p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4
        ),
        "amsgrad": lambda p: torch.optim.AdamW(p, lr=2e-3, amsgrad=True, betas=(0.85, 0.98)),
    }
)


def _stable_decay(step: int) -> float:
    if step < 20:
        return (step + 1) / 20
    return 1.0 if step < 220 else max(0.0, 1 - (step - 220) / 80)


SCHEDULES.update(
    {
        "warm-up, stable, decay": _stable_decay,
        "one cycle": lambda step: (
            0.04 + 0.96 * step / 90
            if step < 90
            else 0.5 * (1 + math.cos(math.pi * (step - 90) / (STEPS - 90)))
        ),
        "exponential": lambda step: 0.99**step,
        "inverse root": lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5),
        "plateaus": lambda step: 0.3 ** ((step > 90) + (step > 170) + (step > 260)),
    }
)

NEW_MODELS: Final = ("autoencoder", "regression", "tied transformer", "lstm", "groups")
NEW_OPTIMIZERS: Final = ("nadam", "radam", "adamax", "adagrad", "nesterov", "amsgrad")
NEW_SCHEDULES: Final = (
    *("warm-up, stable, decay", "one cycle", "exponential", "inverse root", "plateaus"),
)


def healthy_recipes() -> list[Recipe]:
    """Return 30 healthy runs."""
    recipes = []
    for number in range(30):
        model = NEW_MODELS[number % 5]
        optimizer = NEW_OPTIMIZERS[(number + number // 5) % 6]
        schedule = NEW_SCHEDULES[(2 * number + number // 5) % 5]
        ranks = (1, 2, 1, 1, 3)[number % 5] if number % 2 else 1
        clip = (None, 0.5, None, 2.0)[number % 4]
        batch = (8, 24, 64)[number % 3]
        recipes.append(
            Recipe(model, optimizer, schedule, ranks, 500 + number, clip, number % 7 == 3, batch)
        )
    return recipes


def _raise_rate(run: Run, step: int) -> None:
    run.factor = min(10.0, run.factor * 2.2)  # within three steps


def _drift(names: str, factor: float) -> Callable[[Run, int], None]:
    return lambda run, step: scale_weight(run, names, factor)


def _unreduced(run: Run) -> None:
    run.reduces = False


def troubles() -> list[Trouble]:
    """Return 44 troubles."""
    auto = Recipe("autoencoder", "nadam", "warm-up, stable, decay", seed=601)
    auto2 = Recipe("autoencoder", "amsgrad", "inverse root", ranks=2, seed=602, clip=1.0)
    reg = Recipe("regression", "radam", "exponential", seed=603)
    reg3 = Recipe("regression", "nesterov", "plateaus", ranks=3, seed=604)
    tied = Recipe("tied transformer", "amsgrad", "inverse root", seed=605, clip=1.0)
    tied2 = Recipe("tied transformer", "nadam", "warm-up, stable, decay", ranks=2, seed=606)
    lstm = Recipe("lstm", "adamax", "one cycle", seed=607)
    lstm2 = Recipe("lstm", "adagrad", "plateaus", ranks=2, seed=608)
    groups = Recipe("groups", "nesterov", "warm-up, stable, decay", seed=609)
    groups4 = Recipe("groups", "adamax", "exponential", ranks=4, seed=610, batch=12)
    moe = Recipe("moe", "nadam", "inverse root", seed=611)
    moe2 = Recipe("moe", "amsgrad", "warm-up, stable, decay", ranks=2, seed=612)
    scaled = Recipe("groups", "nadam", "one cycle", seed=613, scaled=True)
    scaled2 = Recipe("tied transformer", "radam", "exponential", seed=614, scaled=True)
    deep = Recipe("deep transformer", "radam", "inverse root", seed=615, batch=48)
    loss_or = lambda *first: ("loss", *first)  # noqa: E731
    data = ("run", "actv")
    states = ("exp_avg", "exp_avg_sq", "state")
    none: tuple[str, ...] = ("",)

    def exploding(recipe: Recipe, name: str, act: Any) -> Trouble:
        return Trouble("exploding layer", recipe, (name,), FORWARD, act)

    weight = scale_weight
    return [
        exploding(auto, "decoder.0", once(lambda run: weight(run, "decoder.0.weight", 15))),
        exploding(reg, "blocks.2.2", once(lambda run: weight(run, "blocks.2.2.weight", 40))),
        exploding(tied, "layers.1.linear1", _drift("layers.1.linear1.weight", 1.7)),
        exploding(lstm, "cell", once(lambda run: weight(run, "cell.weight_hh_l1", 25))),
        exploding(deep, "layers.3.fc2", _drift("layers.3.fc2.weight", 2.0)),
        Trouble(
            "vanishing",
            groups,
            ("layers.4",),
            FORWARD,
            once(lambda run: weight(run, "layers.4.weight", 1e-4)),
        ),
        Trouble(
            "vanishing",
            tied,
            ("layers.0.",),
            GRADIENTS,
            once(scale_gradients(("layers.0.",), 1e-3)),
        ),
        Trouble(
            "vanishing",
            reg3,
            ("inlet", "blocks.0"),
            GRADIENTS,
            once(scale_gradients(("inlet", "blocks.0"), 1e-5)),
        ),
        Trouble(
            "NaN", reg, ("outlet",), FORWARD, once(lambda run: nan_weight(run, "outlet.weight"))
        ),
        Trouble(
            "NaN",
            tied2,
            ("layers.2.linear2",),
            FORWARD,
            once(lambda run: nan_weight(run, "layers.2.linear2.weight")),
        ),
        Trouble("NaN", lstm, ("head",), GRADIENTS, once(scale_gradients(("head",), math.inf))),
        Trouble(
            "NaN",
            groups4,
            ("layers.0",),
            FORWARD,
            once(lambda run: nan_weight(run, "layers.0.weight")),
        ),
        Trouble("lr x10", auto, ("lr.0",), ("run",), once(set_factor(10))),
        Trouble("lr x10", reg3, ("lr.0",), ("run",), once(set_factor(10))),
        Trouble("lr x10", deep, ("lr.0",), ("run",), _raise_rate),
        Trouble("lr zero", tied2, ("lr.0",), ("run",), once(set_factor(0))),
        Trouble("lr zero", groups, ("lr.0",), ("run",), once(set_factor(0))),
        Trouble(
            "stale parameter",
            tied,
            ("layers.2.linear1.weight",),
            UPDATES,
            once(lambda run: run.stale.add("layers.2.linear1.weight")),
        ),
        Trouble(
            "stale parameter",
            reg,
            ("blocks.4.2.bias",),
            UPDATES,
            once(lambda run: run.stale.add("blocks.4.2.bias")),
        ),
        Trouble(
            "stale parameter",
            lstm2,
            ("cell.weight_ih_l0",),
            UPDATES,
            once(lambda run: run.stale.add("cell.weight_ih_l0")),
        ),
        Trouble(
            "dead expert",
            moe,
            ("experts.0",),
            (*GRADIENTS, "actv"),
            once(lambda run: dead_expert(run, 0, 0)),
        ),
        Trouble(
            "dead expert",
            moe2,
            ("experts.3",),
            (*GRADIENTS, "actv"),
            once(lambda run: dead_expert(run, 0, 3)),
        ),
        Trouble("corrupt batch", tied, loss_or("embed"), data, bad_batches({0}, 1)),
        Trouble("corrupt batch", lstm, loss_or("cell"), data, bad_batches({0}, 1)),
        Trouble("corrupt batch", groups, loss_or("layers.0"), data, bad_batches({0}, 2)),
        Trouble("corrupt batch", moe, loss_or("embed"), data, bad_batches({0}, 1)),
        Trouble("one rank's wrong data", groups4, loss_or("layers.0"), data, bad_batches({3}, 300)),
        Trouble("one rank's wrong data", tied2, loss_or("embed"), data, bad_batches({1}, 300)),
        Trouble("one rank's wrong data", lstm2, loss_or("cell"), data, bad_batches({0}, 300)),
        Trouble("optimizer state reset", auto, none, states, once(reset_state)),
        Trouble("optimizer state reset", groups4, none, states, once(reset_state)),
        Trouble("optimizer state reset", tied2, none, states, once(reset_state)),
        Trouble("loss-scale collapse", scaled, ("loss_scale",), ("run",), overflow),
        Trouble("loss-scale collapse", scaled2, ("loss_scale",), ("run",), overflow),
        Trouble(
            "second moment in bfloat16", tied, none, ("exp_avg_sq",), half_state(torch.bfloat16)
        ),
        Trouble(
            "second moment in bfloat16", deep, none, ("exp_avg_sq",), half_state(torch.bfloat16)
        ),
        Trouble("wrong beta", auto, ("betas",), ("run",), once(set_beta(0.9))),
        Trouble("wrong beta", tied, ("betas",), ("run",), once(set_beta(0.9999))),
        Trouble("wrong beta", lstm, ("betas",), ("run",), once(set_beta(0.5))),
        Trouble("missing all-reduce", auto2, none, ("grad_reduced",), once(_unreduced)),
        Trouble("missing all-reduce", groups4, none, ("grad_reduced",), once(_unreduced)),
        Trouble("missing all-reduce", lstm2, none, ("grad_reduced",), once(_unreduced)),
    ]
