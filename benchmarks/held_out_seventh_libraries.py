# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, E501 - programs as their authors write them
"""Programs of the seventh set by HF Trainer, Accelerate and Lightning."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import accelerate
import lightning
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from held_out_programs import Options, recorded
from held_out_trainers import LightningRecord, TrainerRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import PrecisionDebugger

# --- ALBERT by the HF Trainer: shared layers, words masked by a collator --------------------------

ALBERT: dict[str, Any] = dict(arguments={}, layers=2, groups=1, act="gelu_new", hidden=0.0, share=0.3, seed=42, wrong=None, eps=1e-12, init=0.02, attention="sdpa", cut=0, frozen=False, pad=True)  # fmt: skip


def train_albert(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    transformers.set_seed(17)
    model = transformers.AlbertForMaskedLM(
        transformers.AlbertConfig(
            vocab_size=40, embedding_size=8, hidden_size=16, num_hidden_layers=o.layers, num_hidden_groups=o.groups, num_attention_heads=2, intermediate_size=24,
            hidden_act=o.act, hidden_dropout_prob=o.hidden, attention_probs_dropout_prob=0.0, max_position_embeddings=16, layer_norm_eps=o.eps, initializer_range=o.init,
            attn_implementation=o.attention,
        )
    )  # fmt: skip
    if o.frozen:
        model.albert.embeddings.requires_grad_(False)
    made = np.random.default_rng(6)
    ids = torch.from_numpy(made.integers(4, 40, (24, 9)))
    if o.wrong is not None:
        ids[o.wrong] = 4
    chance = np.random.default_rng(o.seed)

    def collate(items: list[Any]) -> dict[str, Tensor]:
        batch = torch.stack(items)
        hidden = torch.from_numpy(chance.random(batch.shape) < o.share)
        hidden[:, 0] = True
        mask = torch.ones_like(batch)
        if o.pad:
            mask[::2, -2:] = 0
        return {
            "input_ids": batch.masked_fill(hidden, 3),
            "attention_mask": mask,
            "labels": batch.masked_fill(~hidden, -100),
        }

    keys = dict(
        output_dir=str(folder / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=3, learning_rate=3e-3, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, lr_scheduler_type="cosine", warmup_steps=2, remove_unused_columns=False, max_grad_norm=0.5,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(**(keys | o.arguments))
    transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=list(ids),
        data_collator=collate,
        callbacks=[TrainerRecord(debugger)],
    ).train()


# --- DPO by Accelerate: a policy and its frozen reference ------------------------------------------

DPO: dict[str, Any] = dict(steps=2, beta=0.1, smooth=0.0, averaged=False, swap=False, reference="copy", lr=5e-3, theta=1e4, bad=None, kind="dpo", precision="no", clip=1.0, accumulate=2,
                           attention="sdpa", joined=False, cache=False, prompt=3, fused=None, layers=2, shift=1, train_reference=False, checkpoint=False, kv=1)  # fmt: skip


def train_dpo(debugger: PrecisionDebugger, _folder: Path, o: Options) -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    tool = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=o.accumulate, mixed_precision=o.precision
    )
    torch.manual_seed(111)
    model: Any = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=o.kv, max_position_embeddings=32,
            rope_parameters={"rope_type": "default", "rope_theta": o.theta}, attn_implementation=o.attention, use_cache=o.cache,
        )
    )  # fmt: skip
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    if o.reference == "noisy":
        with torch.no_grad():
            frozen.model.layers[0].self_attn.o_proj.weight.add_(0.01)
    if o.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    optimizer: Any = torch.optim.AdamW(model.parameters(), o.lr, fused=o.fused)
    made = torch.Generator().manual_seed(9)
    good, bad = (
        torch.randint(2, 32, (16, 8), generator=made),
        torch.randint(2, 32, (16, 8), generator=made),
    )
    bad[:, :3] = good[:, :3]
    if o.swap:
        good, bad = bad, good
    if o.bad is not None:
        bad[o.bad, 5] = 1
    loader: Any = DataLoader(
        TensorDataset(good, bad), 2, shuffle=True, generator=torch.Generator().manual_seed(10)
    )
    model, optimizer, loader = tool.prepare(model, optimizer, loader)

    def chance(which: Any, ids: Tensor) -> Tensor:
        logits = which(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
        each = logits.gather(-1, ids[:, 1:, None])[..., 0][:, o.prompt - 1 :]
        return each.mean(-1) if o.averaged else each.sum(-1)

    batches = iter(loader)
    for _ in range(o.steps):
        with recorded(debugger, model):
            for _ in range(o.accumulate):
                y, n = next(batches)
                with tool.accumulate(model):
                    if o.joined:
                        mine = chance(model, torch.cat([y, n])).chunk(2)
                    else:
                        mine = chance(model, y), chance(model, n)
                    with torch.no_grad():
                        its = chance(frozen, y), chance(frozen, n)
                    margin = (mine[0] - mine[1]) - (its[0] - its[1])
                    if o.kind == "ipo":
                        loss = (margin - 1 / (2 * o.beta)).square().mean()
                    else:
                        loss = -(
                            F.logsigmoid(o.beta * margin) * (1 - o.smooth)
                            + F.logsigmoid(-o.beta * margin) * o.smooth
                        ).mean()
                    tool.backward(loss)
                    if tool.sync_gradients:
                        tool.clip_grad_norm_(model.parameters(), o.clip)
                    optimizer.step()
                    optimizer.zero_grad()


# --- segments of a signal by Lightning -------------------------------------------------------------

SEGMENTS = dict(precision="32-true", accumulate=2, algorithm="norm", clip=0.5, weight=1.0, smooth=1.0, up="linear", align=False, groups=2, seed=4, lr=0.02, period=1, power=1.0, every="step", pos=1.0,
                shuffle=1, workers=0, noise=0.0, lookahead=False, skip=True, momentum=0.1, drop=0.1, kind="Adamax", frozen_bn=False, focal=None, workers_seed=0)  # fmt: skip


def train_segments(debugger: PrecisionDebugger, folder: Path, o: Options) -> None:
    class Cut(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(121)
            self.down = nn.Sequential(
                nn.Conv1d(2, 8, 5, 2, 2),
                nn.BatchNorm1d(8, momentum=o.momentum),
                nn.Hardswish(),
                nn.Dropout(o.drop),
            )
            self.deep = nn.Sequential(
                nn.Conv1d(8, 8, 3, 1, 2, dilation=2), nn.GroupNorm(o.groups, 8), nn.Softplus()
            )
            self.head = nn.Conv1d(8 + 2 * o.skip, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.deep(self.down(x))
            y = F.interpolate(
                y,
                size=x.shape[-1],
                mode=o.up,
                **({"align_corners": o.align} if o.up == "linear" else {}),
            )
            return self.head(torch.cat([y, x], 1) if o.skip else y)[:, 0]

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y = batch
            if o.frozen_bn:
                self.down[1].eval()
            found = self(x)
            near = found.sigmoid()
            dice = 1 - (2 * (near * y).sum() + o.smooth) / (near.sum() + y.sum() + o.smooth)
            if o.focal is not None:
                return (
                    dice
                    + (
                        (1 - torch.where(y > 0, near, 1 - near)) ** o.focal
                        * F.binary_cross_entropy_with_logits(found, y, reduction="none")
                    ).mean()
                )
            return dice * o.weight + F.binary_cross_entropy_with_logits(
                found, y, pos_weight=torch.tensor(o.pos)
            )

        def configure_optimizers(self) -> Any:
            optimizer = getattr(torch.optim, o.kind)(self.parameters(), o.lr)
            schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 5, o.power)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": o.period},
            }

    made = torch.Generator().manual_seed(12)
    x = torch.randn(24, 2, 16, generator=made)
    data = TensorDataset(x, (x[:, 0] > 0.3).float())
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, precision=o.precision,
        accumulate_grad_batches=o.accumulate, gradient_clip_val=o.clip, gradient_clip_algorithm=o.algorithm, callbacks=[LightningRecord(debugger, o.accumulate)], default_root_dir=str(folder),
    )  # fmt: skip
    model = Cut()
    if o.noise:
        with torch.no_grad():
            model.deep[0].bias.add_(o.noise)
    torch.manual_seed(o.seed)
    trainer.fit(
        model,
        DataLoader(
            data,
            4,
            shuffle=True,
            generator=torch.Generator().manual_seed(o.shuffle),
            num_workers=o.workers,
        ),
    )
