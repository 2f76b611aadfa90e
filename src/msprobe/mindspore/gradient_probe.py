# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe` in the dynamic graph: read gradients when an optimizer is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from msprobe.capture.session import Session
from msprobe.config import Config, GradProbeSection
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore.adapter import values_of
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled.cells import is_static_graph
from msprobe.mindspore.compiled.optimizers import is_optimizer
from msprobe.mindspore.guard import quietly
from msprobe.monitor.gradients.probe import Gradient
from msprobe.monitor.gradients.recorder import GradientRecorder


class GradientProbe:
    """Writes the gradients with which an optimizer is called."""

    def __init__(self, session: Session, config: Config, section: GradProbeSection) -> None:
        """Create it; nothing is installed before `watch`.

        Args:
            session: notes errors.
            config: the settings.
            section: those of the task.
        """
        self._session = session
        self._recorder = GradientRecorder(config, section, current_rank() or 0)
        self._optimizers: list[Any] = []
        self._undo: list[Callable[[], None]] = []

    def watch(self, optimizer: Any) -> None:
        """Record the gradients of an optimizer, too.

        Raises:
            ConfigError: it is no optimizer.
            UnsupportedError: MindSpore is in graph mode.
        """
        if not is_optimizer(optimizer):
            rule = "an optimizer of mindspore.nn or mindspore.mint.optim"
            raise ConfigError("watched", optimizer, rule, source="monitor()")
        if is_static_graph():
            raise UnsupportedError("monitor(): gradients are read in the dynamic graph only")
        self.pause()
        self._optimizers.append(optimizer)
        self.resume()

    def resume(self) -> None:
        """Read gradients again after `pause`."""
        if not self._undo:
            self._undo = [self._install(one) for one in self._optimizers]
            self._session.run_undo.callback(self.pause)

    def pause(self) -> None:
        """Remove the hooks."""
        while self._undo:
            self._undo.pop()()

    def _install(self, optimizer: Any) -> Callable[[], None]:
        undo: Callable[[], None] = optimizer.register_forward_pre_hook(self._before_call).remove
        return undo

    def _before_call(self, optimizer: Any, arguments: Any) -> None:
        quietly(self._session, "gradient probe", self._take, optimizer, arguments)

    def _take(self, optimizer: Any, arguments: Any) -> None:
        gradients = arguments[0] if arguments else ()
        self._recorder.take(optimizer, lambda: self._read(optimizer, gradients))

    def _read(self, optimizer: Any, gradients: Any) -> list[Gradient]:
        found = []
        for parameter, gradient in zip(optimizer.parameters, gradients, strict=False):
            if not self._recorder.selected([parameter.name]):
                continue
            values = values_of(gradient)
            if values is not None:
                found.append(Gradient(parameter.name, np.asarray(values, np.float32)))
        return found
