# SPDX-License-Identifier: Apache-2.0
"""Watches the cells of models that run as compiled graphs (level L0)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from mindspore import nn
from msprobe.capture.session import Session
from msprobe.config import Task
from msprobe.mindspore import graph_sink
from msprobe.mindspore.adapter import on_host
from msprobe.mindspore.cell_hooks import CellNames
from msprobe.mindspore.graph_hooks import install_graph_hooks, refuse_compiled
from msprobe.mindspore.graph_records import GraphRecords
from msprobe.mindspore.graph_tensor_dump import TensorDumpFiles
from msprobe.mindspore.quiet import quietly


class GraphObserver:
    """Puts the hooks in once, and lets what they hand over through while capturing."""

    def __init__(self, session: Session, *, takes_gradients: bool = True) -> None:
        """Create it; nothing is installed.

        Args:
            session: receives what is seen.
            takes_gradients: whether backward hooks are compiled in. MindSpore 2.10 cannot compile
                them where a graph is a part of a dynamic one, whose gradient is taken from outside.
        """
        self._session = session
        self._takes_gradients = takes_gradients
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()
        self._records: GraphRecords | None = None
        self._files: TensorDumpFiles | None = None
        self._is_wanted = False

    def watch(
        self, models: Sequence[nn.Cell], keeps: Callable[[nn.Cell], bool] | None = None
    ) -> None:
        """Put hooks into these models, unless they are there.

        Args:
            models: the models.
            keeps: says which cells run in graphs; None for all.

        Raises:
            UsageError: a graph was compiled already.
        """
        references = tuple(map(weakref.ref, models))
        if references == self._models:  # the same living objects
            return
        refuse_compiled(models)
        self._models = references
        session = self._session
        names = CellNames(models, keeps)
        self._records = GraphRecords(session, names, after_stop=not on_host())
        backward = session.recorder.selection.data_mode.backward
        backward = backward and self._takes_gradients and session.config.task is not Task.STRUCTURE
        if on_host():
            install_graph_hooks(names, session.run_undo, wants=_is_of_the_user, backward=backward)
            session.run_undo.callback(graph_sink.receive, None)
            return
        rank = session.adapter.current_rank() or 0
        self._files = TensorDumpFiles(session.config.dump_path / f".graph_values_{rank}")
        self._files.install(names, session.run_undo, wants=_is_of_the_user, backward=backward)

    def begin(self) -> None:
        """Let what graphs hand over through until the step ends."""
        self._is_wanted = True
        if self._files is None:
            graph_sink.receive(self._records)

    def end_step(self) -> None:
        """Write what is open, and let nothing through any more."""
        if self._records is not None:
            graph_sink.receive(None)
            if self._files is not None:
                wanted = self._records if self._is_wanted else None
                quietly(self._session, "graph values", self._files.end_step, wanted)
            self._is_wanted = False
            self._records.close()
            self._records.next_step()


def _is_of_the_user(cell: str) -> bool:
    """Return whether a cell is no machinery of MindSpore's own wrappers."""
    path, _, kind = cell.rpartition(".")
    return not kind.startswith("_") and not path.endswith("grad_reducer")
