# SPDX-License-Identifier: Apache-2.0
"""The parts of a constructed debugger: session, adapter, observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from msprobe.capture.custom_api import CustomApis
from msprobe.capture.session import Session
from msprobe.capture.signature import StepSignatures
from msprobe.compare.diff_check import DiffJudge
from msprobe.compare.replica_watch import ReplicaWatch
from msprobe.config import (
    Config,
    DiffCheckSection,
    DiffRule,
    FreeBenchmarkSection,
    GradProbeSection,
    Level,
    StatisticsSection,
)
from msprobe.errors import ConfigError, UsageError
from msprobe.monitor.alerts.spikes import Spikes
from msprobe.pytorch.apis.api_table import ApiTable
from msprobe.pytorch.interception.function_mode import torch_redispatch
from msprobe.pytorch.interception.hidden_calls import HiddenApis
from msprobe.pytorch.observer import Observer
from msprobe.pytorch.perturbation.runner import Perturbation
from msprobe.pytorch.training.dataloader_steps import LoopFollower
from msprobe.pytorch.training.gradient_probe import GradientProbe
from msprobe.pytorch.training.kept_state import Stateful
from msprobe.pytorch.training.model_contents import NamedModels, discovered, numbered
from msprobe.pytorch.training.script_steps import ScriptFollower
from msprobe.pytorch.training.signatures import SignatureObserver
from msprobe.pytorch.training.start_state import StartState
from msprobe.pytorch.training.step_replay import StepReplay
from msprobe.pytorch.values.adapter import TENSOR_TYPES, TorchAdapter
from msprobe.pytorch.values.statistics import use_threads_of_torch

_graph_task = torch._C._current_graph_task_id


class Run:
    """One debugger's parts, complete from the start.

    Attributes:
        config: the settings.
        session: the state of the run.
        adapter: reads tensors.
        table: the treatment of each function.
        observer: watches modules and APIs.
        gradient_probe: reads gradients in the task `grad_probe`; None for others.
        signatures: watches for the task `signature`, in place of `observer`; None for others.
        start_state: reads the state in which steps start.
        custom_apis: the functions that the user registered.
        loop: starts and ends steps by what the program does; None where the program calls `start`.
    """

    def __init__(
        self, config: Config, *, redispatch: Callable[..., Any] | None = torch_redispatch
    ) -> None:
        """Build everything for `config`; no file is touched.

        Nothing is installed either, except that `enable_dataloader` follows data loaders from now
        on until the session is closed.

        Args:
            config: the settings.
            redispatch: see `ApiObserver`.
        """
        self.config = config
        self.adapter = TorchAdapter(config)
        self.session = Session(config, self.adapter, TENSOR_TYPES, _judge_of(config))
        if self.session.flight is not None:
            self.session.flight.spikes = Spikes()
        self.table = ApiTable.from_yaml(
            config.api_list, config.custom_op_namespaces, config.section.black_list
        )
        self.start_state = StartState(self.session, self.adapter.known)
        self.observer = Observer(
            self.session,
            self.adapter,
            self.table,
            self._batch_index,
            self.start_state.look_at_flags,
            redispatch=redispatch,
        )
        self.signatures: SignatureObserver | None = None
        if isinstance(files := self.session.checks.files, StepSignatures):
            self.signatures = SignatureObserver(self.session, files, self._batch_index)
        section = config.section
        self.gradient_probe: GradientProbe | None = None
        if isinstance(section, GradProbeSection):
            self.gradient_probe = GradientProbe(self.session, config, section)
        if isinstance(section, FreeBenchmarkSection) and self.observer.apis is not None:
            perturbation = Perturbation(self.session, section, self.table)
            self.observer.apis.runner = perturbation
            self.session.checks.files = perturbation.task
        self._replicas: ReplicaWatch | None = None
        self._begun: Path | None = None
        self._models = NamedModels()
        apis = self.observer.apis
        hidden = HiddenApis(apis) if apis is not None else None
        self.custom_apis = CustomApis(hidden, self.session.run_undo)
        self.loop: LoopFollower | ScriptFollower | None = None
        if config.enable_dataloader:
            self.loop = LoopFollower(self)

    def start(
        self, models: Sequence[nn.Module], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe, if the step is wanted."""
        if self.loop is not None:
            self.loop.explicit_start(models)
            return
        if models:
            self.models = tuple(models)
        if self.lacks_model:
            hint = "task signature records its parameters"
            if self.signatures is None:
                hint = f"level {self.config.level} records modules"
            rule = "the model to record, as in start(model)"
            raise ConfigError("model", None, rule, source="start()", hint=hint)
        self.begin(token_range, rank)

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """The models given last, as long as the user keeps them."""
        return tuple(model for _, model in self._models)

    @models.setter
    def models(self, models: Sequence[nn.Module]) -> None:
        self._models = NamedModels(numbered(models))

    @property
    def finds_steps(self) -> bool:
        """Whether steps are found without calls of `start` and `step`."""
        return self.loop is not None

    def discover(self, models: Sequence[nn.Module]) -> None:
        """Take models that were found one after the other."""
        self._models = NamedModels(discovered(models))

    def extend(self) -> None:
        """Record the models that were discovered since the step began."""
        if self.signatures is not None:
            self.signatures.watch(list(self._models))
        elif self.session.capturing:
            self.start_state.extend(list(self._models))
            self.observer.extend(list(self._models))

    @property
    def lacks_model(self) -> bool:
        """Whether modules or parameters are recorded and no model is known yet."""
        is_needed = self.signatures is not None or self.config.level in (Level.L0, Level.MIX)
        return is_needed and not self.models

    def _batch_index(self) -> int | None:
        return self.loop.batch_index if isinstance(self.loop, LoopFollower) else None

    def begin(self, token_range: tuple[int, int] | None, rank: int | None) -> None:
        """Begin to observe the models given so far, if the step is wanted."""
        session = self.session
        with session.spending():
            if not session.start(rank=rank):
                if self.signatures is not None and session.capturing:
                    self.signatures.see_next_call()
                return
            use_threads_of_torch()
            self._watch_replicas()
            models = list(self._models)
            if self.signatures is not None:
                self.signatures.watch(models)
                self.signatures.install()
            else:
                self.start_state.collect(models)
                self.observer.watch(models)
                self.observer.install(token_range)

    def _watch_replicas(self) -> None:
        """Compare the ranks of this run with one another, where this is the first of them."""
        section, dump = self.config.section, self.session.dump
        if not isinstance(section, DiffCheckSection) or section.reference is not None:
            return
        if dump is None or self.adapter.current_rank() != 0 or dump.directory == self._begun:
            return
        if self._replicas is None:
            ranks = torch.distributed.get_world_size()
            self._replicas = ReplicaWatch(section.diff_nums, ranks=ranks)
            self.session.run_undo.callback(self._replicas.close)
        self._begun = dump.directory
        self._replicas.begin(self.session.step_number, dump.directory)

    def probe_gradients(self, watched: Any) -> None:
        """Record the gradients of models, in the task ``grad_probe``.

        Raises:
            ConfigError: `watched` is no model.
            UsageError: the task is another one.
        """
        models = as_models(watched)
        if not models:
            rule = "the model whose gradients are recorded"
            raise ConfigError("model", watched, rule, source="monitor()")
        if self.gradient_probe is None:
            raise UsageError("monitor() belongs to the task grad_probe")
        self.gradient_probe.watch(models)

    @property
    def replays_steps(self) -> bool:
        """Whether `replay_step` is set."""
        section = self.config.section
        return isinstance(section, StatisticsSection) and section.replay_step

    def step_replay(
        self, function: Callable[..., object], parts: Sequence[object], *, ends_backward: bool
    ) -> StepReplay:
        """Return what makes calls of a step function again; see `StepReplay`.

        Raises:
            UsageError: `replay_step` is not set.
            ConfigError: an object has no state that could be copied.
        """
        if not self.replays_steps:
            raise UsageError('replay_with() needs "keep_last" and "replay_step" in "statistics"')
        for part in parts:
            if not isinstance(part, Stateful):
                rule = "an object with state_dict() and load_state_dict()"
                raise ConfigError("parts", type(part).__name__, rule, source="replay_with()")
        return StepReplay(
            self.session,
            function,
            parts,
            lambda: self.models,
            _record_again,
            ends_backward=ends_backward,
        )

    def stop(self) -> None:
        """End observing."""
        if self.gradient_probe is not None:
            self.gradient_probe.pause()
        if self.loop is not None:
            self.loop.skipped("stop()")
        else:
            self.end()

    def step(self) -> None:
        """End the step."""
        if self.loop is not None:
            self.loop.skipped("step()")
        else:
            self.end_step()

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Note that a module call begins whose hooks torch had collected before `begin`."""
        if self.signatures is not None:
            self.signatures.enter(module, args, frame)
        else:
            self.observer.enter(module, args, frame)

    def end(self) -> None:
        """End observing, in or outside of a backward pass."""
        self.session.stop(inside_backward=_graph_task() != -1)

    def end_step(self) -> None:
        """End the step; also called by `LoopFollower`."""
        session = self.session
        with session.spending():
            session.step()
            if self._replicas is not None:
                session.attempt("diff_check", self._replicas.step_over)
            session.attempt("step", self.observer.next_step)
        if self.signatures is not None:
            self.signatures.next_step()
        self.session.checks.tell()


def _record_again(
    config: Config, step: int, models: Sequence[nn.Module], action: Callable[[], None]
) -> None:
    """Record one more step beside the debugger's own, with other settings."""
    run = Run(config)
    try:
        run.session.set_step(step)
        run.start(models, None, None)
        action()
        run.session.current.ending.stopped()
        run.stop()
        run.step()
    finally:
        run.session.close()


def _judge_of(config: Config) -> DiffJudge | None:
    section = config.section
    if not isinstance(section, DiffCheckSection) or section.reference is None:
        return None
    is_exact = section.compare is DiffRule.CHECKSUM
    return DiffJudge(section.reference, is_exact=is_exact, limit=section.diff_nums)


def as_models(model: Any) -> tuple[nn.Module, ...]:
    """Return the models in an argument.

    Raises:
        ConfigError: it is no module and no list or tuple of modules, or one is a ScriptModule.
    """
    if model is None:
        return ()
    models = tuple(model) if isinstance(model, list | tuple) else (model,)
    for index, one in enumerate(models):
        key = f"model[{index}]" if len(models) > 1 else "model"
        if isinstance(one, torch.jit.ScriptModule):
            rule = "a module that was not scripted: TorchScript runs without Python, unobserved"
            raise ConfigError(key, type(one).__name__, rule, source="start()")
        if not isinstance(one, nn.Module):
            rule = "a torch.nn.Module, or a list or tuple of them"
            raise ConfigError(key, one, rule, source="start()")
    return models
