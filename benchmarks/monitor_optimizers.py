# SPDX-License-Identifier: Apache-2.0
"""The optimizers and schedules of the runs that the alert rules are scored with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, optim

STEPS: Final = 300


class _Own(optim.Optimizer):
    """An optimizer that PyTorch has not: a rule for one parameter."""

    settings: ClassVar[dict[str, Any]]

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, self.settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    self.update(one, one.grad, group)

    def kept(self, one: Tensor, name: str) -> Tensor:
        return self.state[one].setdefault(name, torch.zeros_like(one))

    def update(self, one: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError  # each rule below has its own


class Lion(_Own):
    """Sign of an interpolated momentum (Chen et al., 2023)."""

    settings: ClassVar = {"lr": 3e-4, "betas": (0.9, 0.99), "weight_decay": 0.1}

    def update(self, one: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        (first, second), mean = group["betas"], self.kept(one, "exp_avg")
        one.mul_(1 - group["lr"] * group["weight_decay"])
        one.add_((first * mean + (1 - first) * gradient).sign(), alpha=-group["lr"])
        mean.lerp_(gradient, 1 - second)


class Signum(_Own):
    """Sign of the momentum (Bernstein et al., 2018)."""

    settings: ClassVar = {"lr": 5e-4, "momentum": 0.9}

    def update(self, one: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        mean = self.kept(one, "momentum_buffer")
        mean.lerp_(gradient, 1 - group["momentum"])
        one.add_(mean.sign(), alpha=-group["lr"])


class Lamb(_Own):
    """Adam with a rate for each tensor, by the quotient of its norms (You et al., 2019)."""

    settings: ClassVar = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.01}

    def update(self, one: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        mean, square = self.kept(one, "exp_avg"), self.kept(one, "exp_avg_sq")
        mean.lerp_(gradient, 1 - first)
        square.lerp_(gradient.square(), 1 - second)
        update = mean / (square.sqrt() + 1e-6) + group["weight_decay"] * one
        trust = one.norm() / update.norm() if one.any() and update.any() else 1.0
        one.sub_(update * (group["lr"] * trust))


class Muon(_Own):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024)."""

    settings: ClassVar = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.0}

    def update(self, one: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        mean = self.kept(one, "momentum_buffer")
        mean.mul_(group["momentum"]).add_(gradient)
        update = mean / (mean.norm() + 1e-7)
        if one.dim() == 2:
            for _ in range(5):
                product = update @ update.T
                update = 1.5 * update - 0.5 * product @ update
        one.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])


OPTIMIZERS: Final[dict[str, Callable[[Any], optim.Optimizer]]] = {
    "adamw": partial(optim.AdamW, lr=2e-3, weight_decay=0.01, foreach=True),
    "adam": partial(optim.Adam, lr=2e-3, betas=(0.9, 0.95)),
    "sgd": partial(optim.SGD, lr=0.05, momentum=0.9),
    "rmsprop": partial(optim.RMSprop, lr=1e-3),
    "nadam": partial(optim.NAdam, lr=2e-3),
    "radam": partial(optim.RAdam, lr=2e-3),
    "adamax": partial(optim.Adamax, lr=4e-3),
    "adagrad": partial(optim.Adagrad, lr=2e-2),
    "nesterov": partial(optim.SGD, lr=0.03, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "amsgrad": partial(optim.AdamW, lr=2e-3, amsgrad=True, betas=(0.85, 0.98)),
    "lion": Lion,
    "adadelta": partial(optim.Adadelta, lr=1.0),
    "adafactor": partial(optim.Adafactor, lr=5e-3),
    "adamw 0.95": partial(optim.AdamW, lr=3e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1),
    "plain sgd": partial(optim.SGD, lr=0.05),
    "rmsprop, momentum": partial(optim.RMSprop, lr=5e-4, momentum=0.9),
    "signum": Signum,
    "lamb": Lamb,
    "asgd": partial(optim.ASGD, lr=0.02, t0=100),
    "adam, large eps": partial(optim.Adam, lr=5e-3, betas=(0.8, 0.9), eps=1e-3),
    "adamw, no first": partial(optim.AdamW, lr=2e-3, betas=(0.0, 0.98)),
    "damped sgd": partial(optim.SGD, lr=0.05, momentum=0.8, dampening=0.8, weight_decay=1e-3),
    "muon": Muon,
    "adamw, heavy decay": partial(optim.AdamW, lr=2e-3, weight_decay=0.3),
}


def _cosine(step: float, steps: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


SCHEDULES: Final[dict[str, Callable[[int], float]]] = {
    "constant": lambda step: 1.0,
    "warm-up, cosine": lambda step: step / 30 if step < 30 else _cosine(step - 30, STEPS - 30),
    "drops": lambda step: 0.1 ** (step // 110),
    "linear to zero": lambda step: 1 - step / (STEPS - 1),
    "restarts": lambda step: _cosine(step % 75, 75),
    "warm-up by tens": lambda step: min(1.0, (1 + step // 10) / 5),
    "warm-up, stable, decay": lambda step: (
        (step + 1) / 20 if step < 20 else min(1.0, max(0.0, 1 - (step - 220) / 80))
    ),
    "one cycle": lambda step: (
        0.04 + 0.96 * step / 90 if step < 90 else _cosine(step - 90, STEPS - 90)
    ),
    "exponential": lambda step: 0.99**step,
    "inverse root": lambda step: min((step + 1) / 40, (40 / (step + 1)) ** 0.5),
    "plateaus": lambda step: 0.3 ** ((step > 90) + (step > 170) + (step > 260)),
    "long warm-up": lambda step: min(1.0, (step + 1) / 100),
    "halves": lambda step: 0.5 ** (step // 60),
    "triangles": lambda step: 0.2 + 0.8 * (1 - abs(step % 60 - 30) / 30),
    "square": lambda step: max(0.0, 1 - step / STEPS) ** 2,
    "growing restarts": lambda step: _cosine(step, 60) if step < 60 else _cosine(step - 60, 240),
    "stable, decay": lambda step: min(1.0, (step + 1) / 20, (STEPS - step) / 60),
    "steps up": lambda step: 0.3 * 1.4 ** (step // 60),
    "cosine to a tenth": lambda step: (
        min(1.0, (step + 1) / 25) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
    ),
    "polynomial": lambda step: (1 - step / STEPS) ** 2,
    "sawtooth": lambda step: 1 - 0.8 * (step % 50) / 50,
    "warmed again": lambda step: (
        min(1.0, (step + 1) / 20) if step < 150 else min(1.0, 0.1 + 0.9 * (step - 150) / 30)
    ),
}
