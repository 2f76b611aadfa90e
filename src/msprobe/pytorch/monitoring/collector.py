# SPDX-License-Identifier: Apache-2.0
"""Open and end the steps of the monitor: what is installed, and when rows go to the recorder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from msprobe.capture.headroom import Headroom
from msprobe.capture.session import Session
from msprobe.config import CompileMode, Config, DataMode, Level, StatisticsSection
from msprobe.monitor.collecting.absences import OF_MODULES, OF_PARAMETERS, tell_unmatched
from msprobe.monitor.collecting.activations import Activations
from msprobe.monitor.collecting.collector import (
    StepCollector,
    monitored_modules,
    monitored_parameters,
    streams_of,
)
from msprobe.monitor.collecting.features import ArrayLibrary, Features
from msprobe.monitor.collecting.step_rows import StepRows
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import MonitorSettings
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.checkpoint import recomputations
from msprobe.pytorch.interception.compiled import run_eagerly
from msprobe.pytorch.interception.compiled_regions import CompiledRegions
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.module_hooks import ModuleNames, ModuleObserver, only_evaluates
from msprobe.pytorch.monitoring.communication import Communication, may_communicate
from msprobe.pytorch.monitoring.loss_scale import ScaledLosses
from msprobe.pytorch.monitoring.optimizers import view_of
from msprobe.pytorch.monitoring.own_losses import OwnLosses
from msprobe.pytorch.monitoring.parameters import Parameters, plain_number
from msprobe.pytorch.monitoring.partial_norms import norm_in_parts
from msprobe.pytorch.monitoring.reading import READING
from msprobe.pytorch.monitoring.unsharded import flat_parameters
from msprobe.pytorch.training.losses import Losses
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.training_calls import TrainingCalls
from msprobe.pytorch.values.adapter import TENSOR_TYPES, TorchAdapter
from msprobe.pytorch.values.readable import readable
from msprobe.pytorch.values.tensor_search import tensors_in


class Collector(StepCollector):
    """Collects one model under one configuration, from its creation to `close`."""

    def __init__(
        self,
        settings: MonitorSettings,
        models: Sequence[nn.Module],
        optimizer: Any,
        recorder: Recorder,
        *,
        rank: int,
        step: int,
        micro_steps: int,
        reads_main_grad: bool,
        holds_reduced: bool,
        holds: Callable[[Tensor], bool],
    ) -> None:
        """Create it and begin the step.

        Args:
            settings: what to collect.
            models: the models, one for each chunk of a virtual pipeline.
            optimizer: which updates them.
            recorder: gets the rows.
            rank: of this process.
            step: number of the step that runs now.
            micro_steps: backward passes for each step of the optimizer.
            reads_main_grad: whether gradients are in `main_grad`.
            holds_reduced: whether this rank measures reduced gradients.
            holds: tells of a parameter whether this rank measures it.
        """
        self._models = models
        self._optimizer = optimizer
        keys = settings.keys
        streams = streams_of(settings, rank)
        takes_gradients = Stream.ACTV_GRAD in streams
        config = Config(
            level=Level.L0,
            compile=CompileMode.MODULES_ONLY,
            dump_path=Path(),
            section=StatisticsSection(data_mode=DataMode(backward=takes_gradients)),
        )
        session = Session(config, TorchAdapter(config), TENSOR_TYPES)
        names = ModuleNames.of_models(_prefixed(models), keeps_compiled=True)
        self._names = names
        self._observer: ModuleObserver | None = None
        tell_unmatched(
            settings,
            {name for model in models for name, _ in model.named_modules()},
            {name for model in models for name, _ in model.named_parameters()},
        )
        modules = [[*model.named_modules()] for model in models]
        super().__init__(
            settings,
            recorder,
            READING,
            session=session,
            rank=rank,
            step=step,
            activations=Activations(
                monitored_modules(modules, names.items(), settings, streams),
                tensors_in,
                self._is_training,
            ),
            features=Features(_TORCH, modules, keys) if keys.recording_l2_features else None,
            as_number=plain_number,
        )
        view = view_of(optimizer, reads_main_grad=reads_main_grad)
        self._view = view
        self._own_losses = OwnLosses(models, view.groups())
        self._own_losses.open()
        parameters = monitored_parameters([one.named_parameters() for one in models], settings)
        held = [one for one in parameters if holds(one[1])]
        are_parts = bool(flat_parameters(models))
        if are_parts or view.tells_norm or len(held) < len(parameters):
            self.empty.leave_out(OF_PARAMETERS)  # a rank may have no part of any
        if not holds_reduced:
            self.empty.leave_out({Stream.GRAD_REDUCED})
        self._parameters = Parameters(
            session,
            held,
            view,
            micro_steps=micro_steps,
            reads_main_grad=reads_main_grad,
            every_micro_step=keys.monitor_mbs_grad,
            holds_reduced=holds_reduced,
            direction=keys.mg_direction,
            are_parts=are_parts,
        )
        self._measuring.append(self._parameters)
        self._communication: Communication | None = None
        if keys.cc_distribution.enable and may_communicate():
            self._communication = Communication(session, keys.cc_distribution)
            self._measuring.append(self._communication)
        self.begin_step()

    def attempt(self, where: str, action: Callable[..., Any], *args: Any) -> None:
        """Run an action of ours; an exception is noted, not raised."""
        quietly(self._session, where, action, *args)

    def read_before(self, rows: StepRows) -> None:
        """Measure what the optimizer gets."""
        if not self.has_closure:
            self._read_gradients(rows)
        self._parameters.read_before()

    def read_after(self, rows: StepRows, result: object) -> None:
        """Measure what the optimizer leaves; gradients of a closure, too."""
        if self.has_closure:
            self._read_gradients(rows)
        self._parameters.read_after()
        self.numbers.put_told(self._view.told(result))

    def _read_gradients(self, rows: StepRows) -> None:
        self._parameters.read_gradients()
        if Stream.RUN in rows.streams:
            self.numbers.put_optimizer(self._view.groups(), *self._parameters.total_norm())

    def end_observing(self) -> None:
        """End that."""
        self._session.end_observing()

    def close(self) -> None:
        """Take everything away that is installed."""
        self._own_losses.close()
        self._session.end_observing()
        self.remove()
        self._session.close()

    # -- inside ----------------------------------------------------------------------------------

    def _is_training(self, module: nn.Module) -> bool:
        with_grad = self._observer is None or self._observer.with_grad
        return module.training and not only_evaluates(module, with_grad=with_grad)

    def install(self, due: frozenset[Stream]) -> None:
        """Install the hooks of some streams."""
        session = self._session
        if due & OF_MODULES:
            session.attempt("hooking modules", self._install_modules)
        if Stream.GRAD_UNREDUCED in due:
            install = self._parameters.install
            chosen = self.streams[Stream.GRAD_UNREDUCED]
            session.attempt("hooking parameters", install, self._models, chosen, self._undo)
        if Stream.RUN in due:
            scaled = ScaledLosses(session)
            session.attempt("hooking gradient scalers", scaled.install, self._optimizer)
            losses = Losses(session, scaled.of, self._own_losses.fact_of)
            session.attempt("hooking backward", losses.install, BackwardEntry())
            awake = lambda _: lambda: None  # noqa: E731
            calls = TrainingCalls(session, awake, self._is_concerned, norm_in_parts)
            session.attempt("hooking training calls", calls.install)

        if self._communication is not None and Stream.OTHER in due:
            from msprobe.pytorch.distributed.process_groups import hook_collectives

            self._undo.callback(hook_collectives(self._communication))

    def _is_concerned(self, ids: Iterable[int]) -> bool:
        """Return whether one of these is our optimizer or one of our parameters; or there is none.

        Scalers know the optimizer itself, which may be monitored through a wrapper.
        """
        known = list(ids)
        inner = getattr(self._optimizer, "optimizer", None)
        own = (id(self._optimizer), id(inner))
        return not known or any(one in own for one in known) or self._own_losses.has_any(known)

    def _install_modules(self) -> None:
        session = self._session
        headroom = Headroom(session)
        headroom.install(session)
        self._observer = modules = ModuleObserver(
            session,
            self._names,
            recomputations(session),
            SharedEdges(session, BackwardEntry()),
            recorder=None,
            mode=None,
            gate=None,
            headroom=headroom,
            model_calls=ModelCalls(session, lambda: None),
        )
        modules.install()
        if "torch._dynamo" in sys.modules and run_eagerly(session):
            CompiledRegions(session, partial(_step_aside, modules)).install()


def _step_aside(modules: ModuleObserver, frame: FrameType, back: ExitStack) -> None:
    """Take the hooks off that compiled code would run into; see only its boundaries."""
    if modules.begin_compiled(frame):
        back.callback(modules.end_compiled, frame)
    modules.suspend()
    back.callback(modules.resume)


def _prefixed(models: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return models with prefixes that keep the names of their modules apart."""
    return [(f"{chunk}:", model) for chunk, model in enumerate(models)]


def _array(tensor: Tensor) -> Tensor | None:
    found = readable(tensor.detach())
    return found.float() if isinstance(found, Tensor) and found.is_floating_point() else None


def _numbers(values: list[Tensor]) -> list[float]:
    """Return values as numbers; those of one device come to the host together."""
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value.device, []).append(place)
    result = [0.0] * len(values)
    for chosen in places.values():
        fetched = torch.stack([values[place] for place in chosen]).tolist()
        for place, number in zip(chosen, fetched, strict=True):
            result[place] = number
    return result


_TORCH: Final = ArrayLibrary(torch, Tensor, (nn.Embedding, nn.EmbeddingBag), _array, _numbers)
