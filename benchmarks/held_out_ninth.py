# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The ninth set of `held_out_verdicts.py`: a scan, a U-Net of diffusion, messages, a policy, ranks."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from held_out_ninth_libraries import (
    FORECAST,
    PHOTOS,
    SUMMARY,
    train_forecast,
    train_photos,
    train_summary,
)
from held_out_programs import Options, recorded
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

# --- a selective scan over a sequence, all parameters by hand -------------------------------------

SCAN = dict(
    steps=3, delta_bias=-2.0, skip=True, gate="silu", conv=3, causal=True, step_size="softplus", cumulative=False, lr=4e-3, betas=(0.9, 0.95),
    decay_state=False, micro=2, mean=True, warm=2, clip=1.0, seed=5, order=1, reverse=False, dtype=torch.float32, threads=1, foreach=None, norm="own", checkpoint=False,
    reset_at=None, frozen=None, bad=None, label_shift=1,
)  # fmt: skip


class Scan(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.into = nn.Linear(12, 48)
        self.conv = nn.Conv1d(24, 24, o.conv, padding=o.conv - 1, groups=24)
        self.parts = nn.Linear(24, 2 * 4 + 1, bias=False)
        self.dt = nn.Linear(1, 24)
        nn.init.constant_(self.dt.bias, o.delta_bias)
        self.a_log = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(24, 1))
        self.d = nn.Parameter(torch.ones(24))
        self.out = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.into(x).chunk(2, -1)
        u = self.conv(u.mT)
        u = F.silu((u[..., :length] if self.o.causal else u[..., -length:]).mT)
        b, c, dt = self.parts(u).split((4, 4, 1), -1)
        dt = F.softplus(self.dt(dt)) if self.o.step_size == "softplus" else self.dt(dt).exp()
        a = -self.a_log.exp()
        decay = (dt[..., None] * a).exp()
        fed = dt[..., None] * b[:, :, None] * u[..., None]
        h = torch.zeros(x.shape[0], 24, 4, dtype=x.dtype)
        if self.o.cumulative:
            total = decay.log().cumsum(1)
            states = (fed * (-total).exp()).cumsum(1) * total.exp()
            y = (states * c[:, :, None]).sum(-1)
        else:
            found = []
            for n in range(length):
                h = decay[:, n] * h + fed[:, n]
                found.append((h * c[:, n, None]).sum(-1))
            y = torch.stack(found, 1)
        if self.o.skip:
            y = y + u * self.d
        return self.out(y * (F.silu(gate) if self.o.gate == "silu" else gate.sigmoid()))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class Sequence(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.table = nn.Embedding(19, 12)
        self.norms = nn.ModuleList(
            Norm() if o.norm == "own" else nn.RMSNorm(12, 1e-5) for _ in range(2)
        )
        self.mixers = nn.ModuleList(Scan(o) for _ in range(2))
        self.head = nn.Linear(12, 19)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            y = norm(x)
            if self.o.checkpoint:
                y = torch.utils.checkpoint.checkpoint(mixer, y, use_reentrant=False)
            else:
                y = mixer(y)
            x = x + y
        return self.head(x)


def train_scan(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(o.seed)
    model = Sequence(o).to(o.dtype)
    for name, p in model.named_parameters():
        if o.frozen and o.frozen in name:
            p.requires_grad_(False)
    plain = [p for n, p in model.named_parameters() if n.endswith(("a_log", ".d"))]
    others = [p for n, p in model.named_parameters() if not n.endswith(("a_log", ".d"))]
    optimizer = torch.optim.AdamW(
        [
            {"params": others, "weight_decay": 0.1},
            {"params": plain, "weight_decay": 0.1 if o.decay_state else 0.0},
        ],
        o.lr, betas=o.betas, foreach=o.foreach,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.25, total_iters=o.warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
        ],
        [o.warm],
    )
    made = torch.Generator().manual_seed(o.order)
    ids = torch.randint(0, 19, (4 * o.steps, 11), generator=made)
    if o.bad is not None:
        ids[o.bad, 5] = (ids[o.bad, 5] + 1) % 19
    if o.reverse:
        ids = ids.flip(0)
    for step in range(o.steps):
        if o.reset_at == step:
            nn.init.constant_(model.mixers[1].dt.bias, o.delta_bias)
        parts = ids[4 * step : 4 * step + 4].chunk(o.micro)
        with recorded(debugger, model):
            for part in parts:
                logits = model(part[:, : -o.label_shift])
                loss = F.cross_entropy(logits.flatten(0, 1), part[:, o.label_shift :].flatten())
                (loss / len(parts) if o.mean else loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


# --- a U-Net that learns to remove noise, with an average of its weights --------------------------

DENOISE = dict(
    steps=3, target="noise", beta_end=0.02, schedule="linear", times_seed=3, weighting=None, groups=4, ema=0.9, evaluates=False, free=0.0, numpy_seed=1, offset=0.0,
    lr=2e-3, kind="AdamW", up="nearest", eps=1e-5, attention="sdpa", skips=True, dtype=torch.float32, autocast=False, format="plain", threads=1, micro=1,
    amsgrad=False, loss="mse", flipped=False, momentum=0.9, frequency=1e4, bad=None, dropout=0.0, eval_at=None,
)  # fmt: skip


class Conv(nn.Module):
    def __init__(self, source: int, size: int, o: Options) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(o.groups, source, eps=o.eps)
        self.conv = nn.Conv2d(source, size, 3, padding=1)
        self.time = nn.Linear(16, size)
        self.again = nn.Conv2d(size, size, 3, padding=1)
        self.drop = nn.Dropout(o.dropout)
        self.short = nn.Conv2d(source, size, 1) if source != size else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv(F.silu(self.norm(x))) + self.time(t)[..., None, None]
        return self.short(x) + self.again(self.drop(F.silu(y)))


class Denoiser(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.labels = nn.Embedding(4, 16)
        self.into = nn.Conv2d(3, 8, 3, padding=1)
        self.down = Conv(8, 16, o)
        self.middle = Conv(16, 16, o)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up = Conv(24 if o.skips else 16, 8, o)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def attend(self, x: Tensor) -> Tensor:
        flat = x.flatten(2).mT
        q, k, v = self.qkv(flat).chunk(3, -1)
        if self.o.attention == "sdpa":
            y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        else:
            y = torch.softmax(torch.bmm(q, k.mT) / 4, -1) @ v
        return x + self.proj(y).mT.unflatten(-1, x.shape[-2:])

    def forward(self, x: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        angles = t[:, None] * self.o.frequency ** -(torch.arange(4) / 4).to(x.dtype)
        sides = (angles.sin(), angles.cos())
        sides = sides if not self.o.flipped else sides[::-1]
        time = self.time(torch.cat(sides, -1)) + self.labels(labels)
        first = self.into(x)
        y = self.down(F.avg_pool2d(first, 2), time)
        y = self.attend(self.middle(y, time))
        if self.o.up == "nearest":
            y = F.interpolate(y, scale_factor=2)
        else:
            y = F.interpolate(y, scale_factor=2, mode="bilinear")
        y = torch.cat([y, first], 1) if self.o.skips else y
        return self.out(self.up(y, time))


def train_denoise(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(31)
    model = Denoiser(o).to(o.dtype)
    if o.format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False)
    if o.kind == "AdamW":
        optimizer: Any = torch.optim.AdamW(model.parameters(), o.lr, amsgrad=o.amsgrad)
    else:
        optimizer = torch.optim.SGD(model.parameters(), o.lr, momentum=o.momentum)
    if o.schedule == "linear":
        betas = torch.linspace(1e-4, o.beta_end, 50)
    else:
        betas = 0.02 * torch.sin(torch.linspace(0, math.pi / 2, 50)) ** 2 + 1e-4
    kept = (1 - betas).cumprod(0)
    chance = np.random.RandomState(o.numpy_seed)
    torch.manual_seed(o.times_seed)
    made = torch.Generator().manual_seed(8)
    photos = torch.randn(4 * o.steps, 3, 8, 8, generator=made)
    if o.bad is not None:
        photos[o.bad] *= -1
    kinds = torch.randint(1, 4, (4 * o.steps,), generator=made)
    for step in range(o.steps):
        if o.eval_at == step:
            model.middle.eval()
        whole = slice(4 * step, 4 * step + 4)
        times = torch.randint(0, 50, (4,))
        noise = torch.randn(4, 3, 8, 8)
        if o.offset:
            noise = noise + o.offset
        labels = torch.where(torch.from_numpy(chance.rand(4) < o.free), 0, kinds[whole])
        with recorded(debugger, model):
            for rows in torch.arange(4).chunk(o.micro):
                t, e, x = times[rows], noise[rows].to(o.dtype), photos[whole][rows].to(o.dtype)
                share = kept[t][:, None, None, None].to(o.dtype)
                noisy = share.sqrt() * x + (1 - share).sqrt() * e
                if o.format == "channels_last":
                    noisy = noisy.to(memory_format=torch.channels_last)
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                    found = model(noisy, t.to(o.dtype), labels[rows])
                if o.target == "velocity":
                    e = share.sqrt() * e - (1 - share).sqrt() * x
                found = found.to(o.dtype)
                if o.loss == "mse" and o.weighting is None:
                    loss = F.mse_loss(found, e)
                elif o.loss == "l1":
                    loss = F.l1_loss(found, e)
                else:
                    each = (found - e).square().mean((1, 2, 3))
                    ratio = kept[t] / (1 - kept[t])
                    loss = (
                        each * (ratio.clamp(max=o.weighting) / ratio if o.weighting else 1)
                    ).mean()
                (loss / o.micro).backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.mul_(o.ema).add_(new, alpha=1 - o.ema)
        if o.evaluates:
            model.load_state_dict(average.state_dict())


# --- messages over edges, added where they arrive -------------------------------------------------

MESSAGES = dict(
    steps=3, reduce="sum", self_loops=False, add="index_add", shuffled=False, slope=0.2, hops=2, split_seed=2, drop_edge=0.0, edge_seed=4, lr=1e-2, optimizer="RMSprop",
    alpha=0.99, centered=False, momentum=0.0, weight=0.0, residual=True, symmetric=True, masked=True, gamma=0.5, heads=2, threads=1,
    dtype=torch.float64, swap=False, feature=None, cleared=True, double=None, frozen_at=None,
)  # fmt: skip


class Messages(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.value = nn.Linear(8, 8)
        self.score = nn.Parameter(torch.randn(o.heads, 8) * 0.3)
        self.out = nn.Linear(8 * o.heads, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, aim = edges if not self.o.swap else edges.flip(0)
        v = self.value(x)
        score = F.leaky_relu((v[source] + v[aim]) @ self.score.T, self.o.slope)
        power = (score - score.max()).exp()
        total = torch.zeros(len(x), self.o.heads, dtype=x.dtype).index_add(0, aim, power)
        share = power / (total[aim] + 1e-9)
        sent = share[..., None] * v[source][:, None]
        shape = (len(x), *sent.shape[1:])
        if self.o.add == "index_add":
            found = torch.zeros(shape, dtype=x.dtype).index_add(0, aim, sent)
        elif self.o.add == "scatter":
            where = aim[:, None, None].expand_as(sent)
            found = torch.zeros(shape, dtype=x.dtype).scatter_add(0, where, sent)
        else:
            found = torch.zeros(shape, dtype=x.dtype).index_put((aim,), sent, accumulate=True)
        if self.o.reduce == "mean":
            count = torch.bincount(aim, minlength=len(x)).clamp(min=1)
            found = found / count[:, None, None]
        y = self.out(found.flatten(1))
        return self.norm(x + y) if self.o.residual else self.norm(y)


class Net(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.into = nn.Linear(5, 8)
        self.hops = nn.ModuleList(Messages(o) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.o = o

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.tanh(self.into(x))
        for hop in self.hops[: self.o.hops]:
            x = hop(x, edges)
        return self.head(x)


def train_messages(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(17)
    model = Net(o).to(o.dtype)
    made = torch.Generator().manual_seed(9)
    x = torch.randn(30, 5, generator=made, dtype=torch.float64).to(o.dtype)
    if o.feature is not None:
        x[:, o.feature] = 0
    edges = torch.randint(0, 30, (2, 90), generator=made)
    if o.symmetric:
        edges = torch.cat([edges, edges.flip(0)], 1)
    if o.self_loops:
        edges = torch.cat([edges, torch.arange(30).repeat(2, 1)], 1)
    labels = torch.randint(0, 3, (30,), generator=made)
    chosen = torch.randperm(30, generator=torch.Generator().manual_seed(o.split_seed))[:18]
    if o.shuffled:
        edges = edges[:, torch.randperm(edges.shape[1], generator=made)]
    optimizer: Any
    if o.optimizer == "RMSprop":
        optimizer = torch.optim.RMSprop(
            model.parameters(), o.lr, alpha=o.alpha, centered=o.centered, momentum=o.momentum,
            weight_decay=o.weight,
        )  # fmt: skip
    else:
        optimizer = torch.optim.Adagrad(model.parameters(), o.lr)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], o.gamma)
    random.seed(o.edge_seed)
    for step in range(o.steps):
        if o.frozen_at == step:
            model.into.requires_grad_(False)
        used = edges
        if o.drop_edge:
            used = edges[:, [n for n in range(edges.shape[1]) if random.random() > o.drop_edge]]
        with recorded(debugger, model):
            logits = model(x, used)
            if o.masked:
                loss = F.nll_loss(logits[chosen].log_softmax(-1), labels[chosen])
            else:
                loss = F.nll_loss(logits.log_softmax(-1), labels)
            loss.backward()
            optimizer.step()
            if o.double == step:
                optimizer.step()
            if o.cleared:
                optimizer.zero_grad()
            schedule.step()


# --- a policy that learns from its own episodes ---------------------------------------------------

POLICY = dict(
    steps=3, gamma=0.95, baseline=True, normalized=True, entropy=0.01, env_seed=6, action_seed=2, lr=1e-2, tau=0.1, target_every=1, clip=0.5, greedy=False, reward_scale=1.0,
    detach=True, kind="Adam", maximize=False, eps=1e-8, length=10, threads=1, tanh=True, advantage="mc", fused=None, log="torch", value_weight=0.5,
)  # fmt: skip


class Policy(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        act = nn.Tanh if o.tanh else nn.ReLU
        self.body = nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 16), act())
        self.act, self.value = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(state)
        return self.act(x), self.value(x)[..., 0]


def train_policy(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(41)
    model = Policy(o)
    slow = copy.deepcopy(model).requires_grad_(False)
    more: dict[str, Any] = {} if o.fused is None else {"fused": o.fused}
    optimizer = getattr(torch.optim, o.kind)(
        model.parameters(), o.lr, eps=o.eps, maximize=o.maximize, **more
    )
    world = np.random.RandomState(o.env_seed)
    torch.manual_seed(o.action_seed)
    matrix = torch.from_numpy(world.randn(3, 4, 4)).float() * 0.4
    for step in range(o.steps):
        states, actions, rewards = [], [], []
        state = torch.from_numpy(world.randn(4)).float()
        for _ in range(o.length):
            with torch.no_grad():
                logits, _ = model(state)
            action = (
                logits.argmax() if o.greedy else torch.distributions.Categorical(logits=logits).sample()
            )  # fmt: skip
            states.append(state)
            actions.append(action)
            state = torch.tanh(matrix[action] @ state)
            rewards.append(float(state[0]) * o.reward_scale)
        returns, total = [], 0.0
        for reward in reversed(rewards):
            total = reward + o.gamma * total
            returns.insert(0, total)
        aims = torch.tensor(returns)
        seen, done = torch.stack(states), torch.stack(actions)
        with recorded(debugger, model):
            logits, value = model(seen)
            with torch.no_grad():
                _, old = slow(seen)
            gain = aims - (value.detach() if o.detach else value) if o.baseline else aims
            if o.advantage == "slow":
                gain = aims - old
            if o.normalized:
                gain = (gain - gain.mean()) / (gain.std() + 1e-6)
            if o.log == "torch":
                chances = torch.distributions.Categorical(logits=logits)
                chosen, spread = chances.log_prob(done), chances.entropy()
            else:
                logs = logits.log_softmax(-1)
                chosen = logs.gather(-1, done[:, None])[:, 0]
                spread = -(logs.exp() * logs).sum(-1)
            loss = -(chosen * gain).mean() - o.entropy * spread.mean()
            loss = loss + o.value_weight * F.mse_loss(value, aims)
            (-loss if o.maximize else loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            optimizer.zero_grad()
            if step % o.target_every == 0:
                with torch.no_grad():
                    for p, q in zip(slow.parameters(), model.parameters(), strict=True):
                        p.lerp_(q, o.tau)


# --- two ranks: averaging by hand, experts on other ranks -----------------------------------------

FLOCK = dict(
    world=2, kind="average", op="sum", divides=True, every=1, skipped=None, accumulate=2, syncs="last", lr=(1e-2, 1e-2), seeds=(0, 1), broadcast=True,
    bucket=True, clip="whole", bound=0.3, experts=True, combine=True, rank_eval=None, asynchronous=False, dead=None,
)  # fmt: skip


class Swap(torch.autograd.Function):
    """Rows to the rank of their expert, and their gradients back."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        found = torch.empty_like(x)
        dist.all_to_all_single(found, x.contiguous())
        return found

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        found = torch.empty_like(grads[0])
        dist.all_to_all_single(found, grads[0].contiguous())
        return found


class Expert(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.into = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        torch.manual_seed(50 + dist.get_rank())
        self.expert = nn.Linear(8, 8)
        torch.manual_seed(60)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(torch.relu(self.into(x)))
        y = Swap.apply(x) if self.o.experts else x
        y = torch.relu(self.expert(y))
        y = Swap.apply(y) if self.o.combine else y
        return self.out(x + y)


def run_flock(debugger: PrecisionDebugger, o: Options) -> None:
    """Train on one of two processes; gradients are averaged by hand or by DDP."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(23)
    if o.kind == "experts":
        model: nn.Module = Expert(o)
    else:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    if not o.broadcast and rank == 1:
        with torch.no_grad():
            next(model.parameters()).add_(1e-3)
    run: Any = nn.parallel.DistributedDataParallel(model) if o.kind == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), o.lr[rank], momentum=0.9)
    data = torch.Generator().manual_seed(o.seeds[rank])
    torch.manual_seed(7 + rank)
    if o.rank_eval == rank:
        model.eval()
    shared = [p for n, p in model.named_parameters() if "expert" not in n]
    for step in range(3):
        with recorded(debugger, run):
            for n in range(o.accumulate):
                x = torch.randn(4, 6, generator=data)
                y = torch.randn(4, 2, generator=data)
                last = n == o.accumulate - 1
                quiet = o.kind == "ddp" and o.syncs == "last" and not last
                with run.no_sync() if quiet else contextlib.nullcontext():
                    (F.mse_loss(run(x), y) / o.accumulate).backward()
            if o.dead == (rank, step):
                raise ValueError("bad sample")
            if o.kind != "ddp" and step % o.every == 0 and o.skipped != step:
                if o.bucket:
                    flat = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
                    if o.asynchronous:
                        dist.all_reduce(flat, async_op=True).wait()
                    elif o.op == "max":
                        dist.all_reduce(flat, dist.ReduceOp.MAX)
                    else:
                        dist.all_reduce(flat)
                    if o.divides:
                        flat /= o.world
                    place = 0
                    for p in shared:
                        p.grad = flat[place : place + p.numel()].view_as(p).clone()
                        place += p.numel()
                else:
                    for p in shared:
                        dist.all_reduce(p.grad)
                        p.grad /= o.world
            if o.clip == "whole":
                nn.utils.clip_grad_norm_(model.parameters(), o.bound)
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "scan": (train_scan, SCAN),
    "denoise": (train_denoise, DENOISE),
    "messages": (train_messages, MESSAGES),
    "policy": (train_policy, POLICY),
    "photos": (train_photos, PHOTOS),
    "summary": (train_summary, SUMMARY),
    "forecast": (train_forecast, FORECAST),
    "flock": (run_flock, FLOCK),
}
OF_RANKS: Final[set[str]] = {"flock"}
