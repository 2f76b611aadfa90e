# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, E501 - programs as their authors write them
"""Programs of the ninth set: ViT under the HF Trainer, T5 with Accelerate, an LSTM in Lightning."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import accelerate
import lightning
import torch
import transformers
from held_out_programs import Options, recorded
from held_out_trainers import LightningRecord, TrainerRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from msprobe.pytorch import PrecisionDebugger

PHOTOS = dict(eps=1e-12, frozen=None, scale=1.0, attention="sdpa", arguments={}, resume=None, steps_before=None)  # fmt: skip


class Photos(Dataset[dict[str, Tensor]]):
    def __init__(self, o: Options) -> None:
        made = torch.Generator().manual_seed(2)
        self.labels = torch.randint(0, 4, (24,), generator=made)
        self.photos = torch.rand(24, 3, 16, 16, generator=made) * o.scale

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, item: int) -> dict[str, Tensor]:
        return {"pixel_values": self.photos[item], "labels": self.labels[item]}


def train_photos(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Fine-tune ViT; `resume` names a file of the checkpoint that is lost before resuming."""

    class Late(TrainerRecord):
        def on_step_begin(self, *rest: Any, model: Any, **keys: Any) -> None:
            if o.steps_before is None or rest[1].global_step >= o.steps_before:
                super().on_step_begin(*rest, model=model, **keys)

        def on_step_end(self, *rest: Any, **keys: Any) -> None:
            if o.steps_before is None or rest[1].global_step > o.steps_before:
                super().on_step_end(*rest, **keys)

    def trainer(callbacks: list[Any]) -> Any:
        torch.manual_seed(77)
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4, num_labels=4,
                layer_norm_eps=o.eps, hidden_dropout_prob=0.1, attn_implementation=o.attention,
            )
        )  # fmt: skip
        for name, p in model.named_parameters():
            if o.frozen and name.startswith(o.frozen):
                p.requires_grad_(False)
        keys = dict(
            output_dir=str(folder / "out"), per_device_train_batch_size=3, max_steps=4, gradient_accumulation_steps=2, learning_rate=3e-3, lr_scheduler_type="linear",
            weight_decay=0.05, max_grad_norm=0.5, report_to=[], use_cpu=True, logging_strategy="no", disable_tqdm=True,
            save_strategy="no" if o.resume is None and o.steps_before is None else "steps", save_steps=2,
        )  # fmt: skip
        return transformers.Trainer(
            model=model, args=transformers.TrainingArguments(**(keys | o.arguments)),
            train_dataset=Photos(o), callbacks=callbacks,
        )  # fmt: skip

    if o.resume is None:
        trainer([Late(debugger)]).train()
        return
    trainer([]).train()
    checkpoint = folder / "out" / "checkpoint-2"
    if o.resume:
        (checkpoint / o.resume).unlink()
    trainer([TrainerRecord(debugger)]).train(resume_from_checkpoint=str(checkpoint))
    shutil.rmtree(folder / "out")


SUMMARY = dict(
    ignore=-100, tied=True, buckets=8, dropout=0.1, clips=True, skipped=0, precision="no", warm=2, twice=False, accumulate=2, batch=2, steps=3, cache=False, kind="AdamW",
)  # fmt: skip


def train_summary(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    """Train a small T5 with Accelerate."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=o.accumulate, mixed_precision=o.precision
    )
    torch.manual_seed(19)
    model: Any = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, relative_attention_num_buckets=o.buckets, dropout_rate=o.dropout,
            decoder_start_token_id=0, use_cache=o.cache,
        )
    )  # fmt: skip
    if not o.tied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    optimizer: Any = getattr(torch.optim, o.kind)(model.parameters(), lr=5e-3)
    schedule: Any = transformers.get_linear_schedule_with_warmup(optimizer, o.warm, 12)
    made = torch.Generator().manual_seed(33)
    texts = torch.randint(2, 40, (16, 7), generator=made)
    aims = torch.randint(2, 40, (16, 5), generator=made)
    aims[:, 4] = o.ignore
    loader: Any = DataLoader(TensorDataset(texts, aims), o.batch)
    model, optimizer, loader, schedule = tool.prepare(model, optimizer, loader, schedule)
    model.train()
    torch.manual_seed(4)
    batches = iter(tool.skip_first_batches(loader, o.skipped) if o.skipped else loader)
    for _ in range(o.steps):
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                ids, labels = next(batches)
                with tool.accumulate(model):
                    tool.backward(model(input_ids=ids, labels=labels).loss)
                    if tool.sync_gradients and o.clips:
                        tool.clip_grad_norm_(model.parameters(), 0.3)
                    optimizer.step()
                    schedule.step()
                    if o.twice:
                        schedule.step()
                    optimizer.zero_grad()


FORECAST = dict(
    hidden="lstm", bias=0.0, clip=0.2, window=8, quantile=0.7, shuffle_seed=1, accumulate=1, record=1, scheduler="step", fails=None, steps=3, workers=0, lr=1e-2,
)  # fmt: skip


def train_forecast(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    """Train an LSTM that predicts a quantile with Lightning."""

    class Fit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(13)
            kind = nn.LSTM if o.hidden == "lstm" else nn.GRU
            self.cell = kind(2, 10, batch_first=True)
            self.head = nn.Linear(10, 1)
            nn.init.constant_(self.head.bias, o.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

        def training_step(self, batch: list[Tensor], place: int) -> Tensor:
            if o.fails == place:
                raise ValueError("bad window")
            gap = batch[1] - self(batch[0])
            return torch.maximum(o.quantile * gap, (o.quantile - 1) * gap).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adamax(self.parameters(), lr=o.lr)
            if o.scheduler == "step":
                schedule: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            else:
                schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    made = torch.Generator().manual_seed(14)
    series = torch.randn(60, 2, generator=made).cumsum(0) / 4
    starts = range(48)
    data = TensorDataset(
        torch.stack([series[n : n + o.window] for n in starts]),
        torch.stack([series[n + o.window, :1] for n in starts]),
    )
    loader: Any = DataLoader(
        data, 4, shuffle=True, num_workers=o.workers,
        generator=torch.Generator().manual_seed(o.shuffle_seed),
    )  # fmt: skip
    lightning.seed_everything(5, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=o.steps, accumulate_grad_batches=o.accumulate, gradient_clip_val=o.clip, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder, callbacks=[LightningRecord(debugger, o.record)],
    )  # fmt: skip
    with contextlib.suppress(ValueError):
        trainer.fit(Fit(), loader)
    if o.fails is not None:
        debugger.stop()
        debugger.step()
