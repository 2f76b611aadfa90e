# SPDX-License-Identifier: Apache-2.0
"""Hand rows to the store and to listeners, on a thread of their own."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msprobe.dump.background import BackgroundQueue
from msprobe.errors import MonitorWriteError
from msprobe.monitor.listeners import RowListener
from msprobe.monitor.rows import Rows
from msprobe.monitor.store import RunWriter

logger = logging.getLogger(__name__)

_QUEUE_BYTES: Final = 256 << 20
_ROW_BYTES: Final = 512


MakeRows = Callable[[], Sequence[Rows]]
"""Makes the rows of a step, from what was collected; runs on the recorder's thread."""


class Recorder:
    """The rows of one process.

    A full disk, or a listener that raises, is told once; the training goes on.

    Attributes:
        stop_request: why a listener wants the training to end; None while none does.
        is_writing: whether rows still reach the disk.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        head: dict[str, Any],
        *,
        listeners: Sequence[RowListener] = (),
    ) -> None:
        """Open the store.

        Raises:
            MonitorWriteError: it cannot be written, or another process writes to it.
        """
        self.directory = directory
        self.stop_request: str | None = None
        self.is_writing = True
        self._writer = RunWriter(directory, rank, head)
        self._listeners = list(listeners)
        self._queue = BackgroundQueue(_QUEUE_BYTES, "msprobe-monitor")
        self._is_closed = False
        atexit.register(self.close)

    def add_listener(self, listener: RowListener) -> None:
        """Let a listener see the rows that come from now on."""
        self._queue.put(lambda: self._listeners.append(listener))

    def replace_listeners(self, old: Sequence[RowListener], new: Sequence[RowListener]) -> None:
        """Close some listeners, and let others see the rows that come from now on."""
        self._queue.put(lambda: self._replace(old, new))

    def ask_to_stop(self, reason: str) -> None:
        """Have the next step of the optimizer raise `MonitorStop` in the training's thread."""
        self.stop_request = self.stop_request or reason

    def put_step(self, step: int, make_rows: MakeRows, row_count: int) -> None:
        """Queue the rows of a step.

        Args:
            step: the step.
            make_rows: makes them later.
            row_count: about how many there are.
        """
        self._queue.put(lambda: self._write_step(step, make_rows), row_count * _ROW_BYTES)

    def wait(self) -> None:
        """Wait until everything queued so far is on disk."""
        self._queue.run(lambda: None)

    def close(self) -> None:
        """Write what waits and close the store; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        self._queue.run(self._end)
        self._queue.close()

    # -- on the thread ---------------------------------------------------------------------------

    def _write_step(self, step: int, make_rows: MakeRows) -> None:
        found = make_rows()
        if self.is_writing:
            try:
                for rows in found:
                    self._writer.append(rows)
                self._writer.flush()
            except MonitorWriteError as error:
                self.is_writing = False
                logger.error("the monitor stops writing, the training goes on: %s", error)  # noqa: TRY400
        for rows in found:
            self._tell(lambda one, rows=rows: one.take(rows))  # type: ignore[misc]
        now = time.time()
        self._tell(lambda one: one.end_step(step, now))

    def _tell(self, event: Callable[[RowListener], None]) -> None:
        for listener in list(self._listeners):
            try:
                event(listener)
            except Exception:  # the run must survive a listener
                self._listeners.remove(listener)
                logger.exception(
                    "%s of the monitor failed and is left out", type(listener).__name__
                )

    def _replace(self, old: Sequence[RowListener], new: Sequence[RowListener]) -> None:
        kept = [one for one in self._listeners if one not in old]
        self._listeners = [one for one in self._listeners if one in old]
        self._tell(lambda one: one.close())
        self._listeners = [*kept, *new]

    def _end(self) -> None:
        self._tell(lambda one: one.close())
        try:
            self._writer.close()
        except MonitorWriteError as error:
            if self.is_writing:
                logger.error("the end of the run is not written: %s", error)  # noqa: TRY400
