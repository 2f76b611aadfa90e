# SPDX-License-Identifier: Apache-2.0
"""Install and remove what the monitor observes of a model in the dynamic graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from mindspore.common import api
from mindspore.communication import GlobalComm
from numpy.typing import NDArray

from mindspore import Tensor, nn
from msprobe.capture.recomputation import Recomputations
from msprobe.capture.session import Session
from msprobe.config import Config, DataMode, Level, StatisticsSection
from msprobe.dump.facts import Loss
from msprobe.mindspore.adapter import TENSOR_TYPES, MindSporeAdapter, on_host, values_of
from msprobe.mindspore.bytecode_jit import run_as_python
from msprobe.mindspore.cell_hooks import CellNames, CellObserver
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.immediate_operators import ImmediateOperators
from msprobe.mindspore.jit_calls import JitCalls
from msprobe.mindspore.losses import Losses
from msprobe.mindspore.monitoring.communication import Communication
from msprobe.mindspore.monitoring.loss_scale import LossScale
from msprobe.mindspore.monitoring.measures import READING
from msprobe.mindspore.monitoring.parameters import Parameters, as_number
from msprobe.mindspore.recompute_frames import recomputations
from msprobe.mindspore.tensor_search import tensors_in
from msprobe.monitor.collecting.absences import OF_MODULES, tell_unmatched
from msprobe.monitor.collecting.activations import Activations
from msprobe.monitor.collecting.collector import (
    StepCollector,
    monitored_modules,
    monitored_parameters,
    streams_of,
)
from msprobe.monitor.collecting.features import ArrayLibrary, Features, chosen_modules, weight_of
from msprobe.monitor.collecting.run_numbers import ModelLoss, Trained
from msprobe.monitor.collecting.step_rows import StepRows
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import MonitorSettings


def _array(tensor: Any) -> NDArray[np.float32] | None:
    values = values_of(tensor)
    if values is None or values.dtype.kind not in "fV":  # V: bfloat16
        return None
    return values.astype(np.float32)


_NUMPY: Final = ArrayLibrary(np, Tensor, _array, lambda values: list(map(float, values)))


class Collector(StepCollector):
    """Collects one model under one configuration, from its creation to `close`."""

    def __init__(
        self,
        settings: MonitorSettings,
        models: Sequence[nn.Cell],
        optimizer: Any,
        recorder: Recorder,
        *,
        rank: int,
        step: int,
        micro_steps: int,
        holds_reduced: bool,
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
            holds_reduced: whether this rank measures reduced gradients.
        """
        keys, streams = settings.keys, streams_of(settings, rank)
        takes_gradients = Stream.ACTV_GRAD in streams
        config = Config(
            level=Level.L0,
            dump_path=Path(),
            section=StatisticsSection(data_mode=DataMode(backward=takes_gradients)),
        )
        self._models = models
        self._session = Session(config, MindSporeAdapter(config), TENSOR_TYPES)
        self._names = CellNames(models)
        tell_unmatched(
            settings,
            {name for model in models for name, _ in model.cells_and_names()},
            {name for model in models for name, _ in model.parameters_and_names()},
        )
        cells = [model.cells_and_names() for model in models]
        modules = monitored_modules(cells, self._names.items(), settings, streams)
        super().__init__(
            settings,
            recorder,
            READING,
            rank=rank,
            step=step,
            activations=Activations(modules, tensors_in, _is_training),
            as_number=as_number,
        )
        self._session.calls.add(self.activations)
        self._session.calls.remove(self._session.recording)
        if not holds_reduced:
            self.empty.leave_out({Stream.GRAD_REDUCED})
        self._parameters = Parameters(
            self._session,
            monitored_parameters([one.parameters_and_names() for one in models], settings),
            optimizer,
            micro_steps=micro_steps,
            every_micro_step=keys.monitor_mbs_grad,
            direction=keys.mg_direction,
            holds_reduced=holds_reduced,
        )
        self._gradients: Sequence[Any] = ()
        self._features: Features | None = None
        if keys.recording_l2_features:
            named = {name: one for model in models for name, one in model.cells_and_names()}
            self._features = Features(
                _NUMPY, chosen_modules(named, keys, _is_linear), keys.sa_order
            )
            self.activations.on_values = self._take_features
        self._communication: Communication | None = None
        if keys.cc_distribution.enable and GlobalComm.INITED:
            self._communication = Communication(self._session, keys.cc_distribution)
            self._session.calls.add(self._communication)
        self._cells: CellObserver | None = None
        self._loss_scale = LossScale(self._session)
        self._undo = ExitStack()
        self.begin_step()

    def take_gradients(self, gradients: Sequence[Any]) -> None:
        """Note with which gradients the optimizer is called."""
        self._gradients = gradients

    def attempt(self, where: str, action: Callable[..., Any], *args: Any) -> None:
        """Run an action of ours; an exception is noted, not raised."""
        quietly(self._session, where, action, *args)

    def read_before(self, rows: StepRows) -> None:
        """Measure what the optimizer gets."""
        gradients, self._gradients = self._gradients, ()
        self._loss_scale.steps()
        self._parameters.read_before(rows, gradients)
        if Stream.RUN in rows.streams:
            total = self._parameters.total_norm(READING.table)
            self.numbers.put_optimizer(self._parameters.settings(), total)
        if self._features is not None:
            self._features.put(rows)

    def read_after(self, rows: StepRows, result: object) -> None:
        """Measure what the optimizer leaves."""
        self._parameters.read_after(rows)

    def tell(self, rows: StepRows | None) -> None:
        """Tell everything that measures of the rows of a step."""
        self._parameters.begin_step(rows)
        if self._communication is not None:
            self._communication.begin_step(rows)
        if self._features is not None:
            self._features.begin_step()

    def observe(self) -> None:
        """Begin to observe the step that runs."""
        self._session.observe(self.step, self.numbers)

    def end_observing(self) -> None:
        """End that."""
        self._session.end_observing()
        self._session.attempt("end of step", self._session.step_undo.close)

    def install(self, due: frozenset[Stream]) -> None:
        """Install the hooks of some streams."""
        session = self._session
        repeated = recomputations(session)
        if due & OF_MODULES:
            session.attempt("hooking cells", self._install_cells, repeated)
        if self._communication is not None and Stream.OTHER in due:
            install = self._communication.install
            session.attempt("hooking collectives", install, self._models, repeated)
        if Stream.GRAD_UNREDUCED in due:
            session.attempt("hooking parameters", self._parameters.install, self._undo)
        if Stream.RUN in due:
            losses = Losses(session, _trained_by(self._models), self._loss_scale)
            session.attempt("hooking backward", losses.install)
        if due & (OF_MODULES | {Stream.RUN}):
            calls = JitCalls(self._run_compiled, lambda: None)
            session.attempt("hooking compiled code", calls.install)
            session.undo.callback(calls.remove)

    def remove(self) -> None:
        """Take all hooks away."""
        for undo in (self._session.undo, self._session.step_undo, self._undo):
            self._session.attempt("removing hooks", undo.close)

    def close(self) -> None:
        """Take everything away that is installed."""
        self.end_observing()
        self.remove()
        self._session.close()

    def _take_features(self, *call: Any) -> None:
        if self._rows is not None and self._features is not None:
            self._features.take(self._rows, *call)

    def _install_cells(self, repeated: Recomputations) -> None:
        session = self._session
        if on_host():
            ImmediateOperators(session).install()
        undo = run_as_python()
        if undo is not None:
            session.undo.callback(undo)
        cells = CellObserver(session, self._names, repeated, self._models, None)
        cells.install()
        self._cells = cells
        session.undo.callback(setattr, self, "_cells", None)

    def _run_compiled(
        self, executor: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Take the hooks off cells while compiled code runs, which must not find them."""
        cells = self._cells
        if cells is not None:
            cells.suspend()
        try:
            result = run(*args, **kwargs)
        finally:
            if cells is not None:
                cells.resume()
        if on_host():
            self.attempt("loss scale", self._loss_scale.compiled_ran, executor, args, result)
        return result


def _trained_by(models: Sequence[nn.Cell]) -> Callable[[Any], Callable[..., Loss] | None]:
    """Return what makes the fact of a loss, given the parameters of which gradients are taken."""
    own = {id(one): chunk for chunk, model in enumerate(models) for one in model.get_parameters()}
    everything = Trained(frozenset(own.values()), others=False)

    def fact_of(weights: Any) -> Callable[..., Loss] | None:
        if not isinstance(weights, tuple | list) or not weights:
            return partial(ModelLoss, trained=everything)
        found = {own.get(id(one)) for one in weights}
        trained = frozenset(one for one in found if one is not None)
        return partial(ModelLoss, trained=Trained(trained, None in found)) if trained else None

    return fact_of


def _is_training(cell: nn.Cell) -> bool:
    """Return whether a cell trains: cells are in evaluation mode until `set_train` is called."""
    return bool(cell.training) or bool(api._pynative_executor.requires_grad())


def _is_linear(cell: Any) -> bool:
    """Return whether a cell has a matrix that is no table of embeddings."""
    return weight_of(cell, Tensor) is not None and not isinstance(cell, nn.Embedding)
