# SPDX-License-Identifier: Apache-2.0
"""Everything that watches a run, installed by `start` and taken away by `stop`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import nn

from msprobe.capture.session import Session
from msprobe.config import Level, Task
from msprobe.pytorch import mode_stack
from msprobe.pytorch.adapter import TorchAdapter
from msprobe.pytorch.api_table import ApiTable
from msprobe.pytorch.compiled import run_eagerly
from msprobe.pytorch.checkpoint import Recomputations
from msprobe.pytorch.function_mode import ApiObserver
from msprobe.pytorch.module_hooks import ModuleNames, ModuleObserver
from msprobe.pytorch.parameter_gradients import ParameterGradients
from msprobe.pytorch.token_range import TokenGate

logger = logging.getLogger(__name__)

_graph_task = torch._C._current_graph_task_id


class Observer:
    """Installs what the configured level needs.

    Attributes:
        apis: the function mode; None at levels that do not record APIs.
    """

    def __init__(self, session: Session, adapter: TorchAdapter, table: ApiTable) -> None:
        """Create it; nothing is installed."""
        self._session = session
        self._adapter = adapter
        self.recomputations = Recomputations(session)
        level = session.config.level
        self.apis: ApiObserver | None = None
        if level in (Level.L1, Level.MIX):
            self.apis = ApiObserver(session, adapter, table, self.recomputations)
        self._records_modules = level in (Level.L0, Level.MIX)
        self._models: tuple[nn.Module, ...] = ()
        self._names: ModuleNames | None = None
        self._parameters: ParameterGradients | None = None

    def watch(self, models: Sequence[nn.Module]) -> None:
        """Record the modules of these models from the next `install` on."""
        if tuple(models) == self._models:
            return
        self._models = tuple(models)
        self._names = ModuleNames(models) if self._records_modules else None
        self._parameters = None
        takes_gradients = self._session.recorder.selection.data_mode.backward
        structure = self._session.config.task is Task.STRUCTURE
        if self._names is not None and takes_gradients and not structure:
            self._parameters = ParameterGradients(self._session, self._names)

    def install(self, token_range: tuple[int, int] | None) -> None:
        """Begin to watch; the session's undo stack gets every way back.

        Args:
            token_range: forward calls of the first model to which observation is limited.
        """
        session = self._session
        gate = None
        if token_range is not None:
            if len(self._models) > 1:
                logger.warning("token_range counts the forward calls of the first model only")
            gate = TokenGate(session, self._adapter.memo, self._models[0], token_range)
        modules = ModuleObserver(session, self._names, self.recomputations, self.apis, gate)
        modules.install()
        run_eagerly(session)
        if self._parameters is not None:
            self._parameters.install()
        if self.apis is not None:
            self._install_mode(self.apis)

    def _install_mode(self, apis: ApiObserver) -> None:
        # The engine restores the mode stack after each node: inside it only the flag changes.
        if _graph_task() != -1:
            return
        mode_stack.install_lowest(apis)
        self._adapter.memo.active = True
        self._session.undo.callback(self._remove_mode, apis)

    def _remove_mode(self, apis: ApiObserver) -> None:
        self._adapter.memo.active = False
        self._adapter.memo.clear()
        if _graph_task() == -1:
            mode_stack.remove(apis)

    def next_step(self) -> None:
        """Forget what belongs to the step that is over."""
        self.recomputations.next_step()
        self._adapter.memo.next_step()
        if self.apis is not None and _graph_task() == -1:
            mode_stack.remove(self.apis)  # left behind by a stop inside a backward pass
