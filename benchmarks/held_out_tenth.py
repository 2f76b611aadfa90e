# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The tenth set of `held_out_verdicts.py`: segmentation, a tagger with adapters, a GAN with a penalty."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from held_out_cases import L0, SETTING, Cause
from held_out_programs import Options, recorded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- segmentation: a small U, group norm, dice loss, plateau schedule, average of the weights -----

SEGMENT = dict(
    steps=3, batch=4, kind="sgd", lr=0.05, momentum=0.9, dampening=0.0, nesterov=False, decay=1e-3, lr_decay=0.0, accumulator=0.0, lambd=1e-4,
    schedule="plateau", patience=0, factor=0.5, restart=2, norm_type=2.0, max_norm=0.4, clips=True, average=0.0, swap_at=None, micro=1, used=None,
    divides=True, scaler=None, growth=2, unscale=True, frozen=(), shuffle=True, order=0, skipped=None, resume=None, keep=("model", "optimizer", "schedule"),
    validate=None, back=True, drop=0.0, eps=1e-5, dice=1.0, smooth=1.0, mode="bilinear", flipped=None, crop=0, channels_last=False, autocast=False,
    threads=1, foreach=None, fused=None, dtype=torch.float32, functional=False, checkpointing=False, compiled=False, decay_at=None, cleared=True,
    stale=False, head_lr=None, skip_scale=1.0, norm_first=False, twice=None, dead=None, weights=None, late_head=False, hook=None,
)  # fmt: skip


class Block(nn.Module):
    def __init__(self, o: Options, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(2, outside, eps=o.eps)
        self.o = o

    def forward(self, x: Tensor) -> Tensor:
        if self.o.functional:
            y = F.conv2d(x, self.conv.weight, self.conv.bias, padding=1)
            return F.silu(F.group_norm(y, 2, self.norm.weight, self.norm.bias, self.o.eps))
        if self.o.norm_first:
            return self.norm(F.silu(self.conv(x)))
        return F.silu(self.norm(self.conv(x)))


class Segment(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.down, self.middle, self.up = Block(o, 2, 8), Block(o, 8, 16), Block(o, 24, 8)
        self.drop = nn.Dropout2d(o.drop)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down(x)
        b = self.middle(F.max_pool2d(a, 2))
        b = F.interpolate(self.drop(b), scale_factor=2, mode=self.o.mode)
        y = torch.cat([a * self.o.skip_scale, b], 1)
        y = checkpoint(self.up, y, use_reentrant=False) if self.o.checkpointing else self.up(y)
        return self.head(y)


def losses(o: Options, y: Tensor, mask: Tensor) -> Tensor:
    p = y.float().softmax(1)
    hot = F.one_hot(mask, 3).permute(0, 3, 1, 2)
    dice = 1 - (2 * (p * hot).sum((2, 3)) + o.smooth) / ((p + hot).sum((2, 3)) + o.smooth)
    return (
        F.cross_entropy(y, mask, weight=o.weights and torch.tensor(o.weights))
        + o.dice * dice.mean()
    )


def optimizer_of(o: Options, groups: list[dict[str, Any]]) -> Any:
    if o.kind == "adagrad":
        return torch.optim.Adagrad(
            groups,
            o.lr,
            lr_decay=o.lr_decay,
            initial_accumulator_value=o.accumulator,
            foreach=o.foreach,
            fused=o.fused,
        )
    if o.kind == "asgd":
        return torch.optim.ASGD(groups, o.lr, lambd=o.lambd, foreach=o.foreach)
    return torch.optim.SGD(
        groups, o.lr, o.momentum, o.dampening, o.decay, o.nesterov, foreach=o.foreach, fused=o.fused
    )


def train_segment(debugger: PrecisionDebugger, place: Path, o: Options) -> None:
    with contextlib.suppress(OSError):
        _train_segment(debugger, o)


def _train_segment(debugger: PrecisionDebugger, o: Options) -> None:
    torch.manual_seed(23)
    torch.set_num_threads(o.threads)
    model: Any = Segment(o).to(o.dtype)
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    for name, p in model.named_parameters():
        p.requires_grad_(not any(name.startswith(each) for each in o.frozen))
    if o.hook is not None:
        model.middle.conv.weight.register_hook(lambda g: g * o.hook)
    head = list(model.head.parameters())
    body = [p for n, p in model.named_parameters() if not n.startswith("head")]
    optimizer = optimizer_of(o, [{"params": body}, {"params": head, "lr": o.head_lr or o.lr}])
    if o.late_head:
        torch.manual_seed(23)
        model = Segment(o)
    if o.schedule == "plateau":
        schedule: Any = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=o.factor, patience=o.patience, mode="max"
        )
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, o.restart)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=o.scaler or 1.0, growth_interval=o.growth, enabled=o.scaler is not None
    )
    average = (
        torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(o.average)
        )
        if o.average
        else None
    )
    made = torch.Generator().manual_seed(9)
    images = torch.randn(16, 2, 8, 8, generator=made)
    masks = (images.sum(1) > 0).long() + (images[:, 0] > 1).long()
    if o.flipped is not None:
        masks[o.flipped] = 0
    loader = DataLoader(
        TensorDataset(images, masks),
        o.batch,
        shuffle=o.shuffle,
        generator=torch.Generator().manual_seed(o.order),
    )
    batches = list(loader)
    if o.skipped is not None:
        del batches[o.skipped]
    torch.manual_seed(77)
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    for step in range(o.steps):
        if o.resume == step:
            parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
            saved = {n: copy.deepcopy(each.state_dict()) for n, each in parts.items()}
            model.load_state_dict({n: t.clone() for n, t in saved["model"].items()})
            optimizer = optimizer_of(
                o, [{"params": body}, {"params": head, "lr": o.head_lr or o.lr}]
            )
            if o.schedule == "plateau":
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                    optimizer, factor=o.factor, patience=o.patience, mode="max"
                )
            else:
                schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
                    optimizer, o.restart
                )
            if "optimizer" in o.keep:
                optimizer.load_state_dict(saved["optimizer"])
            if "schedule" in o.keep:
                schedule.load_state_dict(saved["schedule"])
        x, mask = batches[step]
        if o.crop:
            x = torch.roll(x, o.crop, -1)
        if o.channels_last:
            x = x.to(memory_format=torch.channels_last)
        if o.decay_at == step:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        with recorded(debugger, model):
            total = 0.0
            if o.stale and step:
                optimizer.step()
            parts = (
                [(x, mask)]
                if o.micro == 1
                else list(zip(x.chunk(o.micro), mask.chunk(o.micro), strict=True))
            )
            for a, b in parts[: o.used]:
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                    y = run(a.to(o.dtype))
                    loss = losses(o, y, b) / (o.micro if o.divides else 1)
                scaler.scale(loss).backward()
                total += loss.item()
            if o.dead == step:
                raise OSError("disk full")
            if o.unscale:
                scaler.unscale_(optimizer)
            if o.clips:
                nn.utils.clip_grad_norm_(model.parameters(), o.max_norm, norm_type=o.norm_type)
            if not (o.stale and step):
                scaler.step(optimizer)
            if o.twice == step:
                optimizer.step()
            scaler.update()
            if o.cleared:
                optimizer.zero_grad()
            if o.schedule == "plateau":
                schedule.step(total)
            else:
                schedule.step()
            if average is not None:
                average.update_parameters(model)
        if o.validate == step:
            model.eval()
            with torch.no_grad():
                model(batches[0][0].to(o.dtype))
            model.train(o.back)
        if o.swap_at == step and average is not None:
            model.load_state_dict(average.module.state_dict())


# --- a tagger: attention, tied weights, adapters, a search for the learning rate -----------------

TAGGER = dict(
    steps=3, lr=0.01, betas=(0.9, 0.99), eps=1e-8, decay=0.01, capturable=False, kind="adamw", tied=True, adapters=0, alpha=2.0, freeze_base=True, adapter_drop=0.0,
    start=0.0, merged_at=None, finder=False, restore=("model", "optimizer", "lr"), quantize="straight", scale=1.0, renorm=True, renorm_at=(0, 1, 2), clamp_at=None,
    attention="sdpa", causal=True, heads=2, drop=0.0, compiled=False, smoothing=0.0, ignore=-100, reduction="mean", batch=4, split=1, weighted=False, threads=1,
    fused=None, foreach=None, hook="none", cycle=True, max_lr=0.03, pct=0.5, extra_eval=False, order=0, workers=0, dtype=torch.float32, autocast=False, einsum=False,
    seed=5, skipped=None, unused=False, groups=1, positions=True, warm=0.0, momentum_first=0.85, embed_scale=1.0, mask_pad=True, detach=False, eval_drop=None, plus=0,
)  # fmt: skip


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, o: Options) -> Tensor:
        ctx.o = o
        ctx.save_for_backward(x)
        return (x * 8).round() / 8

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if ctx.o.quantize == "clipped":
            g = g * (x.abs() < 0.5)
        return g * ctx.o.scale, None


class Adapter(nn.Module):
    def __init__(self, o: Options, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.o = base, o
        self.a = nn.Parameter(torch.randn(o.adapters, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.full((base.out_features, o.adapters), o.start))
        self.drop = nn.Dropout(o.adapter_drop)
        self.merged = False

    def merge(self) -> None:
        with torch.no_grad():
            self.base.weight += self.o.alpha / self.o.adapters * self.b @ self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.drop(x) @ self.a.mT @ self.b.mT * (
            self.o.alpha / self.o.adapters
        )


class Tagger(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.place = nn.Parameter(torch.randn(6, 16) * 0.02)
        self.qkv: nn.Module = nn.Linear(16, 48)
        self.out: nn.Module = nn.Linear(16, 16)
        self.norm = nn.RMSNorm(16)
        self.drop = nn.Dropout(o.drop)
        self.head = nn.Linear(16, 20, bias=False)
        if o.tied:
            self.head.weight = self.embed.weight
        else:
            self.head.load_state_dict({"weight": self.embed.weight.detach().clone()})
        if o.unused:
            self.spare = nn.Linear(3, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words) * self.o.embed_scale
        if self.o.positions:
            x = x + self.place
        x = Quantize.apply(x, self.o)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.o.heads, -1)).permute(2, 0, 3, 1, 4)
        pad = (words == 0)[:, None, None] & torch.tensor(self.o.mask_pad)
        banned = pad | torch.ones(6, 6, dtype=torch.bool).triu(1).logical_and(
            torch.tensor(self.o.causal)
        )
        banned = banned & ~torch.eye(6, dtype=torch.bool)
        if self.o.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=~banned)
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) if self.o.einsum else q @ k.mT
            y = (scores / (16 // self.o.heads) ** 0.5).masked_fill(banned, -torch.inf).softmax(
                -1
            ) @ v
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        return self.head(x.detach() if self.o.detach else x)


def train_tagger(debugger: PrecisionDebugger, place: Path, o: Options) -> None:
    torch.manual_seed(o.seed)
    torch.set_num_threads(o.threads)
    model: Any = Tagger(o)
    if o.adapters:
        for p in model.parameters():
            p.requires_grad_(not o.freeze_base)
        torch.manual_seed(6)
        model.qkv, model.out = Adapter(o, model.qkv), Adapter(o, model.out)
    model = model.to(o.dtype)
    own = [p for p in model.parameters() if p.requires_grad]
    if o.hook == "same":
        own[-1].register_hook(lambda g: g.clone())
    elif o.hook == "half":
        own[-1].register_hook(lambda g: g / 2)
    elif o.hook == "module":
        model.norm.register_full_backward_hook(lambda _m, i, _o: (i[0] * 0.1,))
    groups: Any = (
        [{"params": own}] if o.groups == 1 else [{"params": own[::2]}, {"params": own[1::2]}]
    )
    if o.kind == "radam":
        optimizer: Any = torch.optim.RAdam(groups, o.lr, o.betas, o.eps, o.decay)
    elif o.kind == "adamax":
        optimizer = torch.optim.Adamax(groups, o.lr, o.betas, o.eps, o.decay)
    else:
        optimizer = torch.optim.AdamW(
            groups, o.lr, o.betas, o.eps, o.decay, fused=o.fused, foreach=o.foreach
        )
    made = torch.Generator().manual_seed(3)
    words = torch.randint(1, 20, (24, 6), generator=made)
    words[:, 5] = torch.where(words[:, 0] > 10, 0, words[:, 5])
    tags = (words * 7 + 1) % 20
    tags[words == 0] = o.ignore if o.ignore >= 0 else -100

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(
            model_run(x).flatten(0, 1),
            y.flatten(),
            label_smoothing=o.smoothing,
            reduction=o.reduction,
            ignore_index=-100,
        )

    model_run = torch.compile(model, backend="aot_eager") if o.compiled else model
    torch.manual_seed(8)
    if o.finder:
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        for n in range(4):
            optimizer.param_groups[0]["lr"] = 1e-4 * 10**n
            loss_of(words[20:], tags[20:]).backward()
            optimizer.step()
            optimizer.zero_grad()
        if "model" in o.restore:
            model.load_state_dict(kept[0])
        if "optimizer" in o.restore:
            optimizer.load_state_dict(kept[1])
        if "lr" in o.restore:
            optimizer.param_groups[0]["lr"] = o.lr
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        o.max_lr,
        total_steps=8,
        pct_start=o.pct,
        cycle_momentum=o.cycle,
        base_momentum=o.momentum_first,
    )
    batches = list(
        DataLoader(
            TensorDataset(words, tags),
            o.batch,
            shuffle=True,
            generator=torch.Generator().manual_seed(o.order),
            num_workers=o.workers,
        )
    )
    for step in range(o.steps):
        x, y = batches[step + (o.skipped is not None and step >= o.skipped)]
        with recorded(debugger, model):
            for a, b in zip(x.chunk(o.split), y.chunk(o.split), strict=True):
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                    loss = loss_of(a, b)
                share = (b != -100).sum() / (y != -100).sum() if o.weighted else 1 / o.split
                (loss * share if o.split > 1 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            if o.renorm and step in o.renorm_at:
                with torch.no_grad():
                    model.place.copy_(model.place.renorm(2, 0, 0.05))
        if o.merged_at == step:
            model.out.merge()
        if o.clamp_at == step:
            model.norm.weight.data.clamp_(max=0.9)
        if o.extra_eval:
            model.eval()
            with torch.no_grad():
                model(words[:4])
            model.train()
        if o.eval_drop == step:
            model.drop.eval()


# --- a GAN with hinge loss and a gradient penalty: two optimizers --------------------------------

HINGE = dict(steps=2, critics=2, penalty=10.0, center=1.0, lr=(0.01, 0.02), betas=(0.5, 0.9), detach=True, clears=True, freezes=True, noise=4, decay=0.999, ema=False, hinge=1.0, swapped=False, eval_g=False, same_noise=False, alpha=0.2, critic_decay=0.0, threads=1, late=False, foreach=None, one_call=False, last=True)  # fmt: skip


def train_hinge(debugger: PrecisionDebugger, place: Path, o: Options) -> None:
    torch.manual_seed(15)
    torch.set_num_threads(o.threads)
    maker = nn.Sequential(
        nn.Linear(4, 12), nn.BatchNorm1d(12), nn.LeakyReLU(o.alpha), nn.Linear(12, 3)
    )
    critic = nn.Sequential(nn.Linear(3, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    of_maker = torch.optim.Adam(maker.parameters(), o.lr[0], o.betas, foreach=o.foreach)
    of_critic = torch.optim.Adam(
        critic.parameters(), o.lr[1], (0.5, 0.9), weight_decay=o.critic_decay, foreach=o.foreach
    )
    made = torch.Generator().manual_seed(5)
    true = torch.randn(48, 3, generator=made).cumsum(1)
    torch.manual_seed(o.noise)
    if o.eval_g:
        maker.eval()
    for step in range(o.steps):
        with recorded(debugger, maker, critic):
            for n in range(o.critics):
                x = true[8 * (2 * step + n) :][:8]
                z = torch.randn(8, 4)
                fake = maker(z).detach() if o.detach else maker(z)
                if o.one_call:
                    a, b = critic(torch.cat([x, fake])).chunk(2)
                else:
                    a, b = critic(x), critic(fake)
                loss = F.relu(o.hinge - a).mean() + F.relu(o.hinge + b).mean()
                mix = torch.rand(8, 1)
                between = (mix * x + (1 - mix) * fake.detach()).requires_grad_()
                (grad,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
                loss = loss + o.penalty * ((grad.norm(2, 1) - o.center) ** 2).mean()
                of_critic.zero_grad()
                loss.backward()
                of_critic.step()
            for p in critic.parameters():
                p.requires_grad_(not o.freezes)
            if o.clears:
                of_maker.zero_grad()
            (-critic(maker(z if o.same_noise else torch.randn(8, 4))).mean()).backward()
            if o.last or step == 0:
                of_maker.step()
            for p in critic.parameters():
                p.requires_grad_(True)


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "segment": (train_segment, SEGMENT),
    "tagger": (train_tagger, TAGGER),
    "hinge": (train_hinge, HINGE),
}
OF_RANKS: Final[set[str]] = set()
LORA: Final = {"adapters": 2}
COSINE: Final = {"schedule": "cosine"}
FINDER: Final = {"finder": True}

CAUSES: Final = [
    Cause("segment", {"dampening": 0.1}, SETTING, r"dampening is 0\.1"),
    Cause("segment", {"nesterov": True}, SETTING, r"nesterov is True"),
    Cause("segment", {"lr_decay": 0.1}, SETTING, r"lr_decay is 0\.1", base={"kind": "adagrad"}),
    Cause("segment", {"accumulator": 0.1}, (*SETTING, "optimizer_state"), r"initial_accumulator_value is 0\.1|accumul|sum", base={"kind": "adagrad"}),
    Cause("segment", {"lambd": 0.2}, SETTING, r"lambd is 0\.2", base={"kind": "asgd"}),
    Cause("segment", {"patience": 1}, ("schedule",), r"patience|learning rate"),
    Cause("segment", {"factor": 0.3}, ("schedule",), r"factor|learning rate"),
    Cause("segment", {"restart": 3}, ("schedule",), r"T_0|T_i|learning rate", base=COSINE),
    Cause("segment", {"schedule": "cosine"}, ("schedule",), r"Cosine.*Plateau|learning rate"),
    Cause("segment", {"norm_type": float("inf")}, ("clipping",), r"norm_type|norm is"),
    Cause("segment", {"clips": False}, ("clipping",), r"clip"),
    Cause("segment", {"max_norm": 0.2}, ("clipping",), r"max_norm.*0\.2|0\.2.*max_norm"),
    Cause("segment", {"unscale": False}, ("gradient", "clipping"), r"unscale|256", base={"scaler": 256.0}),
    Cause("segment", {"swap_at": 1}, ("parameters",), r"parameters.*step 2|step 2", base={"average": 0.9}),
    Cause("segment", {"used": 1}, ("data",), r"micro batch", base={"micro": 2}),
    Cause("segment", {"divides": False}, ("gradient", "call", "argument"), r"2|div|micro batch", base={"micro": 2}),
    Cause("segment", {"frozen": ("middle.norm",)}, ("mode",), r"middle\.norm.* frozen"),
    Cause("segment", {"order": 1}, ("data",), r"order|batch"),
    Cause("segment", {"shuffle": False}, ("data",), r"order|batch"),
    Cause("segment", {"skipped": 1}, ("data",), r"step 1"),
    Cause("segment", {"keep": ("model", "schedule")}, ("optimizer_state",), r"lost|momentum", base={"resume": 1}),
    Cause("segment", {"keep": ("model", "optimizer")}, ("schedule",), r"learning rate|Cosine|last_epoch|T_cur|step", base={"resume": 2, "schedule": "cosine", "restart": 3, "steps": 4}),
    Cause("segment", {"back": False}, ("mode",), r"eval", base={"validate": 0, "drop": 0.3}),
    Cause("segment", {"drop": 0.2}, ("argument", "call", "random"), r"drop", L0, base={"drop": 0.1}),
    Cause("segment", {"eps": 1e-3}, ("argument",), r"eps", L0),
    Cause("segment", {"dice": 0.5}, ("argument", "call"), r"mul|0\.5|loss", L0),
    Cause("segment", {"smooth": 1e-3}, ("argument",), r"add|0\.001|loss", L0),
    Cause("segment", {"mode": "nearest"}, ("argument",), r"interpolate.*mode|mode.*nearest", L0),
    Cause("segment", {"flipped": 1}, ("data",), r"target|label|batch|mask|input|the loss is", L0),
    Cause("segment", {"crop": 1}, ("data",), r"input|batch"),
    Cause("segment", {"decay_at": 1}, (*SETTING, "schedule"), r"weight_decay is 0\.1"),
    Cause("segment", {"cleared": False}, ("gradient",), r"clear|sum|add"),
    Cause("segment", {"head_lr": 0.1}, SETTING, r"lr is 0\.1"),
    Cause("segment", {"skip_scale": 0.5}, ("argument",), r"mul.*0\.5|0\.5|Segment|up", L0),
    Cause("segment", {"norm_first": True}, ("call", "order"), r"silu|norm", L0),
    Cause("segment", {"twice": 1}, ("update",), r"twice|2 times|step 1"),
    Cause("segment", {"dead": 1}, ("incomplete",), r"disk full"),
    Cause("segment", {"weights": (1.0, 2.0, 1.0)}, ("argument",), r"weight|the loss is", L0),
    Cause("segment", {"late_head": True}, ("update", "gradient", *SETTING), r"not updated|no gradient|optimizer"),
    Cause("segment", {"hook": 0.5}, ("gradient",), r"middle\.conv|hook"),
    Cause("segment", {"autocast": True}, ("precision",), r"autocast|bfloat16"),
    Cause("segment", {"stale": True}, ("update", "gradient", "clipping"), r"after optimizer\.step\(\)"),
    Cause("tagger", {"betas": (0.9, 0.9)}, SETTING, r"beta2 is 0\.9 "),
    Cause("tagger", {"eps": 1e-3}, SETTING, r"eps is 0\.001"),
    Cause("tagger", {"kind": "radam"}, SETTING, r"RAdam.*AdamW"),
    Cause("tagger", {"betas": (0.9, 0.8)}, SETTING, r"beta2 is 0\.8 ", base={"kind": "adamax"}),
    Cause("tagger", {"cycle": False}, ("schedule", *SETTING), r"beta1|momentum"),
    Cause("tagger", {"momentum_first": 0.7}, ("schedule", *SETTING), r"beta1|momentum"),
    Cause("tagger", {"pct": 0.3}, ("schedule",), r"pct_start|learning rate|total_steps|OneCycle"),
    Cause("tagger", {"tied": False}, ("parameters",), r"tied"),
    Cause("tagger", {"alpha": 4.0}, ("argument",), r"mul|2", L0, base=LORA | {"start": 0.1}),
    Cause("tagger", {"freeze_base": False}, ("mode",), r"frozen", base=LORA),
    Cause("tagger", {"start": 0.1}, ("parameters",), r"\.b\b", base=LORA),
    Cause("tagger", {"adapter_drop": 0.5}, ("argument", "call", "random"), r"drop", L0, base=LORA | {"start": 0.1, "adapter_drop": 0.1}),
    Cause("tagger", {"merged_at": 0}, ("parameters",), r"out\.base\.weight.*step 1|step 1.*out\.base\.weight", base=LORA | {"start": 0.1}),
    Cause("tagger", {"restore": ("model", "lr")}, ("optimizer_state",), r"step count|state|earlier|steps", base=FINDER),
    Cause("tagger", {"restore": ("optimizer", "lr")}, ("parameters",), r"step 0|parameters", base=FINDER),
    Cause("tagger", {"scale": 0.5}, ("gradient",), r"0\.5|half|1/2|Quantize|embed", base={}),
    Cause("tagger", {"quantize": "clipped"}, ("gradient",), r"Quantize|embed|place"),
    Cause("tagger", {"renorm": False}, ("parameters", "update", "call"), r"place"),
    Cause("tagger", {"renorm_at": (0, 2)}, ("parameters", "update", "call"), r"place"),
    Cause("tagger", {"clamp_at": 0}, ("parameters",), r"norm\.weight"),
    Cause("tagger", {"causal": False}, ("argument", "call", "data"), r"mask|attention|tensor.*False|o\.causal", L0),
    Cause("tagger", {"heads": 4}, ("argument", "call"), r"unflatten|4|scaled_dot", L0),
    Cause("tagger", {"smoothing": 0.1}, ("argument",), r"label_smoothing|mul\(other=0\.9\)", L0),
    Cause("tagger", {"ignore": 0}, ("data", "argument"), r"target|label|cross_entropy|batch|loss", L0),
    Cause("tagger", {"reduction": "sum"}, ("argument",), r"reduction", L0),
    Cause("tagger", {"hook": "half"}, ("gradient",), r"hook|1/2|half|0\.5"),
    Cause("tagger", {"hook": "module"}, ("gradient", "call"), r"hook|norm|0\.1|1/10|__mul__"),
    Cause("tagger", {"order": 2}, ("data",), r"order|batch"),
    Cause("tagger", {"skipped": 1}, ("data",), r"step 1"),
    Cause("tagger", {"positions": False}, ("call", "mode", "gradient"), r"add|place|o\.positions", L0),
    Cause("tagger", {"embed_scale": 4.0}, ("argument",), r"mul|4", L0),
    Cause("tagger", {"mask_pad": False}, ("argument", "call"), r"mask|and|tensor.*False", L0, base={"causal": False}),
    Cause("tagger", {"detach": True}, ("gradient", "call"), r"detach|no gradient|gradient"),
    Cause("tagger", {"eval_drop": 0}, ("mode",), r"drop.* eval|eval.*drop", base={"drop": 0.3}),
    Cause("tagger", {"split": 2}, ("gradient", "call", "data", "argument"), r"micro|batch|chunk", base={"steps": 2}),
    Cause("hinge", {"penalty": 5.0}, ("argument",), r"mul|5", L0),
    Cause("hinge", {"center": 0.0}, ("argument",), r"sub|0|norm", L0),
    Cause("hinge", {"lr": (0.01, 0.01)}, SETTING, r"lr is 0\.01 .*0\.02"),
    Cause("hinge", {"betas": (0.0, 0.9)}, SETTING, r"beta1 is 0(\.0)? .*0\.5"),
    Cause("hinge", {"clears": False}, ("gradient",), r"clear|sum|earlier"),
    Cause("hinge", {"critics": 1}, ("call", "update", "data", "different_programs"), r"only the reference|micro batch|twice|once"),
    Cause("hinge", {"hinge": 2.0}, ("argument",), r"sub.*2|the loss is", L0),
    Cause("hinge", {"noise": 6}, ("random",), r"generator"),
    Cause("hinge", {"eval_g": True}, ("mode",), r"eval"),
    Cause("hinge", {"same_noise": True}, ("data", "order", "random"), r"randn|input|batch|data|generator"),
    Cause("hinge", {"alpha": 0.1}, ("argument",), r"negative_slope|leaky_relu|LeakyReLU|2", L0),
    Cause("hinge", {"critic_decay": 0.1}, SETTING, r"weight_decay is 0\.1"),
    Cause("hinge", {"last": False}, ("update",), r"step 1|not updated"),
]  # fmt: skip

PAIRS: Final = [
    ("segment", {}, {}),
    ("segment", {"threads": 2}, {}),
    ("segment", {"channels_last": True}, {}),
    ("segment", {"autocast": True, "steps": 1}, {"steps": 1}),
    ("segment", {"dtype": torch.bfloat16, "steps": 1}, {"steps": 1}),
    ("segment", {"dtype": torch.float64}, {}),
    ("segment", {"foreach": True}, {"foreach": False}),
    ("segment", {"fused": True}, {"foreach": False}),
    ("segment", {"kind": "adagrad", "fused": True}, {"kind": "adagrad", "foreach": True}),
    ("segment", {"functional": True}, {}),
    ("segment", {"checkpointing": True}, {}),
    ("segment", {"compiled": True}, {"compiled": True}),
    ("segment", {"compiled": True}, {}),
    ("segment", {"micro": 2, "dice": 0.0}, {"dice": 0.0}),
    ("segment", {"resume": 1}, {}),
    ("segment", {"resume": 2, "schedule": "cosine"}, {"schedule": "cosine"}),
    ("segment", {"validate": 0}, {}),
    ("segment", {"scaler": 128.0}, {}),
    ("segment", {"average": 0.9}, {}),
    ("tagger", {"attention": "manual"}, {}),
    ("tagger", {"attention": "manual", "einsum": True}, {"attention": "manual"}),
    ("tagger", {"split": 2, "weighted": True}, {}),
    ("tagger", {"finder": True}, {}),
    ("tagger", {"hook": "same"}, {}),
    ("tagger", {"fused": True}, {"foreach": True}),
    ("tagger", {"groups": 2, "cycle": False, "max_lr": 0.03}, {"cycle": False}),
    ("tagger", {"workers": 1}, {}),
    ("tagger", {"extra_eval": True}, {}),
    ("tagger", {"unused": True}, {}),
    ("tagger", {"dtype": torch.bfloat16, "steps": 1}, {"steps": 1}),
    ("tagger", {"dtype": torch.float64, "steps": 2}, {"steps": 2}),
    ("tagger", {"adapters": 2, "adapter_drop": 0.0, "start": 0.1, "threads": 2}, {"adapters": 2, "start": 0.1}),
    ("hinge", {"threads": 2}, {}),
    ("hinge", {"detach": False}, {}),
    ("hinge", {"freezes": False}, {}),
    ("hinge", {"foreach": True}, {"foreach": False}),
    ("hinge", {"one_call": True}, {}),
]  # fmt: skip
