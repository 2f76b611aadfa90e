# SPDX-License-Identifier: Apache-2.0
"""Measure what recording a model costs: one batch is run and recorded for each level and task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import nn

from msprobe.config import (
    Config,
    Level,
    StatisticsSection,
    StructureSection,
    Task,
    TensorSection,
)
from msprobe.dump.estimates import (
    ESTIMATED_LEVELS,
    MOST_MEASURED,
    Estimate,
    Measurement,
    forget_peak_memory,
    peak_memory,
)
from msprobe.errors import ConfigError
from msprobe.pytorch.run import Run
from msprobe.pytorch.training.kept_state import KeptState
from msprobe.pytorch.training.step_replay import backward_from

_SECTIONS: Final[dict[str, type[StatisticsSection | TensorSection | StructureSection]]] = {
    Task.STATISTICS: StatisticsSection,
    Task.TENSOR: TensorSection,
    Task.STRUCTURE: StructureSection,
}

Pass = Callable[[nn.Module, Any], object]
"""Runs a model with a batch and returns the loss, or the outputs."""


def estimate(
    config: Config,
    models: Sequence[nn.Module],
    batch: object,
    run_model: Pass | None,
    optimizer: torch.optim.Optimizer | None,
    levels: Sequence[str],
    tasks: Sequence[str],
) -> list[Estimate]:
    """Run a batch forward and backward and return what recording that costs.

    Parameters, gradients, buffers and random states are those of before afterwards.

    Args:
        config: the settings of the debugger; its level, task, steps and folder are not used.
        models: the models to record; the first one is called.
        batch: the arguments of its call.
        run_model: calls it and returns the loss; None for `_call`.
        optimizer: steps at the end of each pass; None for no such step.
        levels: the levels to measure.
        tasks: the tasks to measure.

    Raises:
        ConfigError: the cost of a level or task cannot be measured.
    """
    settings = [_settings(config, level, task) for task in tasks for level in levels]
    training = _Training(tuple(models), batch, run_model or _call, optimizer)
    with ExitStack() as undo:
        kept = KeptState([*models, *([] if optimizer is None else [optimizer])])
        undo.callback(kept.restore)
        training.forget_gradients()
        # Its lines for each step would look like those of a recording.
        steps_log = logging.getLogger("msprobe.capture.step_dumps")
        undo.callback(steps_log.setLevel, steps_log.level)
        steps_log.setLevel(logging.WARNING)
        return [_measured(each, training) for each in settings]


@dataclass(frozen=True, slots=True)
class _Training:
    """Contents of one step of the user's training."""

    models: tuple[nn.Module, ...]
    batch: object
    run_model: Pass
    optimizer: torch.optim.Optimizer | None

    def run(self) -> None:
        """Run a step: forward, backward, and the optimizer if there is one, as most loops do."""
        backward_from(self.run_model(self.models[0], self.batch))
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def parameters(self) -> list[nn.Parameter]:
        """Return each parameter of the models once."""
        found = [each for model in self.models for each in model.parameters()]
        return list({id(each): each for each in found}.values())

    def forget_gradients(self) -> None:
        """Remove all gradients."""
        for parameter in self.parameters():
            parameter.grad = None


def _settings(config: Config, level: str, task: str) -> Config:
    """Return the settings of the debugger for another level and task, with the same filters."""
    for key, value, known in (("level", level, ESTIMATED_LEVELS), ("task", task, _SECTIONS)):
        if value not in known:
            raise ConfigError(key, value, f"one of {', '.join(known)}", source="estimate()")
    section = config.section
    if task != config.task:
        kind = _SECTIONS[task]
        names = {each.name for each in fields(kind)} & {each.name for each in fields(section)}
        section = kind(**{name: getattr(section, name) for name in names})
    return replace(
        config,
        level=Level(level),
        task=Task(task),
        section=section,
        step=(),
        rank=(),
        dump_enable=None,
        enable_dataloader=False,
    )


def _measured(config: Config, training: _Training) -> Estimate:
    forget_peak_memory()
    with TemporaryDirectory(prefix="msprobe-", ignore_cleanup_errors=True) as name:
        measurement = Measurement(Path(name))
        _record(replace(config, dump_path=Path(name)), training, measurement)
        found = measurement.cost(str(config.level), str(config.task), peak_memory("self"))
    assert found is not None
    return found


def _record(config: Config, training: _Training, measurement: Measurement) -> None:
    run = Run(config)
    try:
        for _ in range(1 + MOST_MEASURED):
            run.start(training.models, None, None)
            training.run()
            run.session.current.ending.stopped()
            run.stop()
            run.step()
            training.forget_gradients()
            if measurement.is_enough():
                break
    finally:
        run.session.close()


def _call(model: nn.Module, batch: object) -> object:
    """Call a model with the batch of a loader: keywords, several arguments, or one."""
    if isinstance(batch, Mapping):
        return model(**batch)
    if isinstance(batch, list | tuple):
        return model(*batch)
    return model(batch)
