# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, E501 - programs as their authors write them; a cause is a line of a table
"""The seventh set of `held_out_verdicts.py`: cells by hand, two towers, PPO, a graph, stages."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from held_out_programs import Options, recorded
from held_out_seventh_libraries import (
    ALBERT,
    DPO,
    SEGMENTS,
    train_albert,
    train_dpo,
    train_segments,
)
from torch import Tensor, nn

from msprobe.pytorch import PrecisionDebugger

# --- a recurrent cell of bare parameters, truncated backpropagation, everything by hand ----------

CELL = dict(
    steps=3, cut=4, forcing=0.5, python=3, momentum=0.9, bound=0.2, clip=True, wd=0.01, lr=0.1, warm=4, flipped=False, gate="sigmoid", bias=1.0,
    micro=2, divide=True, orthogonal=True, order="normal", inplace=False, fused=False, joined=False, by_torch=False, manual=True, corrupt=None, peephole=False,
    eps=1e-6, threads=1, delay=0,
)  # fmt: skip


class Cell(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.table = nn.Parameter(torch.randn(17, 10) * 0.3)
        self.w = nn.Parameter(torch.randn(3, 10, 10) * 0.2)
        self.u = nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(10, 10)) if o.orthogonal else torch.randn(10, 10) * 0.3 for _ in range(3)]))  # fmt: skip
        self.b = nn.Parameter(torch.zeros(3, 10))
        with torch.no_grad():
            self.b[0] += o.bias
        self.gain = nn.Parameter(torch.ones(10))

    def one(self, token: Tensor, h: Tensor) -> Tensor:
        x = self.table[token]
        if self.o.joined:
            wx = torch.einsum("bi,kij->kbj", x, self.w) + self.b[:, None]
        else:
            wx = torch.stack([x @ w for w in self.w]) + self.b[:, None]
        z = (wx[0] + h @ self.u[0]).sigmoid()
        r = (
            (wx[1] + h @ self.u[1]).sigmoid()
            if self.o.gate == "sigmoid"
            else F.hardsigmoid(wx[1] + h @ self.u[1])
        )
        n = torch.tanh(wx[2] + r * (h @ self.u[2]))
        h = (1 - z) * n + z * h if not self.o.flipped else z * n + (1 - z) * h
        return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.o.eps) * self.gain

    def forward(self, ids: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        token = ids[:, 0]
        for n in range(ids.shape[1]):
            h = self.one(token, h)
            logits = h @ self.table.T
            found.append(logits)
            token = ids[:, n] if random.random() < self.o.forcing else logits.argmax(-1)
        return torch.stack(found, 1), h


def train_cell(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(71)
    model = Cell(o)
    weights = list(model.parameters())
    optimizer = torch.optim.SGD(weights, o.lr, o.momentum, weight_decay=o.wd, foreach=not o.manual)
    ids = torch.randint(0, 17, (12, 9), generator=torch.Generator().manual_seed(8))
    if o.corrupt is not None:
        ids[o.corrupt, 3:] = 0
    if o.order == "back":
        ids = ids.flip(0)
    random.seed(o.python)
    for step in range(o.steps):
        optimizer.param_groups[0]["lr"] = o.lr * min(1.0, (step + 1 - o.delay) / o.warm)
        with recorded(debugger, model):
            h = torch.zeros(4 // o.micro, 10)
            for part in ids[4 * step : 4 * step + 4].split(4 // o.micro):
                h = torch.zeros(len(part), 10)
                for at in range(0, 8, o.cut):
                    found, h = model(part[:, at : at + o.cut], h)
                    loss = F.cross_entropy(
                        found.flatten(0, 1), part[:, at + 1 : at + o.cut + 1].flatten()
                    )
                    (loss * (o.cut / 8) / (o.micro if o.divide else 1)).backward()
                    h = h.detach()
            if o.clip:
                if o.by_torch:
                    nn.utils.clip_grad_norm_(weights, o.bound)
                else:
                    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in weights))
                    for p in weights:
                        p.grad.mul_(min(1.0, o.bound / (norm + 1e-6)))
            optimizer.step()
            for p in weights:
                p.grad = None


# --- two towers: text and pictures, a momentum encoder, a queue of negatives ---------------------

TOWERS = dict(
    steps=3, scale=math.log(1 / 0.07), learn=True, normal=True, queue=8, inertia=0.9, symmetric=True, mode="mean", flips=1, lrs=(1e-2, 3e-3), betas=(0.9, 0.98), decay=0.1,
    mask_own=False, detach_queue=True, stats=0.5, groups=2, eps=1e-5, dropout=0.0, seed=5, autocast=False, by_hand=False, compiled=False, memory=False, joined=False,
    swap=False, capturable=False, amsgrad=False, smooth=0.0, start=0.0, freeze_at=None, dtype=torch.float32, ema_first=False,
)  # fmt: skip


class Text(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(23, 12, mode=o.mode)
        self.norm = nn.LayerNorm(12, eps=o.eps)
        self.out = nn.Linear(12, 8, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.norm(self.bag(ids)))


class Picture(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3, 2, 1),
            nn.GroupNorm(o.groups, 6),
            nn.SiLU(),
            nn.Dropout2d(o.dropout),
            nn.Conv2d(6, 8, 3, 2, 1),
            nn.PReLU(),
        )
        self.out = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x).flatten(2).mean(-1))


class Towers(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.text, self.picture = Text(o), Picture(o)
        self.logit_scale = nn.Parameter(torch.tensor(o.scale), requires_grad=o.learn)
        self.register_buffer("bank", F.normalize(torch.randn(o.queue, 8), dim=-1))

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.text(ids), self.picture(x)
        if self.o.normal:
            if self.o.by_hand:
                a, b = (each / each.norm(dim=-1, keepdim=True).clamp_min(1e-12) for each in (a, b))
            else:
                a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
        return a, b


def train_towers(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(81)
    model = Towers(o).to(o.dtype)
    if o.start:
        with torch.no_grad():
            model.picture.body[4].weight[0, 0] += o.start
    if o.memory:
        model.picture.to(memory_format=torch.channels_last)
    slow = copy.deepcopy(model.text)
    slow.requires_grad_(False)
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    flat = [p for p in model.parameters() if p.ndim < 2 and p.requires_grad]
    wide = [p for p in model.parameters() if p.ndim > 1]
    groups = [
        {"params": wide, "lr": o.lrs[0], "weight_decay": o.decay},
        {"params": flat, "lr": o.lrs[1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups[::-1] if o.swap else groups, betas=o.betas, amsgrad=o.amsgrad
    )
    schedule = torch.optim.lr_scheduler.CyclicLR(
        optimizer,
        [1e-3, 1e-3],
        [g["lr"] for g in optimizer.param_groups],
        step_size_up=2,
        cycle_momentum=False,
    )
    made = torch.Generator().manual_seed(6)
    ids, pictures = (
        torch.randint(0, 23, (18, 5), generator=made),
        torch.rand(18, 3, 8, 8, generator=made),
    )
    flips = np.random.default_rng(o.flips)
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        x = ((pictures[6 * step : 6 * step + 6] - o.stats) / 0.25).to(o.dtype)
        turned = torch.from_numpy(flips.random(6) < 0.5)
        x = torch.where(turned[:, None, None, None], x.flip(-1), x)
        if step == o.freeze_at:
            model.picture.body.requires_grad_(False)
        with recorded(debugger, run):
            if o.ema_first:
                with torch.no_grad():
                    for old, new in zip(slow.parameters(), model.text.parameters(), strict=True):
                        old.mul_(o.inertia).add_(new, alpha=1 - o.inertia)
            with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                a, b = run(ids[6 * step : 6 * step + 6], x)
                with torch.no_grad():
                    keys = F.normalize(slow(ids[6 * step : 6 * step + 6]), dim=-1)
                near = b @ torch.cat([a, model.bank]).T * model.logit_scale.exp()
                if o.mask_own:
                    near = near.masked_fill(
                        torch.eye(6, near.shape[1], dtype=torch.bool).roll(1, 0), -1e4
                    )
            aims = torch.arange(6)
            loss = F.cross_entropy(near.float(), aims, label_smoothing=o.smooth)
            if o.symmetric:
                loss = (loss + F.cross_entropy(near[:, :6].T.float(), aims)) / 2
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            with torch.no_grad():
                model.bank.copy_(torch.cat([keys.to(o.dtype), model.bank])[: o.queue])
                if not o.ema_first:
                    for old, new in zip(slow.parameters(), model.text.parameters(), strict=True):
                        old.mul_(o.inertia).add_(new, alpha=1 - o.inertia)


# --- PPO: epochs over one rollout, a clipped ratio, an entropy bonus -----------------------------

PPO = dict(
    steps=3, epsilon=0.2, bonus=0.01, value=0.5, gamma=0.95, lam=0.9, epochs=2, normalize=True, shared=True, seed=7, eps=1e-5, lr=0.02, act="tanh", env=4,
    clip=0.5, whole=True, own=False, by_log=False, huber=False, no_grad=True, anneal=True, orth=1.0, foreach=None, tail=True, stale=False,
)  # fmt: skip


class Actor(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        act = nn.Tanh if o.act == "tanh" else nn.ReLU
        self.body = nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 16), act())
        self.policy, self.value = nn.Linear(16, 3), nn.Linear(16, 1)
        for each in self.body[::2]:
            nn.init.orthogonal_(each.weight, o.orth)

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(s)
        return self.policy(x), self.value(x)[..., 0]


def train_ppo(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(91)
    model = Actor(o)
    optimizer = torch.optim.Adam(model.parameters(), o.lr, eps=o.eps, foreach=o.foreach)
    world = torch.Generator().manual_seed(o.env)
    push = torch.randn(3, 4, generator=world)
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        if o.anneal:
            optimizer.param_groups[0]["lr"] = o.lr * (1 - step / 10)
        with recorded(debugger, model):
            s = torch.randn(6, 4, generator=world)
            states, acts, rewards, values, logs = [], [], [], [], []
            with torch.no_grad():
                for _ in range(5):
                    logits, v = model(s)
                    choice = torch.distributions.Categorical(logits=logits)
                    a = choice.sample()
                    for kept, each in zip(
                        (states, acts, values, logs), (s, a, v, choice.log_prob(a)), strict=True
                    ):
                        kept.append(each)
                    s = 0.9 * s + 0.3 * push[a]
                    rewards.append(-s.square().mean(-1))
                last = model(s)[1]
                gain, gains = torch.zeros(6), []
                for n in reversed(range(5)):
                    after = values[n + 1] if n < 4 else last
                    gain = rewards[n] + o.gamma * after - values[n] + o.gamma * o.lam * gain
                    gains.insert(0, gain)
            s_all, a_all, old, gains = (
                torch.cat(states),
                torch.cat(acts),
                torch.cat(logs),
                torch.cat(gains),
            )
            returns = gains + torch.cat(values)
            if o.normalize:
                gains = (gains - gains.mean()) / (gains.std() + 1e-8)
            for _ in range(o.epochs):
                logits, v = model(s_all)
                if o.own:
                    p = logits.softmax(-1)
                    log = logits.log_softmax(-1).gather(-1, a_all[:, None])[:, 0]
                    entropy = -(p * logits.log_softmax(-1)).sum(-1).mean()
                else:
                    found = torch.distributions.Categorical(logits=logits)
                    log, entropy = found.log_prob(a_all), found.entropy().mean()
                ratio = (log - old).exp()
                gain = torch.minimum(
                    ratio * gains, ratio.clamp(1 - o.epsilon, 1 + o.epsilon) * gains
                ).mean()
                miss = F.huber_loss(v, returns) if o.huber else F.mse_loss(v, returns)
                loss = -gain + o.value * miss - o.bonus * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
                optimizer.step()


# --- a graph: sparse sums over edges, one batch, a mask ------------------------------------------

GRAPH = dict(steps=3, loops=True, norm="sym", drop=0.2, seed=2, edges=1, mask=12, heads=2, slope=0.2, lr=0.05, lambd=1e-4, alpha=0.75, t0=1e6, hops=2, sparse=False, sorted=True,
             weight=5e-4, residual=False, eval_in=None, relabel=None, jump=False, plateau=False, kind="ASGD", maximize=False)  # fmt: skip


class Hop(nn.Module):
    def __init__(self, o: Options, wide: int, out: int) -> None:
        super().__init__()
        self.o = o
        self.lin = nn.Linear(wide, out, bias=False)
        self.at = nn.Parameter(torch.randn(2, out) * 0.3)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        y = self.lin(F.dropout(x, self.o.drop, self.training))
        source, target = edges
        score = F.leaky_relu(
            (y * self.at[0]).sum(-1)[source] + (y * self.at[1]).sum(-1)[target], self.o.slope
        )
        score = (score - score.max()).exp()
        total = torch.zeros(len(x)).index_add(0, target, score)
        share = score / total[target]
        if self.o.norm == "sym":
            degree = torch.bincount(target, minlength=len(x)).float()
            share = share * (degree[target] / degree[source].clamp_min(1)).sqrt()
        if self.o.sparse:
            out = torch.sparse_coo_tensor(edges.flip(0), share, (len(x), len(x))) @ y
        else:
            out = torch.zeros_like(y).scatter_add(
                0, target[:, None].expand(-1, y.shape[1]), share[:, None] * y[source]
            )
        return out + self.bias


class Graph(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.hops = nn.ModuleList([Hop(o, 7, 10), Hop(o, 10, 10), Hop(o, 10, 10)][: o.hops])
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for n, hop in enumerate(self.hops):
            y = F.elu(hop(x, edges))
            x = y + x if self.o.residual and n else y
        return self.head(x)


def train_graph(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(101)
    model = Graph(o)
    more = {"lambd": o.lambd, "alpha": o.alpha, "t0": o.t0} if o.kind == "ASGD" else {}
    optimizer = getattr(torch.optim, o.kind)(
        model.parameters(), lr=o.lr, weight_decay=o.weight, maximize=o.maximize, **more
    )
    made = torch.Generator().manual_seed(o.edges)
    edges = torch.randint(0, 20, (2, 60), generator=made)
    x, y = torch.randn(20, 7, generator=torch.Generator().manual_seed(3)), torch.arange(20) % 4
    if o.loops:
        edges = torch.cat([edges, torch.arange(20).repeat(2, 1)], 1)
    if not o.sorted:
        edges = edges[:, torch.randperm(edges.shape[1], generator=made)]
    if o.relabel is not None:
        y[o.relabel] = 3 - y[o.relabel]
    known = torch.arange(20) < o.mask
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        model.train(step != o.eval_in)
        with recorded(debugger, model):
            found = model(x, edges)
            loss = F.cross_entropy(found[known], y[known])
            (-loss if o.maximize else loss).backward()
            optimizer.step()
            optimizer.zero_grad()


# --- ranks: two stages of a pipeline, micro batches, a tied sum at the end -------------------------

STAGES = dict(world=2, steps=2, micro=2, scale=1.0, dtype=None, act=True, lr=(0.05, 0.05), lost=None, seed=0, clip_all=True, clip=0.2, order="in", extra=0.0, isend=False, momentum=0.9, double=False)  # fmt: skip


def run_stages(debugger: PrecisionDebugger, o: Options) -> None:
    rank = dist.get_rank()
    torch.manual_seed(131)
    stages = [
        nn.Sequential(nn.Linear(6, 8), nn.GELU() if o.act else nn.ReLU()),
        nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)),
    ]
    if o.extra:
        with torch.no_grad():
            stages[1][1].weight.mul_(1 + o.extra)
    model = stages[rank]
    optimizer = torch.optim.SGD(model.parameters(), o.lr[rank], o.momentum)
    made = torch.Generator().manual_seed(14 + o.seed)
    x, y = (
        torch.randn(o.steps, 8, 6, generator=made),
        torch.randint(0, 3, (o.steps, 8), generator=made),
    )
    size = 8 // o.micro
    for step in range(o.steps):
        with recorded(debugger, model):
            places = range(o.micro) if o.order == "in" else reversed(range(o.micro))
            kept = []
            for n in places:
                part = slice(n * size, n * size + size)
                if rank == 0:
                    h = model(x[step, part])
                    sent = h.detach().to(o.dtype or h.dtype)
                    if o.isend:
                        dist.isend(sent, 1).wait()
                    else:
                        dist.send(sent, 1)
                    kept.append(h)
                else:
                    got = torch.empty(size, 8, dtype=o.dtype or torch.float32)
                    dist.recv(got, 0)
                    got = got.float().requires_grad_()
                    loss = F.cross_entropy(model(got), y[step, part]) / o.micro * o.scale
                    loss.backward()
                    kept.append(got)
            for n, h in enumerate(kept):
                if rank == 1:
                    dist.send(h.grad, 0)
                    continue
                gradient = torch.empty_like(h)
                dist.recv(gradient, 1)
                if o.lost != n:
                    h.backward(gradient)
            total = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
            if o.clip_all:
                dist.all_reduce(total)
            for p in model.parameters():
                p.grad *= torch.clamp(o.clip / (total.sqrt() + 1e-6), max=1.0)
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "cell": (train_cell, CELL),
    "towers": (train_towers, TOWERS),
    "ppo": (train_ppo, PPO),
    "graph": (train_graph, GRAPH),
    "albert": (train_albert, ALBERT),
    "dpo": (train_dpo, DPO),
    "segments": (train_segments, SEGMENTS),
    "stages": (run_stages, STAGES),
}
OF_RANKS: Final = {"stages"}
