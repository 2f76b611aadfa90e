# SPDX-License-Identifier: Apache-2.0
"""`MsprobeCallback` for Lightning, under automatic and manual optimization.

trainer = lightning.Trainer(callbacks=[MsprobeCallback(dump_path="dump", step=[0, 1])])
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from msprobe.integrations.trainer_steps import RecordsSteps
from msprobe.pytorch.debugger import running
from msprobe.pytorch.training.step_replay import StepReplay


class MsprobeCallback(RecordsSteps, Callback):  # type: ignore[misc]  # its types are not followed
    """Records training steps: all batches up to an optimizer's step, without validation.

    A step ends with the batch in which an optimizer stepped: with several optimizers (a GAN), one
    step holds a step of each. A training that is resumed goes on at the step of its checkpoint.
    """

    _stepped = 0
    _replay: StepReplay | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count on from a checkpoint; each optimizer counts in the trainer's number."""
        self._stepped = trainer.global_step
        self._steps.begin_training(trainer.global_step // max(1, len(trainer.optimizers)))
        run = running()
        if run.replays_steps:
            again = partial(_training_step, pl_module, trainer.accumulate_grad_batches)
            self._replay = run.step_replay(again, (), ends_backward=True)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step, with its first batch."""
        if not self._steps.is_open:
            self._steps.begin_step([pl_module])
        if self._replay is not None:
            precision = trainer.precision_plugin
            with precision.train_step_context():  # its autocast is taken with the call
                self._replay.take((batch, batch_idx), {})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step if an optimizer stepped."""
        if trainer.global_step != self._stepped:
            self._stepped = trainer.global_step
            self._steps.end_step()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave out a validation between two batches of one step."""
        self._steps.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the step."""
        self._steps.resume()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the step that an exception broke off."""
        self._steps.end_step()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End a step that the trainer broke off."""
        self._steps.end_step()


def _training_step(module: LightningModule, shares: int, batch: Any, batch_idx: int) -> Any:
    """Return the loss of a training step that is made again, and logs nothing.

    Args:
        module: the model.
        shares: batches whose gradients are added up: the trainer divides the loss by it.
        batch: of the step.
        batch_idx: its number.
    """
    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    silenced = {name: lambda *_, **__: None for name in ("log", "log_dict")}
    vars(module).update(silenced)
    try:
        result = module.training_step(batch, *([batch_idx] if takes_index else []))
    finally:
        for name in silenced:
            vars(module).pop(name, None)
    loss = result["loss"] if isinstance(result, Mapping) else result
    return loss if loss is None else loss / shares
