# SPDX-License-Identifier: Apache-2.0
"""`MsprobeCallback` for `transformers.Trainer`, and for the trainers of TRL, which are made of it.

trainer = Trainer(model, …, callbacks=[MsprobeCallback(dump_path="dump", step=[0, 1])])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from msprobe.integrations.trainer_steps import RecordsSteps, unwrapped


class MsprobeCallback(RecordsSteps, TrainerCallback):  # type: ignore[misc]  # the library has no types here
    """Records training steps: all micro batches up to the optimizer's step, without evaluations.

    Steps have the trainer's numbers: step 0 is its first, and a training that is resumed goes on at
    the step of its checkpoint. A further training in the same process is counted on.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count on from a checkpoint; the model's calls can be replayed from now on."""
        self._steps.begin_training(state.global_step)
        self._steps.replay_calls_of(unwrapped(kwargs["model"]))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin a step, with its first micro batch."""
        self._steps.begin_step([unwrapped(kwargs["model"])])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the step, behind the optimizer and the scheduler."""
        self._steps.end_step()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End a step that the trainer broke off."""
        self._steps.end_step()
