# SPDX-License-Identifier: Apache-2.0
"""Small training runs, healthy ones and ones with a planted trouble, as rows of the monitor.

Ranks are simulated in one process: copies of the model, each with data of its own, whose gradients
are averaged before the optimizers step.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from msprobe.monitor.rows import MISSING, Layout, Rows, Stream

STEPS: Final = 300


class Experts(nn.Module):
    """A mixture of experts with top-1 routing."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.dead: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat)
        if self.dead is not None:
            mask = torch.zeros(scores.shape[-1])
            mask[self.dead] = -1e9
            scores = scores + mask
        chance = scores.softmax(-1)
        best, index = chance.max(-1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows = (index == number).nonzero()[:, 0]
            if len(rows):
                result = result.index_add(0, rows, expert(flat[rows]) * best[rows, None])
        return x + result.reshape(x.shape)


class Block(nn.Module):
    """A transformer layer, pre-norm."""

    def __init__(self, width: int, *, moe: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.moe = Experts(width) if moe else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        x = x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))
        return x if self.moe is None else self.moe(x)


class Language(nn.Module):
    """A small language model of a random Markov chain."""

    def __init__(self, *, layers: int = 2, width: int = 24, moe: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, width)
        self.layers = nn.ModuleList(Block(width, moe=moe) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 24)
        chain = torch.Generator().manual_seed(3)
        self.chain = torch.rand(24, 24, generator=chain).pow(6)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = [torch.randint(24, (size,), generator=generator)]
        for _ in range(12):
            tokens.append(torch.multinomial(self.chain[tokens[-1]], 1, generator=generator)[:, 0])
        text = torch.stack(tokens, 1)
        return text[:, :-1], text[:, 1:]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).transpose(1, 2)


class Classifier(nn.Module):
    """Classifies points or small pictures of four kinds."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = body
        self.shape = shape
        centre = torch.Generator().manual_seed(5)
        self.centres = torch.randn(4, *shape, generator=centre)

    def batch(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        kind = torch.randint(4, (size,), generator=generator)
        noise = 1.5 * torch.randn(size, *self.shape, generator=generator)
        return self.centres[kind] + noise, kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Last(nn.Module):
    def forward(self, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return x[0][:, -1]


def mlp(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), activation()]
    return Classifier(nn.Sequential(*layers, nn.Linear(16, 4)), (16,))


def conv() -> nn.Module:
    layers = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    return Classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 4)), (2, 6, 6))


def recurrent() -> nn.Module:
    return Classifier(
        nn.Sequential(nn.GRU(8, 16, batch_first=True), Last(), nn.Linear(16, 4)), (6, 8)
    )


MODELS: Final[dict[str, Callable[[], nn.Module]]] = {
    "transformer": Language,
    "deep transformer": lambda: Language(layers=4, width=16),
    "moe": lambda: Language(layers=1, moe=True),
    "mlp": mlp,
    "tanh mlp": lambda: mlp(nn.Tanh),
    "conv": conv,
    "gru": recurrent,
}
OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=2e-3, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=2e-3, betas=(0.9, 0.95)),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def _warm_cosine(step: int) -> float:
    if step < 30:
        return step / 30
    return 0.5 * (1 + math.cos(math.pi * (step - 30) / (STEPS - 30)))


SCHEDULES: Final[dict[str, Callable[[int], float]]] = {
    "constant": lambda step: 1.0,
    "warm-up, cosine": _warm_cosine,
    "drops": lambda step: 0.1 ** (step // 110),
    "linear to zero": lambda step: 1 - step / (STEPS - 1),
    "restarts": lambda step: 0.5 * (1 + math.cos(math.pi * (step % 75) / 75)),
    "warm-up by tens": lambda step: min(1.0, (1 + step // 10) / 5),
}


@dataclass
class Recipe:
    """All that decides a run."""

    model: str
    optimizer: str
    schedule: str
    ranks: int = 1
    seed: int = 0
    clip: float | None = None
    scaled: bool = False
    batch: int = 24

    @property
    def name(self) -> str:
        parts = [
            self.model,
            self.optimizer,
            self.schedule,
            f"{self.ranks} ranks",
            f"seed {self.seed}",
        ]
        return ", ".join(parts + ["clipped"] * (self.clip is not None) + ["scaled"] * self.scaled)


@dataclass
class Replica:
    """One simulated rank."""

    model: Any
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    names: list[str]
    parameters: list[nn.Parameter]
    activations: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


class Run:
    """A training run; a trouble is a function that changes it at a step.

    Attributes:
        replicas: one per rank.
        factor: multiplies the learning rate of the schedule.
        corrupt: ranks whose next batches are noise.
        reduces: whether gradients are averaged.
        scale: of the loss.
        stale: names of parameters that the optimizer does not step.
    """

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        random.seed(recipe.seed)
        self.recipe = recipe
        first = MODELS[recipe.model]()
        self.replicas = [self._replica(copy.deepcopy(first), rank) for rank in range(recipe.ranks)]
        self.rate = self.replicas[0].optimizer.param_groups[0]["lr"]
        self.factor = 1.0
        self.corrupt: set[int] = set()
        self.reduces = True
        self.scale = 2.0**14 if recipe.scaled else 1.0
        self.overflows = False
        self.stale: set[str] = set()
        self.before_gradients: Callable[[Replica], None] | None = None
        self._layouts: dict[Any, Layout] = {}

    def _replica(self, model: nn.Module, rank: int) -> Replica:
        named = list(model.named_parameters())
        parameters = [one for _, one in named]
        generator = torch.Generator().manual_seed(1000 * self.recipe.seed + rank)
        optimizer = OPTIMIZERS[self.recipe.optimizer](parameters)
        replica = Replica(model, optimizer, generator, [name for name, _ in named], parameters)
        for name, module in model.named_modules():
            if name and not isinstance(module, nn.ModuleList | nn.Sequential):
                module.register_forward_hook(self._hook(replica, name))
        return replica

    def _hook(self, replica: Replica, name: str) -> Callable[..., None]:
        def see(_module: nn.Module, _args: Any, output: Any) -> None:
            if isinstance(output, tuple):
                output = output[0]
            replica.activations[f"{name}.output"] = output.detach()
            if output.requires_grad:

                def keep(gradient: torch.Tensor) -> None:
                    replica.gradients[f"{name}.output"] = gradient.detach()

                output.register_hook(keep)

        return see

    def step(self, number: int) -> Iterator[Rows]:
        """Train one step; yield its rows, of all ranks."""
        rate = self.rate * self.factor * SCHEDULES[self.recipe.schedule](number)
        losses, origins = [], []
        for rank, replica in enumerate(self.replicas):
            for group in replica.optimizer.param_groups:
                group["lr"] = rate
            origins.append([one.detach().clone() for one in replica.parameters])
            losses.append(self._forward_backward(rank, replica))
        unreduced = [self._norms(replica.parameters, "grad") for replica in self.replicas]
        if self.reduces and len(self.replicas) > 1:
            self._reduce()
        skipped = self.overflows
        if self.recipe.scaled:
            self.scale = max(self.scale / 2, 2.0**-20) if skipped else self.scale
        for rank, replica in enumerate(self.replicas):
            yield from self._rows(
                rank, number, replica, losses[rank], unreduced[rank], origins[rank], skipped
            )

    def _forward_backward(self, rank: int, replica: Replica) -> float:
        replica.optimizer.zero_grad(set_to_none=True)
        replica.activations.clear()
        replica.gradients.clear()
        x, y = replica.model.batch(self.recipe.batch, replica.generator)
        if rank in self.corrupt:
            if not y.is_floating_point():
                y = torch.randint(int(y.max()) + 1, y.shape, generator=replica.generator)
            x = x.flip(-1) if x.dtype == torch.int64 else -3 * x
        judge = getattr(replica.model, "loss", functional.cross_entropy)
        loss = judge(replica.model(x), y)
        loss.backward()
        if self.before_gradients is not None:
            self.before_gradients(replica)
        return float(loss.detach())

    def _reduce(self) -> None:
        for parameters in zip(*(one.parameters for one in self.replicas), strict=True):
            gradients = [one.grad for one in parameters if one.grad is not None]
            if not gradients:
                continue
            mean = torch.stack(
                [
                    torch.zeros_like(gradients[0]) if one.grad is None else one.grad
                    for one in parameters
                ]
            ).mean(0)
            for one in parameters:
                one.grad = mean.clone()

    def _norms(self, parameters: list[nn.Parameter], which: str) -> list[float | None]:
        tensors = [getattr(one, which) for one in parameters]
        return [None if one is None else float(one.detach().float().norm()) for one in tensors]

    def _rows(
        self,
        rank: int,
        step: int,
        replica: Replica,
        loss: float,
        unreduced: list[float | None],
        origin: list[torch.Tensor],
        skipped: bool,
    ) -> Iterator[Rows]:
        names, parameters = replica.names, replica.parameters
        total = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in parameters if p.grad is not None))
        yield self._block(
            rank,
            step,
            Stream.PARAM_ORIGIN,
            {"norm": dict(zip(names, map(_norm, origin), strict=True))},
        )
        actv = replica.activations
        yield self._block(
            rank,
            step,
            Stream.ACTV,
            {
                "norm": {name: _norm(one) for name, one in actv.items()},
                "nans": {name: float(one.isnan().sum()) for name, one in actv.items()},
                "zeros": {name: float((one == 0).float().mean()) for name, one in actv.items()},
            },
        )
        yield self._block(
            rank,
            step,
            Stream.ACTV_GRAD,
            {"norm": {name: _norm(one) for name, one in replica.gradients.items()}},
        )
        yield self._block(rank, step, Stream.GRAD_UNREDUCED, {"norm": _present(names, unreduced)})
        yield self._block(
            rank,
            step,
            Stream.GRAD_REDUCED,
            {"norm": _present(names, self._norms(parameters, "grad"))},
        )
        scalars = {
            "loss": loss,
            "grad_norm": total,
            "lr.0": replica.optimizer.param_groups[0]["lr"],
        }
        for key, value in replica.optimizer.param_groups[0].items():
            if key == "betas":
                scalars |= {"betas.0.0": value[0], "betas.1.0": value[1]}
            elif isinstance(value, float) and key not in ("lr", "initial_lr"):
                scalars[f"{key}.0"] = value
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
            scalars["grad_norm_clipped"] = min(total, self.recipe.clip)
        if self.recipe.scaled:
            scalars |= {"loss_scale": self.scale, "skipped": float(skipped)}
        yield self._block(rank, step, Stream.RUN, {"value": scalars})
        for key, stream in (
            ("exp_avg", Stream.EXP_AVG),
            ("exp_avg_sq", Stream.EXP_AVG_SQ),
            ("momentum_buffer", Stream.STATE),
            ("square_avg", Stream.STATE),
        ):
            states = {
                name: replica.optimizer.state[p][key]
                for name, p in zip(names, parameters, strict=True)
                if key in replica.optimizer.state.get(p, {})
                and replica.optimizer.state[p][key] is not None
            }
            if states:
                dtypes = {name: str(one.dtype) for name, one in states.items()}
                yield self._block(
                    rank,
                    step,
                    stream,
                    {"norm": {name: _norm(one) for name, one in states.items()}},
                    dtypes,
                )
        if not skipped:
            for name, one in zip(names, parameters, strict=True):
                if name in self.stale:
                    one.grad = None
            replica.optimizer.step()
        moved = {
            name: _norm(one.detach() - old)
            for name, one, old in zip(names, parameters, origin, strict=True)
        }
        yield self._block(
            rank,
            step,
            Stream.UPDATE,
            {
                "ratio": {
                    name: moved[name] / max(_norm(old), 1e-12)
                    for name, old in zip(names, origin, strict=True)
                },
                "norm": moved,
            },
        )
        yield self._block(
            rank,
            step,
            Stream.PARAM_UPDATED,
            {"norm": {name: _norm(one) for name, one in zip(names, parameters, strict=True)}},
        )

    def _block(
        self,
        rank: int,
        step: int,
        stream: str,
        ops: dict[str, dict[str, float]],
        dtypes: dict[str, str] | None = None,
    ) -> Rows:
        names = tuple(next(iter(ops.values())))
        kinds = tuple((dtypes or {}).get(name, "torch.float32") for name in names)
        key = (stream, tuple(ops), names, kinds)
        zeros = (0,) * len(names)
        layout = self._layouts.setdefault(
            key, Layout(stream, tuple(ops), names, zeros, zeros, ("",) * len(names), kinds)
        )
        values = np.array(
            [[column.get(name, MISSING) for name in names] for column in ops.values()], np.float64
        )
        return Rows(layout, rank, step, 0, float(step), values.reshape(len(ops), len(names)))


def _norm(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().norm())


def _present(names: list[str], values: list[float | None]) -> dict[str, float]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
