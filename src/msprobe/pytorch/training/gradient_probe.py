# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe`: read gradients when an optimizer begins its step."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from msprobe.capture.session import Session
from msprobe.config import Config, GradProbeSection
from msprobe.monitor.gradients.probe import Gradient
from msprobe.monitor.gradients.recorder import GradientRecorder
from msprobe.pytorch.interception.guard import quietly
from msprobe.pytorch.interception.tracing import is_tracing
from msprobe.pytorch.values.readable import readable


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
        self._handle: RemovableHandle | None = None

    def watch(self, models: tuple[nn.Module, ...]) -> None:
        """Record the gradients of these models, too."""
        for number, model in enumerate(models):
            prefix = f"{number}." if len(models) > 1 else ""
            for name, parameter in model.named_parameters():
                if self._recorder.selected([prefix + name]):
                    self._names[parameter] = prefix + name
        self.resume()

    def resume(self) -> None:
        """Read gradients again after `pause`."""
        if self._handle is None and self._names:
            self._handle = register_optimizer_step_pre_hook(self._before_step)
            self._session.run_undo.callback(self.pause)

    def pause(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if not is_tracing():
            quietly(self._session, "gradient probe", self._take, optimizer)

    def _take(self, optimizer: Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        watched = [one for one in parameters if one in self._names]
        if watched:
            self._recorder.take(optimizer, lambda: self._read(watched))

    def _read(self, parameters: list[Tensor]) -> list[Gradient]:
        found = []
        for parameter in parameters:
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is None:
                continue
            held = readable(gradient)
            if isinstance(held, Tensor):
                values = held.detach().to("cpu", torch.float32).numpy()
                found.append(Gradient(self._names[parameter], values, _shard_of(gradient)))
        return found


def _shard_of(gradient: Tensor) -> str:
    """Return which part of the gradient this process holds; empty for all of it."""
    placements = getattr(gradient, "placements", None)
    mesh: Any = getattr(gradient, "device_mesh", None)
    if placements is None or mesh is None:
        return ""
    return f"{list(placements)} at {mesh.get_coordinate()} of {list(mesh.shape)}"


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return 0
