# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe`: read gradients when an optimizer begins its step.

Optimizers of torch announce their steps, whichever they are. Those of DeepSpeed keep gradients in
partitions; the engine that is watched has its optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from msprobe.capture.session import Session
from msprobe.config import Config, GradProbeSection
from msprobe.monitor.gradients.probe import Gradient
from msprobe.monitor.gradients.recorder import GradientRecorder
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.monitoring.optimizers import OptimizerView, PlainView, view_of
from msprobe.pytorch.monitoring.steps import watch_steps
from msprobe.pytorch.monitoring.unsharded import flat_parameters
from msprobe.pytorch.values.readable import readable

logger = logging.getLogger(__name__)


class GradientProbe:
    """Writes the gradients of models at each step of an optimizer that holds their parameters."""

    def __init__(self, session: Session, config: Config, section: GradProbeSection) -> None:
        """Create it; nothing is installed before `watch`.

        Args:
            session: notes errors.
            config: the settings.
            section: those of the task.
        """
        self._session = session
        self._recorder = GradientRecorder(config, section, _rank())
        self._names: MutableMapping[Tensor, str] = WeakIdKeyDictionary()
        self._sizes: MutableMapping[Tensor, int] = WeakIdKeyDictionary()
        self._partitioned: list[tuple[Any, OptimizerView]] = []
        self._undo: ExitStack | None = None
        self._foreign = 0
        self._has_own = False

    def watch(self, models: tuple[nn.Module, ...]) -> None:
        """Record the gradients of these models, too."""
        for number, model in enumerate(models):
            prefix = f"{number}." if len(models) > 1 else ""
            for name, parameter in model.named_parameters():
                if self._recorder.selected([prefix + name]):
                    self._names[parameter] = prefix + name
                    self._sizes[parameter] = int(getattr(parameter, "ds_numel", parameter.numel()))
            self._sizes.update(_sizes_of_flat(model))
            optimizer = getattr(model, "optimizer", None)  # of an engine of DeepSpeed
            if callable(getattr(optimizer, "step", None)) and not isinstance(optimizer, Optimizer):
                view = view_of(optimizer, reads_main_grad=True)
                if not isinstance(view, PlainView):
                    self._partitioned.append((optimizer, view))
        self.resume()

    def resume(self) -> None:
        """Read gradients again after `pause`."""
        if self._undo is not None or not self._names:
            return
        self._undo = undo = ExitStack()
        undo.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        for optimizer, view in self._partitioned:
            before = partial(self._before_partitioned, optimizer, view)
            watch_steps(optimizer, before, lambda *_: None, undo)
        self._session.run_undo.callback(self.pause)

    def pause(self) -> None:
        """Remove the hooks."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()
        if self._foreign and not self._has_own:
            logger.warning(
                "grad_probe wrote nothing: %d steps of optimizers, none of which holds a parameter "
                "of the model; of DeepSpeed, pass the engine to monitor()",
                self._foreign,
            )

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not is_tracing():
            quietly(self._session, "gradient probe", self._take, optimizer)

    def _take(self, optimizer: Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        watched = [one for one in parameters if one in self._names]
        self._foreign += not watched
        if watched:
            self._has_own = True
            view = PlainView(optimizer, reads_main_grad=True)
            self._recorder.take(optimizer, partial(self._read, watched, view))

    def _before_partitioned(self, optimizer: Any, view: OptimizerView, _: bool) -> None:
        self._has_own = True
        read = partial(self._read, list(self._names), view)
        quietly(self._session, "gradient probe", self._recorder.take, optimizer, read)

    def _read(self, parameters: list[Tensor], view: OptimizerView) -> list[Gradient]:
        found = []
        for parameter in parameters:
            gradient = view.gradient(parameter)
            held = None if gradient is None else readable(gradient)
            if gradient is not None and isinstance(held, Tensor) and held.numel():
                values = held.detach().to("cpu", torch.float32).numpy()
                shard = _shard_of(gradient, self._sizes.get(parameter, gradient.numel()))
                found.append(Gradient(self._names[parameter], values, shard))
        return found


def _sizes_of_flat(model: nn.Module) -> dict[Tensor, int]:
    """Return how many elements parameters of FSDP1 have on all ranks together."""
    found: dict[Tensor, int] = {}
    for flat in flat_parameters([model]):
        found[flat] = sum(flat._numels)
        found.update(zip(flat._params or (), flat._numels, strict=False))
    return found


def _shard_of(gradient: Tensor, whole: int) -> str:
    """Return which part of the gradient this process holds; empty for all of it.

    Args:
        gradient: of this process.
        whole: the number of elements of all processes.
    """
    placements = getattr(gradient, "placements", None)
    mesh: Any = getattr(gradient, "device_mesh", None)
    if placements is not None and mesh is not None:
        return f"{list(placements)} at {mesh.get_coordinate()} of {list(mesh.shape)}"
    if gradient.numel() == whole:
        return ""
    return f"{gradient.numel()} of {whole} elements, on rank {_rank()}"


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return 0
