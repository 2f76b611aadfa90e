# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501, NPY002 - programs as their authors write them
"""Training programs as their authors write them: `held_out_verdicts.py` changes options of them.

Each program takes a debugger, a folder of its own and options; an option's default is the right one.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from msprobe.pytorch import PrecisionDebugger

Options = SimpleNamespace


@contextlib.contextmanager
def recorded(debugger: PrecisionDebugger, *models: nn.Module) -> Iterator[None]:
    """Record one step; an interrupted one, too."""
    debugger.start(models[0] if len(models) == 1 else list(models))
    try:
        yield
    finally:
        debugger.stop()
        debugger.step()


# --- images: patches, attention, augmentation, an average of the weights ------------------------


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Noise with a class's mean; item `o.bad` is corrupted."""

    def __init__(self, o: Options) -> None:
        made = torch.Generator().manual_seed(4)
        self.labels = torch.randint(0, 5, (26,), generator=made)
        self.images = torch.randn(26, 3, 8, 8, generator=made) + self.labels[:, None, None, None]
        if o.bad is not None:
            self.images[o.bad, :, :4] = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        return self.images[item], self.labels[item]


class Attention(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.qkv, self.proj = nn.Linear(24, 72), nn.Linear(24, 24)
        self.attn_drop = o.dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4)
        if self.o.by_hand:
            scores = (q @ k.mT) * 6**-0.5
            y = F.dropout(scores.softmax(-1), self.attn_drop, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop * self.training)
        return self.proj(y.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(24), Attention(o)
        self.norm2 = nn.LayerNorm(24, eps=o.eps)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(approximate=o.gelu), nn.Linear(48, 24))
        self.scale = nn.Parameter(torch.full((24,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x)) * self.scale
        return x + self.mlp(self.norm2(x)) * self.scale


class Vit(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.places = nn.Parameter(torch.randn(1, 5, 24) * 0.02)
        self.blocks = nn.ModuleList(Encoder(o) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def embedded(self, images: Tensor) -> Tensor:
        if self.o.unfolded:
            w = self.patches.weight.flatten(1)
            return F.unfold(images, 4, stride=4).mT @ w.mT + self.patches.bias
        return self.patches(images).flatten(2).mT

    def forward(self, images: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(images), -1, -1), self.embedded(images)], dim=1)
        x = x + self.places
        for number, block in enumerate(self.blocks):
            if self.o.skipped == number:
                continue
            if self.o.checkpointing:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        x = self.norm(x)
        return self.head(x.mean(1) if self.o.pooled else x[:, 0])


VIT = dict(
    bad=None, dropout=0.0, by_hand=False, eps=1e-5, gelu="none", unfolded=False, skipped=None,
    checkpointing=False, pooled=False, steps=3, accumulate=2, batch=4, decay=0.05, amsgrad=False,
    foreach=None, fused=None, pct_start=0.4, max_lr=4e-3, schedule_each=1, mean=True, max_norm=1.0,
    clip_value=None, average=0.9, use_average=False, shuffle_seed=1, noise_seed=3, workers=0,
    drop_last=True, autocast=False, dtype=torch.float32, channels_last=False, frozen=(), eval_in=None, eval_block=False,
    resume=None, keep=("model", "optimizer", "schedule", "random"), set_to_none=True, split=1,
    scaler=False, unscale=True, extra_batch=False, fail_at=None, clip_skips=(), reset_at=None,
    compiled=False, wrapped=False, threads=1, sync=True, detach_at=None, decay_all=True, twice=False,
)  # fmt: skip


def train_vit(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Accumulate two batches a step; OneCycleLR, clipping, EMA; may resume from a checkpoint."""
    torch.set_num_threads(o.threads)
    torch.manual_seed(5)
    np.random.seed(o.noise_seed)
    model: Any = Vit(o).to(o.dtype)
    for name, p in model.named_parameters():
        p.requires_grad_(not any(name.startswith(each) for each in o.frozen))
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(o.average))
    named = list(model.named_parameters())
    groups = [
        {"params": [p for _, p in named if p.dim() > 1 or o.decay_all], "weight_decay": o.decay},
        {"params": [p for _, p in named if p.dim() <= 1 and not o.decay_all], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]],
        1e-3,
        amsgrad=o.amsgrad,
        foreach=o.foreach,
        fused=o.fused,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, o.max_lr, total_steps=20, pct_start=o.pct_start
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, enabled=o.scaler)
    loader = DataLoader(
        Images(o), o.batch, shuffle=True, drop_last=o.drop_last, num_workers=o.workers,
        generator=torch.Generator().manual_seed(o.shuffle_seed),
    )  # fmt: skip
    batches = (batch for _ in range(9) for batch in loader)
    if o.extra_batch:
        next(batches)
    forward = torch.compile(model, backend="aot_eager") if o.compiled else model

    def one_step(step: int) -> None:
        for micro in range(o.accumulate):
            images, labels = next(batches)
            images = images + torch.from_numpy(np.random.randn(*images.shape)).float() * 0.1
            images = images.to(o.dtype)
            if o.channels_last:
                images = images.to(memory_format=torch.channels_last)
            for part, wanted in zip(images.chunk(o.split), labels.chunk(o.split), strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                    loss = F.cross_entropy(forward(part), wanted) / o.split
                if o.mean:
                    loss = loss / o.accumulate
                scaler.scale(loss).backward()
            if step == o.detach_at and micro == 0:
                optimizer.zero_grad()
            if step == o.fail_at and micro == 1:
                raise RuntimeError("DataLoader worker is killed by signal: Bus error")
        if o.scaler and o.unscale:
            scaler.unscale_(optimizer)
        if o.clip_value is not None:
            nn.utils.clip_grad_value_(model.parameters(), o.clip_value)
        elif step not in o.clip_skips:
            nn.utils.clip_grad_norm_(model.parameters(), o.max_norm)
        scaler.step(optimizer)
        scaler.update()
        if o.twice and step == 1:
            optimizer.step()
        optimizer.zero_grad(set_to_none=o.set_to_none)
        for _ in range(o.schedule_each):
            schedule.step()
        average.update_parameters(model)

    for step in range(o.steps):
        if step == o.resume:
            saved = copy.deepcopy(
                {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "schedule": schedule.state_dict()}
            )  # fmt: skip
            optimizer = torch.optim.AdamW(
                [{**g, "params": list(g["params"])} for g in optimizer.param_groups], 1e-3
            ) if "optimizer" not in o.keep else optimizer  # fmt: skip
            model.load_state_dict(saved["model"])
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, o.max_lr, total_steps=20, pct_start=o.pct_start
            )
            if "optimizer" in o.keep:
                optimizer.load_state_dict(saved["optimizer"])
            if "schedule" in o.keep:
                schedule.load_state_dict(saved["schedule"])
                for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
                    group["lr"] = rate
        if step == o.reset_at:
            model.head.reset_parameters()
        if step == o.eval_in:
            (model.blocks[1] if o.eval_block else model).eval()
        if o.use_average and step == 2:
            # The averages are copied in for an evaluation, and stay.
            with torch.no_grad():
                for p, q in zip(model.parameters(), average.module.parameters(), strict=True):
                    p.copy_(q)
        with contextlib.suppress(RuntimeError), recorded(debugger, model):
            one_step(step)


# --- two networks against each other -------------------------------------------------------------

GAN = dict(steps=3, detach=True, clears=True, betas=(0.5, 0.9), times=1, slope=0.2, seed=2,
           spectral=True, smooth=0.9, kind="rmsprop", lr=1e-3)  # fmt: skip


def train_gan(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Discriminator, then generator, in each step, with an optimizer each."""
    torch.manual_seed(9)
    wrap: Callable[[nn.Module], nn.Module] = (
        nn.utils.parametrizations.spectral_norm if o.spectral else lambda module: module
    )
    made = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.LeakyReLU(o.slope), nn.Linear(16, 8)
    )
    judge = nn.Sequential(wrap(nn.Linear(8, 16)), nn.LeakyReLU(o.slope), nn.Linear(16, 1))
    of_made = torch.optim.Adam(made.parameters(), lr=1e-3, betas=o.betas)
    of_judge = torch.optim.RMSprop(judge.parameters(), lr=o.lr)
    data = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(1)) + 1
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        with recorded(debugger, made, judge):
            for _ in range(o.times):
                real = judge(data[step])
                fakes = made(torch.randn(12, 6))
                fake = judge(fakes.detach() if o.detach else fakes)
                loss = F.binary_cross_entropy_with_logits(real, torch.full_like(real, o.smooth))
                loss = loss + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))
                of_judge.zero_grad()
                loss.backward()
                of_judge.step()
            if o.clears:
                of_made.zero_grad()
            score = judge(made(torch.randn(12, 6)))
            F.binary_cross_entropy_with_logits(score, torch.ones_like(score)).backward()
            of_made.step()


# --- a student that learns from a teacher -----------------------------------------------------------

DISTILL = dict(steps=3, temperature=2.0, squared=True, teacher_eval=True, alpha=0.5, nesterov=True,
               momentum=0.9, gamma=0.9, tied=True, lstm_layers=2, teacher_trained=False)  # fmt: skip


class Reader(nn.Module):
    def __init__(self, width: int, *, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(19, width)
        self.rnn = nn.GRU(width, width, 2, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(width, 19, bias=False)
        if tied:
            self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.rnn(self.words(tokens))[0]))


def train_distilled(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Cross entropy, and divergence from the teacher's answers, with SGD and ExponentialLR."""
    torch.manual_seed(12)
    teacher = Reader(16, tied=False)
    student = Reader(8, tied=True)
    if not o.tied:
        student.out.weight = nn.Parameter(student.words.weight.detach().clone())
    teacher.requires_grad_(o.teacher_trained)
    teacher.train(not o.teacher_eval)
    student.train()
    optimizer = torch.optim.SGD(
        student.parameters(), lr=0.1, momentum=o.momentum, nesterov=o.nesterov
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    tokens = torch.randint(0, 19, (3, 4, 7), generator=torch.Generator().manual_seed(2))
    for step in range(o.steps):
        with recorded(debugger, student, teacher):
            batch = tokens[step]
            with torch.no_grad():
                wanted = teacher(batch[:, :-1])
            found = student(batch[:, :-1])
            soft = F.kl_div(
                F.log_softmax(found / o.temperature, -1),
                F.softmax(wanted / o.temperature, -1),
                reduction="batchmean",
            )
            soft = soft * o.temperature**2 if o.squared else soft
            hard = F.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())
            (o.alpha * soft + (1 - o.alpha) * hard).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
