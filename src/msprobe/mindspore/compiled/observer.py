# SPDX-License-Identifier: Apache-2.0
"""Watches the cells of models that run in compiled graphs (level L0, and mix in jitted parts)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from mindspore import nn
from msprobe.capture.session import Session
from msprobe.config import Config, StatisticsSection, SummaryMode, Task
from msprobe.mindspore.adapter import on_host
from msprobe.mindspore.cell_hooks import CellNames, own_parameters
from msprobe.mindspore.compiled import sink
from msprobe.mindspore.compiled.cells import CompiledCells
from msprobe.mindspore.compiled.constructs import handing_bprop, handing_construct
from msprobe.mindspore.compiled.fallback import CompileFallback
from msprobe.mindspore.compiled.optimizers import handing_optimizer, optimizers_of
from msprobe.mindspore.compiled.records import GraphRecords
from msprobe.mindspore.compiled.tensor_dump import TensorDumpFiles
from msprobe.mindspore.compiled.wanted_cells import wanted_cells
from msprobe.mindspore.guard import quietly

logger = logging.getLogger(__name__)


class GraphObserver:
    """Has cells compiled so that they hand over values, and records these in wanted steps."""

    def __init__(self, session: Session, begin: Callable[[], object] | None = None) -> None:
        """Create it; nothing is installed.

        Args:
            session: receives the calls and gradients.
            begin: see `GraphRecords`.
        """
        self._session = session
        self._begin = begin
        self._models: tuple[weakref.ref[nn.Cell], ...] = ()
        # In the order in which they are put in; optimisers may be cells of the model, too.
        self._optimizers: CompiledCells | None = None
        self._bprops: CompiledCells | None = None
        self._cells: CompiledCells | None = None
        self._records: GraphRecords | None = None
        self._files: TensorDumpFiles | None = None
        # Whether there are cells to record; `list` and `scope` may leave none.
        self._has_cells = False
        self._is_wanted = False
        self._put_in: list[CompiledCells] = []
        self._names: CellNames | None = None
        # Identities of the parameters whose gradients are recorded.
        self._wanted: set[int] = set()
        # Whether a step has ended since `watch`: by then the optimisers are there.
        self._has_stepped = False
        # Whether they were taken out because MindSpore could not compile them.
        self._is_left_out = False
        self._fallback = CompileFallback(self._before_run, self._leave_out, self._say_left_out)

    def watch(self, models: Sequence[nn.Cell]) -> bool:
        """Record the cells of these models in graphs that are compiled from now on.

        Returns:
            Whether they are others than before.
        """
        references = tuple(map(weakref.ref, models))
        if references == self._models:  # the same living objects
            return False
        self.take_out()
        self._models = references
        session = self._session
        names = CellNames(models)
        selection = session.calls.selection
        cells, around = wanted_cells(_of_the_user(names), selection)
        self._has_cells = bool(cells)
        self._records = GraphRecords(
            session,
            names,
            cells,
            around=around,
            after_stop=not on_host(),
            needs_values=self._begin is not None or not _wants_only_statistics(session.config),
            begin=self._begin,
        )
        backward = selection.data_mode.backward
        backward = backward and session.config.task is not Task.STRUCTURE
        self._optimizers = self._bprops = self._names = None
        self._has_stepped = False
        if on_host():
            session.run_undo.callback(sink.receive, None)
            self._cells = CompiledCells(cells, partial(handing_construct, backward=backward))
            if backward:
                with_own = [(cell, name) for cell, name in cells if cell.has_bprop]
                self._bprops = CompiledCells(with_own, handing_bprop, "bprop")
                self._names = names
                self._wanted = {
                    id(one) for cell, _ in cells for one in own_parameters(cell).values()
                }
            return True
        if self._files is None:
            rank = session.adapter.current_rank() or 0
            self._files = TensorDumpFiles(session.config.dump_path / f".graph_values_{rank}")
            self._files.open()
            session.run_undo.callback(self._files.close)
        make = partial(self._files.construct_for, backward=backward)
        self._cells = CompiledCells(cells, make)
        return True

    def expect_compilation(self) -> None:
        """Make sure that code that cannot be compiled for recording is compiled without."""
        self._fallback.install()

    def put_in(self, *, with_optimizers: bool = True) -> None:
        """Have the cells compiled in this way from now on, and the optimisers that train them."""
        if self._cells is None or self._is_left_out:
            return
        if self._has_stepped and self._cells in self._put_in:
            return
        self._give_back()
        self._fallback.install()
        if self._names is not None and not self._has_stepped:
            self._optimizers = CompiledCells(
                optimizers_of(self._names, self._wanted), partial(handing_optimizer, self._wanted)
            )
        if with_optimizers and self._optimizers is not None:
            self._put_in.append(self._optimizers)
        if self._bprops is not None:
            self._put_in.append(self._bprops)
        self._put_in.append(self._cells)
        for cells in self._put_in:
            cells.put_in()

    def take_out(self) -> None:
        """Restore the methods of the cells and the optimisers."""
        self._fallback.remove()
        self._is_left_out = False
        self._give_back()

    def take_out_cells(self) -> None:
        """Restore the methods of the cells; the optimisers may run later in the step."""
        while self._put_in and self._put_in[-1] is not self._optimizers:
            self._put_in.pop().take_out()

    def _give_back(self) -> None:
        while self._put_in:
            self._put_in.pop().take_out()

    def _before_run(self) -> None:
        self.expect_calls(self._session)
        if self._is_wanted and self._files is None and self._records is not None:
            self._session.wait_for_graphs()
            quietly(self._session, "graph values", self._records.settle)

    def expect_calls(self, session: Session) -> None:
        """Note in the account of `session` that compiled code runs, which has cells to record."""
        if self._has_cells:
            session.account.expected = "compiled code"

    def _leave_out(self) -> bool:
        """Remove everything from code that could not be compiled; return whether there was any."""
        was_in = bool(self._put_in)
        self._is_left_out = self._is_left_out or was_in
        self._give_back()
        return was_in

    def _say_left_out(self, error: Exception) -> None:
        lines = [line.strip() for line in str(error).splitlines()]
        reason = next((line for line in lines if line), type(error).__name__)
        logger.warning(
            "MindSpore could not compile a graph with what records its cells: it is compiled "
            "without, and they are not recorded (%s)",
            reason,
        )
        self._session.account.skipped["graphs that MindSpore could not compile for recording"] += 1

    def begin(self, callers: tuple[str, ...] = ()) -> None:
        """Record the values of graphs until the step ends.

        Args:
            callers: the frames that call a graph next, where they are known.
        """
        self._is_wanted = True
        if self._records is not None:
            self._records.callers = callers
        if self._files is None:
            sink.receive(self._records)

    def end_step(self) -> None:
        """Write the open records, and ignore further values."""
        self.take_out()
        if self._records is not None:
            sink.receive(None)
            if self._files is not None:
                wanted = self._records if self._is_wanted else None
                quietly(self._session, "graph values", self._files.end_step, wanted)
            self._is_wanted = False
            self._has_stepped = True
            quietly(self._session, "graph step", self._records.close)
            self._records.next_step()


def _wants_only_statistics(config: Config) -> bool:
    section = config.section
    return (
        isinstance(section, StatisticsSection)
        and section.summary_mode is not SummaryMode.MD5
        and not (section.slice or section.tensor_list)
    )


def _of_the_user(names: CellNames) -> Iterator[tuple[nn.Cell, str]]:
    """Yield the cells without the machinery of MindSpore's own wrappers."""
    for cell, name in names.items():
        path, _, kind = name.rpartition(".")
        is_machinery = kind.startswith("_") and type(cell).__module__.startswith("mindspore.")
        if not (is_machinery or path.endswith("grad_reducer")):
            yield cell, name
