# SPDX-License-Identifier: Apache-2.0
"""`TrainerMon`: statistics of a whole training run in three lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from msprobe.errors import ConfigError, UsageError
from msprobe.monitor.collecting.front import MonitorFront, World
from msprobe.monitor.ops import Op
from msprobe.monitor.recorder import Recorder
from msprobe.monitor.rows import Values
from msprobe.monitor.settings import MonitorSettings
from msprobe.pytorch.interception.guard import guard
from msprobe.pytorch.monitoring.collector import Collector
from msprobe.pytorch.monitoring.reading import READING, TorchReading
from msprobe.pytorch.monitoring.steps import plain_optimizer, watch_steps

_RUN_KEY: Final = "msprobe/monitor/run"


class TrainerMon(MonitorFront):
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
        super().__init__(config_file_path, process_group, params_have_main_grad)
        self._wrapped_optimizer: Any = None

    @property
    def world(self) -> World:
        """The processes that train together."""
        is_one_of_many = _is_distributed()
        return World(
            rank=_rank(),
            size=dist.get_world_size() if is_one_of_many else 1,
            agree=_agree,
            store=_store if is_one_of_many else None,
        )

    @property
    def reading(self) -> TorchReading:
        """How tensors are read."""
        return READING

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
        rule = "a torch.nn.Module or a list"
        models = self._models(model, nn.Module, rule, grad_acc_steps, start_iteration)
        optimizer = plain_optimizer(optimizer)
        if not callable(getattr(optimizer, "step", None)):
            rule = "an optimizer with a method step()"
            raise ConfigError("optimizer", type(optimizer).__name__, rule, source="set_monitor()")
        rank = _rank()

        def make_collector(recorder: Recorder, settings: MonitorSettings, step: int) -> Collector:
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

        known = {"pp": self._process_group, "tp": tp_group, "dp": dp_group}
        groups = {name: _members(group) for name, group in known.items() if group is not None}
        versions = {"torch": torch.__version__}
        self._begin("pytorch", versions, groups, start_iteration, make_collector)
        watch_steps(optimizer, self._before_step, self._after_step, self._undo)

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

    def _measured(self, tensor: Tensor, ops: Sequence[Op]) -> Values:
        with guard():
            return super()._measured(tensor.detach(), ops)


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
    key = f"{_RUN_KEY}/{_count_runs()}"
    return str(_store().compare_set(key, "", name).decode())


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


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
