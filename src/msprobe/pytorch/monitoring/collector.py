# SPDX-License-Identifier: Apache-2.0
"""Open and end the steps of the monitor: what is installed, and when rows go to the recorder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn

from msprobe.capture.headroom import Headroom
from msprobe.capture.session import Session
from msprobe.config import CompileMode, Config, DataMode, Level, StatisticsSection
from msprobe.errors import MonitorStop
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Stream
from msprobe.monitor.settings import CHUNK, MonitorKeys, MonitorSettings, StreamSettings, squashed
from msprobe.pytorch.gradients.shared_edges import SharedEdges
from msprobe.pytorch.interception.backward_entry import BackwardEntry
from msprobe.pytorch.interception.checkpoint import recomputations
from msprobe.pytorch.interception.compiled import run_eagerly
from msprobe.pytorch.interception.compiled_regions import CompiledRegions
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.module_hooks import ModuleNames, ModuleObserver
from msprobe.pytorch.monitoring.activations import Activations, MonitoredModule
from msprobe.pytorch.monitoring.communication import Communication, may_communicate
from msprobe.pytorch.monitoring.features import Features, weight_of
from msprobe.pytorch.monitoring.model_notes import StackInfo, write_structure
from msprobe.pytorch.monitoring.optimizers import view_of
from msprobe.pytorch.monitoring.parameters import Named, Parameters
from msprobe.pytorch.monitoring.run_numbers import RunNumbers
from msprobe.pytorch.monitoring.step_rows import Key, Layouts, StepRows, now
from msprobe.pytorch.training.losses import Losses
from msprobe.pytorch.training.model_calls import ModelCalls
from msprobe.pytorch.training.training_calls import TrainingCalls
from msprobe.pytorch.values.adapter import TENSOR_TYPES, TorchAdapter

logger = logging.getLogger(__name__)

_OF_MODULES = frozenset(
    {Stream.ACTV, Stream.ACTV_GRAD, Stream.ATTENTION, Stream.LINEAR}
    | {Stream.ROUTER_WEIGHT, Stream.ROUTER_LOGIT}
)


class Collector:
    """Collects one model under one configuration, from its creation to `close`.

    Attributes:
        step: the number of the step that runs.
        collected: how many steps were collected.
        latest: the rows of the last collected step.
    """

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
        self._settings = settings
        self._models = models
        self._recorder = recorder
        self._rank = rank
        self.step = step
        self.collected = 0
        self.latest: StepRows | None = None
        self._layouts = Layouts()
        self._streams = {
            stream: one
            for stream, one in settings.streams.items()
            if not one.ranks or rank in one.ranks
        }
        keys = settings.keys
        takes_gradients = Stream.ACTV_GRAD in self._streams
        config = Config(
            level=Level.L0,
            compile=CompileMode.MODULES_ONLY,
            dump_path=Path(),
            section=StatisticsSection(data_mode=DataMode(backward=takes_gradients)),
        )
        self._session = Session(config, TorchAdapter(config), TENSOR_TYPES)
        names = ModuleNames.of_models(_prefixed(models), keeps_compiled=True)
        self._names = names
        self._activations = Activations(_modules(models, names, keys.squash_name, self._streams))
        self._features = Features(_targets(models, keys), keys.sa_order)
        if keys.recording_l2_features:
            self._activations.on_inputs = self._take_features
        self._stacks = StackInfo()
        if keys.stack_info:
            self._activations.on_call = self._stacks.take
        self._session.calls.add(self._activations)
        self._session.calls.remove(self._session.recording)
        view = view_of(optimizer, reads_main_grad=reads_main_grad)
        self._view = view
        self._parameters = Parameters(
            self._session,
            _parameters(models, holds, squash=keys.squash_name),
            view,
            micro_steps=micro_steps,
            reads_main_grad=reads_main_grad,
            every_micro_step=keys.monitor_mbs_grad,
            holds_reduced=holds_reduced,
            direction=keys.mg_direction,
        )
        self._numbers = RunNumbers(self._skipped)
        self._communication: Communication | None = None
        if keys.cc_distribution.enable and may_communicate():
            self._communication = Communication(self._session, keys.cc_distribution)
        self._rows: StepRows | None = None
        self._installed: frozenset[Stream] = frozenset()
        self._undo = ExitStack()
        self._is_stepping = False
        self._begin_step()

    @property
    def is_over(self) -> bool:
        """Whether as many steps were collected as wanted."""
        return self.collected >= self._settings.keys.collect_times

    # -- the step of the optimizer ---------------------------------------------------------------

    def before_step(self) -> None:
        """Read what the optimizer gets.

        Raises:
            MonitorStop: an alert ends the training.
        """
        if self._recorder.stop_request is not None:
            raise MonitorStop(self._recorder.stop_request)
        if self._is_stepping and self._rows is not None:  # the last attempt raised
            self._rows.drop()
        self._is_stepping = True
        if self._rows is not None:
            quietly(self._session, "optimizer step", self._read_before)

    def after_step(self) -> None:
        """Read what the optimizer leaves, hand the rows on, and begin the next step."""
        self._is_stepping = False
        rows, self._rows = self._rows, None
        if rows is not None:
            quietly(self._session, "optimizer step", self._parameters.read_after)
            self._session.end_observing()
            quietly(self._session, "end of step", self._hand_on, rows)
        self.step += 1
        self._begin_step()

    def put_number(self, name: str, value: float) -> None:
        """Take a number of the user's for the step that runs."""
        if self._rows is not None:
            self._rows.put_number(Key(name), value)

    def close(self) -> None:
        """Take everything away that is installed."""
        self._session.end_observing()
        self._remove()
        self._session.close()

    # -- inside ----------------------------------------------------------------------------------

    def _read_before(self) -> None:
        self._parameters.read_before()
        total = None
        if self._rows is not None and Stream.RUN in self._rows.streams:
            total = self._parameters.total_norm()
        self._numbers.put_optimizer(self._view.groups(), total)

    def _hand_on(self, rows: StepRows) -> None:
        rows.start_copies()
        self.collected += 1
        self.latest = rows
        layouts, rank, at = self._layouts, self._rank, now()
        if self.collected == 1:
            self._write_notes(rows)
        self._recorder.put_step(rows.step, lambda: rows.rows(layouts, rank, at), rows.row_count)

    def _write_notes(self, rows: StepRows) -> None:
        """Write the files about the modules, after the first step."""
        folder, keys = self._recorder.directory, self._settings.keys
        if keys.stack_info:
            self._activations.on_call = None
            self._stacks.write(folder, self._rank)
        if keys.print_struct and _OF_MODULES.isdisjoint(self._streams):
            logger.warning("print_struct shows activations: set xy_distribution, too")
        elif keys.print_struct:
            write_structure(rows.rows(Layouts(), self._rank, now()), folder, self._rank)

    def _begin_step(self) -> None:
        due = self._due()
        self._rows = StepRows(self.step, due, self._settings.keys.eps) if due else None
        self._tell_step()
        if self._rows is None:
            self._remove()
            return
        self._session.observe(self.step, self._numbers)
        if self._installed != due.keys():
            self._remove()
            self._install(frozenset(due))

    def _due(self) -> dict[Stream, StreamSettings]:
        if self.is_over or not self._recorder.is_writing:
            return {}
        return {
            stream: one
            for stream, one in self._streams.items()
            if self._settings.is_due(stream, self.step)
        }

    def _skipped(self) -> None:
        """Forget what was measured of a step that a scaler skipped."""
        if self._rows is not None:
            self._rows.drop()
            self._tell_step()

    def _tell_step(self) -> None:
        for one in (self._activations, self._parameters, self._numbers):
            one.begin_step(self._rows)
        if self._communication is not None:
            self._communication.begin_step(self._rows)

    def _take_features(self, path: str, key: Key, micro_step: int, args: Sequence[Any]) -> None:
        if self._rows is not None:
            self._features.put(self._rows, path, key, micro_step, args)

    def _install(self, due: frozenset[Stream]) -> None:
        session = self._session
        self._installed = due
        if due & _OF_MODULES:
            session.attempt("hooking modules", self._install_modules)
        if Stream.GRAD_UNREDUCED in due:
            session.attempt("hooking parameters", self._parameters.install, self._undo)
        if Stream.RUN in due:
            session.attempt("hooking backward", Losses(session).install, BackwardEntry())
            calls = TrainingCalls(session, lambda _: lambda: None)
            session.attempt("hooking training calls", calls.install)

        if self._communication is not None and Stream.OTHER in due:
            from msprobe.pytorch.distributed.process_groups import hook_collectives

            self._undo.callback(hook_collectives(self._communication))

    def _install_modules(self) -> None:
        session = self._session
        headroom = Headroom(session)
        headroom.install(session)
        modules = ModuleObserver(
            session,
            self._names,
            recomputations(session),
            SharedEdges(session, BackwardEntry()),
            apis=None,
            gate=None,
            headroom=headroom,
            model_calls=ModelCalls(session, lambda: None),
        )
        modules.install()
        if "torch._dynamo" in sys.modules and run_eagerly(session):
            CompiledRegions(session, partial(_step_aside, modules)).install()

    def _remove(self) -> None:
        self._installed = frozenset()
        self._session.attempt("removing hooks", self._session.undo.close)
        self._session.attempt("removing hooks", self._session.step_undo.close)
        self._session.attempt("removing hooks", self._undo.close)


def _step_aside(modules: ModuleObserver, frame: FrameType, back: ExitStack) -> None:
    """Take the hooks off that compiled code would run into; see only its boundaries."""
    if modules.begin_compiled(frame):
        back.callback(modules.end_compiled, frame)
    modules.suspend()
    back.callback(modules.resume)


def _prefixed(models: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return models with prefixes that keep the names of their modules apart."""
    return [(f"{chunk}:", model) for chunk, model in enumerate(models)]


def _modules(
    models: Sequence[nn.Module],
    names: ModuleNames,
    squash: bool,
    streams: dict[Stream, StreamSettings],
) -> dict[str, MonitoredModule]:
    """Return the modules by the name under which their calls are observed."""
    known = {id(module): base for module, base in names.items()}
    found: dict[str, MonitoredModule] = {}
    short: dict[str, str] = {}
    for chunk, model in enumerate(models):
        for name, module in model.named_modules():
            base = known.get(id(module))
            if base is None or base in found:
                continue
            shown = _short_name(name, short) if squash else name
            one = MonitoredModule(name, shown, chunk, module if module is model else None)
            one.wants_forward = _wants(streams, Stream.ACTV, name)
            one.wants_gradients = _wants(streams, Stream.ACTV_GRAD, name)
            found[base] = one
    return found


def _wants(streams: dict[Stream, StreamSettings], stream: Stream, name: str) -> bool:
    settings = streams.get(stream)
    return settings is not None and settings.wants(name)


def _targets(models: Sequence[nn.Module], keys: MonitorKeys) -> dict[Stream, dict[str, nn.Module]]:
    """Return the modules of `l2_targets`; all with a matrix for linear layers without names."""
    modules = {name: one for model in models for name, one in model.named_modules()}
    found: dict[Stream, dict[str, nn.Module]] = {}
    for word, names in keys.l2_targets.items():
        stream = Stream(word)
        wanted = {CHUNK.sub("", name) for name in names}
        if stream is Stream.LINEAR and not names:
            kinds = (nn.Embedding, nn.EmbeddingBag)
            wanted = {
                name
                for name, one in modules.items()
                if weight_of(one) is not None and not isinstance(one, kinds)
            }
        found[stream] = {name: one for name, one in modules.items() if name in wanted}
        for name in wanted - found[stream].keys():
            logger.warning("l2_targets.%s: there is no module %r", word, name)
    return found


def _short_name(name: str, taken: dict[str, str]) -> str:
    """Return a short name, or the whole one where another has the short one."""
    short = squashed(name)
    return short if taken.setdefault(short, name) == name else name


def _parameters(
    models: Sequence[nn.Module], holds: Callable[[Tensor], bool], *, squash: bool
) -> list[Named]:
    short: dict[str, str] = {}
    found: dict[int, Named] = {}
    for chunk, model in enumerate(models):
        for name, parameter in model.named_parameters():
            shown = _short_name(name, short) if squash else name
            if id(parameter) not in found and holds(parameter):
                found[id(parameter)] = (Key(shown, chunk), parameter)
    return list(found.values())
