# SPDX-License-Identifier: Apache-2.0
"""`TrainerMon`: statistics of a whole training run in three lines."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

import msprobe
from msprobe.config.reading import read_config_file
from msprobe.errors import ConfigError, MsprobeError, UsageError
from msprobe.log import ensure_handler, warn_once
from msprobe.monitor.alerts.actions import listeners_of, parse_alert
from msprobe.monitor.exports import ExportFormat, export
from msprobe.monitor.ops import Op, columns_of, evaluate
from msprobe.monitor.reader import START, MonitorRun, open_monitor
from msprobe.monitor.recorder import Recorder, RowListener
from msprobe.monitor.rows import Rows, Stream
from msprobe.monitor.run_folder import run_folder
from msprobe.monitor.settings import Format, MonitorSettings, make_settings
from msprobe.pytorch.interception.guard import unnoticed
from msprobe.pytorch.monitoring.collector import Collector
from msprobe.pytorch.monitoring.control import ControlFile
from msprobe.pytorch.monitoring.step_rows import Layouts, now
from msprobe.pytorch.monitoring.steps import plain_optimizer, watch_steps
from msprobe.pytorch.values.measures import Measures

logger = logging.getLogger(__name__)

Metrics = dict[tuple[str, str], dict[str, float]]
"""Values by (name of the tensor, stream), each by operation."""

_RUN_KEY: Final = "msprobe/monitor/run"


class TrainerMon:
    """Collects statistics of a training while it runs.

    ::

        monitor = TrainerMon("monitor.json")
        monitor.set_monitor(model, optimizer, grad_acc_steps=2)
        # … train …
        monitor.close()            # or leave it to the end of the program

    The training computes the same bits with it. Rows go to one file per process and are read with
    `msprobe.open_monitor`, also meanwhile.

    Args:
        config_file_path: a JSON file, see docs/tasks/monitor.md.
        process_group: group of the pipeline; noted in the run's head.
        params_have_main_grad: whether a parameter's `main_grad` is its gradient, where it has one.
        opt_ty: accepted for scripts of mindstudio-probe; optimizers are recognised.

    Raises:
        ConfigError: a value in the file cannot be used.
    """

    def __init__(
        self,
        config_file_path: str | os.PathLike[str],
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: object = None,
    ) -> None:
        del opt_ty
        ensure_handler()
        path = Path(config_file_path)
        self._raw, repeated = read_config_file(path)
        twice = [f'"{key}" is there twice; the last one counts' for key in repeated]
        self._settings = make_settings(self._raw, source=path, warnings=twice)
        _tell_warnings(self._settings)
        self._process_group = process_group
        self._reads_main_grad = params_have_main_grad
        self._wrapped_optimizer: Any = None
        self._recorder: Recorder | None = None
        self._collector: Collector | None = None
        self._make_collector: Callable[[MonitorSettings, int], Collector] | None = None
        self._next_settings: MonitorSettings | None = None
        self._control: ControlFile | None = None
        self._step = 0
        self._alerts: Sequence[RowListener] = ()
        self._undo = ExitStack()

    # -- attach ----------------------------------------------------------------------------------

    def set_monitor(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to monitor.

        Args:
            model: the model; a list of models for the chunks of a virtual pipeline.
            optimizer: which updates it; its steps are the steps of the run.
            grad_acc_steps: backward passes for each step.
            tp_group: group of tensor parallelism; parameters that all its ranks have are measured
                on the first.
            dp_group: group of data parallelism; reduced gradients are measured on its first rank.
            start_iteration: number of the first step; above 0 the newest run is continued.

        Raises:
            UsageError: this object monitors already.
            ConfigError: an argument cannot be used.
            MonitorWriteError: the run's folder cannot be written.
        """
        if self._recorder is not None:
            raise UsageError("set_monitor(): this TrainerMon monitors already; detach() it first")
        models: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
        for one in models:
            if not isinstance(one, nn.Module):
                raise ConfigError(
                    "model", one, "a torch.nn.Module or a list", source="set_monitor()"
                )
        _check_count("grad_acc_steps", grad_acc_steps, 1)
        _check_count("start_iteration", start_iteration, 0)
        optimizer = plain_optimizer(optimizer)
        if not callable(getattr(optimizer, "step", None)):
            rule = "an optimizer with a method step()"
            raise ConfigError("optimizer", type(optimizer).__name__, rule, source="set_monitor()")
        rank = _rank()
        recorder = self._open(rank, start_iteration, tp_group, dp_group)

        def make_collector(settings: MonitorSettings, step: int) -> Collector:
            return Collector(
                settings,
                models,
                optimizer,
                recorder,
                rank=rank,
                step=step,
                micro_steps=grad_acc_steps,
                reads_main_grad=self._reads_main_grad,
                holds_reduced=_is_first(dp_group),
                holds=_holder(tp_group),
            )

        self._make_collector = make_collector
        if os.environ.get("DYNAMIC_MONITOR", "").lower() == "true" and self._settings.source:
            self._control = ControlFile(self._settings.source, rank)
        waits = self._control is not None and not self._settings.keys.dynamic_on
        if not waits:
            self._collector = make_collector(self._settings, start_iteration)
        self._step = start_iteration
        watch_steps(optimizer, self._before_step, self._after_step, self._undo)
        atexit.register(self.detach)
        logger.info("monitoring to %s", recorder.directory)

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Name the optimizer for `monitor_gnorm_with_ad`, as older scripts do."""
        self._wrapped_optimizer = optimizer

    def monitor_gnorm_with_ad(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any = None,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Do the same as `set_monitor`, for older scripts."""
        chosen = optimizer if optimizer is not None else self._wrapped_optimizer
        if chosen is None:
            raise UsageError(
                "monitor_gnorm_with_ad(): there is no optimizer; pass it, or call "
                "set_wrapped_optimizer(optimizer) first"
            )
        self.set_monitor(model, chosen, grad_acc_steps, tp_group, dp_group, start_iteration)

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
            self._export(recorder.directory)

    close = detach

    def __enter__(self) -> TrainerMon:
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
        tensor: Tensor,
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
        if rank_list and _rank() not in rank_list:
            return {}
        ops = tuple(map(Op, ops_list))
        measures = Measures(self._settings.keys.eps, with_bins=Op.LOG2_HIST in ops)
        with unnoticed():
            measures.add([tensor.detach()])
            values = evaluate(ops, *measures.wait())
        found = dict(zip(columns_of(ops), values[:, 0].tolist(), strict=True))
        logger.info("%s.%s: %s", module_name, tensor_name, found)
        return found

    def open(self) -> MonitorRun:
        """Open the run for reading; everything up to the last step is there."""
        recorder = self.recorder
        recorder.wait()
        return open_monitor(recorder.directory)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self, rank: int, start_iteration: int, tp_group: Any, dp_group: Any) -> Recorder:
        folder = run_folder(self._settings, rank, resumes=start_iteration > 0, agree=_agree)
        head = {
            "framework": "pytorch",
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            START: start_iteration,
            "rank": rank,
            "world_size": dist.get_world_size() if _is_distributed() else 1,
            "groups": {
                name: _members(group)
                for name, group in (
                    ("pp", self._process_group),
                    ("tp", tp_group),
                    ("dp", dp_group),
                )
                if group is not None
            },
            "config": self._raw,
            "versions": {
                "msprobe": msprobe.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._recorder = recorder = Recorder(folder, rank, head)
        self._watch(self._settings.keys.alert, start_iteration)
        return recorder

    def _watch(self, alert: dict[str, Any] | None, step: int) -> None:
        """Let these alerts judge the rows from a step on, in place of others."""
        recorder = self.recorder
        stop = recorder.ask_to_stop
        new = listeners_of(alert, recorder.directory, _rank(), stop=stop, begins=step)
        recorder.replace_listeners(self._alerts, new)
        self._alerts = new

    def _change_alerts(self, alert: dict[str, Any] | None) -> None:
        self.recorder.wait()  # the present ones may be writing the files that others begin
        try:
            self._watch(alert, self._step)
        except OSError as error:
            logger.warning("the changed alerts are left out: %s", error)

    def _export(self, folder: Path) -> None:
        """Write the files that `format` asks for, of this rank's rows."""
        keys = self._settings.keys
        if keys.format not in (Format.CSV, Format.TENSORBOARD):
            return
        kind = ExportFormat(keys.format.value)
        try:
            with open_monitor(folder / f"rank{_rank()}.rows") as run:
                export(
                    run,
                    folder / keys.format.value,
                    kind,
                    steps_per_file=keys.step_count_per_record,
                    digits=keys.ndigits,
                )
        except MsprobeError as error:
            logger.warning("%s", error)

    def _before_step(self) -> None:
        if self._collector is not None:
            self._collector.before_step()

    def _after_step(self) -> None:
        self._step += 1
        collector = self._collector
        if collector is not None:
            collector.after_step()
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
                try:
                    changed = make_settings({**raw, "start_step": self._step})
                    parse_alert(changed.keys.alert, source=self._settings.source or "")
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
        for rows in self._collector.latest.rows(Layouts(), _rank(), now()):
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
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(name, value, f"a whole number >= {least}", source="set_monitor()")


# ---- ranks ---------------------------------------------------------------------------------------


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else int(os.environ.get("RANK", "0") or 0)


def _agree(name: str) -> str:
    """Return the name of a new run, the same in all processes of the group.

    The first one that asks decides. It is no collective: ranks that monitor nothing do not hang.
    """
    if not _is_distributed():
        return f"{name}-{os.getpid()}"
    from torch.distributed.distributed_c10d import _get_default_store

    key = f"{_RUN_KEY}/{_count_runs()}"
    return str(_get_default_store().compare_set(key, "", name).decode())


_runs = 0


def _count_runs() -> int:
    global _runs  # noqa: PLW0603 - runs of one process are numbered
    _runs += 1
    return _runs


def _members(group: Any) -> list[int]:
    try:
        return dist.get_process_group_ranks(group)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return []


def _is_first(group: Any) -> bool:
    members = _members(group) if group is not None else []
    return not members or members[0] == _rank()


def _holder(tp_group: Any) -> Callable[[Tensor], bool]:
    """Return whether this rank measures a parameter: one that is not split, only the first does."""
    is_first = _is_first(tp_group)
    return lambda parameter: is_first or bool(getattr(parameter, "tensor_model_parallel", False))
