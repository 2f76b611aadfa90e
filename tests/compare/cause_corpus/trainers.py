# SPDX-License-Identifier: Apache-2.0
"""One fine-tuning, as HF Trainer, Accelerate and Lightning run it, and its parts to be replaced.

The debugger is used as their users do: from callbacks, or around the body of the loop.
"""

from __future__ import annotations

import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import lightning
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

Sample = dict[str, Tensor]


class Planted(Exception):  # noqa: N818
    """An exception that a cause raises; the program catches it."""


def no_change(_model: nn.Module) -> None:
    """Leave the model as it is."""


@dataclass(frozen=True)
class Plan:
    """The arguments of a fine-tuning.

    Attributes:
        change_model: called before the optimizer is made.
        change_data: gets the samples, and returns those that are used.
        at_step: called with the model before each step.
        optimizer: class of the optimizer.
    """

    lr: float = 1e-2
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 3
    accumulate: int = 2
    max_norm: float = 0.5
    data_seed: int = 4
    seed: int = 11
    bf16: bool = False
    label_smoothing: float = 0.0
    batch_size: int = 2
    drop_last: bool = False
    steps: int = 3
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW
    constant: bool = False
    change_model: Callable[[Any], object] = no_change
    change_data: Callable[[list[Sample]], list[Sample]] = list
    at_step: Callable[[int, Any], object] = lambda _step, _model: None


def make_model(plan: Plan) -> Any:
    """Return a small Llama."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attention_dropout=0.1,
        use_cache=False,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config)
    plan.change_model(model)
    return model


class Samples(Dataset[Sample]):
    """Twelve texts, of seven tokens each."""

    def __init__(self, plan: Plan) -> None:
        made = torch.Generator().manual_seed(8)
        tokens = torch.randint(3, 31, (11, 7), generator=made)
        mask = torch.ones(7, dtype=torch.long)
        samples = [{"input_ids": t, "attention_mask": mask, "labels": t.clone()} for t in tokens]
        self.samples = plan.change_data(samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Sample:
        return self.samples[place]


def make_loader(plan: Plan) -> DataLoader[Sample]:
    return DataLoader(
        Samples(plan),
        batch_size=plan.batch_size,
        shuffle=True,
        drop_last=plan.drop_last,
        generator=torch.Generator().manual_seed(plan.data_seed),
    )


def make_optimizer(plan: Plan, model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    if plan.optimizer is torch.optim.SGD:
        return torch.optim.SGD(trained, lr=plan.lr)
    return plan.optimizer(  # type: ignore[call-arg]
        trained, lr=plan.lr, betas=(0.9, plan.beta2), eps=plan.eps, weight_decay=plan.weight_decay
    )


def make_scheduler(plan: Plan, optimizer: torch.optim.Optimizer) -> Any:
    if plan.constant:
        return transformers.get_constant_schedule(optimizer)
    return transformers.get_linear_schedule_with_warmup(optimizer, plan.warmup_steps, 10)


def loss_of(plan: Plan, model: Any, batch: Sample) -> Tensor:
    output = model(**batch)
    if not plan.label_smoothing:
        loss: Tensor = output.loss
        return loss
    return nn.functional.cross_entropy(
        output.logits[:, :-1].flatten(0, 1),
        batch["labels"][:, 1:].flatten(),
        label_smoothing=plan.label_smoothing,
    )


# --- the three ways


def with_trainer(plan: Plan, debugger: PrecisionDebugger, folder: Path) -> None:
    """Fine-tune with `transformers.Trainer`."""

    class Record(transformers.TrainerCallback):
        def on_step_begin(self, _args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
            plan.at_step(state.global_step, kwargs["model"])
            debugger.start(kwargs["model"])

        def on_step_end(self, *_: Any, **__: Any) -> None:
            debugger.stop()
            debugger.step()

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=plan.batch_size,
        gradient_accumulation_steps=plan.accumulate,
        learning_rate=plan.lr,
        adam_beta2=plan.beta2,
        adam_epsilon=plan.eps,
        weight_decay=plan.weight_decay,
        max_grad_norm=plan.max_norm,
        warmup_steps=plan.warmup_steps,
        lr_scheduler_type="constant" if plan.constant else "linear",
        optim="sgd" if plan.optimizer is torch.optim.SGD else "adamw_torch",
        max_steps=plan.steps,
        label_smoothing_factor=plan.label_smoothing,
        bf16=plan.bf16,
        dataloader_drop_last=plan.drop_last,
        seed=plan.seed,
        data_seed=plan.data_seed,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    model = make_model(plan)
    transformers.Trainer(
        model=model, args=arguments, train_dataset=Samples(plan), callbacks=[Record()]
    ).train()


def with_accelerate(plan: Plan, debugger: PrecisionDebugger, _folder: Path) -> None:
    """Fine-tune in a loop of Accelerate."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=plan.accumulate,
        mixed_precision="bf16" if plan.bf16 else "no",
    )
    model = make_model(plan)
    optimizer = make_optimizer(plan, model)
    scheduler = make_scheduler(plan, optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(
        model, optimizer, make_loader(plan), scheduler
    )
    model.train()
    accelerate.utils.set_seed(plan.seed)
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    for step in range(plan.steps):
        plan.at_step(step, accelerator.unwrap_model(model))
        debugger.start(model)
        for batch in itertools.islice(endless, plan.accumulate):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(plan, model, batch))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), plan.max_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        debugger.stop()
        debugger.step()


class FineTuning(lightning.LightningModule):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.model = make_model(plan)

    def training_step(self, batch: Sample) -> Tensor:
        return loss_of(self.plan, self.model, batch)

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.plan, self.model)
        scheduler = make_scheduler(self.plan, optimizer)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def with_lightning(plan: Plan, debugger: PrecisionDebugger, folder: Path) -> None:
    """Fine-tune with `lightning.Trainer`."""

    class Record(lightning.Callback):
        def on_train_batch_start(
            self, trainer: Any, module: Any, _batch: Any, batch_idx: int
        ) -> None:
            if batch_idx % plan.accumulate == 0:
                plan.at_step(trainer.global_step, module.model)
                debugger.start(module.model)

        def on_train_batch_end(
            self, _trainer: Any, _module: Any, _out: Any, _batch: Any, batch_idx: int
        ) -> None:
            if (batch_idx + 1) % plan.accumulate == 0:
                debugger.stop()
                debugger.step()

    module = FineTuning(plan)
    module.model.train()
    lightning.seed_everything(plan.seed, verbose=False)
    lightning.Trainer(
        accelerator="cpu",
        max_steps=plan.steps,
        accumulate_grad_batches=plan.accumulate,
        gradient_clip_val=plan.max_norm,
        precision="bf16-mixed" if plan.bf16 else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[Record()],
    ).fit(module, make_loader(plan))


TRAINERS = {"trainer": with_trainer, "accelerate": with_accelerate, "lightning": with_lightning}


def record(folder: Path, trainer: str, plan: Plan, level: str) -> Path:
    """Fine-tune and record all steps."""
    folder.mkdir(parents=True)
    config = folder / "config.json"
    dump = folder / "dump"
    config.write_text(json.dumps({"task": "statistics", "level": level, "dump_path": str(dump)}))
    with _quiet():
        debugger = PrecisionDebugger(config_path=str(config))
        try:
            TRAINERS[trainer](plan, debugger, folder)
        except (Planted, KeyboardInterrupt):
            debugger.stop()
            debugger.step()
    return dump


@contextmanager
def _quiet() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    reset_session()
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "transformers", "msprobe")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about each other
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    reset_session()
    torch.set_num_threads(threads)
