# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: C408, E501 - programs as their authors write them
"""Programs of the sixth set by Accelerate, HF Trainer, PEFT and Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import lightning
import peft
import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from held_out_programs import Options, recorded
from held_out_trainers import LightningRecord, TrainerRecord
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from msprobe.pytorch import PrecisionDebugger

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
        model=model, args=arguments, train_dataset=data, callbacks=[TrainerRecord(debugger)]
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

    data = TensorDataset(torch.randn(12, 2, generator=torch.Generator().manual_seed(5)))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[LightningRecord(debugger)], default_root_dir=str(folder),
    )  # fmt: skip
    model = Both()
    torch.manual_seed(o.seed)
    trainer.fit(model, DataLoader(data, 4, num_workers=o.workers))
