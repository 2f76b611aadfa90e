# SPDX-License-Identifier: Apache-2.0
"""The steps of a debugger, begun and ended by the events of a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import nn

from msprobe.launch.launching import DEFAULT_FOLDER, DEFAULT_STEPS
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.debugger import running

Steps = int | list[int | str] | None


class Settings(TypedDict, total=False):
    """Keywords of every integration, which override its ``config.json``.

    Attributes:
        task: as in the file; statistics if there is none.
        dump_path: as in the file; ``./msprobe_dump`` if there is none.
        level: as in the file; mix if there is none.
        step: as in the file; steps 0 and 1 if there is none.
    """

    task: str | None
    dump_path: str | Path | None
    level: str | None
    step: Steps


def make_debugger(
    config_path: str | Path | None = None, **settings: Unpack[Settings]
) -> PrecisionDebugger:
    """Return the debugger of the process; without a file with the defaults of `msprobe run`.

    Args:
        config_path: a ``config.json``.
        **settings: see `Settings`.

    Raises:
        ConfigError: a value cannot be used.
    """
    if config_path is None:
        given: Settings = {name: value for name, value in settings.items() if value is not None}  # type: ignore[assignment]
        settings = {"level": "mix", "dump_path": DEFAULT_FOLDER, "step": [*DEFAULT_STEPS], **given}
    return PrecisionDebugger(config_path, **settings)


class TrainerSteps:
    """Turns the events of a trainer into steps. Events that do not fit together end the open step.

    Attributes:
        is_open: whether a step has begun and not ended.
    """

    def __init__(self, debugger: PrecisionDebugger) -> None:
        self._debugger = debugger
        self._models: list[nn.Module] = []
        self.is_open = False

    def begin_training(self, done: int) -> None:
        """Begin a training; steps are counted on from `done` if it is resumed.

        Args:
            done: number of steps that earlier runs of this training have made.
        """
        self.end_step()  # of a training that ended with an exception
        if done:
            self._debugger.set_init_step(done)

    def replay_calls_of(self, model: nn.Module) -> None:
        """Have a step replayed by the model's calls, where ``replay_step`` is set."""
        if running().replays_steps:
            self._debugger.replay_with(model)

    def begin_step(self, models: Sequence[nn.Module]) -> None:
        """Begin to record a step."""
        self.end_step()
        self.is_open = True
        self._models = list(models)
        self._debugger.start(self._models)

    def pause(self) -> None:
        """Leave the following out, such as an evaluation within a step."""
        if self.is_open:
            self._debugger.stop()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.is_open:
            self._debugger.start(self._models)

    def end_step(self) -> None:
        """End the open step; do nothing if there is none."""
        if self.is_open:
            self.is_open = False
            self._models = []
            self._debugger.stop()
            self._debugger.step()


def unwrapped(model: Any) -> nn.Module:
    """Return the model of the user in one that was wrapped for several processes."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while isinstance(model, DistributedDataParallel | DataParallel):
        model = model.module
    found: nn.Module = model
    return found


class RecordsSteps:
    """The part of a callback that is the same for every trainer: its debugger and its steps."""

    def __init__(self, config_path: str | Path | None = None, **settings: Unpack[Settings]) -> None:
        """Construct the debugger.

        Args:
            config_path: a ``config.json``.
            **settings: see `Settings`.

        Raises:
            ConfigError: a value cannot be used.
        """
        super().__init__()
        self._steps = TrainerSteps(make_debugger(config_path, **settings))
