# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The sixth set of `held_out_verdicts.py`: a mean teacher, LSTM, experts, VAE, T5, LoRA, WGAN, hooks of DDP."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from held_out_programs import Options, recorded
from held_out_sixth_libraries import (
    LORA,
    T5,
    VAE,
    WGAN,
    train_lora,
    train_t5,
    train_vae,
    train_wgan,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- images: a residual net with BatchNorm and a mean teacher ------------------------------------

NET = dict(
    steps=3, batch=4, stats=(0.5, 0.25), augment=1, weights=None, smoothing=0.0, frozen=(), bn_momentum=0.1, no_decay=True, ahead=1,
    keep=None, swapped=False, autocast=None, head=None, reduction="mean", bad=None, ema=0.9, gamma=None, fixed=True, threads=1,
    channels_last=False, foreach=None, fused=None, dtype=torch.float32, compiled=False, checkpoint=False, none=True, nll=False,
    short=False, stride=2, pool="avg", lr=0.05, late=False,
)  # fmt: skip


class Residual(nn.Module):
    def __init__(self, o: Options, wide: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(wide, wide, 3, padding=1, bias=False) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide, momentum=o.bn_momentum) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(x + self.norms[1](self.convs[1](y)))


class Net(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.stem = nn.Conv2d(1, 8, 3, o.stride, padding=1)
        self.blocks = nn.ModuleList(Residual(o, 8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if self.o.autocast == "but one" and number == 1:
                with torch.autocast("cpu", enabled=False):
                    x = block(x.float())
            elif self.o.checkpoint:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        x = x.mean((2, 3)) if self.o.pool == "avg" else x.amax((2, 3))
        return self.head(x if self.o.head is None else x.to(self.o.head)).to(x.dtype)


def train_net(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(5)
    model = Net(o).to(o.dtype)
    if o.head is not None:
        model.head.to(o.head)
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    teacher = copy.deepcopy(model).requires_grad_(False)
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    flat = [p for p in model.blocks.parameters() if p.ndim < 2]
    rest = [p for n, p in model.named_parameters() if p.ndim > 1 and not n.startswith("head")]
    if not o.no_decay:
        rest, flat = rest + flat, []
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    body: Any = torch.optim.SGD(
        [g for g in groups if g["params"]], o.lr, 0.9, foreach=o.foreach, fused=o.fused
    )
    head: Any = torch.optim.Adam(
        [*model.head.parameters(), model.stem.bias], 0.01, foreach=o.foreach, fused=o.fused
    )

    def schedule_of() -> Any:
        if o.gamma is not None:  # as a search of the learning rate does
            return torch.optim.lr_scheduler.ExponentialLR(body, o.gamma)
        return torch.optim.lr_scheduler.LambdaLR(body, lambda n: min(1.0, (n + o.ahead) / 4))

    schedule = schedule_of()
    made = torch.Generator().manual_seed(2)
    images, labels = (
        torch.rand(24, 1, 12, 12, generator=made),
        torch.randint(0, 4, (24,), generator=made),
    )
    if o.bad is not None:
        images[o.bad, :, :6] = 1
    flips = np.random.default_rng(o.augment)
    weights = None if o.weights is None else torch.tensor(o.weights, dtype=o.dtype)
    for step in range(o.steps):
        if step == 2 and o.keep is not None:
            saved = body.state_dict(), head.state_dict(), schedule.state_dict()
            body = torch.optim.SGD([{**g, "lr": o.lr} for g in groups], o.lr, 0.9)
            head = torch.optim.Adam([*model.head.parameters(), model.stem.bias], 0.01)
            schedule = schedule_of()
            for kind, each, state in zip(
                ("body", "head", "schedule"), (body, head, schedule), saved, strict=True
            ):
                if kind in o.keep:
                    each.load_state_dict(state)
        model.train()
        for path in o.frozen:
            model.get_submodule(path).eval()
        starts = (
            [8 * step, 8 * step + 4][: 1 if o.short and step == 2 else 2]
            if o.batch == 4
            else [8 * step]
        )
        with recorded(debugger, run):
            for start in (each % 24 for each in starts):
                x, y = images[start : start + o.batch], labels[start : start + o.batch]
                x = ((x - o.stats[0]) / o.stats[1]).to(o.dtype)
                if flips.random() < 0.5:
                    x = x.flip(-1)
                if o.channels_last:
                    x = x.contiguous(memory_format=torch.channels_last)
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast is not None):
                    found = run(x)
                found = found.float() if o.autocast else found
                if o.nll:
                    loss = F.nll_loss(found.log_softmax(-1), y)
                else:
                    loss = F.cross_entropy(
                        found, y, weights, label_smoothing=o.smoothing, reduction=o.reduction
                    )
                with torch.no_grad():
                    aim = teacher(x)
                loss = loss + F.mse_loss(found, aim.to(found.dtype))
                (loss / (2 if o.fixed and o.batch == 4 else len(starts))).backward()
            for each in (head, body) if o.swapped else (body, head):
                each.step()
            if not (o.late and step == 0):
                schedule.step()
            for each in (body, head):
                each.zero_grad(set_to_none=o.none)
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 1 - o.ema)


# --- text: an LSTM over padded sequences, tied head -----------------------------------------------

WORDS = dict(
    steps=3, side="right", pads=False, tied=True, carry=False, forget=0.0, clip=("norm", 0.5, 2.0), betas=(0.9, 0.99), patience=0, factor=0.5,
    drop=0.2, seed=3, cells=False, onehot=False, gathered=False, reversed=False, shift=1, noise=0.0, length=0, lr=0.02, zoneout=False, scale=None,
)  # fmt: skip


class Words(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(19, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.drop = nn.Dropout(o.drop)
        self.head = nn.Linear(8, 19)
        if o.tied:
            self.head.weight = self.embed.weight
        with torch.no_grad():
            self.rnn.bias_hh_l0[8:16] += o.forget

    def forward(self, ids: Tensor, state: Any = None) -> Any:
        x = F.one_hot(ids, 19).float() @ self.embed.weight if self.o.onehot else self.embed(ids)
        if self.o.scale is not None:
            x = x * self.o.scale
        if self.o.cells:
            h = c = x.new_zeros(len(x), 8)
            all_h = []
            for moment in x.unbind(1):
                gates = F.linear(moment, self.rnn.weight_ih_l0, self.rnn.bias_ih_l0)
                gates = gates + F.linear(h, self.rnn.weight_hh_l0, self.rnn.bias_hh_l0)
                i, f, g, out = gates.chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = out.sigmoid() * c.tanh()
                all_h.append(h)
            return self.head(self.drop(torch.stack(all_h, 1))), (h, c)
        y, state = self.rnn(x, state)
        return self.head(self.drop(y)), state


def train_words(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(8)
    model = Words(o)
    optimizer = torch.optim.Adamax(model.parameters(), o.lr, o.betas)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=o.factor, patience=o.patience, threshold=0.5
    )
    made = torch.Generator().manual_seed(6)
    text = torch.randint(1, 19, (12, 9), generator=made)
    lengths = torch.randint(4, 9 - o.length, (12,), generator=made)
    places = torch.arange(9)
    if o.side == "right":
        text[places >= lengths[:, None]] = 0
    else:
        text[places < 9 - lengths[:, None]] = 0
    torch.manual_seed(o.seed)
    state = None
    for step in range(o.steps):
        with recorded(debugger, model):
            ids = text[4 * step : 4 * step + 4]
            found, state = model(ids[:, : -o.shift], state if o.carry and state else None)
            aims = ids[:, o.shift :]
            if o.pads:
                loss = F.cross_entropy(found.flatten(0, 1), aims.flatten())
            elif o.gathered:
                mask = aims != 0
                loss = (
                    -(found.log_softmax(-1).gather(-1, aims[..., None])[..., 0] * mask).sum()
                    / mask.sum()
                )
            else:
                loss = F.cross_entropy(found.flatten(0, 1), aims.flatten(), ignore_index=0)
            loss.backward()
            state = tuple(each.detach() for each in state)
            kind, bound, norm = o.clip
            if o.noise:
                for p in model.parameters():
                    p.grad.add_(torch.randn_like(p), alpha=o.noise)
            if kind == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), bound, norm)
            optimizer.step()
            schedule.step(loss.detach())
            optimizer.zero_grad()


# --- experts: a router, a custom autograd function, Muon beside AdamW ----------------------------

EXPERTS = dict(
    steps=3, top=2, auxiliary=0.01, seed=4, jitter=0.01, dim=-1, straight=1.0, renorm=True, milestone=1, momentum=0.95, ns=5, dead=None,
    frozen=None, dense=False, backwards=False, stacked=False, weight=1.0, orders=False, act="relu", bias=0.0, threads=1,
)  # fmt: skip


class Rounded(torch.autograd.Function):
    """Rounds to eighths; gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.scale, None


class Experts(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(
                nn.Linear(8, 12), nn.ReLU() if o.act == "relu" else nn.Tanh(), nn.Linear(12, 8)
            )
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        o = self.o
        noise = 1 + o.jitter * (torch.rand_like(x) - 0.5)
        gates = (self.router(x * noise) + o.bias).softmax(o.dim)
        best, which = gates.topk(o.top, -1)
        if o.renorm:
            best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(gates).scatter(-1, which, best)
        out = torch.zeros_like(x)
        numbers = [n for n in range(4) if n != o.dead]
        for n in reversed(numbers) if o.backwards else numbers:
            if o.dense:
                out = out + weights[:, n, None] * self.experts[n](x)
            else:
                rows = (which == n).any(-1).nonzero()[:, 0]
                out = out.index_add(0, rows, weights[rows, n, None] * self.experts[n](x[rows]))
        load = gates.mean(0) * (weights > 0).float().mean(0)
        return x + Rounded.apply(out, o.straight), 4 * load.sum()


class Sparse(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.first, self.layers, self.last = (
            nn.Linear(5, 8),
            nn.ModuleList(Experts(o) for _ in range(2)),
            nn.Linear(8, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, loads = self.first(x), []
        for layer in self.layers:
            x, load = layer(x)
            loads.append(load)
        return self.last(x)[:, 0], torch.stack(loads).mean()


def train_experts(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(9)
    model = Sparse(o)
    if o.frozen:
        model.get_submodule(o.frozen).requires_grad_(False)
    inner = [p for p in model.layers.parameters() if p.ndim == 2]
    outer = [p for p in model.parameters() if not any(p is each for each in inner)]
    muon = torch.optim.Muon(inner, 0.02, momentum=o.momentum, ns_steps=o.ns)
    adam = torch.optim.AdamW(outer, 0.01)
    schedules = [
        torch.optim.lr_scheduler.SequentialLR(
            each, [torch.optim.lr_scheduler.LinearLR(each, 0.1, 1.0, o.milestone), torch.optim.lr_scheduler.CosineAnnealingLR(each, 5)], [o.milestone]
        )
        for each in (muon, adam)
    ]  # fmt: skip
    made = torch.Generator().manual_seed(1)
    x = torch.randn(30, 5, generator=made)
    y = x.sin().sum(-1)
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        with recorded(debugger, model):
            found, load = model(x[10 * step : 10 * step + 10])
            loss = (
                o.weight * F.smooth_l1_loss(found, y[10 * step : 10 * step + 10])
                + o.auxiliary * load
            )
            loss.backward()
            for each in (adam, muon) if o.orders else (muon, adam):
                each.step()
                each.zero_grad()
            for each in schedules:
                each.step()


# --- ranks: communication hooks, a sampler, ZeRO, gradients averaged by hand ---------------------

FLEET = dict(world=2, steps=2, hook=None, epoch=1, zero=False, by_hand=False, average=True, noise=0.0, drop=0.0, seeds=0, static=False, bucket=25, scale=1.0, clip=True, skip=None)  # fmt: skip


def run_fleet(debugger: PrecisionDebugger, o: Options) -> None:
    rank = dist.get_rank()
    torch.manual_seed(41)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(o.drop), nn.Linear(8, 2))
    own = list(model.parameters())
    if o.noise and rank == 1:
        with torch.no_grad():
            model[3].weight.add_(o.noise)
    if not o.by_hand:
        model = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=o.bucket, static_graph=o.static
        )
        if o.hook:
            model.register_comm_hook(None, getattr(default_hooks, o.hook))
    if o.zero:
        optimizer: Any = ZeroRedundancyOptimizer(own, torch.optim.AdamW, lr=0.02)
    else:
        optimizer = torch.optim.AdamW(own, 0.02)
    made = torch.Generator().manual_seed(2)
    data = TensorDataset(torch.randn(16, 6, generator=made), torch.randn(16, 2, generator=made))
    sampler: Any = DistributedSampler(data, o.world, rank)
    sampler.set_epoch(o.epoch)
    batches = iter(DataLoader(data, 4, sampler=sampler))
    torch.manual_seed(50 + rank + o.seeds * (rank == 1))
    for step in range(o.steps):
        x, y = next(batches)
        with recorded(debugger, model):
            loss = F.mse_loss(model(x), y) * (o.scale if rank == 1 else 1.0)
            loss.backward()
            if o.by_hand and o.skip != step:
                for p in own:
                    dist.all_reduce(p.grad)
                    if o.average:
                        p.grad /= o.world
            if o.clip:
                nn.utils.clip_grad_norm_(own, 0.3)
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "net": (train_net, NET),
    "words": (train_words, WORDS),
    "experts": (train_experts, EXPERTS),
    "vae": (train_vae, VAE),
    "t5": (train_t5, T5),
    "lora": (train_lora, LORA),
    "wgan": (train_wgan, WGAN),
    "fleet": (run_fleet, FLEET),
}
OF_RANKS: Final = {"fleet"}
