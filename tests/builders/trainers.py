# SPDX-License-Identifier: Apache-2.0
"""The training of `trainings.py` in trainers that take a callback."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from builders.trainings import (
    MICRO_BATCHES,
    SAVED_AFTER,
    STEPS,
    Planted,
    Situation,
    layers,
    samples,
    tiny_llama,
)


class HuggingFace:
    """`transformers.Trainer`."""

    first_resumed = MICRO_BATCHES
    layer = "Module.net.0.Linear.forward"

    @staticmethod
    def parts(folder: Path) -> tuple[type, type, dict[str, Any]]:
        """Return the classes of the trainer and its arguments, and what else the trainer takes."""
        import transformers

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = layers()

            def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
                found = self.net(x)
                return {"loss": cross_entropy(found, labels), "logits": found}

        rows = [{"x": x, "labels": y} for x, y in zip(*samples(), strict=True)]
        parts = {"model": Net(), "train_dataset": rows, "eval_dataset": rows[:4]}
        return transformers.Trainer, transformers.TrainingArguments, parts

    @classmethod
    def train(cls, situation: Situation) -> list[torch.Tensor]:
        import transformers

        from msprobe.integrations.transformers import MsprobeCallback

        transformers.set_seed(1)
        kind, arguments, parts = cls.parts(situation.folder)

        class Breaking(kind):  # type: ignore[misc]
            batches = 0

            def training_step(self, *given: Any, **named: Any) -> Any:
                self.batches += 1
                if self.batches == (situation.breaks_at + 1) * MICRO_BATCHES:
                    raise Planted
                return super().training_step(*given, **named)

        class Stopping(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop |= state.global_step == situation.stops_after

        probes = [MsprobeCallback(**situation.settings)] if situation.recorded else []
        trainer = Breaking(
            args=arguments(
                output_dir=str(situation.folder / "out"),
                max_steps=STEPS,
                per_device_train_batch_size=2,
                per_device_eval_batch_size=2,
                gradient_accumulation_steps=MICRO_BATCHES,
                eval_strategy="steps",
                eval_steps=1,
                logging_steps=1,
                save_strategy="steps",
                save_steps=SAVED_AFTER,
                report_to=[],
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                **({"max_length": 16} if cls is Trl else {}),
            ),
            callbacks=[Stopping(), *probes],
            **parts,
        )
        checkpoint = str(situation.folder / "out" / f"checkpoint-{SAVED_AFTER}")
        trainer.train(checkpoint if situation.resumes else None)
        keys = ("loss", "eval_loss", "grad_norm")
        told = [each[key] for each in trainer.state.log_history for key in keys if key in each]
        weights = [each.detach().clone() for each in trainer.model.parameters()]
        return [*weights, torch.tensor(told), torch.get_rng_state()]


class Trl(HuggingFace):
    """`trl.SFTTrainer`."""

    layer = "Module.model.norm.LlamaRMSNorm.forward"

    @staticmethod
    def parts(folder: Path) -> tuple[type, type, dict[str, Any]]:
        import datasets
        import trl
        from transformers import AutoTokenizer, set_seed

        tokens = [[1 + i % 7, *range(2, 9)] for i in range(16)]
        rows = datasets.Dataset.from_dict({"input_ids": tokens})
        tokenizer = AutoTokenizer.from_pretrained(_tokenizer(folder.parent / "tokenizer"))
        set_seed(1)  # the first time it draws
        parts = {"model": tiny_llama(), "train_dataset": rows, "processing_class": tokenizer}
        return trl.SFTTrainer, trl.SFTConfig, {**parts, "eval_dataset": rows.select(range(4))}


@cache
def _tokenizer(folder: Path) -> Path:
    from builders.tiny_language_model import write_model

    write_model(folder)
    return folder


class Lightning:
    """Lightning under automatic optimization.

    It goes on behind the batch that follows a checkpoint saved between two batches.
    """

    first_resumed = MICRO_BATCHES - 1
    layer = "Module.net.0.Linear.forward"
    is_automatic = True

    @classmethod
    def train(cls, situation: Situation) -> list[torch.Tensor]:
        import lightning
        from torch.utils.data import DataLoader, TensorDataset

        from msprobe.integrations.lightning import MsprobeCallback

        is_automatic = cls.is_automatic

        class Net(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net, self.automatic_optimization = layers(), is_automatic
                self.told: list[float] = []

            def training_step(self, batch: Any, index: int) -> torch.Tensor | None:
                if index == situation.breaks_at * MICRO_BATCHES + MICRO_BATCHES - 1:
                    raise Planted
                torch.manual_seed(index)
                loss = cross_entropy(self.net(batch[0]), batch[1])
                self.told.append(loss.item())
                if is_automatic:
                    return loss
                self.manual_backward(loss / MICRO_BATCHES)
                if index % MICRO_BATCHES == MICRO_BATCHES - 1:
                    self.optimizers().step()
                    self.optimizers().zero_grad()
                    self.trainer.should_stop = self.trainer.global_step >= situation.stops_after
                return None

            def validation_step(self, batch: Any, index: int) -> None:
                self.told.append(cross_entropy(self.net(batch[0]), batch[1]).item())

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.AdamW(self.parameters(), lr=0.01)

        class Stopping(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                trainer.should_stop = trainer.global_step >= situation.stops_after
                if trainer.global_step == SAVED_AFTER and not situation.resumes:
                    trainer.save_checkpoint(situation.folder / "two.ckpt")

        torch.manual_seed(0)
        net = Net()
        probes = [MsprobeCallback(**situation.settings)] if situation.recorded else []
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            limit_train_batches=STEPS * MICRO_BATCHES,
            val_check_interval=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=[Stopping(), *probes],
            **({"accumulate_grad_batches": MICRO_BATCHES} if is_automatic else {}),
        )
        data = TensorDataset(*samples())
        checkpoint = situation.folder / "two.ckpt" if situation.resumes else None
        loaders = DataLoader(data, batch_size=2), DataLoader(data, batch_size=8)
        trainer.fit(net, *loaders, ckpt_path=checkpoint)
        weights = [each.detach().clone() for each in net.parameters()]
        return [*weights, torch.tensor(net.told), torch.get_rng_state()]


class LightningManual(Lightning):
    """Lightning under manual optimization."""

    is_automatic = False


TRAINERS: dict[str, tuple[str, type[HuggingFace | Lightning]]] = {
    "transformers": ("transformers", HuggingFace),
    "trl": ("trl", Trl),
    "lightning": ("lightning", Lightning),
    "lightning_manual": ("lightning", LightningManual),
}
"""The package that a trainer needs, and the trainer."""
