# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, C901, E501 - programs as their authors write them
"""Programs of HF Trainer, Accelerate, Lightning and of processes over gloo, with options."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import accelerate
import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
import transformers
from held_out_programs import Options, recorded
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from msprobe.pytorch import PrecisionDebugger


class TrainerRecord(transformers.TrainerCallback):
    """Records each step of the HF Trainer."""

    def __init__(self, debugger: PrecisionDebugger) -> None:
        self._debugger = debugger

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self._debugger.start(model)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._debugger.stop()
        self._debugger.step()


class LightningRecord(lightning.Callback):
    """Records each step of a Lightning Trainer that accumulates so many batches."""

    def __init__(self, debugger: PrecisionDebugger, accumulate: int = 1) -> None:
        self._debugger, self._accumulate = debugger, accumulate

    def on_train_batch_start(self, _t: Any, module: Any, _b: Any, place: int) -> None:
        if place % self._accumulate == 0:
            self._debugger.start(module)

    def on_train_batch_end(self, _t: Any, _m: Any, _o: Any, _b: Any, place: int) -> None:
        if (place + 1) % self._accumulate == 0:
            self._debugger.stop()
            self._debugger.step()


class Sentences(Dataset[dict[str, Tensor]]):
    def __init__(self, o: Options) -> None:
        made = torch.Generator().manual_seed(6)
        self.ids = torch.randint(2, 40, (16, 9), generator=made)
        self.labels = torch.randint(0, 3, (16,), generator=made)
        if o.bad is not None:
            self.labels[o.bad] = (self.labels[o.bad] + 1) % 3

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        return {
            "input_ids": self.ids[item],
            "attention_mask": torch.ones(9, dtype=torch.long),
            "labels": self.labels[item],
        }


def classifier(o: Options) -> Any:
    torch.manual_seed(21)
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, num_labels=3,
        hidden_dropout_prob=o.dropout, attention_probs_dropout_prob=0.0,
        attn_implementation=o.attention,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    for name, p in model.named_parameters():
        if o.frozen and name.startswith(o.frozen):
            p.requires_grad_(False)
    return model


HF = dict(bad=None, dropout=0.1, attention="sdpa", frozen=None, arguments={}, resume=None)


def train_hf(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Fine-tune BERT; `resume` names a file of the checkpoint that is lost before resuming."""

    def trainer(steps: int, callbacks: list[Any]) -> Any:
        keys = dict(
            output_dir=str(folder / "out"), per_device_train_batch_size=2, max_steps=steps,
            gradient_accumulation_steps=2, learning_rate=2e-3, lr_scheduler_type="cosine",
            warmup_steps=1, weight_decay=0.05, max_grad_norm=0.3, report_to=[], use_cpu=True,
            save_strategy="no" if o.resume is None else "steps", save_steps=2, logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        arguments = transformers.TrainingArguments(**(keys | o.arguments))
        return transformers.Trainer(
            model=classifier(o), args=arguments, train_dataset=Sentences(o), callbacks=callbacks
        )

    if o.resume is None:
        trainer(4, [TrainerRecord(debugger)]).train()
        return
    trainer(4, []).train()
    checkpoint = folder / "out" / "checkpoint-2"
    if o.resume:
        (checkpoint / o.resume).unlink()
    trainer(4, [TrainerRecord(debugger)]).train(resume_from_checkpoint=str(checkpoint))
    shutil.rmtree(folder / "out")


ACCELERATE = dict(bad=None, dropout=0.0, attention="sdpa", frozen=None, precision="no", clips=True,
                  steps=3, accumulate=2, lr=1e-2, power=1.0, kind="Adafactor", batch=2,
                  relative=False, prepared=True, skipped=0)  # fmt: skip


def train_accelerate(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Fine-tune BERT with a polynomial schedule."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=o.accumulate, mixed_precision=o.precision
    )
    model = classifier(o)
    optimizer = getattr(torch.optim, o.kind)(model.parameters(), lr=o.lr)
    schedule = transformers.get_polynomial_decay_schedule_with_warmup(
        optimizer, 0, 10, power=o.power
    )
    loader = DataLoader(Sentences(o), o.batch)
    if o.prepared:
        model, optimizer, loader, schedule = tool.prepare(model, optimizer, loader, schedule)
    else:
        model, optimizer, loader = tool.prepare(model, optimizer, loader)
    model.train()
    torch.manual_seed(3)
    batches = iter(tool.skip_first_batches(loader, o.skipped) if o.skipped else loader)
    for _ in range(o.steps):
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                with tool.accumulate(model):
                    tool.backward(model(**next(batches)).loss)
                    if tool.sync_gradients and o.clips:
                        tool.clip_grad_norm_(model.parameters(), 0.2)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()


LIGHTNING = dict(kind="norm", clip=0.1, precision="32-true", lr=3e-3, rho=0.9, stalls=False,
                 accumulate=1, frozen=False, averaged=False, seed=1, bad=None)  # fmt: skip


def train_lightning(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """A regression of Adadelta with a schedule of cycles."""

    class Fit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(8)
            self.net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Dropout(0.1), nn.Linear(12, 1))
            self.net[0].requires_grad_(not o.frozen)

        def training_step(self, batch: list[Tensor]) -> Tensor:
            return F.smooth_l1_loss(self.net(batch[0]), batch[1])

        def on_after_backward(self) -> None:
            if o.stalls and self.global_step == 1:
                for p in self.net[0].parameters():
                    p.grad = None

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adadelta(self.net.parameters(), lr=o.lr, rho=o.rho)
            schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Record(lightning.Callback):
        def on_train_batch_start(self, _t: Any, module: Any, _b: Any, place: int) -> None:
            if o.averaged and place == 2:
                module.net.eval()
            if place % o.accumulate == 0:
                debugger.start(module.net)

        def on_train_batch_end(self, _t: Any, _m: Any, _o: Any, _b: Any, place: int) -> None:
            if (place + 1) % o.accumulate == 0:
                debugger.stop()
                debugger.step()

    made = torch.Generator().manual_seed(3)
    x = torch.randn(24, 5, generator=made)
    if o.bad is not None:
        x[o.bad] *= 100
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    fit = Fit()
    fit.net.train()
    lightning.seed_everything(o.seed, verbose=False)
    lightning.Trainer(
        accelerator="cpu", max_steps=3, accumulate_grad_batches=o.accumulate,
        gradient_clip_val=o.clip, gradient_clip_algorithm=o.kind, precision=o.precision,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, callbacks=[Record()],
    ).fit(fit, DataLoader(data, 4))  # fmt: skip


RANKS = dict(world=2, level="mix", sums=True, halves=True, group=None, kind="tensor", seed=0,
             broadcast=True, weights=None, exits=None)  # fmt: skip


class SumForward(torch.autograd.Function):
    """Sum of all ranks in forward, the gradient itself in backward (row-parallel layers)."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class SumBackward(torch.autograd.Function):
    """The value itself in forward, the sum over ranks of the gradient (column-parallel layers)."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> Tensor:
        grad = grads[0].clone()
        dist.all_reduce(grad)
        return grad


class Sharded(nn.Module):
    """An MLP whose hidden units lie on several ranks."""

    def __init__(self, o: Options) -> None:
        super().__init__()
        self.o = o
        self.first = nn.Linear(6, 6)
        torch.manual_seed(100 + dist.get_rank())
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6, bias=False)
        size = o.group
        groups = (
            [dist.new_group([r]) for r in range(o.world)]
            if size == 1
            else [dist.new_group([r, r + 1]) for r in range(0, o.world, 2)]
        )
        self.group = groups[dist.get_rank() // size] if size else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = torch.relu(self.up(SumBackward.apply(x) if self.o.halves else x))
        y = self.down(y)
        return x + (SumForward.apply(y, self.group) if self.o.sums else y)


def run_rank(debugger: PrecisionDebugger, o: Options) -> None:
    """Train on one of several processes, tensor or data parallel."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    if o.kind == "tensor":
        model: nn.Module = Sharded(o)
        data = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    else:
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6))
        model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=o.broadcast)
        data = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(rank + o.seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(2):
        with contextlib.suppress(ValueError), recorded(debugger, model):
            optimizer.zero_grad()
            loss = model(data[step]).square().mean()
            if o.weights:
                loss = loss * o.weights[rank]
            loss.backward()
            if o.exits == (rank, step):
                raise ValueError("bad value")
            optimizer.step()


def rank_of(run: Any, place: Path, rank: int, o: Options, task: str, level: str) -> None:
    logging.getLogger("msprobe").setLevel(logging.ERROR)
    dist.init_process_group(
        "gloo", init_method=f"file://{place / 'store'}", rank=rank, world_size=o.world
    )
    run(PrecisionDebugger(dump_path=str(place / "dump"), task=task, level=level), o)
    dist.destroy_process_group()


def train_ranks(run: Any, place: Path, o: Options, task: str, level: str) -> None:
    """Train on several processes, which record below `place/dump`."""
    forking = multiprocessing.get_context("fork")
    ranks = [
        forking.Process(target=rank_of, args=(run, place, rank, o, task, level))
        for rank in range(o.world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
    codes = [process.exitcode for process in ranks]
    if any(codes):
        raise RuntimeError(f"{codes}")


@contextlib.contextmanager
def quiet() -> Any:
    """Silence the libraries' warnings about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("lightning.pytorch", "transformers", "msprobe", "accelerate"):
            logging.getLogger(name).setLevel(logging.ERROR)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        yield
