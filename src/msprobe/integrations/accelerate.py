# SPDX-License-Identifier: Apache-2.0
"""`MsprobeAccelerator`: an `Accelerator` that records the training that it prepares.

accelerator = MsprobeAccelerator(gradient_accumulation_steps=2, dump_path="dump", step=[0, 1])
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from accelerate import Accelerator

from msprobe.files import write_whole
from msprobe.integrations.trainer_steps import Settings, make_debugger
from msprobe.pytorch.debugger import PrecisionDebugger, follow_loop, running

logger = logging.getLogger(__name__)

_NUMBER_FILE: Final = "msprobe_step.json"


class MsprobeAccelerator(Accelerator):  # type: ignore[misc]  # the library has no types here
    """Records training steps: all micro batches up to the optimizer's step, without evaluations.

    Models and steps are found as `msprobe run` finds them. `save_state` writes the number of the
    next step into the checkpoint; a training that `load_state` resumes goes on with it.
    """

    def __init__(self, *args: Any, config_path: str | Path | None = None, **kwargs: Any) -> None:
        """Construct the accelerator and the debugger, which begins with the next call of a model.

        Args:
            *args: those of `Accelerator`.
            config_path: a ``config.json``.
            **kwargs: those of `Accelerator`, and the keywords of
                `msprobe.integrations.trainer_steps.Settings`.

        Raises:
            ConfigError: a value cannot be used.
        """
        settings = {name: kwargs.pop(name) for name in Settings.__annotations__ if name in kwargs}
        super().__init__(*args, **kwargs)
        make_debugger(config_path, **settings)
        self._follower = follow_loop()
        self.register_save_state_pre_hook(self._save_number)
        self.register_load_state_pre_hook(self._load_number)

    def end_training(self) -> None:
        """End the last step and the recording, and what `Accelerator` ends."""
        self._follower.pause()
        super().end_training()

    def _save_number(self, _models: object, _weights: object, folder: str) -> None:
        if not self.is_main_process or running().session.is_off:
            return
        try:
            text = json.dumps({"next_step": self._follower.next_step})
            write_whole(Path(folder) / _NUMBER_FILE, [text.encode()])
        except OSError as error:
            logger.warning("the checkpoint has no number for resumed recordings: %s", error)

    def _load_number(self, _models: object, folder: str) -> None:
        try:
            number = json.loads((Path(folder) / _NUMBER_FILE).read_text(encoding="utf-8"))
            done = int(number["next_step"])
        except (OSError, ValueError, KeyError, TypeError):
            return  # a checkpoint of a training that was not recorded
        self._follower.finish()
        PrecisionDebugger.set_init_step(done)
