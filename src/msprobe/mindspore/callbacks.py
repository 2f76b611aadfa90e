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

    def on_train_begin(self, run_context: Any) -> None:
        """Begin to record before the first step."""
        self.debugger.start()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Begin to record a step."""
        self.debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        """End the recorded part and the step."""
        self.debugger.stop()
        self.debugger.step()


class MsprobeInitStep(Callback):  # type: ignore[misc]  # likewise
    """Lets a training that is resumed count its steps on from where it stopped."""

    def on_train_begin(self, run_context: Any) -> None:
        """Take over the number of steps done so far."""
        PrecisionDebugger.set_init_step(int(run_context.original_args().cur_step_num))
