# SPDX-License-Identifier: Apache-2.0
"""`TrainerMon` for MindSpore: statistics of a whole training run in three lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mindspore.communication import GlobalComm, get_group_size, get_rank

import mindspore
from mindspore import nn
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled.cells import is_static_graph
from msprobe.mindspore.compiled.optimizers import is_optimizer
from msprobe.mindspore.jit_calls import is_compiling
from msprobe.mindspore.monitoring.collector import Collector
from msprobe.mindspore.monitoring.measures import READING, MindSporeReading
from msprobe.monitor.collecting.front import MonitorFront, World
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.settings import MonitorSettings


class TrainerMon(MonitorFront):
    """Collects statistics of a training in the dynamic graph while it runs.

    ::

        monitor = TrainerMon("monitor.json")
        monitor.set_monitor(net, optimizer, grad_acc_steps=2)
        # … train …
        monitor.close()            # or leave it to the end of the program

    The training computes the same bits with it. Rows go to one file per process and are read with
    `msprobe.open_monitor`, also meanwhile.

    Args:
        config_file_path: a JSON file, see docs/tasks/monitor.md.
        process_group: accepted for scripts of mindstudio-probe.
        params_have_main_grad: the same; gradients are read where the optimizer is called.

    Raises:
        ConfigError: a value in the file cannot be used.
    """

    @property
    def world(self) -> World:
        """The processes that train together."""
        size = int(get_group_size()) if GlobalComm.INITED else 1
        rank = current_rank()
        if rank is None:
            rank = int(os.environ.get("RANK_ID", "0") or 0)
        return World(rank=rank, size=size, agree=_agree)

    @property
    def reading(self) -> MindSporeReading:
        """How tensors are read."""
        return READING

    def set_monitor(
        self,
        model: nn.Cell | Sequence[nn.Cell],
        optimizer: Any,
        grad_acc_steps: int = 1,
        tp_group: str | None = None,
        dp_group: str | None = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to monitor.

        Args:
            model: the model; a list of models for the chunks of a virtual pipeline.
            optimizer: which updates it; its calls are the steps of the run.
            grad_acc_steps: backward passes for each step.
            tp_group: accepted for scripts of mindstudio-probe.
            dp_group: group of data parallelism; reduced gradients are measured on its first rank.
            start_iteration: number of the first step; above 0 the newest run is continued.

        Raises:
            UsageError: this object monitors already.
            ConfigError: an argument cannot be used.
            MonitorWriteError: the run's folder cannot be written.
            UnsupportedError: MindSpore is in graph mode.
        """
        rule = "a mindspore.nn.Cell or a list"
        models = self._models(model, nn.Cell, rule, grad_acc_steps, start_iteration)
        if not is_optimizer(optimizer):
            rule = "an optimizer of mindspore.nn or mindspore.mint.optim"
            raise ConfigError("optimizer", optimizer, rule, source="set_monitor()")
        if is_static_graph():
            raise UnsupportedError("set_monitor(): the monitor needs the dynamic graph")
        rank = self.world.rank
        holds_reduced = dp_group is None or get_rank(dp_group) == 0

        def make_collector(recorder: Recorder, settings: MonitorSettings, step: int) -> Collector:
            return Collector(
                settings,
                models,
                optimizer,
                recorder,
                rank=rank,
                step=step,
                micro_steps=grad_acc_steps,
                holds_reduced=holds_reduced,
            )

        versions = {"mindspore": str(mindspore.__version__)}
        self._begin("mindspore", versions, {}, start_iteration, make_collector)
        hooks = (
            optimizer.register_forward_pre_hook(self._optimizer_begins),
            optimizer.register_forward_hook(self._optimizer_ended),
        )
        for one in hooks:
            self._undo.callback(one.remove)

    def _optimizer_begins(self, optimizer: Any, arguments: Any) -> None:
        if is_compiling():
            return
        collector = self._collector
        if isinstance(collector, Collector):
            given = arguments[0] if arguments else ()
            collector.take_gradients(given if isinstance(given, tuple | list) else (given,))
        self._before_step()

    def _optimizer_ended(self, optimizer: Any, arguments: Any, output: Any) -> None:
        if not is_compiling():
            self._after_step()


def _agree(name: str) -> str:
    """Return the name of a new run; the key `run` gives several processes one folder."""
    return f"{name}-{os.getpid()}"
