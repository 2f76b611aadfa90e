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
from functools import partial
from typing import Any

import numpy as np
import torch
from monitor_models import MODELS
from monitor_optimizers import OPTIMIZERS, SCHEDULES
from torch import nn
from torch.nn import functional

from msprobe.monitor.rows import MISSING, Layout, Rows, Stream


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
        parts = [self.model, self.optimizer, self.schedule]
        parts += [f"{self.ranks} ranks", f"seed {self.seed}"]
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
        block = partial(self._block, rank, step)
        sizes = dict(zip(names, map(_norm, origin), strict=True))
        yield block(Stream.PARAM_ORIGIN, {"norm": sizes})
        actv = replica.activations
        yield block(
            Stream.ACTV,
            {
                "norm": {name: _norm(one) for name, one in actv.items()},
                "nans": {name: float(one.isnan().sum()) for name, one in actv.items()},
                "zeros": {name: float((one == 0).float().mean()) for name, one in actv.items()},
            },
        )
        gradients = {name: _norm(one) for name, one in replica.gradients.items()}
        yield block(Stream.ACTV_GRAD, {"norm": gradients})
        yield block(Stream.GRAD_UNREDUCED, {"norm": _present(names, unreduced)})
        yield block(Stream.GRAD_REDUCED, {"norm": _present(names, self._norms(parameters, "grad"))})
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
        yield block(Stream.RUN, {"value": scalars})
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
                norms = {name: _norm(one) for name, one in states.items()}
                yield block(stream, {"norm": norms}, dtypes)
        if not skipped:
            for name, one in zip(names, parameters, strict=True):
                if name in self.stale:
                    one.grad = None
            replica.optimizer.step()
        moved = {
            name: _norm(one.detach() - old)
            for name, one, old in zip(names, parameters, origin, strict=True)
        }
        ratios = {name: moved[name] / max(size, 1e-12) for name, size in sizes.items()}
        yield block(Stream.UPDATE, {"ratio": ratios, "norm": moved})
        updated = {name: _norm(one) for name, one in zip(names, parameters, strict=True)}
        yield block(Stream.PARAM_UPDATED, {"norm": updated})

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
