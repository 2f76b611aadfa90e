# SPDX-License-Identifier: Apache-2.0
"""Families about the loop around the model: precision, averages, random draws, compilation."""

from __future__ import annotations

import copy
import io
import random

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, TensorDataset

from .training import TrainCase, seed_everything, simple_case

WIDTH = 8


def accumulation_with_autocast(seed: int) -> TrainCase:
    """bf16 autocast, GradScaler, three micro-batches, clipping; foreach AdamW and a scheduler."""
    seed_everything(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.LayerNorm(2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, 3)
    )
    batches = torch.randn(3, 4, WIDTH).unbind(0)
    labels = torch.randint(0, 3, (3, 4)).unbind(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def run_step(_step: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for x, label in zip(batches, labels, strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), label) / len(batches)
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        case.extra.update(norm=norm, scale=scaler.get_scale(), rate=scheduler.get_last_lr())
        return total

    case = TrainCase(model, run_step, [optimizer])
    return case


def half_precision(seed: int) -> TrainCase:
    """A model whose parameters are bf16, with a fused optimiser."""
    seed_everything(seed)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2)
    )
    model.to(torch.bfloat16)
    x = torch.randn(4, WIDTH, dtype=torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    return simple_case(model, lambda _: model(x).float().square().mean(), optimizer)


def averaged_and_parametrised(seed: int) -> TrainCase:
    """Weight and spectral norm, a moving average by deep copy, `.data` writes, save and load."""
    seed_everything(seed)
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(WIDTH, 2)),
    )
    average = copy.deepcopy(model)
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def run_step(step: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        for kept, fresh in zip(average.parameters(), model.parameters(), strict=True):
            kept.data.lerp_(fresh.data, 0.1)
        model[0].bias.data = model[0].bias.data * 0.99
        model[0].bias.detach().numpy()[0] += 0.01
        if step == 2:
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            file.seek(0)
            model.load_state_dict(torch.load(file, weights_only=True))
        case.extra["average"] = dict(average.named_parameters())
        case.extra["copy"] = copy.deepcopy(model)(x)
        return loss

    case = TrainCase(model, run_step, [optimizer])
    return case


def random_everywhere(seed: int) -> TrainCase:
    """Draws from all three generators and an own one, a shuffling loader, stochastic depth."""
    seed_everything(seed)
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
    data = TensorDataset(torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    own = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(_step: int) -> Tensor:
        total = torch.zeros(())
        for x, y in loader:
            hidden = x
            for layer in model:
                if random.random() < 0.7:
                    hidden = hidden + F.alpha_dropout(layer(hidden), 0.3)
            noise = torch.from_numpy(np.random.standard_normal(WIDTH)).float()  # noqa: NPY002
            jitter = torch.rand(WIDTH, generator=own) + torch.bernoulli(torch.full((WIDTH,), 0.5))
            total = total + F.mse_loss(hidden + 0.1 * noise, y + jitter)
        return total + 0.0 * sum(p.sum() for p in model.parameters())

    return simple_case(model, loss_of, optimizer)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)) + x)


def _perceptron(seed: int, *, compiled: bool) -> TrainCase:
    seed_everything(seed)
    model = Perceptron()
    x = torch.randn(4, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # dynamic=False: the shapes never change, and tracing them as symbols only costs time
    call = torch.compile(model, backend="eager", dynamic=False) if compiled else model
    return simple_case(model, lambda _: call(x).square().mean(), optimizer)


def compiled(seed: int) -> TrainCase:
    """A `torch.compile`d model; its reference is the same model run eagerly."""
    return _perceptron(seed, compiled=True)


def compiled_reference(seed: int) -> TrainCase:
    """The eager run that `compiled` is held against."""
    return _perceptron(seed, compiled=False)
