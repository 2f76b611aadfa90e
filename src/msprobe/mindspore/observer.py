# SPDX-License-Identifier: Apache-2.0
"""Everything that watches a run in the dynamic graph: put in place by `start`, gone by `stop`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mindspore import nn
from msprobe.capture.session import Session
from msprobe.capture.task_checks import noise_seed
from msprobe.capture.token_range import TokenGate
from msprobe.config import Level, Task
from msprobe.mindspore.adapter import on_host
from msprobe.mindspore.api_calls import ApiObserver
from msprobe.mindspore.api_table import ApiTable
from msprobe.mindspore.bytecode_jit import run_as_python
from msprobe.mindspore.call_outlines import CallOutlines
from msprobe.mindspore.cell_hooks import CellNames, CellObserver
from msprobe.mindspore.free_primitives import FreePrimitives
from msprobe.mindspore.gradient_limits import GradientLimits
from msprobe.mindspore.guard import quietly
from msprobe.mindspore.immediate_operators import ImmediateOperators
from msprobe.mindspore.jit_calls import cells_of, name_of
from msprobe.mindspore.losses import Losses
from msprobe.mindspore.model_calls import ModelCalls
from msprobe.mindspore.optimizer_steps import OptimizerSteps
from msprobe.mindspore.parameter_gradients import ParameterGradients
from msprobe.mindspore.primitive_calls import PrimitiveObserver
from msprobe.mindspore.recompute_frames import recomputations
from msprobe.mindspore.tensor_search import output_slots

if TYPE_CHECKING:
    from msprobe.mindspore.noise import NoiseMode


class Observer:
    """Installs the hooks and wrappers of the configured level.

    Attributes:
        apis: the wrappers of APIs; None at levels that record no APIs.
    """

    def __init__(self, session: Session, table: ApiTable, optimizers: OptimizerSteps) -> None:
        """Create it; nothing is installed.

        Args:
            session: receives the calls and gradients.
            table: the APIs to record.
            optimizers: records the steps of optimizers.
        """
        self._session = session
        level = session.config.level
        self._recomputations = recomputations(session)
        self._immediate = ImmediateOperators(session)
        self._noise: NoiseMode | None = None
        if (seed := noise_seed(session.config)) is not None:
            from msprobe.mindspore.noise import NoiseMode  # MindSpore before 2.10 has no such modes

            self._noise = NoiseMode(session, seed)
        limits = GradientLimits(session)
        self.apis = None
        if level in (Level.L1, Level.MIX):
            self.apis = ApiObserver(session, table, self._recomputations, limits)
        self._outlines: CallOutlines | None = None
        if level is Level.L0 and session.config.facts:
            self._outlines = CallOutlines(session, table, self._recomputations, limits)
        self._primitives = PrimitiveObserver(session, self.apis) if self.apis else None
        self._free = FreePrimitives(session, self.apis) if self.apis else None
        self._records_cells = level in (Level.L0, Level.MIX)
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()
        self._names: CellNames | None = None
        self._parameters: ParameterGradients | None = None
        self._cells: CellObserver | None = None
        self._model_calls = ModelCalls(session)
        self._is_aside = False
        self._optimizers = optimizers
        if not session.config.optimizer_apis:
            optimizers.unseen = self._aside
        self._losses = Losses(session)

    def watch(self, models: Sequence[nn.Cell]) -> None:
        """Record the cells of these models from the next `install` on."""
        references = tuple(map(weakref.ref, models))
        if references == self._models:  # the same living objects
            return
        self._models = references
        self._names = self._parameters = None
        if self._records_cells:
            self._names = CellNames(models)
            structure = self._session.config.task is Task.STRUCTURE
            if self._session.calls.selection.data_mode.backward and not structure:
                self._parameters = ParameterGradients(self._session, self._names)

    def install(self, token_range: tuple[int, int] | None) -> None:
        """Begin to watch; the session's undo stack gets every way back.

        Args:
            token_range: calls of the first model to which observation is limited.
        """
        session = self._session
        models = [model for reference in self._models if (model := reference()) is not None]
        if self.apis is not None:
            self.apis.only_compiled = False
        if on_host():
            self._immediate.install()
        undo = run_as_python()
        if undo is not None:
            session.undo.callback(undo)
        session.step_undo.callback(self._recomputations.next_step)
        gate = None
        if token_range is not None:
            gate = TokenGate(session, models[0], token_range, forget=lambda: None)
        if self._names is not None or gate is not None:
            names = self._names if self._names is not None else CellNames(())
            passes = self._parameters.passes if self._parameters is not None else None
            self._cells = CellObserver(session, names, self._recomputations, models, gate, passes)
            self._cells.install()
        if session.facts.is_open:
            self._model_calls.install(models)
            self._optimizers.install(models)
            self._losses.install()
        if self._parameters is not None:
            self._parameters.install()
        if self._primitives is not None:
            self._primitives.install(models)
        if self._free is not None:
            self._free.install()
        self._install_wrappers()
        if self._outlines is not None:
            self._outlines.begin()
        if self._noise is not None:
            self._noise.install()

    def _install_wrappers(self) -> None:
        for wrappers in (self.apis, self._outlines):
            if wrappers is not None:
                wrappers.install()

    def around_jit(
        self, executor: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of compiled code with nothing of ours inside; see `jit_calls.JitCalls`."""
        if not self._session.capturing or self._is_aside:
            return run(*args, **kwargs)
        cells = quietly(self._session, "compiled code", cells_of, executor) or []
        self._model_calls.compiled(name_of(executor), cells, args, kwargs)
        with self._aside(), self._optimizers.around_compiled(cells):
            if self.apis is not None and self.apis.is_on(compiled=True):
                result = self.apis.record(f"Jit.{name_of(executor)}", run, args, kwargs)
            else:
                result = run(*args, **kwargs)
            if self._parameters is not None and self._session.observing:
                self._parameters.passes.follow(output_slots(result))
            return result

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Remove everything of ours for a while."""
        if not self._session.capturing:
            yield
            return
        self._step_aside()
        try:
            yield
        finally:
            self._is_aside = False
            if self._session.capturing:
                self._come_back()

    def _step_aside(self) -> None:
        self._is_aside = True
        if self._noise is not None:
            self._noise.suspend()
        for wrappers in (self.apis, self._outlines):
            if wrappers is not None:
                wrappers.remove()
        self._model_calls.suspend()
        if self._cells is not None:
            self._cells.suspend()
        if self._parameters is not None:
            self._parameters.suspend()

    def _come_back(self) -> None:
        if self._parameters is not None:
            self._parameters.resume()
        if self._cells is not None:
            self._cells.resume()
        self._model_calls.resume()
        self._install_wrappers()
        if self._noise is not None:
            self._noise.resume()
