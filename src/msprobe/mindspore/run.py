# SPDX-License-Identifier: Apache-2.0
"""The parts of a constructed debugger: session, adapter, observers."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any, Final

import mindspore
from mindspore import nn
from msprobe.capture.custom_api import CustomApis
from msprobe.capture.session import Session
from msprobe.capture.stacks import calling_frame
from msprobe.compare.diff_check import DiffJudge
from msprobe.config import (
    Config,
    DiffCheckSection,
    DiffRule,
    FreeBenchmarkSection,
    GradProbeSection,
    Level,
    Task,
)
from msprobe.errors import ConfigError, UnsupportedError, UsageError
from msprobe.mindspore.adapter import TENSOR_TYPES, MindSporeAdapter
from msprobe.mindspore.api_table import ApiTable
from msprobe.mindspore.cell_hooks import FoundModels
from msprobe.mindspore.compiled.cells import (
    is_compiled_by_user,
    is_static_graph,
    refuse_static_graph,
)
from msprobe.mindspore.compiled.constructs import refuse_compiled
from msprobe.mindspore.compiled.observer import GraphObserver
from msprobe.mindspore.compiled.optimizers import is_optimizer
from msprobe.mindspore.gradient_probe import GradientProbe
from msprobe.mindspore.graph_taps import are_visible
from msprobe.mindspore.jit_calls import JitCalls, compilations, name_of
from msprobe.mindspore.observer import Observer
from msprobe.mindspore.optimizer_steps import OptimizerSteps
from msprobe.mindspore.perturbation import MindSporePerturbation
from msprobe.mindspore.script_steps import ScriptFollower
from msprobe.mindspore.stack_traits import is_of_user_or_layer
from msprobe.mindspore.start_state import StartState
from msprobe.monitor.alerts.spikes import Spikes

logger = logging.getLogger(__name__)

_COMPILED_BEFORE: Final = "calls of code compiled before start()"


class Run:
    """One debugger's parts, complete from the start.

    Attributes:
        config: the settings.
        session: the state of the run.
        observer: watches cells and APIs in the dynamic graph.
        custom_apis: the functions that the user registered.
        loop: starts and ends steps by what the program does; None where the program calls `start`.
    """

    def __init__(self, config: Config) -> None:
        """Build everything for `config`; nothing is installed and no file is touched.

        Raises:
            ConfigError: the task `diff_check` has no recording to compare with.
            DumpFormatError: it has one that cannot be read.
        """
        self.config = config
        judge = _judge_of(config)
        self.session = Session(config, MindSporeAdapter(config), TENSOR_TYPES, judge)
        if self.session.flight is not None:
            self.session.flight.spikes = Spikes()
        table = ApiTable(config.api_list, config.section.black_list)
        self._optimizers = OptimizerSteps(self.session)
        self.observer = Observer(self.session, table, self._optimizers)
        self.custom_apis = CustomApis(self.observer.apis, self.session.run_undo)
        self._start_state = StartState(self.session, self._optimizers)
        section = config.section
        self.gradient_probe: GradientProbe | None = None
        if isinstance(section, GradProbeSection):
            self.gradient_probe = GradientProbe(self.session, config, section)
        if isinstance(section, FreeBenchmarkSection) and self.observer.apis is not None:
            perturbation = MindSporePerturbation(self.session, section)
            self.observer.apis.rerunner = perturbation
            self.session.checks.files = perturbation.task
        self.loop: ScriptFollower | None = None
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()
        self._static_graph: GraphObserver | None = None
        # Of cells in compiled parts of the dynamic graph.
        self._parts: GraphObserver | None = None
        self._parts_session: Session | None = None
        self._rank: int | None = None
        self._jit_calls = JitCalls(self._around_jit, self._before_compiling)
        # Functions that were called, and whether they had been compiled before `start`.
        self._jitted: dict[CodeType, bool] = {}
        # MindSpore's executor of the compiled code that runs now.
        self._outermost: Any = None

    @property
    def models(self) -> tuple[nn.Cell, ...]:
        """The models given last, as long as the user keeps them."""
        known = (model for reference in self._models if (model := reference()) is not None)
        return tuple(known) if self.loop is None else FoundModels(known)

    @property
    def finds_steps(self) -> bool:
        """Whether steps are found without calls of `start` and `step`."""
        return self.config.enable_dataloader or self.loop is not None

    @property
    def _records_cells(self) -> bool:
        return self.config.level in (Level.L0, Level.MIX)

    def start(
        self, models: Sequence[nn.Cell], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe, if the step is wanted.

        Raises:
            ConfigError: the level records cells and no model is known.
            UnsupportedError: graph mode at another level than L0, or a MindSpore before 2.10 in
                the dynamic graph.
        """
        if self.loop is not None:
            self.loop.skipped("start()")
        else:
            self.begin(models, token_range, rank)

    def begin(
        self, models: Sequence[nn.Cell], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe, if the step is wanted: `start`, or the program that is followed."""
        if models:
            self._models = tuple(map(weakref.ref, models))
        if not self.models and self._records_cells:
            rule = "the model to record, as in start(model)"
            hint = f"level {self.config.level} records cells"
            raise ConfigError("model", None, rule, source="start()", hint=hint)
        if is_static_graph():
            self._start_graph(rank)
        else:
            self._start_dynamic(token_range, rank)

    def _start_dynamic(self, token_range: tuple[int, int] | None, rank: int | None) -> None:
        if self.observer.apis is not None and self.observer.apis.only_compiled:
            self.session.stop()  # `end_forward_backward` leaves calls of compiled code recorded
        if not are_visible():
            raise UnsupportedError(
                f"MindSpore {mindspore.__version__} does not show its gradient graph; "
                "recording the dynamic graph needs 2.10 or newer"
            )
        self._rank = rank
        checks = self.session.checks
        if self._records_cells and checks.judge is None and checks.files is None:
            self._watch_compiled_parts()
        if self.session.start(rank=rank):
            self._start_state.collect(self.models)
            self.observer.watch(self.models)
            self.observer.install(token_range)
        # Also in steps that are not wanted: what is compiled then serves the others, too.
        if self.session.capturing or (self._records_cells and not self.session.finished):
            self._jit_calls.install()
            self.session.undo.callback(self._jit_calls.remove)

    def _watch_compiled_parts(self) -> None:
        if self._parts_session is None:
            if any(is_compiled_by_user(cell) for cell in _cells_of(self.models)):
                self.session.dumps.folder = self.config.dump_path / "pynative"
            self._parts_session = self._session_of_graphs()
            self._parts = GraphObserver(self._parts_session, self._begin_graphs)
        assert self._parts is not None
        self._parts.watch(self.models)
        self._parts_session.step_undo.callback(self._parts.end_step)

    def _session_of_graphs(self) -> Session:
        """Return the session for cells in compiled parts, which writes its own half of the dump.

        Compiled parts know neither the order of calls nor where they were made, so their records
        are separate. Where a model has compiled cells, the other half has a folder, too.
        """
        config = replace(self.config, dump_path=self.config.dump_path / "graph", level=Level.L0)
        # The facts of the run are in the other half.
        config = replace(config, facts=False)
        session = Session(config, MindSporeAdapter(config), TENSOR_TYPES)
        session.totals = self.session.totals
        self.session.run_undo.callback(session.close)
        return session

    def _around_jit(
        self, executor: Any, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call of jitted code; its cells are compiled so that they can be recorded."""
        graph = self._parts
        if graph is None:
            return self.observer.around_jit(executor, run, args, kwargs)
        if self.session.capturing:
            graph.begin(self.session.stacks.at(calling_frame()).frames)
        before = compilations()
        self._outermost = executor
        graph.expect_compilation()
        try:
            result = self.observer.around_jit(executor, run, args, kwargs)
        finally:
            self._outermost = None
            graph.take_out()
        assert self._parts_session is not None
        if not self._parts_session.capturing:
            graph.expect_calls(self.session)
        self._mention_compiled(executor, before)
        return result

    def _before_compiling(self) -> None:
        if self._parts is not None and not is_static_graph():
            # An optimiser on its own gets its gradients from the dynamic graph, which shows them.
            alone = is_optimizer(getattr(self._outermost, "obj", None))
            self._parts.put_in(with_optimizers=not alone)

    def _begin_graphs(self) -> None:
        """Open the half of compiled parts: one of their cells has something to record."""
        session = self._parts_session
        if session is None or not self.session.capturing:
            return
        if session.step_number != self.session.step_number:
            session.set_step(self.session.step_number)
        session.start(rank=self._rank)

    def _mention_compiled(self, executor: Any, before: int | None) -> None:
        """Note jitted code that was compiled before the first `start`; warn of it once."""
        code = getattr(getattr(executor, "fn", None), "__code__", None)
        if code is None:
            return
        if code not in self._jitted:
            is_older = before is not None and before == compilations()
            self._jitted[code] = is_older and is_of_user_or_layer(code)
            if self._jitted[code]:
                logger.warning(
                    "%s was compiled before start(): cells of the model that it runs are not "
                    "recorded; call start(model) before it is called for the first time",
                    name_of(executor),
                )
        if self._jitted[code] and self.session.capturing:
            self.session.account.skipped[_COMPILED_BEFORE] += 1

    def _start_graph(self, rank: int | None) -> None:
        """Begin to record values of compiled graphs; every step, as the hooks must be in."""
        if self.config.level is not Level.L0:
            refuse_static_graph("start()", self.config.level)
        if self.config.task is Task.DIFF_CHECK:
            raise UnsupportedError(
                "start(): the task diff_check judges calls of the dynamic graph, and MindSpore is "
                "in graph mode: record statistics at level L0, and compare both recordings"
            )
        if self.config.task is Task.NOISE_FLOOR:
            raise UnsupportedError(
                "start(): the task noise_floor moves results of the dynamic graph, and MindSpore "
                "is in graph mode: set_context(mode=PYNATIVE_MODE)"
            )
        if self._static_graph is None:
            self._static_graph = GraphObserver(self.session)
        if self._static_graph.watch(self.models):
            refuse_compiled(self.models)
        # Values that an earlier graph still hands over belong to no step of this run's.
        self.session.wait_for_graphs()
        # Also in steps that are not wanted: what is compiled then serves the others, too.
        self._static_graph.put_in()
        self.session.undo.callback(self._static_graph.take_out_cells)
        self.session.step_undo.callback(self._static_graph.end_step)
        if self.session.start(rank=rank):
            self._start_state.collect(self.models)
            self._static_graph.begin()
            if self.session.facts.is_open:
                self._optimizers.install(self.models, in_graphs=True)

    def end_forward_backward(self) -> None:
        """End observing; at level L1 calls of compiled code are still recorded until `stop`."""
        apis = self.observer.apis
        if apis is None or self.config.level is not Level.L1 or not self.session.capturing:
            self.stop()
            return
        apis.only_compiled = True
        self.session.write_json()

    def probe_gradients(self, watched: Any) -> None:
        """Record the gradients of an optimizer, in the task ``grad_probe``.

        Raises:
            ConfigError: `watched` is no optimizer.
            UnsupportedError: MindSpore is in graph mode.
            UsageError: the task is another one.
        """
        if self.gradient_probe is None:
            raise UsageError("monitor() belongs to the task grad_probe")
        self.gradient_probe.watch(watched)

    def stop(self) -> None:
        """End observing."""
        if self.loop is not None:
            self.loop.skipped("stop()")
            return
        if self.gradient_probe is not None:
            self.gradient_probe.pause()
        self.end()

    def end(self) -> None:
        """End observing: `stop`, or the program that is followed."""
        self.session.stop()  # first: it waits for graphs, which may begin the other session
        if self._parts_session is not None:
            if self.session.current.ending.is_stopped:
                self._parts_session.current.ending.stopped()
            self._parts_session.stop()

    def step(self) -> None:
        """End the step."""
        if self.loop is not None:
            self.loop.skipped("step()")
        else:
            self.end_step()

    def end_step(self) -> None:
        """End the step: `step`, or the program that is followed."""
        self.end()
        if self._parts_session is not None:
            self._parts_session.step()
        self.session.step()
        self.session.checks.tell()


def _judge_of(config: Config) -> DiffJudge | None:
    section = config.section
    if not isinstance(section, DiffCheckSection):
        return None
    if section.reference is None:
        rule = "the path of a recording: replicas are compared in PyTorch only"
        source = config.source or "PrecisionDebugger()"
        raise ConfigError("diff_check.reference", "replicas", rule, source=source)
    is_exact = section.compare is DiffRule.CHECKSUM
    return DiffJudge(section.reference, is_exact=is_exact, limit=section.diff_nums)


def _cells_of(models: Sequence[nn.Cell]) -> Iterator[nn.Cell]:
    for model in models:
        for _, cell in model.cells_and_names():
            yield cell


def as_models(model: Any) -> tuple[nn.Cell, ...]:
    """Return the models in an argument.

    Raises:
        ConfigError: it is no cell and no list or tuple of cells.
    """
    if model is None:
        return ()
    models = tuple(model) if isinstance(model, list | tuple) else (model,)
    for index, one in enumerate(models):
        if not isinstance(one, nn.Cell):
            key = f"model[{index}]" if len(models) > 1 else "model"
            rule = "a mindspore.nn.Cell, or a list or tuple of them"
            raise ConfigError(key, one, rule, source="start()")
    return models
