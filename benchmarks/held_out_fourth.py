# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The fourth set of `held_out_verdicts.py`: programs, causes and legal pairs of other authors' ways."""

from __future__ import annotations

import contextlib
import copy
import math
from pathlib import Path
from typing import Any, Final

import accelerate
import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
import transformers
from held_out_cases import L0, SETTING, Cause
from held_out_programs import Options, recorded
from held_out_trainers import TrainerRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- a language model: RMSNorm, rotary positions, gated MLP, tied head ---------------------------

LM = dict(
    heads=2, theta=100.0, eps=1e-6, gate="silu", tied=True, smoothing=0.0, ignore=-100, pad=True,
    steps=3, lr=0.05, momentum=0.9, dampening=0.0, decay=0.0, warm=2, kind="sgd", clip=1.0, norm_type=2.0,
    seed=1, shift=1, micro=2, mean=True, dropout=0.1, causal=True, scale=None, frozen=None, dtype=torch.float32,
    autocast=False, by_hand=False, residual=1.0, foreach=None, repeat_kv=1, skip_step=None, zero_at=None,
    noise=0.0, noise_at=None, init=0.02, threads=1, checkpointing=False, fail=None, schedule_first=False, swap=False, sdpa_math=False,
    maximize=False, logs=False, copies=False,
)  # fmt: skip


class Rms(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def rotated(x: Tensor, theta: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * theta ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Layer(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.before, self.after = Rms(16, 1e-6), Rms(16, o.eps)
        self.q, self.k, self.v, self.o_proj = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)
        self.drop = nn.Dropout(o.dropout)

    def attend(self, x: Tensor) -> Tensor:
        o = self.o
        q, k, v = (
            m(x).unflatten(-1, (o.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        q, k = rotated(q, o.theta), rotated(k, o.theta)
        if o.by_hand:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=o.causal, scale=o.scale)
        return self.o_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.o.residual * self.drop(self.attend(self.before(x)))
        y = self.after(x)
        gates = getattr(F, self.o.gate)(self.gate(y))
        inner = self.up(y) * gates if self.o.swap else gates * self.up(y)
        return x + self.drop(self.down(inner))


class Lm(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(23, 16)
        self.layers = nn.ModuleList(Layer(o) for _ in range(2))
        self.norm, self.head = Rms(16, 1e-6), nn.Linear(16, 23, bias=False)
        nn.init.normal_(self.embed.weight, std=o.init * 10)
        if o.tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            if self.o.checkpointing:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x))


def train_lm(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Accumulate by micro batches; LambdaLR warm-up."""
    torch.set_num_threads(o.threads)
    torch.manual_seed(17)
    model = Lm(o).to(o.dtype)
    if o.frozen:
        model.get_parameter(o.frozen).requires_grad_(False)
    wanted = [p for p in model.parameters() if p.requires_grad]
    if o.kind == "sgd":
        optimizer: Any = torch.optim.SGD(
            wanted, o.lr, o.momentum, o.dampening, o.decay, foreach=o.foreach, maximize=o.maximize
        )
    else:
        optimizer = getattr(torch.optim, o.kind)(wanted, o.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / o.warm))
    made = torch.Generator().manual_seed(31)
    texts = torch.randint(1, 23, (o.steps * 4, 9), generator=made)
    if o.pad:
        texts[::3, 6:] = 0
    torch.manual_seed(o.seed)
    total = torch.zeros(())

    def step(number: int) -> None:
        nonlocal total
        batch = texts[number * 4 : number * 4 + 4]
        for place, part in enumerate(batch.chunk(o.micro)):
            targets = part[:, o.shift :].clone()
            targets[targets == 0] = o.ignore
            inputs = part[:, : part.shape[1] - o.shift]
            with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                logits = model(inputs)
                loss = F.cross_entropy(
                    logits.flatten(0, 1),
                    targets.flatten(),
                    label_smoothing=o.smoothing,
                    ignore_index=-100 if o.ignore == -100 else 0,
                )
            (loss / o.micro if o.mean else loss).backward()
            if o.logs:
                total = total + loss.detach()
            if o.fail == number and place == 1:
                raise RuntimeError("out of memory")
        if o.zero_at == number:
            model.layers[1].up.weight.grad.zero_()
        if o.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip, norm_type=o.norm_type)
        if o.schedule_first:
            schedule.step()
        if o.skip_step != number:
            optimizer.step()
        if not o.schedule_first:
            schedule.step()
        optimizer.zero_grad()

    for number in range(o.steps):
        if o.noise_at == number:
            with torch.no_grad():
                model.layers[0].down.weight.mul_(1 + o.noise)
        if o.copies:
            copy.deepcopy(model)(texts[:1, :3])
        with contextlib.suppress(RuntimeError), recorded(debugger, model):
            step(number)


# --- noise prediction: convolutions, group norms, a hand-made average ----------------------------

NOISY = dict(
    groups=4, steps=3, lr=2e-3, betas=(0.9, 0.99), eps=1e-8, decay=0.01, t_max=10, clip=None, sigma=1.0, schedule="cosine",
    seed=4, times=100, mode="nearest", padding="zeros", average=0.9, back=None, kind="AdamW", loss="mse", channels_last=False,
    fused=None, foreach=None, unet=True, order=1, corrupt=None, drop=None, extra_norm=False, lost=None, load=None, weight=None, wd_bias=True, workers=0, bf16=False, biased=True, compiled=False,
)  # fmt: skip


class Unet(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.time = nn.Embedding(100, 8)
        self.inp = nn.Conv2d(2, 8, 3, padding=1, padding_mode=o.padding)
        self.norm = nn.GroupNorm(o.groups, 8)
        self.down, self.up = nn.Conv2d(8, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.norm(self.inp(x))) + self.time(t)[:, :, None, None]
        d = F.interpolate(F.silu(self.down(h)), scale_factor=2, mode=self.o.mode)
        return self.out(torch.cat([h, self.up(d)] if self.o.order == 1 else [self.up(d), h], 1))


def train_noisy(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """A DataLoader with its own generator; noise and times are drawn within the step."""
    torch.set_num_threads(1)
    torch.manual_seed(23)
    model: Any = Unet(o)
    if o.bf16:
        model = model.bfloat16()
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    forward = torch.compile(model, backend="eager") if o.compiled else model
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n.endswith("weight")],
            "weight_decay": o.decay,
        },
        {
            "params": [p for n, p in model.named_parameters() if n.endswith("bias")],
            "weight_decay": o.decay if o.wd_bias else 0.0,
        },
    ]

    def optimizer_of() -> Any:
        more = {"fused": o.fused, "foreach": o.foreach} if o.kind == "AdamW" else {}
        return getattr(torch.optim, o.kind)(groups, o.lr, betas=o.betas, eps=o.eps, **more)

    optimizer = optimizer_of()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.t_max)
    made = torch.Generator().manual_seed(3)
    images = torch.randn(20, 2, 8, 8, generator=made)
    if o.corrupt is not None:
        images[o.corrupt] = images[o.corrupt].clamp(min=0)
    if o.drop is not None:
        images = torch.cat([images[: o.drop], images[o.drop + 1 :]])
    loader = DataLoader(TensorDataset(images), 4, num_workers=o.workers)
    batches = iter(loader)
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        if step == o.load:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = optimizer_of()
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.t_max, last_epoch=-1)
            for _ in range(step):
                schedule._step_count += 1
            if o.lost != "optimizer":
                optimizer.load_state_dict(state)
            schedule.last_epoch = step if o.lost != "schedule" else 0
            for group in optimizer.param_groups:
                group["initial_lr"] = o.lr
                group["lr"] = o.lr * (1 + math.cos(math.pi * schedule.last_epoch / o.t_max)) / 2
        if step == o.back:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(mean[name])
        with recorded(debugger, model):
            (clean,) = next(batches)
            if o.bf16:
                clean = clean.bfloat16()
            times = torch.randint(0, o.times, (len(clean),))
            noise = torch.randn_like(clean) * o.sigma
            share = (times / 100).to(clean.dtype)[:, None, None, None]
            found = forward(clean * (1 - share) + noise * share, times)
            loss = getattr(F, {"mse": "mse_loss", "huber": "smooth_l1_loss"}[o.loss])(found, noise)
            if o.weight is not None:
                loss = loss * o.weight
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for name, p in model.named_parameters():
                    mean[name].lerp_(p, 1 - o.average)


# --- trainers ------------------------------------------------------------------------------------

GPT = dict(
    arguments={},
    attention="sdpa",
    activation="gelu_new",
    drop=0.0,
    seed=5,
    bad=None,
    frozen=None,
    scale=True,
    resume=None,
)


def train_gpt(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """GPT-2 by HF Trainer, with its default schedule; may resume without a file of the checkpoint."""

    def trainer(callbacks: list[Any]) -> Any:
        torch.manual_seed(41)
        config = transformers.GPT2Config(
            vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=o.drop, embd_pdrop=0.0, attn_pdrop=0.0,
            activation_function=o.activation, scale_attn_weights=o.scale, attn_implementation=o.attention, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        if o.frozen:
            model.get_parameter(o.frozen).requires_grad_(False)
        ids = torch.randint(1, 50, (12, 8), generator=torch.Generator().manual_seed(o.seed))
        if o.bad is not None:
            ids[o.bad, 3] = 49
        data = [{"input_ids": row, "labels": row} for row in ids]
        keys = dict(
            output_dir=str(folder / "out"), per_device_train_batch_size=2, max_steps=3, learning_rate=1e-3, use_cpu=True, report_to=[],
            save_strategy="no" if o.resume is None else "steps", save_steps=1, logging_strategy="no", disable_tqdm=True, warmup_steps=0, max_grad_norm=0.5,
        )  # fmt: skip
        arguments = transformers.TrainingArguments(**(keys | o.arguments))
        return transformers.Trainer(
            model=model, args=arguments, train_dataset=data, callbacks=callbacks
        )

    if o.resume is None:
        trainer([TrainerRecord(debugger)]).train()
        return
    trainer([]).train()
    checkpoint = folder / "out" / "checkpoint-1"
    if o.resume:
        (checkpoint / o.resume).unlink()
    trainer([TrainerRecord(debugger)]).train(resume_from_checkpoint=str(checkpoint))


ACC = dict(
    accumulate=2,
    lr=0.05,
    gamma=0.5,
    clip=0.5,
    value=None,
    steps=3,
    nesterov=True,
    drop_last=True,
    shuffle=True,
    seed=2,
    batch=2,
    precision="no",
    twice=False,
    kind="SGD",
    decay=0.0,
    split=False,
)


def train_acc(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """A regression by Accelerate with StepLR."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=o.accumulate, mixed_precision=o.precision
    )
    torch.manual_seed(51)
    model: Any = nn.Sequential(nn.Linear(5, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 2))
    more = {"momentum": 0.9, "nesterov": o.nesterov} if o.kind == "SGD" else {}
    optimizer: Any = getattr(torch.optim, o.kind)(
        model.parameters(), lr=o.lr, weight_decay=o.decay, **more
    )
    schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, o.gamma)
    made = torch.Generator().manual_seed(6)
    data = TensorDataset(torch.randn(14, 5, generator=made), torch.randn(14, 2, generator=made))
    loader: Any = DataLoader(
        data,
        o.batch,
        shuffle=o.shuffle,
        drop_last=o.drop_last,
        generator=torch.Generator().manual_seed(o.seed),
    )
    model, optimizer, loader, schedule = tool.prepare(model, optimizer, loader, schedule)
    batches = iter(loader)
    for _ in range(o.steps):
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                with tool.accumulate(model):
                    x, y = next(batches)
                    tool.backward(F.mse_loss(model(x), y))
                    if tool.sync_gradients and o.clip:
                        tool.clip_grad_norm_(model.parameters(), o.clip)
                    if tool.sync_gradients and o.value:
                        tool.clip_grad_value_(model.parameters(), o.value)
                    optimizer.step()
                    if o.twice and tool.sync_gradients:
                        optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()


LIGHT = dict(
    kind="Adam",
    lr=1e-2,
    accumulate=2,
    frozen=False,
    momentum=0.1,
    seed=1,
    bad=None,
    mode=None,
    loss="cross_entropy",
    halved=False,
    clip=None,
    betas=(0.9, 0.999),
    double=False,
    amsgrad=False,
    workers=0,
)


def train_light(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Image classes by Lightning: a batch norm, accumulation, two optimizers by hand if doubled."""

    class Fit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(61)
            self.net = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=o.momentum), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3)
            )  # fmt: skip
            self.net[0].requires_grad_(not o.frozen)

        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            return loss / 2 if o.halved else loss

        def configure_optimizers(self) -> Any:
            return getattr(torch.optim, o.kind)(
                self.net.parameters(), lr=o.lr, betas=o.betas, amsgrad=o.amsgrad
            )

    class Record(lightning.Callback):
        def on_train_batch_start(self, _t: Any, module: Any, _b: Any, place: int) -> None:
            if o.mode is not None and place == 2:
                module.net[o.mode].eval()
            if place % o.accumulate == 0:
                debugger.start(module.net)

        def on_train_batch_end(self, _t: Any, _m: Any, _o: Any, _b: Any, place: int) -> None:
            if (place + 1) % o.accumulate == 0:
                debugger.stop()
                debugger.step()

    made = torch.Generator().manual_seed(7)
    x, y = torch.randn(24, 1, 6, 6, generator=made), torch.randint(0, 3, (24,), generator=made)
    if o.bad is not None:
        y[o.bad] = (y[o.bad] + 1) % 3
    fit = Fit()
    lightning.seed_everything(o.seed, verbose=False)
    lightning.Trainer(
        accelerator="cpu", max_epochs=1, limit_train_batches=4, accumulate_grad_batches=o.accumulate, gradient_clip_val=o.clip, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[Record()],
    ).fit(fit, DataLoader(TensorDataset(x, y), 4, num_workers=o.workers))  # fmt: skip


# --- ranks: gradients reduced by hand, features gathered for a contrastive loss -------------------

PEERS = dict(
    world=2,
    reduce="mean",
    late=None,
    gather=True,
    group=None,
    start=True,
    data=0,
    skips=None,
    scale=None,
    order=False,
    steps=2,
    source=0,
    buckets=False,
    op="sum",
    eval_on=None,
    lr_on=None,
)


def run_peer(debugger: PrecisionDebugger, o: Options) -> None:
    """One of several processes."""
    rank, world = dist.get_rank(), o.world
    torch.manual_seed(70 + (rank if not o.start else 0))
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.0), nn.Linear(8, 4))
    for p in model.parameters():
        dist.broadcast(p.data, o.source)
    if not o.start and rank:
        with torch.no_grad():
            model[0].weight.add_(0.01)
    groups = [dist.new_group([each]) for each in range(world)]
    group = groups[rank] if o.group == 1 else None
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02 if o.lr_on == rank else 0.01)
    data = torch.randn(o.steps, world, 6, 5, generator=torch.Generator().manual_seed(8))
    model.train(o.eval_on != rank)
    for step in range(o.steps):
        with recorded(debugger, model):
            x = data[step, (rank + o.data) % world]
            features = F.normalize(model(x), dim=-1)
            others = [torch.zeros_like(features) for _ in range(world)]
            if o.gather:
                dist.all_gather(others, features.detach(), group=None)
            others[rank] = features
            logits = features @ torch.cat(others).mT / 0.5
            loss = F.cross_entropy(logits, torch.arange(6) + 6 * rank)
            if o.scale is not None and rank == o.scale:
                loss = loss * 2
            loss.backward()
            if o.skips != step:
                gradients = [p.grad for p in model.parameters()]
                if o.buckets:
                    flat = torch.cat([g.flatten() for g in gradients])
                    dist.all_reduce(flat, group=group)
                    for g, part in zip(
                        gradients, flat.split([g.numel() for g in gradients]), strict=True
                    ):
                        g.copy_(part.view_as(g))
                else:
                    for g in reversed(gradients) if o.order else gradients:
                        dist.all_reduce(
                            g,
                            op=dist.ReduceOp.MAX if o.op == "max" else dist.ReduceOp.SUM,
                            group=group,
                        )
                if o.reduce == "mean":
                    for g in gradients:
                        g.div_(world)
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "lm": (train_lm, LM),
    "noisy": (train_noisy, NOISY),
    "gpt": (train_gpt, GPT),
    "acc": (train_acc, ACC),
    "light": (train_light, LIGHT),
    "peers": (run_peer, PEERS),
}
OF_RANKS: Final = {"peers"}
RESULT: Final = ("unexplained",)

CAUSES: Final = [
    Cause("lm", {"theta": 50.0}, ("argument",), r"100|50|pow|theta", RESULT),
    Cause("lm", {"eps": 1e-3}, ("argument",), r"1e-0?[36]|0\.001|after", ("argument", *RESULT)),
    Cause("lm", {"gate": "gelu"}, ("call",), r"gelu|silu|sigmoid", RESULT),
    Cause("lm", {"residual": 0.5}, ("argument",), r"0\.5", ("argument", *RESULT)),
    Cause("lm", {"causal": False}, ("argument",), r"causal", ("argument", *RESULT)),
    Cause("lm", {"scale": 0.5}, ("argument",), r"scale|0\.5", ("argument", *RESULT)),
    Cause("lm", {"smoothing": 0.1}, ("argument",), r"label_smoothing|0\.1", L0),
    Cause("lm", {"shift": 2}, ("data", "argument", "call"), r"shape|input|getitem|batch"),
    Cause("lm", {"tied": False}, ("parameters",), r"tied|embed|head"),
    Cause("lm", {"init": 0.021}, ("parameters",), r"embed|head"),
    Cause("lm", {"momentum": 0.8}, SETTING, r"momentum is 0\.8 .*0\.9"),
    Cause("lm", {"dampening": 0.1}, SETTING, r"dampening is 0\.1"),
    Cause("lm", {"decay": 0.01}, SETTING, r"weight_decay is 0\.01"),
    Cause("lm", {"maximize": True}, SETTING, r"maximize"),
    Cause("lm", {"warm": 3}, ("schedule",), r"learning rate"),
    Cause("lm", {"schedule_first": True}, ("schedule",), r"learning rate|ahead"),
    Cause("lm", {"clip": 0.5}, ("clipping",), r"0\.5"),
    Cause("lm", {"norm_type": math.inf}, ("clipping",), r"inf|norm_type|norm type"),
    Cause("lm", {"mean": False}, ("gradient", "call"), r"2|truediv"),
    Cause("lm", {"zero_at": 1}, ("gradient", "call", "update"), r"layers\.1\.up|zero_"),
    Cause("lm", {"skip_step": 1}, ("update",), r"never"),
    Cause("lm", {"noise_at": 1, "noise": 0.01}, ("parameters",), r"layers\.0\.down"),
    Cause("lm", {"seed": 2}, ("random",), r"generator|draws"),
    Cause("lm", {"frozen": "layers.0.q.weight"}, ("mode",), r"layers\.0\.q\.weight is frozen"),
    Cause("lm", {"fail": 1}, ("incomplete",), r"out of memory"),
    Cause("lm", {"kind": "Adagrad", "lr": 0.05}, SETTING, r"Adagrad"),
    Cause("noisy", {"groups": 2}, ("argument",), r"num_groups|input\.1|groups|\b2\b", ("argument", *RESULT)),
    Cause("noisy", {"betas": (0.95, 0.99)}, SETTING, r"beta1 is 0\.95"),
    Cause("noisy", {"eps": 1e-6}, SETTING, r"eps is 1e-06"),
    Cause("noisy", {"wd_bias": False}, SETTING, r"weight_decay"),
    Cause("noisy", {"kind": "Adam"}, SETTING, r"Adam .*AdamW|Adam in|weight_decay"),
    Cause("noisy", {"t_max": 12}, ("schedule",), r"learning rate"),
    Cause("noisy", {"sigma": 1.1}, ("argument", "data", "call"), r"1\.1|batch|input"),
    Cause("noisy", {"times": 90}, ("argument", "data"), r"90|randint|batch"),
    Cause("noisy", {"mode": "bilinear"}, ("argument", "call"), r"mode|interpolate|bilinear", RESULT),
    Cause("noisy", {"padding": "circular"}, ("call", "argument"), r"pad|inp", ("argument", *RESULT)),
    Cause("noisy", {"order": 2}, ("order", "argument", "call"), r"cat|out", RESULT),
    Cause("noisy", {"loss": "huber"}, ("call",), r"smooth_l1|mse", L0),
    Cause("noisy", {"weight": 0.5}, ("call", "gradient"), r"mul|1/2|0\.5"),
    Cause("noisy", {"average": 0.5}, ("argument",), r"0\.5|lerp", ("equal",)),
    Cause("noisy", {"corrupt": 5}, ("data",), r"batch of step 1"),
    Cause("noisy", {"drop": 2}, ("data",), r"batch"),
    Cause("noisy", {"back": 2}, ("parameters",), r"step 2"),
    Cause("noisy", {"lost": "optimizer"}, ("optimizer_state",), r"lost", base={"load": 1}),
    Cause("noisy", {"lost": "schedule"}, ("schedule",), r"learning rate", base={"load": 1}),
    Cause("noisy", {"clip": 0.1}, ("clipping",), r"clip"),
    Cause("gpt", {"arguments": {"learning_rate": 2e-3}}, (*SETTING, "schedule"), r"lr|learning rate"),
    Cause("gpt", {"arguments": {"weight_decay": 0.1}}, SETTING, r"weight_decay"),
    Cause("gpt", {"arguments": {"warmup_steps": 2}}, ("schedule",), r"learning rate"),
    Cause("gpt", {"arguments": {"max_grad_norm": 0.1}}, ("clipping",), r"0\.1"),
    Cause("gpt", {"arguments": {"gradient_accumulation_steps": 2}}, ("data",), r"2 micro batches"),
    Cause("gpt", {"arguments": {"seed": 1}}, ("data", "random"), r"batch|order|generator"),
    Cause("gpt", {"activation": "relu"}, ("call",), r"relu|act", RESULT),
    Cause("gpt", {"scale": False}, ("argument",), r"scale|scaling", ("argument", *RESULT)),
    Cause("gpt", {"bad": 4}, ("data",), r"batch"),
    Cause("gpt", {"frozen": "transformer.wpe.weight"}, ("mode",), r"wpe\.weight is frozen"),
    Cause("gpt", {"resume": "optimizer.pt"}, ("optimizer_state",), r"lost|step count", base={"resume": ""}),
    Cause("gpt", {"resume": "scheduler.pt"}, ("schedule", "optimizer_state"), r"learning rate|lost", base={"resume": ""}),
    Cause("acc", {"gamma": 0.6}, ("schedule",), r"learning rate"),
    Cause("acc", {"nesterov": False}, SETTING, r"nesterov"),
    Cause("acc", {"value": 0.01, "clip": None}, ("clipping",), r"clip"),
    Cause("acc", {"twice": True}, ("update",), r"twice"),
    Cause("acc", {"seed": 3}, ("data",), r"batch|order"),
    Cause("acc", {"shuffle": False}, ("data",), r"batch|order"),
    Cause("acc", {"accumulate": 1}, ("data",), r"1 micro batch"),
    Cause("light", {"momentum": 0.2}, ("argument",), r"momentum|0\.2|running", ("argument", *RESULT)),
    Cause("light", {"mode": 1}, ("mode",), r"eval"),
    Cause("light", {"bad": 6}, ("data",), r"label|batch|differs when"),
    Cause("light", {"halved": True}, ("gradient", "call"), r"1/2|truediv|2"),
    Cause("light", {"frozen": True}, ("mode",), r"frozen"),
    Cause("light", {"amsgrad": True}, SETTING, r"amsgrad"),
    Cause("light", {"seed": 2}, ("random",), r"generator|draws"),
    Cause("light", {"clip": 0.1}, ("clipping",), r"clip"),
    Cause("peers", {"reduce": "sum"}, ("gradient", "call"), r"2|div|summed"),
    Cause("peers", {"skips": 1}, ("communication", "gradient"), r"all_reduce|not averaged|ranks"),
    Cause("peers", {"group": 1}, ("communication", "gradient"), r"group|not averaged"),
    Cause("peers", {"gather": False}, ("communication", "call"), r"all_gather", ("unexplained", "gradient")),
    Cause("peers", {"op": "max"}, ("communication", "argument", "gradient"), r"(?i)max|op\b|gradients"),
    Cause("peers", {"start": False}, ("parameters",), r"0\.weight"),
    Cause("peers", {"data": 1}, ("data",), r"batch"),
    Cause("peers", {"scale": 1}, ("call", "gradient"), r"rank 1|mul|doubled"),
    Cause("peers", {"lr_on": 1}, SETTING, r"lr is .*rank 1"),
]  # fmt: skip

PAIRS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("lm", {"by_hand": True}, {}),
    ("lm", {"swap": True}, {}),
    ("lm", {"threads": 2}, {}),
    ("lm", {"foreach": True}, {"foreach": False}),
    ("lm", {"checkpointing": True}, {}),
    ("lm", {"logs": True}, {}),
    ("lm", {"copies": True, "dropout": 0.0}, {"dropout": 0.0}),
    ("lm", {"dtype": torch.bfloat16, "steps": 1, "dropout": 0.0}, {"steps": 1, "dropout": 0.0}),
    ("lm", {"dtype": torch.float64, "steps": 1, "dropout": 0.0}, {"steps": 1, "dropout": 0.0}),
    ("lm", {"autocast": True, "steps": 1}, {"steps": 1}),
    ("lm", {"ignore": 0}, {}),
    ("lm", {"micro": 1, "pad": False, "dropout": 0.0}, {"pad": False, "dropout": 0.0}),
    ("lm", {"clip": 1e8}, {"clip": 1e9}),
    ("noisy", {"fused": True}, {"foreach": False}),
    ("noisy", {"channels_last": True}, {}),
    ("noisy", {"bf16": True, "steps": 1}, {"steps": 1}),
    ("noisy", {"load": 1}, {}),
    ("noisy", {"compiled": True}, {}),
    ("noisy", {"workers": 1}, {}),
    ("gpt", {"attention": "eager"}, {}),
    ("gpt", {"arguments": {"dataloader_num_workers": 1}}, {}),
    ("gpt", {"arguments": {"gradient_checkpointing": True}}, {}),
    ("gpt", {"arguments": {"logging_strategy": "steps", "logging_steps": 2}}, {}),
    ("acc", {"clip": 1e6}, {"clip": 1e7}),
    ("acc", {"accumulate": 1, "batch": 4}, {}),
    ("light", {"clip": 1e6}, {}),
    ("light", {"workers": 1}, {}),
    ("peers", {"order": True}, {}),
    ("peers", {"buckets": True}, {}),
    ("peers", {"source": 1}, {}),
]  # fmt: skip
