# SPDX-License-Identifier: Apache-2.0
"""Callbacks for `mindspore.train.Model`, so that ``Model.train`` is recorded step by step."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from msprobe.mindspore.debugger import PrecisionDebugger


class MsprobeStep(Callback):  # type: ignore[misc]  # MindSpore is untyped
    """Starts and ends the recorded part of each step of ``Model.train``.

    Call ``debugger.start(net)`` once before training where cells are to be recorded.

        model.train(1, dataset, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
    """

    def __init__(self, debugger: PrecisionDebugger) -> None:
        """Use this debugger."""
        super().__init__()
        self.debugger = debugger

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Begin to record before anything is compiled; by then the number of the step is known."""
        self.debugger.start()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Begin to record a step."""
        self.debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        """End the recorded part and the step."""
        self.debugger.stop()
        self.debugger.step()


class MsprobeInitStep(Callback):  # type: ignore[misc]  # Callback is untyped
    """Lets a training that is resumed count its steps on from where it stopped.

    Put it before `MsprobeStep`:

        callbacks = [MsprobeInitStep(), MsprobeStep(debugger)]
        model.train(10, dataset, callbacks, dataset_sink_mode=False, initial_epoch=3)
    """

    def __init__(self) -> None:
        """Create it for one call of ``Model.train`` at a time."""
        super().__init__()
        self._is_first_epoch = True

    def on_train_begin(self, run_context: Any) -> None:
        """Take over the number of steps done so far, where MindSpore counts on itself."""
        self._is_first_epoch = True
        self._take_over(int(run_context.original_args().cur_step_num))

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Take over the steps of the epochs before ``initial_epoch``, which it does not count."""
        facts = run_context.original_args()
        if self._is_first_epoch and not facts.cur_step_num:
            self._take_over((int(facts.cur_epoch_num) - 1) * int(facts.batch_num))
        self._is_first_epoch = False

    @staticmethod
    def _take_over(steps: int) -> None:
        if steps > 0:
            PrecisionDebugger.stop()  # began before the step number was known
            PrecisionDebugger.set_init_step(steps)
