# SPDX-License-Identifier: Apache-2.0
"""The task `grad_probe`: read the gradients with which an optimizer is called.

In the dynamic graph a hook does; in graph mode the optimizer is compiled to hand them over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from msprobe.capture.session import Session
from msprobe.config import Config, GradProbeSection
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore.adapter import on_host, values_of
from msprobe.mindspore.communication import current_rank
from msprobe.mindspore.compiled import sink
from msprobe.mindspore.compiled.cells import CompiledCells, is_static_graph
from msprobe.mindspore.compiled.constructs import refuse_compiled
from msprobe.mindspore.compiled.optimizers import handing_optimizer, is_optimizer
from msprobe.mindspore.compiled.sink import GraphCall, Handed, Take
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
        self._graphs = _Deliveries(session, self._recorder)

    def watch(self, optimizer: Any) -> None:
        """Record the gradients of an optimizer, too.

        Raises:
            ConfigError: it is no optimizer.
            UsageError: MindSpore is in graph mode, and has compiled it already.
            UnsupportedError: MindSpore is in graph mode on an accelerator.
        """
        if not is_optimizer(optimizer):
            rule = "an optimizer of mindspore.nn or mindspore.mint.optim"
            raise ConfigError("watched", optimizer, rule, source="monitor()")
        if is_static_graph():
            if not on_host():
                raise UnsupportedError(
                    "monitor(): graphs of an accelerator do not hand over gradients; use "
                    "set_context(mode=PYNATIVE_MODE)"
                )
            refuse_compiled([optimizer], "monitor(optimizer)")
        self.pause()
        self._optimizers.append(optimizer)
        self.resume()

    def resume(self) -> None:
        """Read gradients again after `pause`."""
        if self._undo:
            return
        if is_static_graph():
            self._undo = [self._graphs.receive(self._optimizers)]
        else:
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


class _Deliveries:
    """Receives what compiled optimizers hand over (`GraphEvents`), all gradients of a call."""

    needs_values = True

    def __init__(self, session: Session, recorder: GradientRecorder) -> None:
        self._session = session
        self._recorder = recorder
        self._compiled: set[int] = set()
        self._optimizer_of: dict[int, Any] = {}
        self._found: list[tuple[Any, Gradient]] = []  # of one call

    def receive(self, optimizers: Sequence[Any]) -> Callable[[], None]:
        """Receive from these from now on; return what ends it."""
        for optimizer in optimizers:
            if id(optimizer) not in self._compiled:
                self._compiled.add(id(optimizer))
                wanted = {id(one) for one in optimizer.parameters}
                self._optimizer_of |= dict.fromkeys(wanted, optimizer)
                cells = CompiledCells([(optimizer, "")], partial(handing_optimizer, wanted))
                cells.put_in()
                self._session.run_undo.callback(cells.take_out)
        sink.receive(self)
        return partial(sink.receive, None)

    def hand_over(self, take: Take, values: list[Handed], spent_s: float) -> None:
        """Write the gradients of one call."""
        quietly(self._session, "gradient probe", self._take, take, values)

    def parameter_gradient(self, parameter: Any, gradient: Handed) -> None:
        """Note a gradient, whose memory is the graph's."""
        found = Gradient(parameter.name, np.array(gradient, np.float32))
        self._found.append((self._optimizer_of[id(parameter)], found))

    def forward(self, call: GraphCall) -> None:
        """Do nothing: no cell hands over its call."""

    def gradient(self, cell: str, side: str, leaf: int, gradient: Handed) -> None:
        """Do nothing: no cell hands over its gradients."""

    def _take(self, take: Take, values: list[Handed]) -> None:
        self._found.clear()
        take(self, values)
        if self._found:
            gradients = [one for _, one in self._found if self._recorder.selected([one.name])]
            self._recorder.take(self._found[0][0], lambda: gradients)
