# SPDX-License-Identifier: Apache-2.0
"""The part of `TrainerMon` that does not depend on a framework: control, values, files."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, Self

import msprobe
from msprobe.config.reading import read_config_file
from msprobe.errors import ConfigError, MonitorWriteError, UsageError
from msprobe.log import ensure_handler, warn_once
from msprobe.monitor.alerts.actions import listeners_of, parse_alert
from msprobe.monitor.collecting.collector import StepCollector
from msprobe.monitor.collecting.control import ControlFile
from msprobe.monitor.collecting.step_rows import Layouts, Reading, now
from msprobe.monitor.exports import ExportFormat, live_listener
from msprobe.monitor.listeners import RowListener
from msprobe.monitor.ops import Op, columns_of, evaluate
from msprobe.monitor.reader import START, MonitorRun, open_monitor
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Rows, Stream, Values
from msprobe.monitor.run_folder import run_folder
from msprobe.monitor.settings import Format, MonitorSettings, make_settings
from msprobe.plain_text import reason

logger = logging.getLogger(__name__)

_open: Final[set[int]] = set()
"""Numbers of the monitors that are open: of one for each model, each has a run of its own."""

Metrics = dict[tuple[str, str], dict[str, float]]
"""Values by (name of the tensor, stream), each by operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The processes that train together.

    Attributes:
        rank: of this one.
        size: how many there are.
        agree: makes a name the same in all of them.
        store: returns the store that they share; None without one.
    """

    rank: int
    size: int
    agree: Callable[[str], str]
    store: Callable[[], Any] | None = None


class MonitorFront(ABC):
    """Begins, changes and ends monitoring; a framework says what is installed.

    Args:
        config_file_path: a JSON file, see docs/tasks/monitor.md.
        process_group: group of the pipeline; noted in the run's head.
        params_have_main_grad: whether a parameter's `main_grad` is its gradient, where it has one.

    Raises:
        ConfigError: a value in the file cannot be used.
    """

    def __init__(
        self,
        config_file_path: str | os.PathLike[str],
        process_group: Any = None,
        params_have_main_grad: bool = True,
    ) -> None:
        ensure_handler()
        path = Path(config_file_path)
        self._raw, repeated = read_config_file(path)
        twice = [f'"{key}" is there twice; the last one counts' for key in repeated]
        self._settings = make_settings(self._raw, source=path, warnings=twice)
        parse_alert(self._raw.get("alert"), source=path)
        _tell_warnings(self._settings)
        self._process_group = process_group
        self._reads_main_grad = params_have_main_grad
        self._recorder: Recorder | None = None
        self._collector: StepCollector | None = None
        self._make_collector: Callable[[MonitorSettings, int], StepCollector] | None = None
        self._next_settings: MonitorSettings | None = None
        self._control: ControlFile | None = None
        self._step = 0
        self._alerts: Sequence[RowListener] = ()
        self._undo = ExitStack()

    # -- of the framework ------------------------------------------------------------------------

    @property
    @abstractmethod
    def world(self) -> World:
        """The processes that train together."""

    @property
    @abstractmethod
    def reading(self) -> Reading:
        """How tensors are read."""

    def _models(
        self, model: Any, kind: type, rule: str, grad_acc_steps: object, start_iteration: object
    ) -> list[Any]:
        """Return the models in the arguments of `set_monitor`.

        Raises:
            UsageError: this object monitors already.
            ConfigError: an argument cannot be used.
        """
        if self._recorder is not None:
            raise UsageError("set_monitor(): this TrainerMon monitors already; detach() it first")
        models: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
        for one in models:
            if not isinstance(one, kind):
                raise ConfigError("model", one, rule, source="set_monitor()")
        _check_count("grad_acc_steps", grad_acc_steps, 1)
        _check_count("start_iteration", start_iteration, 0)
        return models

    def _begin(
        self,
        framework: str,
        versions: Mapping[str, str],
        groups: Mapping[str, Sequence[int]],
        start_iteration: int,
        make_collector: Callable[[Recorder, MonitorSettings, int], StepCollector],
    ) -> None:
        """Open the run, and collect from a step on.

        Args:
            framework: its name.
            versions: of its packages.
            groups: members of the groups of processes, by name.
            start_iteration: number of the first step.
            make_collector: makes a collector, from a step on.
        """
        recorder = self._open(framework, versions, groups, start_iteration)
        self._make_collector = lambda settings, step: make_collector(recorder, settings, step)
        if os.environ.get("DYNAMIC_MONITOR", "").lower() == "true" and self._settings.source:
            self._control = ControlFile(self._settings.source, self.world.rank, self.world.store)
        waits = self._control is not None and not self._settings.keys.dynamic_on
        if not waits:
            self._collector = self._make_collector(self._settings, start_iteration)
        self._step = start_iteration
        atexit.register(self.detach)
        logger.info("monitoring to %s", recorder.directory)

    # -- control ---------------------------------------------------------------------------------

    def configure(self, **keys: Any) -> None:
        """Change keys of the configuration from the next step on; the file stays as it is.

        With several ranks, call it on all of them in the same step.

        Raises:
            ConfigError: a value cannot be used.
        """
        raw = {**self._raw, **keys}
        parse_alert(raw.get("alert"), source="configure()")
        self._next_settings = make_settings(raw)
        self._raw = raw
        _tell_warnings(self._next_settings)

    def stop(self) -> None:
        """Collect nothing from now on; `configure` begins again."""
        if self._collector is not None:
            self._collector.close()
            self._collector = None

    def detach(self) -> None:
        """Take all hooks away and close the run; a second call does nothing."""
        self.stop()
        self._undo.close()
        atexit.unregister(self.detach)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()

    close = detach

    def __enter__(self) -> Self:
        """Return the monitor itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()

    @property
    def recorder(self) -> Recorder:
        """The recorder of the run, which listeners may ask to end the training.

        Raises:
            UsageError: nothing is monitored yet.
        """
        if self._recorder is None:
            raise UsageError("nothing is monitored: call set_monitor(model, optimizer) first")
        return self._recorder

    @property
    def path(self) -> Path:
        """The folder of the run.

        Raises:
            UsageError: nothing is monitored yet.
        """
        return self.recorder.directory

    @property
    def ops(self) -> list[str]:
        """The operations; setting them is `configure(ops=…)`, for older scripts."""
        return [str(op) for op in self._settings.keys.ops]

    @ops.setter
    def ops(self, ops: list[str]) -> None:
        self.configure(ops=ops)

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Switch activations on or off, for older scripts; use `configure`."""
        self.configure(xy_distribution=xy_distribution)

    # -- values ----------------------------------------------------------------------------------

    def log(self, **numbers: float) -> None:
        """Take numbers of your own for the step that runs, such as ``loss`` or ``tokens``."""
        if self._collector is not None:
            for name, value in numbers.items():
                self._collector.put_number(name, float(value))

    def add_listener(self, listener: RowListener) -> None:
        """Let a listener see the rows that come from now on, on the recorder's thread."""
        self.recorder.add_listener(listener)

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Return the gradients of the last collected step: reduced, unreduced."""
        return self._latest(Stream.GRAD_REDUCED), self._latest(Stream.GRAD_UNREDUCED)

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Return the activations of the last collected step, and their gradients."""
        return self._latest(Stream.ACTV), self._latest(Stream.ACTV_GRAD)

    def adhoc_check(
        self,
        tensor: Any,
        module_name: str,
        tensor_name: str,
        rank_list: Sequence[int] = (),
        ops_list: Sequence[str] = ("norm",),
    ) -> dict[str, float]:
        """Return and log statistics of any tensor.

        Args:
            tensor: the tensor.
            module_name: for the log.
            tensor_name: for the log.
            rank_list: ranks that do it; empty for all. Others return nothing.
            ops_list: the operations.
        """
        if rank_list and self.world.rank not in rank_list:
            return {}
        ops = tuple(map(Op, ops_list))
        values = self._measured(tensor, ops)
        found = dict(zip(columns_of(ops), values[:, 0].tolist(), strict=True))
        logger.info("%s.%s: %s", module_name, tensor_name, found)
        return found

    def _measured(self, tensor: Any, ops: Sequence[Op]) -> Values:
        measures = self.reading.table(self._settings.keys.eps, with_bins=Op.LOG2_HIST in ops)
        measures.add([tensor])
        return evaluate(ops, *measures.wait())

    def open(self) -> MonitorRun:
        """Open the run for reading; everything up to the last step is there."""
        recorder = self.recorder
        recorder.wait()
        return open_monitor(recorder.directory)

    # -- inside ----------------------------------------------------------------------------------

    def _open(
        self,
        framework: str,
        versions: Mapping[str, str],
        groups: Mapping[str, Sequence[int]],
        start_iteration: int,
    ) -> Recorder:
        world = self.world
        number = next(one for one in count(1) if one not in _open)
        folder = run_folder(
            self._settings,
            world.rank,
            number=number,
            resumes=start_iteration > 0,
            agree=world.agree,
        )
        head = {
            "framework": framework,
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            START: start_iteration,
            "rank": world.rank,
            "world_size": world.size,
            "groups": groups,
            "config": self._raw,
            "versions": {
                "msprobe": msprobe.__version__,
                **versions,
                "python": platform.python_version(),
            },
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._recorder = recorder = Recorder(folder, world.rank, head)
        try:
            self._export(recorder, start_iteration)
            self._watch(self._settings.keys.alert, start_iteration)
        except BaseException:
            self._recorder = None
            recorder.close()
            raise
        _open.add(number)
        self._undo.callback(_open.discard, number)
        return recorder

    def _watch(self, alert: dict[str, Any] | None, step: int) -> None:
        """Let these alerts judge the rows from a step on, in place of others."""
        recorder = self.recorder
        stop = recorder.ask_to_stop
        new = listeners_of(alert, recorder.directory, self.world.rank, stop=stop, begins=step)
        recorder.replace_listeners(self._alerts, new)
        self._alerts = new

    def _change_alerts(self, alert: dict[str, Any] | None) -> None:
        self.recorder.wait()  # the present ones may be writing the files that others begin
        try:
            self._watch(alert, self._step)
        except OSError as error:
            logger.warning("the changed alerts are left out: %s", error)

    def _export(self, recorder: Recorder, begins: int) -> None:
        """Write what `format` asks for, too, while rows come.

        Raises:
            UnsupportedError: a package is missing.
            MonitorWriteError: files of earlier processes cannot be changed.
        """
        keys = self._settings.keys
        if keys.format in (Format.NONE, Format.API):
            return
        rank = self.world.rank
        with open_monitor(recorder.directory / f"rank{rank}.rows") as run:
            try:
                listener = live_listener(
                    ExportFormat(keys.format.value),
                    run,
                    rank,
                    begins=begins,
                    steps_per_file=keys.step_count_per_record,
                    digits=keys.ndigits,
                )
            except OSError as error:
                problem = f"cannot be written: {reason(error)}"
                raise MonitorWriteError(run.path / keys.format, problem) from error
        recorder.add_listener(listener)

    def _before_step(self, has_closure: bool = False) -> None:
        if self._collector is not None:
            self._collector.before_step(has_closure=has_closure)

    def _after_step(self, result: object = None) -> None:
        self._step += 1
        collector = self._collector
        if collector is not None:
            collector.after_step(result)
        changed = self._changed_settings()
        if changed is not None and self._make_collector is not None:
            if changed.keys.alert != self._settings.keys.alert:
                self._change_alerts(changed.keys.alert)
            self._settings = changed
            self.stop()
            if changed.keys.collect_times:
                self._collector = self._make_collector(changed, self._step)
        elif collector is not None and collector.is_over:
            logger.info("%d steps are collected; the monitor's hooks go", collector.collected)
            self.stop()

    def _changed_settings(self) -> MonitorSettings | None:
        """Return other settings that hold from the next step on."""
        changed, self._next_settings = self._next_settings, None
        if self._control is not None:
            raw = self._control.due(self._step)
            if raw is not None:
                source = self._control.path
                try:
                    changed = make_settings(raw, source=source)
                    begins = max(changed.keys.start_step, self._step)
                    changed = make_settings({**raw, "start_step": begins}, source=source)
                    parse_alert(changed.keys.alert, source=source)
                except ConfigError as error:
                    logger.warning("the changed configuration is left out: %s", error)
                    return None
                self._raw = raw
        return changed

    def _latest(self, stream: Stream) -> Metrics:
        if self._collector is None or self._collector.latest is None:
            return {}
        self.recorder.wait()  # its thread fetches the numbers of accelerators
        found: Metrics = {}
        for rows in self._collector.latest.rows(Layouts(), self.world.rank, now()):
            if rows.layout.stream == stream:
                found.update(_metrics_of(rows))
        return found


def _metrics_of(rows: Rows) -> Metrics:
    layout = rows.layout
    return {
        (name, layout.stream): dict(zip(layout.ops, rows.values[:, place].tolist(), strict=True))
        for place, name in enumerate(layout.names)
    }


def _tell_warnings(settings: MonitorSettings) -> None:
    for warning in settings.warnings:
        warn_once(logger, warning, "%s: %s", settings.source or "configure()", warning)


def _check_count(name: str, value: object, least: int) -> None:
    """Refuse an argument of `set_monitor` that is no whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, value, f"a whole number >= {least}", source="set_monitor()")
