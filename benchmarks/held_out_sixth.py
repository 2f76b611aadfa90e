# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them; a cause is a line of a table
"""The sixth set of `held_out_verdicts.py`: a mean teacher, LSTM, experts, VAE, T5, LoRA, WGAN, hooks of DDP."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import accelerate
import lightning
import numpy as np
import peft
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
import transformers
from held_out_cases import L0, SETTING, Cause
from held_out_programs import Options, recorded
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


# --- a VAE by Accelerate ------------------------------------------------------------------------

VAE = dict(steps=3, kl=1.0, reduction="mean", seed=2, lr=0.05, decay=0.0, start=0.0, formula=False, sample=False, parts=False, latent_bound=4.0,
           binary=True, accumulate=1, prepared=True, eval_in=None, shuffle=1, by_sum=False)  # fmt: skip


class Vae(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.down = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.SiLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 6)
        )
        self.up = nn.Sequential(
            nn.Linear(3, 64),
            nn.SiLU(),
            nn.Unflatten(1, (4, 4, 4)),
            nn.ConvTranspose2d(4, 1, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = self.down(x).chunk(2, -1)
        log = log.clamp(-self.o.latent_bound, self.o.latent_bound)
        code = torch.distributions.Normal(mean, (log / 2).exp())
        z = code.rsample() if self.o.sample else mean + (log / 2).exp() * torch.randn_like(mean)
        if self.o.formula:
            far = torch.distributions.kl_divergence(code, torch.distributions.Normal(0.0, 1.0))
        else:
            far = (mean**2 + log.exp() - 1 - log) / 2
        return self.up(z), far.sum(-1).mean()


def train_vae(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=o.accumulate)
    torch.manual_seed(15)
    model: Any = Vae(o)
    optimizer: Any = torch.optim.Adagrad(
        model.parameters(), o.lr, o.decay, initial_accumulator_value=o.start
    )
    data = TensorDataset(torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(12)))
    loader: Any = DataLoader(
        data, 4, shuffle=True, generator=torch.Generator().manual_seed(o.shuffle)
    )
    model, optimizer, loader = tool.prepare(model, optimizer, loader)
    torch.manual_seed(o.seed)
    batches = iter(loader)
    for step in range(o.steps):
        model.train(step != o.eval_in)
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                (x,) = next(batches)
                with tool.accumulate(model):
                    again, far = model(x)
                    fit = F.binary_cross_entropy_with_logits if o.binary else F.mse_loss
                    loss = (
                        fit(again, x, reduction="sum") / x.numel()
                        if o.by_sum
                        else fit(again, x, reduction=o.reduction)
                    )
                    tool.backward(loss + o.kl * far)
                    optimizer.step()
                    optimizer.zero_grad()


# --- T5 by the HF Trainer, LoRA on Qwen2 in a plain loop -------------------------------------------

T5: dict[str, Any] = dict(arguments={}, dropout=0.0, gated="relu", buckets=8, eps=1e-6, labels=-100, bad=None, start=0, tied=True, scale=1.0, source=0)  # fmt: skip


class Record(transformers.TrainerCallback):
    def __init__(self, debugger: PrecisionDebugger) -> None:
        self.debugger = debugger

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self.debugger.start(model)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.debugger.stop()
        self.debugger.step()


def train_t5(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    torch.manual_seed(20)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=30, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, relative_attention_num_buckets=o.buckets, dropout_rate=o.dropout,
            layer_norm_epsilon=o.eps, feed_forward_proj=o.gated, decoder_start_token_id=o.start, pad_token_id=0, tie_word_embeddings=o.tied, initializer_factor=o.scale,
        )
    )  # fmt: skip
    made = torch.Generator().manual_seed(3)
    ids, labels = (
        torch.randint(2, 30, (16, 7), generator=made),
        torch.randint(2, 30, (16, 5), generator=made),
    )
    labels[:, 3:] = o.labels
    if o.bad is not None:
        ids[o.bad] = 5
    data = [
        {"input_ids": i, "attention_mask": torch.ones_like(i), "labels": y, "decoder_input_ids": d}
        for i, y, d in zip(ids, labels, model._shift_right(labels), strict=True)
    ]
    keys = dict(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=3, learning_rate=5e-3, use_cpu=True, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, weight_decay=0.1, warmup_steps=1,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(**(keys | o.arguments))
    transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=[Record(debugger)]
    ).train()


LORA: dict[str, Any] = dict(alpha=8, targets=("q_proj", "v_proj"), drop=0.0, off=False, attention="sdpa", mask=True, side="right", cache=False, theta=1e4,
                            eps=1e-6, rslora=False, lr=0.01, steps=2, autocast=False, base_noise=0.0, checkpoint=False, labels=True, own_loss=False)  # fmt: skip


def train_lora(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(23)
    model: Any = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
            rms_norm_eps=o.eps, rope_parameters={"rope_type": "default", "rope_theta": o.theta}, attn_implementation=o.attention, use_cache=o.cache,
        )
    )  # fmt: skip
    if o.base_noise:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.add_(o.base_noise)
    torch.manual_seed(24)
    config = peft.LoraConfig(
        r=4,
        lora_alpha=o.alpha,
        target_modules=list(o.targets),
        lora_dropout=o.drop,
        use_rslora=o.rslora,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, config)
    if o.checkpoint:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if o.off:
        model.base_model.disable_adapter_layers()
        model.get_parameter(
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
        ).requires_grad_(True)
        model.get_parameter("base_model.model.lm_head.weight").requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], o.lr)
    ids = torch.randint(2, 32, (8, 6), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[::2, -2:] = 0
    if o.side == "left":
        mask = mask.flip(1)
    ids = ids * mask
    for step in range(o.steps):
        place = slice(4 * step, 4 * step + 4)
        with recorded(debugger, model), torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
            given = {"attention_mask": mask[place]} if o.mask else {}
            labels = ids[place].masked_fill(mask[place] == 0, -100) if o.labels else ids[place]
            if o.own_loss:
                found = model(ids[place], **given).logits.float()
                loss = F.cross_entropy(found[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            else:
                loss = model(ids[place], labels=labels, **given).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


# --- WGAN with a gradient penalty by Lightning, optimizers by hand -------------------------------

WGAN = dict(penalty=10.0, seed=3, first="critic", lr=0.01, detach=True, joined=False, times=1, betas=(0.0, 0.9), workers=0, kind="RAdam", noise=3)  # fmt: skip


def train_wgan(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    class Both(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(33)
            self.automatic_optimization = False
            self.maker = nn.Sequential(nn.Linear(3, 8), nn.Mish(), nn.Linear(8, 2))
            self.critic = nn.Sequential(nn.Linear(2, 8), nn.CELU(), nn.Linear(8, 1))

        def judge(self, real: Tensor) -> None:
            fake = self.maker(torch.randn(len(real), o.noise)[:, :3])
            fake = fake.detach() if o.detach else fake
            if o.joined:
                good, bad = self.critic(torch.cat([real, fake])).chunk(2)
            else:
                good, bad = self.critic(real), self.critic(fake)
            between = torch.lerp(real, fake.detach(), 0.3).requires_grad_()
            (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
            loss = bad.mean() - good.mean() + o.penalty * ((slope.norm(dim=1) - 1) ** 2).mean()
            self.manual_backward(loss)
            self.optimizers()[1].step()
            self.optimizers()[1].zero_grad()

        def make(self, real: Tensor) -> None:
            self.manual_backward(-self.critic(self.maker(torch.randn(len(real), 3))).mean())
            self.optimizers()[0].step()
            self.optimizers()[0].zero_grad()

        def training_step(self, batch: Any, _: int) -> None:
            if o.first == "critic":
                for _n in range(o.times):
                    self.judge(batch[0])
            self.make(batch[0])
            if o.first != "critic":
                self.judge(batch[0])

        def configure_optimizers(self) -> Any:
            kind = getattr(torch.optim, o.kind)
            return kind(self.maker.parameters(), 0.01, betas=o.betas), kind(
                self.critic.parameters(), o.lr, betas=o.betas
            )

    class Follow(lightning.Callback):
        def on_train_batch_start(self, _trainer: Any, module: Any, *_: Any) -> None:
            debugger.start(module)

        def on_train_batch_end(self, *_: Any) -> None:
            debugger.stop()
            debugger.step()

    data = TensorDataset(torch.randn(12, 2, generator=torch.Generator().manual_seed(5)))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Follow()], default_root_dir=str(folder),
    )  # fmt: skip
    model = Both()
    torch.manual_seed(o.seed)
    trainer.fit(model, DataLoader(data, 4, num_workers=o.workers))


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
MODULE: Final = ("unexplained", "gradient")

CAUSES: Final = [
    Cause("net", {"stats": (0.5, 0.229)}, ("data",), r"batch|input|comes in"),
    Cause("net", {"augment": 2}, ("data", "random"), r"batch|numpy|NumPy|generator|comes in"),
    Cause("net", {"weights": (1.0, 1.0, 3.0, 1.0)}, ("argument", "call"), r"weight|input\.2|loss", L0),
    Cause("net", {"smoothing": 0.1}, ("argument",), r"label_smoothing|0\.1", L0),
    Cause("net", {"reduction": "sum"}, ("argument", "gradient"), r"reduction|4|sum", L0),
    Cause("net", {"frozen": ("blocks.0.norms.0",)}, ("mode",), r"blocks\.0\.norms\.0.*eval"),
    Cause("net", {"bn_momentum": 0.01}, ("argument",), r"momentum|0\.01"),
    Cause("net", {"no_decay": False}, SETTING, r"weight_decay|group"),
    Cause("net", {"ahead": 0}, ("schedule", *SETTING), r"learning rate|lr is"),
    Cause("net", {"late": True}, ("schedule",), r"learning rate|scheduler|behind"),
    Cause("net", {"gamma": 2.0}, ("schedule",), r"learning rate|gamma", base={"gamma": 1.5}),
    Cause("net", {"keep": "body head", "steps": 4}, ("schedule",), r"learning rate|scheduler", base={"keep": "body head schedule", "steps": 4}),
    Cause("net", {"keep": "head schedule"}, ("optimizer_state",), r"momentum|lost|SGD", base={"keep": "body head schedule"}),
    Cause("net", {"autocast": "but one"}, ("precision",), r"bfloat16|float32", base={"autocast": "all"}),
    Cause("net", {"head": torch.bfloat16}, ("precision",), r"bfloat16"),
    Cause("net", {"bad": 9}, ("data",), r"batch"),
    Cause("net", {"ema": 0.99}, ("argument", "parameters", "call"), r"lerp|0\.01|teacher|loss|mse|weight", L0),
    Cause("net", {"fixed": False}, ("gradient", "call"), r"2|div", base={"short": True}),
    Cause("net", {"stride": 1}, ("argument",), r"stride|stem"),
    Cause("net", {"pool": "max"}, ("call",), r"amax|mean|pool", MODULE),
    Cause("words", {"side": "left"}, ("data",), r"batch|input|comes in"),
    Cause("words", {"pads": True}, ("argument",), r"ignore_index", L0),
    Cause("words", {"tied": False}, ("parameters",), r"tied|head\.weight"),
    Cause("words", {"carry": True}, ("argument", "data", "call"), r"rnn|LSTM|lstm|state|input"),
    Cause("words", {"forget": 1.0}, ("parameters",), r"bias_hh_l0"),
    Cause("words", {"clip": ("norm", 0.5, float("inf"))}, ("clipping",), r"norm_type|inf"),
    Cause("words", {"patience": 9}, ("schedule",), r"learning rate|patience|lr"),
    Cause("words", {"betas": (0.9, 0.999)}, SETTING, r"beta2 is 0\.999"),
    Cause("words", {"shift": 2}, ("data",), r"batch|input|shape"),
    Cause("words", {"scale": 8**0.5}, ("call",), r"mul", MODULE),
    Cause("words", {"noise": 0.01}, ("gradient", "update", "call", "random"), r"gradient|randn|add_"),
    Cause("experts", {"top": 1}, ("argument",), r"topk|\bk\b|1", MODULE),
    Cause("experts", {"auxiliary": 0.1}, ("argument",), r"0\.1|mul", L0),
    Cause("experts", {"dim": 0}, ("argument",), r"dim|softmax", MODULE),
    Cause("experts", {"straight": 0.5}, ("gradient", "argument"), r"0\.5|Rounded|gradient"),
    Cause("experts", {"renorm": False}, ("call",), r"div|sum", MODULE),
    Cause("experts", {"milestone": 2}, ("schedule",), r"learning rate|milestone|total_iters"),
    Cause("experts", {"momentum": 0.9}, SETTING, r"momentum is 0\.9"),
    Cause("experts", {"dead": 2}, ("call",), r"experts\.2|only the reference", ("call", *MODULE)),
    Cause("experts", {"frozen": "layers.1.experts.0"}, ("mode",), r"layers\.1\.experts\.0.* frozen"),
    Cause("experts", {"seed": 5}, ("random",), r"generator|draws"),
    Cause("vae", {"kl": 0.5}, ("argument",), r"0\.5|mul", L0),
    Cause("vae", {"reduction": "sum"}, ("argument",), r"reduction|sum", L0),
    Cause("vae", {"decay": 0.1}, SETTING, r"lr_decay"),
    Cause("vae", {"start": 0.1}, ("optimizer_state", *SETTING), r"initial_accumulator|state|sum"),
    Cause("vae", {"latent_bound": 0.05}, ("argument",), r"clamp|0\.05|min|max", MODULE),
    Cause("vae", {"eval_in": 1}, ("mode",), r"eval"),
    Cause("vae", {"shuffle": 2}, ("data",), r"batch|order"),
    Cause("t5", {"arguments": {"label_smoothing_factor": 0.1}}, ("call", "argument", "data"), r"smooth|loss|log_softmax|label|only|comes in|batch", L0),
    Cause("t5", {"gated": "gated-gelu"}, ("parameters", "call", "different_programs"), r"wi_|gated|wi\b|only"),
    Cause("t5", {"eps": 1e-2}, ("argument", "call"), r"0\.01|eps|layer_norm|add", MODULE),
    Cause("t5", {"labels": 0}, ("data",), r"label|batch"),
    Cause("t5", {"start": 1}, ("data",), r"batch|decoder_input_ids"),
    Cause("t5", {"arguments": {"weight_decay": 0.0}}, SETTING, r"weight_decay is 0"),
    Cause("t5", {"arguments": {"lr_scheduler_type": "constant_with_warmup"}}, ("schedule",), r"learning rate|lr"),
    Cause("t5", {"arguments": {"gradient_accumulation_steps": 2}}, ("data",), r"micro batches"),
    Cause("t5", {"bad": 3}, ("data",), r"batch"),
    Cause("lora", {"alpha": 16}, ("argument",), r"4|2|scaling|mul", MODULE),
    Cause("lora", {"rslora": True}, ("argument",), r"4|2|scaling|mul", MODULE),
    Cause("lora", {"targets": ("q_proj", "k_proj")}, ("parameters", "call"), r"k_proj|v_proj"),
    Cause("lora", {"mask": False}, ("data", "argument", "call"), r"mask|batch", base={"side": "left"}),
    Cause("lora", {"side": "left"}, ("data",), r"batch|mask|input"),
    Cause("lora", {"theta": 1e3}, ("parameters", "argument", "data", "call"), r"inv_freq|rotary"),
    Cause("lora", {"base_noise": 1e-3}, ("parameters",), r"layers\.1\.mlp\.up_proj"),
    Cause("lora", {"labels": False}, ("data",), r"label|batch"),
    Cause("wgan", {"penalty": 1.0}, ("argument",), r"1(\.0)? |mul|10", L0),
    Cause("wgan", {"first": "maker"}, ("order", "call", "data", "random", "update"), r"order|maker|critic|first|optimizer"),
    Cause("wgan", {"betas": (0.5, 0.9)}, SETTING, r"beta1 is 0\.5"),
    Cause("wgan", {"times": 2}, ("call", "update", "data", "random"), r"twice|only the target|2 "),
    Cause("wgan", {"seed": 4}, ("random",), r"generator|draws"),
    Cause("fleet", {"hook": "fp16_compress_hook"}, ("precision", "gradient", "communication"), r"float16|hook|rank"),
    Cause("fleet", {"epoch": 2}, ("data",), r"batch|order|epoch"),
    Cause("fleet", {"noise": 0.01}, ("parameters",), r"3\.weight.*rank 1", base={"by_hand": True}),
    Cause("fleet", {"average": False}, ("gradient", "communication", "call"), r"2|world|div", base={"by_hand": True, "clip": False}),
    Cause("fleet", {"skip": 1}, ("communication", "gradient"), r"all_reduce|not (averaged|summed)|ranks", base={"by_hand": True}),
    Cause("fleet", {"scale": 0.5}, ("gradient", "argument", "call"), r"0\.5|rank 1|loss|mul", L0),
    Cause("fleet", {"seeds": 7}, ("random",), r"generator.*rank 1|rank 1.*generator|draws", base={"drop": 0.3}),
]  # fmt: skip

PAIRS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("net", {"threads": 2}, {}),
    ("net", {"channels_last": True}, {}),
    ("net", {"foreach": True}, {"foreach": False}),
    ("net", {"fused": True}, {"foreach": False}),
    ("net", {"dtype": torch.bfloat16, "steps": 1}, {"steps": 1}),
    ("net", {"dtype": torch.float64, "steps": 1}, {"steps": 1}),
    ("net", {"autocast": "all", "steps": 1}, {"steps": 1}),
    ("net", {"compiled": True}, {}),
    ("net", {"checkpoint": True, "frozen": ("blocks.0", "blocks.1")}, {"frozen": ("blocks.0", "blocks.1")}),
    ("net", {"swapped": True}, {}),
    ("net", {"none": False}, {}),
    ("net", {"nll": True}, {}),
    ("net", {"keep": "body head schedule"}, {}),
    ("words", {"cells": True, "drop": 0.0}, {"drop": 0.0}),
    ("words", {"onehot": True}, {}),
    ("words", {"gathered": True}, {}),
    ("words", {"clip": ("none", 0, 0)}, {"clip": ("norm", 1e9, 2.0)}),
    ("experts", {"dense": True}, {}),
    ("experts", {"backwards": True}, {}),
    ("experts", {"orders": True}, {}),
    ("experts", {"threads": 2}, {}),
    ("vae", {"formula": True}, {}),
    ("vae", {"sample": True}, {}),
    ("vae", {"by_sum": True}, {}),
    ("t5", {"arguments": {"gradient_checkpointing": True}}, {}),
    ("t5", {"arguments": {"dataloader_num_workers": 1}}, {}),
    ("t5", {"arguments": {"logging_strategy": "steps", "logging_steps": 1}}, {}),
    ("lora", {"attention": "eager"}, {}),
    ("lora", {"own_loss": True}, {}),
    ("lora", {"checkpoint": True}, {}),
    ("lora", {"cache": True}, {}),
    ("wgan", {"joined": True}, {}),
    ("wgan", {"workers": 1}, {}),
    ("fleet", {"bucket": 1}, {}),
    ("fleet", {"static": True}, {}),
    ("fleet", {"zero": True}, {}),
    ("fleet", {"by_hand": True}, {}),
]  # fmt: skip
