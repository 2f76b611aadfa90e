# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, E501 - programs as their authors write them; a cause is a line of a table
"""The fifth set of `held_out_verdicts.py`: a mixer, a tagger, DistilBERT, DDP and other programs."""

from __future__ import annotations

import contextlib
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
from held_out_trainers import LightningRecord, TrainerRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- images: a mixer of patches, a tagger of sequences, in plain loops ---------------------------

MIXER = dict(
    steps=3, lr=2e-3, betas=(0.9, 0.99), decay=0.05, eps=1e-8, kind="AdamW", norm=1e-5, act="gelu", patch=4, drop=0.1,
    seed=1, data=3, clip=1.0, period=4, bad=None, order="in", eval_in=None, accumulate=2, divide=True, threads=1, frozen=None,
    channels_last=False, foreach=None, fused=None, dtype=torch.float32, compiled=False, einsum=False, split=1, fail=None, twice=False,
    scale=1.0, checkpoint=False, temperature=1.0, resumed=False, autocast=False, batch=4, extra=False,
)  # fmt: skip


class Mix(nn.Module):
    def __init__(self, o: Options, width: int, places: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=o.norm) for _ in range(2))
        self.tokens = nn.Sequential(
            nn.Linear(places, 24),
            nn.GELU() if o.act == "gelu" else nn.SiLU(),
            nn.Linear(24, places),
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 32), nn.GELU(), nn.Dropout(o.drop), nn.Linear(32, width)
        )
        self.scale = o.scale

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale * self.tokens(self.norms[0](x).mT).mT
        return x + self.channels(self.norms[1](x))


class Mixer(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.cut = nn.Conv2d(3, 16, o.patch, o.patch)
        self.blocks = nn.ModuleList(Mix(o, 16, (16 // o.patch) ** 2) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).mT
        for block in self.blocks:
            if self.o.checkpoint:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        pooled = torch.einsum("bnc->bc", x) / x.shape[1] if self.o.einsum else x.mean(1)
        if self.o.extra:
            pooled = pooled * 1.0
        return self.head(pooled) / self.o.temperature


def train_mixer(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.set_num_threads(o.threads)
    torch.manual_seed(21)
    model = Mixer(o).to(o.dtype)
    if o.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if o.frozen:
        model.get_submodule(o.frozen).requires_grad_(False)
    run = torch.compile(model, backend="aot_eager") if o.compiled else model
    more = {"foreach": o.foreach, "fused": o.fused}
    optimizer = getattr(torch.optim, o.kind)(
        model.parameters(), lr=o.lr, betas=o.betas, eps=o.eps, weight_decay=o.decay, **more
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, o.period)
    made = torch.Generator().manual_seed(o.data)
    images = torch.randn(40, 3, 16, 16, generator=made)
    labels = torch.randint(0, 5, (40,), generator=made)
    if o.bad is not None:
        labels[o.bad] = (labels[o.bad] + 1) % 5
    if o.order == "back":
        images, labels = images.flip(0), labels.flip(0)
    places = iter(range(0, 40, o.batch))
    torch.manual_seed(o.seed)
    for step in range(o.steps):
        if step == 2 and o.resumed:
            optimizer.load_state_dict(optimizer.state_dict())
            schedule.load_state_dict(schedule.state_dict())
        model.train(step != o.eval_in)
        with recorded(debugger, run):
            for _ in range(o.accumulate):
                place = next(places)
                x, y = images[place : place + o.batch].to(o.dtype), labels[place : place + o.batch]
                if o.channels_last:
                    x = x.contiguous(memory_format=torch.channels_last)
                with torch.autocast("cpu", torch.bfloat16, enabled=o.autocast):
                    loss = F.cross_entropy(run(x).float() if o.autocast else run(x), y)
                (loss / o.accumulate if o.divide else loss).backward()
            if o.fail == step:
                raise_out = RuntimeError("node lost")
                with contextlib.suppress(RuntimeError):
                    raise raise_out
                return
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            if o.twice:
                optimizer.step()
            schedule.step()
            optimizer.zero_grad()


TAGGER = dict(steps=3, lr=0.05, alpha=0.99, momentum=0.0, centered=False, hidden=8, layers=2, bidirectional=True, ignore=-1, seed=1, weight=None,
              packed=False, loop=False, pad=0, power=1.0, clear=True, value=0.5, shift=0, noise=None, kind="RMSprop")  # fmt: skip


class Tagger(nn.Module):
    def __init__(self, o: Options) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 6, padding_idx=o.pad)
        self.rnn = nn.GRU(6, o.hidden, o.layers, batch_first=True, bidirectional=o.bidirectional)
        self.out = nn.Linear(o.hidden * (1 + o.bidirectional), 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.table(ids))[0])


def train_tagger(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    torch.manual_seed(31)
    model = Tagger(o)
    if o.noise is not None:
        with torch.no_grad():
            model.rnn.weight_hh_l1.add_(o.noise)
    more = {"alpha": o.alpha, "centered": o.centered} if o.kind == "RMSprop" else {}
    optimizer = getattr(torch.optim, o.kind)(
        model.parameters(), lr=o.lr, momentum=o.momentum, **more
    )
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 6, o.power)
    ids = torch.randint(1, 30, (12, 7), generator=torch.Generator().manual_seed(o.seed))
    tags = (ids + o.shift) % 4
    weight = None if o.weight is None else torch.tensor(o.weight)
    for step in range(o.steps):
        with recorded(debugger, model):
            batch = slice(4 * step, 4 * step + 4)
            found = model(ids[batch])
            if o.loop:
                parts = [F.cross_entropy(found[:, n], tags[batch][:, n], weight) for n in range(7)]
                loss = torch.stack(parts).mean()
            else:
                loss = F.cross_entropy(
                    found.flatten(0, 1), tags[batch].flatten(), weight, ignore_index=o.ignore
                )
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), o.value)
            optimizer.step()
            schedule.step()
            if o.clear:
                optimizer.zero_grad()


# --- libraries -----------------------------------------------------------------------------------

DISTIL: dict[str, Any] = dict(arguments={}, dropout=0.1, attention="sdpa", act="gelu", bad=None, frozen=None, sinusoidal=False)  # fmt: skip


def train_distil(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    torch.manual_seed(42)
    model = transformers.DistilBertForSequenceClassification(
        transformers.DistilBertConfig(
            vocab_size=40,
            max_position_embeddings=16,
            dim=16,
            hidden_dim=24,
            n_layers=2,
            n_heads=2,
            dropout=o.dropout,
            attention_dropout=0.0,
            activation=o.act,
            attn_implementation=o.attention,
            sinusoidal_pos_embds=o.sinusoidal,
        )
    )
    if o.frozen:
        model.get_submodule(o.frozen).requires_grad_(False)
    ids = torch.randint(1, 40, (16, 8), generator=torch.Generator().manual_seed(9))
    labels = ids[:, 0] % 2
    if o.bad is not None:
        ids[:, o.bad] = 7
    data = [{"input_ids": i, "labels": y} for i, y in zip(ids, labels, strict=True)]
    keys = dict(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, max_steps=3, learning_rate=2e-3, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(**(keys | o.arguments))
    transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=[TrainerRecord(debugger)]
    ).train()


SPEED = dict(lr=0.02, rho=0.9, steps=3, accumulate=2, clip=0.5, gamma=0.7, shuffle=2, kernel=3, dilation=1, precision="no", batch=2, late=False)  # fmt: skip


def train_speed(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    """One-dimensional convolutions by Accelerate."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=o.accumulate, mixed_precision=o.precision)  # fmt: skip
    torch.manual_seed(52)
    model: Any = nn.Sequential(
        nn.Conv1d(2, 6, o.kernel, padding=o.dilation, dilation=o.dilation), nn.InstanceNorm1d(6, affine=True), nn.ELU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(24, 3),
    )  # fmt: skip
    optimizer: Any = torch.optim.Adadelta(model.parameters(), lr=o.lr, rho=o.rho)
    schedule: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    made = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(24, 2, 10, generator=made), torch.randint(0, 3, (24,), generator=made))  # fmt: skip
    order = torch.Generator().manual_seed(o.shuffle)
    loader: Any = DataLoader(data, o.batch, shuffle=True, generator=order)
    model, optimizer, loader, schedule = tool.prepare(model, optimizer, loader, schedule)
    batches = iter(loader)
    for _ in range(o.steps):
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                x, y = next(batches)
                with tool.accumulate(model):
                    tool.backward(F.cross_entropy(model(x), y))
                    if tool.sync_gradients:
                        tool.clip_grad_norm_(model.parameters(), o.clip)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()


LIT = dict(lr=0.02, momentum=0.9, nesterov=True, dropout=0.3, seed=1, step_size=1, gamma=0.5, delta=1.0, clip=None, workers=0, leak=0.01, quiet=True)  # fmt: skip


def train_lit(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """A regression by Lightning."""

    class Fit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(62)
            self.net = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(o.leak), nn.AlphaDropout(o.dropout), nn.Linear(12, 2))  # fmt: skip

        def training_step(self, batch: Any, _: int) -> Tensor:
            return F.huber_loss(self.net(batch[0]), batch[1], delta=o.delta)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), o.lr, o.momentum, nesterov=o.nesterov)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, o.step_size, o.gamma)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    made = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(12, 6, generator=made), torch.randn(12, 2, generator=made))
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=o.clip, callbacks=[LightningRecord(debugger)], default_root_dir=str(folder),
    )  # fmt: skip
    model = Fit()
    torch.manual_seed(o.seed)
    trainer.fit(model, DataLoader(data, 4, num_workers=o.workers))


# --- ranks: DistributedDataParallel with accumulation, an averaged loss --------------------------

DDP = dict(world=2, steps=2, lr=0.05, no_sync=None, own=False, report=True, mean=True, unused=False, bucket=25, view=False, wrapped=True, data=0, op="avg", weights=False)  # fmt: skip


def run_ddp(debugger: PrecisionDebugger, o: Options) -> None:
    rank = dist.get_rank()
    torch.manual_seed(80)
    model: Any = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 3))
    if o.wrapped:
        model = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=o.bucket, gradient_as_bucket_view=o.view
        )
    groups = [dist.new_group([each]) for each in range(o.world)]
    optimizer = torch.optim.SGD(model.parameters(), o.lr, momentum=0.5)
    made = torch.Generator().manual_seed(4)
    x, y = torch.randn(o.steps, 2, 2, 6, 5, generator=made), torch.randint(0, 3, (o.steps, 2, 2, 6), generator=made)  # fmt: skip
    for step in range(o.steps):
        with recorded(debugger, model):
            for micro in range(2):
                alone = o.wrapped and (micro == 0 or o.no_sync == step)
                with model.no_sync() if alone else contextlib.nullcontext():
                    found = model(x[step, micro, (rank + o.data) % 2])
                    loss = F.cross_entropy(found, y[step, micro, (rank + o.data) % 2], reduction="sum")  # fmt: skip
                    count = torch.tensor(6.0)
                    if o.mean:
                        dist.all_reduce(count, group=groups[rank] if o.own else None)
                        loss = loss / count * 2
                    else:
                        loss = loss / 6
                    (loss / 2).backward()
            if o.report:
                shown = loss.detach().clone()
                dist.all_reduce(shown)
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "mixer": (train_mixer, MIXER),
    "tagger": (train_tagger, TAGGER),
    "distil": (train_distil, DISTIL),
    "speed": (train_speed, SPEED),
    "lit": (train_lit, LIT),
    "ddp": (run_ddp, DDP),
}
OF_RANKS: Final = {"ddp"}
RESULT: Final = ("unexplained",)

CAUSES: Final = [
    Cause("mixer", {"norm": 1e-2}, ("argument",), r"eps|0\.01|1e-05"),
    Cause("mixer", {"act": "silu"}, ("call",), r"(?i)silu|gelu"),
    Cause("mixer", {"scale": 0.9}, ("argument",), r"0\.9|scale"),
    Cause("mixer", {"temperature": 1.1}, ("argument",), r"1\.1|temperature", RESULT),
    Cause("mixer", {"betas": (0.9, 0.95)}, SETTING, r"beta2 is 0\.95"),
    Cause("mixer", {"decay": 0.0}, SETTING, r"weight_decay is 0"),
    Cause("mixer", {"period": 6}, ("schedule",), r"learning rate|T_0"),
    Cause("mixer", {"clip": 0.2}, ("clipping",), r"0\.2"),
    Cause("mixer", {"divide": False}, ("gradient", "call"), r"2|div"),
    Cause("mixer", {"bad": 9}, ("data",), r"label|batch|comes in", L0),
    Cause("mixer", {"order": "back"}, ("data",), r"batch|order"),
    Cause("mixer", {"eval_in": 1}, ("mode",), r"eval"),
    Cause("mixer", {"frozen": "cut"}, ("mode",), r"cut.* frozen"),
    Cause("mixer", {"twice": True}, ("update",), r"twice"),
    Cause("mixer", {"seed": 4}, ("random",), r"generator|draws"),
    Cause("tagger", {"alpha": 0.9}, SETTING, r"alpha is 0\.9"),
    Cause("tagger", {"centered": True}, SETTING, r"centered"),
    Cause("tagger", {"weight": [1.0, 1.0, 1.0, 2.0]}, ("argument", "call"), r"weight|input\.2|2", L0),
    Cause("tagger", {"noise": 1e-3}, ("parameters",), r"weight_hh_l1"),
    Cause("tagger", {"clear": False}, ("gradient",), r"cleared|sum"),
    Cause("tagger", {"power": 2.0}, ("schedule",), r"learning rate|power"),
    Cause("distil", {"arguments": {"warmup_steps": 3}}, ("schedule",), r"learning rate"),
    Cause("distil", {"act": "relu"}, ("call",), r"relu|gelu", RESULT),
    Cause("distil", {"bad": 2}, ("data",), r"batch"),
    Cause("distil", {"dropout": 0.2}, ("argument",), r"0\.2|dropout|\bp\b"),
    Cause("speed", {"rho": 0.95}, SETTING, r"rho is 0\.95"),
    Cause("speed", {"dilation": 2}, ("argument",), r"dilation|padding"),
    Cause("speed", {"shuffle": 3}, ("data",), r"batch|order"),
    Cause("lit", {"delta": 0.5}, ("argument",), r"delta|0\.5", L0),
    Cause("lit", {"leak": 0.1}, ("argument",), r"negative_slope|0\.1"),
    Cause("lit", {"gamma": 0.6}, ("schedule",), r"learning rate|gamma"),
    Cause("ddp", {"no_sync": 1}, ("communication", "gradient"), r"not (averaged|summed)|ranks"),
    Cause("ddp", {"own": True}, ("communication",), r"group of all_reduce|Distributed\.all_reduce"),
    Cause("ddp", {"mean": False}, ("equal", "call", "communication"), r"all_reduce|values agree"),
    Cause("ddp", {"data": 1}, ("data",), r"batch"),
]  # fmt: skip

PAIRS: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("mixer", {"threads": 2}, {}),
    ("mixer", {"channels_last": True}, {}),
    ("mixer", {"foreach": True}, {"foreach": False}),
    ("mixer", {"fused": True}, {"foreach": False}),
    ("mixer", {"dtype": torch.bfloat16, "steps": 1}, {"steps": 1}),
    ("mixer", {"dtype": torch.float64, "steps": 1, "drop": 0.0}, {"steps": 1, "drop": 0.0}),
    ("mixer", {"autocast": True, "steps": 1}, {"steps": 1}),
    ("mixer", {"compiled": True}, {}),
    ("mixer", {"einsum": True}, {}),
    ("mixer", {"checkpoint": True}, {}),
    ("mixer", {"accumulate": 1, "batch": 8, "drop": 0.0}, {"drop": 0.0}),
    ("mixer", {"resumed": True}, {}),
    ("mixer", {"extra": True}, {}),
    ("tagger", {"loop": True}, {}),
    ("tagger", {"ignore": -100}, {}),
    ("distil", {"attention": "eager"}, {}),
    ("distil", {"arguments": {"gradient_checkpointing": True}}, {}),
    ("speed", {"clip": 1e6}, {"clip": 2e6}),
    ("lit", {"workers": 1}, {}),
    ("ddp", {"report": False}, {}),
    ("ddp", {"view": True}, {}),
]  # fmt: skip
