# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The eighth set of `held_out_verdicts.py`: a padded decoder by hand, and a picture classifier."""

from __future__ import annotations

import copy
import io
import random
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from held_out_cases import L0, SETTING, Cause
from held_out_programs import Options, recorded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- a decoder: padding, rotary positions, grouped learning rates, accumulation by tokens ---------

DECODER = dict(
    steps=3, side="right", inverted=None, base=1e4, tied=True, resume=None, smoothing=0.0, count="tokens", micro=2, drop=0.0, always_drop=False, seed=3, clip="norm",
    bound=0.5, decay_norms=False, multiplier=1.0, recreate=None, attention="sdpa", packed=True, rms="torch", loss="torch", implementation=None, checkpointing=False,
    compiled=False, threads=1, to_none=True, einsum=False, warm=2, causal=True, theta_interleaved=False, pad_loss=False, lr=5e-3, evaluating=False, scale=None,
)  # fmt: skip
PAD: Final = 0


class Rms(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.by_torch = o.rms == "torch"

    def forward(self, x: Tensor) -> Tensor:
        if self.by_torch:
            return F.rms_norm(x, (16,), self.weight, 1e-6)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Heads(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        whole = nn.Linear(16, 48, bias=False)
        if o.packed:
            self.qkv = whole
        else:
            with torch.random.fork_rng():
                self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
            with torch.no_grad():
                for part, weight in zip(
                    (self.q, self.k, self.v), whole.weight.split(16), strict=True
                ):
                    part.weight.copy_(weight)
        self.out = nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.o.packed:
            q, k, v = self.qkv(x).chunk(3, -1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in (q, k, v))
        q, k = (self.turned(each, cos, sin) for each in (q, k))
        mask = mask[:, None].expand(-1, 4, -1, -1)
        if self.o.inverted is not None:
            flipped = torch.arange(4) == self.o.inverted
            mask = torch.where(flipped[:, None, None], mask.flip(-1), mask)
        scale = self.o.scale or 0.5
        if self.o.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
        else:
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) if self.o.einsum else q @ k.mT
            scores = (scores * scale).masked_fill(~mask, torch.finfo(scores.dtype).min)
            y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.o.theta_interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.one, self.two = Rms(o), Rms(o)
        self.heads = Heads(o)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.heads(self.one(x), mask, cos, sin)
        y = self.down(F.silu(self.up(self.two(x))))
        return x + F.dropout(y, self.o.drop, self.training or self.o.always_drop)


class Decoder(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.table = nn.Embedding(20, 16, padding_idx=PAD)
        self.layers = nn.ModuleList(Layer(o) for _ in range(2))
        self.norm = Rms(o)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        places = (real.cumsum(-1) - 1).clamp_min(0).float()
        angles = places[..., None] * self.o.base ** -torch.arange(0, 1, 0.5)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        mask = real[:, None, :].expand(-1, ids.shape[1], -1)
        if self.o.causal:
            mask = mask & torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        mask = mask | torch.eye(ids.shape[1], dtype=torch.bool)
        x = self.table(ids)
        for layer in self.layers:
            if self.o.checkpointing:
                x = checkpoint(layer, x, mask, cos, sin, use_reentrant=False)
            else:
                x = layer(x, mask, cos, sin)
        return self.head(self.norm(x))


def sentences(o: Options) -> Tensor:
    made = torch.Generator().manual_seed(12)
    rows = []
    for n in range(8 * o.steps):
        size = 4 + n % 8 // 2
        words = torch.randint(1, 20, (size,), generator=made)
        padding = torch.full((8 - size,), PAD)
        rows.append(torch.cat([words, padding] if o.side == "right" else [padding, words]))
    return torch.stack(rows)


def optimizer_of(model: nn.Module, o: Options) -> torch.optim.Optimizer:
    norms = [p for n, p in model.named_parameters() if p.ndim < 2]
    first = [p for n, p in model.named_parameters() if p.ndim > 1 and "layers.0" in n]
    rest = [p for n, p in model.named_parameters() if p.ndim > 1 and "layers.0" not in n]
    return torch.optim.AdamW(
        [
            {"params": rest, "weight_decay": 0.1},
            {"params": first, "weight_decay": 0.1, "lr": o.lr * o.multiplier},
            {"params": norms, "weight_decay": 0.1 if o.decay_norms else 0.0},
        ],
        o.lr,
        **({} if o.implementation is None else {"foreach": o.implementation == "foreach", "fused": o.implementation == "fused"}),
    )  # fmt: skip


def train_decoder(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(61)
    model = Decoder(o)
    optimizer = optimizer_of(model, o)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / o.warm))
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    ids = sentences(o)
    torch.manual_seed(o.seed)
    if o.evaluating:
        model.eval()
    for step in range(o.steps):
        if o.resume == step:
            kept = io.BytesIO()
            torch.save(model.state_dict(), kept)
            kept.seek(0)
            state = optimizer.state_dict()
            model = run = Decoder(o)
            if not o.tied:
                model.head.weight = nn.Parameter(model.head.weight.detach().clone())
            model.load_state_dict(torch.load(kept))
            optimizer = optimizer_of(model, o)
            if o.tied:
                optimizer.load_state_dict(state)
            schedule.optimizer = optimizer
        if o.recreate == step:
            optimizer = optimizer_of(model, o)
            schedule.optimizer = optimizer
        batch = ids[8 * step : 8 * step + 8]
        parts = batch.split(8 // o.micro)
        total = int((batch[:, 1:] != PAD).sum())
        with recorded(debugger, run):
            for part in parts:
                logits, aims = run(part)[:, :-1], part[:, 1:]
                ignored = -100 if o.pad_loss else PAD
                if o.loss == "torch":
                    loss = F.cross_entropy(logits.flatten(0, 1), aims.flatten(), ignore_index=ignored, label_smoothing=o.smoothing, reduction="sum")  # fmt: skip
                else:
                    each = -logits.log_softmax(-1).gather(-1, aims[..., None])[..., 0]
                    loss = (each * (aims != PAD)).sum()
                if o.count == "tokens":
                    loss = loss / total
                else:
                    loss = loss / (aims != PAD).sum() / len(parts)
                loss.backward()
            if o.clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), o.bound)
            elif o.clip == "value":
                nn.utils.clip_grad_value_(model.parameters(), o.bound / 50)
            optimizer.step()
            optimizer.zero_grad(set_to_none=o.to_none)
            schedule.step()


# --- pictures: a loader with augmentation, running statistics, validation, a scaled loss ----------

PICTURES = dict(
    steps=3, ema=0.9, use_ema=None, stale=False, growth=2, worker_seed=5, drop_last=True, shuffle_valid=False, workers=0, order=7, last=False, format="plain", mixer="linear",
    no_grad="no_grad", kind="SGD", implementation=None, validate=True, momentum=0.9, bn=0.1, scaler=True, init=256.0, threads=1, split=1, compiled=False, in_place=True,
    eps=1e-5, pool="mean", nesterov=False, flip=0.5, crop=None, dampening=0.0, normalized=0.5, gather=False, relu="module",
)  # fmt: skip


class Photos(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, o: Options, count: int, start: int) -> None:
        made = torch.Generator().manual_seed(start)
        self.o = o
        self.labels = torch.randint(0, 4, (count,), generator=made)
        self.photos = (
            torch.rand(count, 3, 8, 8, generator=made) + self.labels[:, None, None, None] / 4
        )
        self.chance = random.Random(o.worker_seed)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        photo = (self.photos[item] - self.o.normalized) / 0.5
        if self.o.flip and self.chance.random() < self.o.flip:
            photo = photo.flip(-1)
        return photo, self.labels[item]


class Block(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8, momentum=o.bn, eps=o.eps)
        linear = nn.Linear(8, 8)
        self.mixer: nn.Module = linear
        if o.mixer == "conv":
            with torch.random.fork_rng():
                self.mixer = nn.Conv1d(8, 8, 1)
            with torch.no_grad():
                self.mixer.weight.copy_(linear.weight[..., None])
                self.mixer.bias.copy_(linear.bias)  # type: ignore[union-attr, operator]
        self.o = o
        self.act = nn.ReLU(inplace=o.in_place)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        y = self.act(y) if self.o.relu == "module" else F.relu(y)
        flat = y.flatten(2)
        mixed = self.mixer(flat) if self.o.mixer == "conv" else self.mixer(flat.mT).mT
        return x + mixed.unflatten(-1, x.shape[-2:])


class Classifier(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.Sequential(Block(o), Block(o))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.stem(x))
        y = y.mean((-2, -1)) if self.o.pool == "mean" else F.adaptive_avg_pool2d(y, 1).flatten(1)
        return self.head(y)


def train_pictures(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(63)
    model = Classifier(o)
    if o.stale:
        with torch.no_grad():
            for block in model.blocks:
                block.norm.running_mean += 0.1
    fresh = copy.deepcopy(model)
    kept = {k: v for k, v in model.state_dict().items() if not (o.stale and "running" in k)}
    fresh.load_state_dict(kept, strict=False)
    if o.stale:
        model = fresh
    if o.format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    average = copy.deepcopy(model).requires_grad_(False)
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    more: dict[str, Any] = {} if o.implementation is None else {"foreach": o.implementation == "foreach", "fused": o.implementation == "fused"}  # fmt: skip
    if o.kind == "SGD":
        more |= {"momentum": o.momentum, "nesterov": o.nesterov, "dampening": o.dampening}
    optimizer = getattr(torch.optim, o.kind)(model.parameters(), lr=0.05, **more)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=o.init, growth_interval=o.growth, enabled=o.scaler
    )
    loader: Any = DataLoader(
        Photos(o, 6 * o.steps - 2 * o.last, 15), 6, shuffle=True, drop_last=o.drop_last, num_workers=o.workers, generator=torch.Generator().manual_seed(o.order),
    )  # fmt: skip
    valid = Photos(Options(**(vars(o) | {"flip": 0.0})), 6, 16)
    checks: Any = DataLoader(valid, 6, shuffle=o.shuffle_valid, generator=torch.Generator().manual_seed(1))  # fmt: skip
    if o.gather:
        loader = DataLoader(TensorDataset(*(torch.stack(each) for each in zip(*(loader.dataset[i] for i in range(len(loader.dataset))), strict=True))), 6)  # fmt: skip
    batches = iter(loader)
    for _ in range(o.steps):
        photos, labels = next(batches, (None, None))
        if photos is None:
            break
        if o.format == "channels_last":
            photos = photos.to(memory_format=torch.channels_last)
        with recorded(debugger, run):
            model.train()
            for x, y in zip(photos.chunk(o.split), labels.chunk(o.split), strict=True):
                loss = F.cross_entropy(run(x), y) / o.split
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            with torch.no_grad():
                for old, new in zip(average.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 1 - o.ema)
                if o.use_ema is not None:
                    for old, new in zip(average.parameters(), model.parameters(), strict=True):
                        new.copy_(old)
            if o.validate:
                model.eval()
                with getattr(torch, o.no_grad)():
                    for x, y in checks:
                        F.cross_entropy(model(x), y)


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "decoder": (train_decoder, DECODER),
    "pictures": (train_pictures, PICTURES),
}
OF_RANKS: Final[set[str]] = set()
MODULE: Final = ("unexplained", "gradient")

CAUSES: Final = [
    Cause("decoder", {"smoothing": 0.1}, ("argument",), r"label_smoothing|loss", L0),
    Cause("decoder", {"side": "left"}, ("data",), r"batch|comes in"),
    Cause("decoder", {"inverted": 1}, ("call", "argument"), r"where|flip|heads|only|mask", MODULE),
    Cause("decoder", {"base": 1e5}, ("argument",), r"100000|1e\+05|pow|layers\.0|cos|own code", MODULE),
    Cause("decoder", {"tied": False}, ("parameters", "optimizer_state", "update"), r"tied|head|lost", base={"resume": 1}),
    # The first call of the planted line, `loss / (aims != PAD).sum() / len(parts)`, is the `!=`.
    Cause("decoder", {"count": "batches"}, ("call", "gradient", "argument"), r"div|sum|loss|gradient|__ne__", L0),
    Cause("decoder", {"always_drop": True}, ("argument", "random", "call"), r"training|True|layers\.0|dropout", MODULE, base={"drop": 0.1, "evaluating": True}),
    Cause("decoder", {"drop": 0.1}, ("argument", "call"), r"\bp\b|0\.1|dropout|layers\.0", MODULE),
    Cause("decoder", {"seed": 4}, ("random",), r"generator|draws", base={"drop": 0.1}),
    Cause("decoder", {"recreate": 1}, ("optimizer_state", "schedule"), r"lost|step count|learning rate"),
    Cause("decoder", {"multiplier": 0.5}, (*SETTING, "schedule"), r"lr is|learning rate"),
    Cause("decoder", {"decay_norms": True}, SETTING, r"weight_decay is 0\.1"),
    Cause("decoder", {"clip": "value"}, ("clipping",), r"value|clip"),
    Cause("decoder", {"bound": 0.25}, ("clipping",), r"0\.25"),
    Cause("decoder", {"clip": "none"}, ("clipping",), r"clip"),
    Cause("decoder", {"theta_interleaved": True}, ("call", "argument"), r"getitem|chunk|stack|only|heads|slice", MODULE),
    Cause("decoder", {"causal": False}, ("call", "argument"), r"tril|and|only|heads|mask", MODULE),
    Cause("decoder", {"pad_loss": True}, ("argument",), r"ignore_index|-100|loss", L0),
    Cause("decoder", {"scale": 0.25}, ("argument",), r"scale|0\.25|heads", MODULE),
    Cause("decoder", {"warm": 3}, ("schedule", *SETTING), r"learning rate|lr is"),
    Cause("pictures", {"use_ema": 1}, ("parameters", "call", "update"), r"parameters|copy_|step"),
    Cause("pictures", {"use_ema": 1, "ema": 0.5}, ("argument", "parameters", "update", "call"), r"lerp|0\.5|parameters", base={"use_ema": 1}),
    Cause("pictures", {"stale": True}, ("parameters",), r"running_mean"),
    Cause("pictures", {"growth": 1}, ("argument", "equal"), r"amp_update_scale|agree"),
    Cause("pictures", {"worker_seed": 6}, ("data", "random"), r"batch|comes in|python"),
    Cause("pictures", {"drop_last": False}, ("equal",), r"only the target has step 2", base={"last": True}),
    Cause("pictures", {"shuffle_valid": True}, ("data",), r"order|micro batch"),
    Cause("pictures", {"order": 8}, ("data",), r"batch|order"),
    Cause("pictures", {"bn": 0.2}, ("argument",), r"momentum"),
    Cause("pictures", {"nesterov": True}, SETTING, r"nesterov is True"),
    Cause("pictures", {"dampening": 0.1}, SETTING, r"dampening is 0\.1"),
    Cause("pictures", {"normalized": 0.4}, ("data",), r"batch|comes in"),
]  # fmt: skip

PAIRS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("decoder", {"compiled": True}, {}),
    ("decoder", {"attention": "eager"}, {}),
    ("decoder", {"attention": "eager", "einsum": True}, {"attention": "eager"}),
    ("decoder", {"implementation": "foreach"}, {"implementation": "loop"}),
    ("decoder", {"implementation": "fused"}, {"implementation": "loop"}),
    ("decoder", {"implementation": "fused"}, {"implementation": "foreach"}),
    ("decoder", {"threads": 2}, {}),
    ("decoder", {"checkpointing": True}, {}),
    ("decoder", {"to_none": False}, {}),
    ("decoder", {"micro": 1}, {}),
    ("decoder", {"micro": 4}, {"micro": 2}),
    ("decoder", {"packed": False}, {}),
    ("decoder", {"rms": "own"}, {}),
    ("decoder", {"loss": "own"}, {}),
    ("decoder", {"resume": 1}, {}),
    ("decoder", {"bound": 1e9, "clip": "none"}, {"bound": 1e9}),
    ("pictures", {"format": "channels_last"}, {}),
    ("pictures", {"no_grad": "inference_mode"}, {}),
    ("pictures", {"mixer": "conv"}, {}),
    ("pictures", {"scaler": False}, {}),
    ("pictures", {"workers": 1, "flip": 0.0}, {"flip": 0.0}),
    ("pictures", {"compiled": True}, {}),
    ("pictures", {"in_place": False}, {}),
    ("pictures", {"relu": "function", "in_place": False}, {"in_place": False}),
    ("pictures", {"pool": "adaptive"}, {}),
]  # fmt: skip
