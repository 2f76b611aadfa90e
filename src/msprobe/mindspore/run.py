# SPDX-License-Identifier: Apache-2.0
"""What a constructed debugger consists of: session, adapter, observers."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mindspore
from mindspore import nn
from msprobe.capture.custom_api import CustomApis
from msprobe.capture.session import Session
from msprobe.config import Config, Level
from msprobe.errors import ConfigError, UnsupportedError
from msprobe.mindspore.adapter import TENSOR_TYPES, MindSporeAdapter
from msprobe.mindspore.api_table import ApiTable
from msprobe.mindspore.graph_hooks import leave_sink_uncompiled
from msprobe.mindspore.graph_observer import GraphObserver
from msprobe.mindspore.graph_taps import are_visible
from msprobe.mindspore.jit_calls import cells_in_graphs
from msprobe.mindspore.observer import Observer


class Run:
    """One debugger's parts, complete from the start.

    Attributes:
        config: the settings.
        session: the state of the run.
        observer: watches cells and APIs in the dynamic graph.
        graph: watches cells in compiled graphs.
        custom_apis: the functions that the user registered.
    """

    def __init__(self, config: Config) -> None:
        """Build everything for `config`; nothing is installed and no file is touched."""
        self.config = config
        self.session = Session(config, MindSporeAdapter(config), TENSOR_TYPES)
        table = ApiTable(config.api_list, config.section.black_list)
        self.observer = Observer(self.session, table)
        self.graph = GraphObserver(self.session)
        self.custom_apis = CustomApis(self.observer.apis, self.session.run_undo)
        if config.level is Level.L0:
            leave_sink_uncompiled()
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()
        # Of cells in compiled parts, when the dynamic graph has such.
        self._graph_session: Session | None = None

    @property
    def models(self) -> tuple[nn.Cell, ...]:
        """The models given last, as long as the user keeps them."""
        return tuple(model for reference in self._models if (model := reference()) is not None)

    def start(
        self, models: Sequence[nn.Cell], token_range: tuple[int, int] | None, rank: int | None
    ) -> None:
        """Begin to observe, if the step is wanted.

        Raises:
            ConfigError: the level records cells and no model is known.
            UnsupportedError: graph mode at another level than L0, or a MindSpore before 2.10 in
                the dynamic graph.
        """
        if models:
            self._models = tuple(map(weakref.ref, models))
        if not self.models and self.config.level in (Level.L0, Level.MIX):
            rule = "the model to record, as in start(model)"
            hint = f"level {self.config.level} records cells"
            raise ConfigError("model", None, rule, source="start()", hint=hint)
        if mindspore.get_context("mode") == mindspore.GRAPH_MODE:
            self._start_graph(rank)
        else:
            self._start_dynamic(token_range, rank)

    def _start_dynamic(self, token_range: tuple[int, int] | None, rank: int | None) -> None:
        if not are_visible():
            raise UnsupportedError(
                f"MindSpore {mindspore.__version__} does not show its gradient graph; "
                "recording the dynamic graph needs 2.10 or newer"
            )
        compiled = (
            cells_in_graphs(self.models) if self.config.level in (Level.L0, Level.MIX) else ()
        )
        if compiled and self._graph_session is None:
            self._graph_session = self._split_dump()
            self.graph = GraphObserver(self._graph_session, takes_gradients=False)
        inside = {id(cell) for cell in compiled}
        if self._graph_session is not None:
            self.graph.watch(self.models, lambda cell: id(cell) in inside)
            if self._graph_session.start(rank=rank):
                self.graph.begin()
        if self.session.start(rank=rank):
            self.observer.watch(self.models, lambda cell: id(cell) not in inside)
            self.observer.install(token_range)

    def _split_dump(self) -> Session:
        """Make the dump one of two halves, and return the session of the other: graphs.

        Compiled parts know neither the order of calls nor where they were made, so their records
        stand apart.
        """
        path = self.config.dump_path
        graph = replace(self.config, dump_path=path / "graph", level=Level.L0)
        session = Session(graph, MindSporeAdapter(graph), TENSOR_TYPES)
        session.set_step(self.session.step_number)
        self.session.config = replace(self.config, dump_path=path / "pynative")
        self.session.run_undo.callback(session.close)
        leave_sink_uncompiled()
        return session

    def _start_graph(self, rank: int | None) -> None:
        """Begin to record what compiled graphs hand over; every step, as the hooks must be in."""
        if self.config.level is not Level.L0:
            raise UnsupportedError(
                f"start(): MindSpore runs in graph mode, which level {self.config.level} cannot "
                "record; use level L0, or set_context(mode=PYNATIVE_MODE)"
            )
        self.graph.watch(self.models)
        if self.session.start(rank=rank):
            self.graph.begin()

    def stop(self) -> None:
        """End observing."""
        if self._graph_session is not None:
            self._graph_session.stop()
        self.session.stop()

    def step(self) -> None:
        """End the step."""
        self.graph.end_step()
        if self._graph_session is not None:
            self._graph_session.step()
        self.session.step()


def as_models(model: Any) -> tuple[nn.Cell, ...]:
    """Return the models in an argument.

    Raises:
        ConfigError: it is no cell and no list or tuple of cells.
    """
    if model is None:
        return ()
    models = tuple(model) if isinstance(model, list | tuple) else (model,)
    for index, one in enumerate(models):
        if not isinstance(one, nn.Cell):
            key = f"model[{index}]" if len(models) > 1 else "model"
            rule = "a mindspore.nn.Cell, or a list or tuple of them"
            raise ConfigError(key, one, rule, source="start()")
    return models
