# SPDX-License-Identifier: Apache-2.0
"""The writing end of a dump: one `DumpWriter` a process, one `RankDump` a step.

    writer = DumpWriter()
    dump = writer.open(directory, DumpHead("statistics", "mix", "pytorch"))
    dump.put_record("Functional.relu.0.forward", 0, {"input_args": []})
    dump.close()
    writer.close()

Records are turned into bytes on the calling thread and reach the journal within the flush
interval, also while the training is busy; a killed process loses at most those. Tensor files
are serialised on one background thread behind a queue bounded in bytes.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from msprobe.dump import clearing, layout
from msprobe.dump.background import BackgroundQueue, Ticker
from msprobe.dump.journal import DumpHead, Journal
from msprobe.dump.rank_dump import RankDump, WriteAccount
from msprobe.dump.tensor_store import MAX_LINKS, TensorPayload
from msprobe.errors import DumpWriteError, UsageError

__all__ = ["DumpHead", "DumpWriter", "RankDump", "TensorPayload", "WriteAccount"]

logger = logging.getLogger(__name__)

# Another rank's clearing may drop the empty step folder between two of our steps.
_FOLDER_ATTEMPTS: Final = 20

# Seconds of records that a killed process loses. Twenty small writes a second do not change the
# measured time of a record; a write for each record does.
_FLUSH_INTERVAL_S: Final = 0.05


class DumpWriter:
    """Hands out the dumps of a process and owns its two background threads.

    A forked child inherits a writer that does nothing. At exit, open dumps are closed.

    Args:
        queue_bytes: tensor data that may wait to be written; `put_tensor` blocks beyond it.
        flush_interval_s: longest time for which a record stays in memory only.
        max_links: names that one tensor file may get before a fresh copy is made.
    """

    def __init__(
        self,
        *,
        queue_bytes: int = 256 << 20,
        flush_interval_s: float = _FLUSH_INTERVAL_S,
        max_links: int = MAX_LINKS,
    ) -> None:
        self._max_links = max_links
        self._queue = BackgroundQueue(queue_bytes, "msprobe-writer")
        self._ticker = Ticker(flush_interval_s, self._flush, "msprobe-journal")
        self._open: list[RankDump] = []
        self._cleared: set[tuple[Path, str]] = set()
        self._reported: set[int] = set()
        self._is_closed = False
        self._is_forked = False
        _WRITERS.add(self)
        atexit.register(self.close)

    def open(
        self, directory: Path, head: DumpHead, *, extra_info: bool = True, held: bool = False
    ) -> RankDump:
        """Start the dump of one step and rank.

        The first dump of a run in a dump path clears the rank folder's old files in every step;
        each one clears its own folder. The user's files stay.

        Args:
            directory: ``{dump_path}/step{n}/{rank folder}``; made if missing.
            head: task, level and framework.
            extra_info: whether ``stack.json`` and ``construct.json`` are written.
            held: whether it stays in memory until `RankDump.release`, without tensor files.

        Returns:
            The dump. If the folder cannot be made, one that does nothing: the error is logged.

        Raises:
            UsageError: the writer was closed.
        """
        if self._is_closed and not self._is_forked:
            raise UsageError("the writer is closed; make a new one")
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 (resolve() follows links)
        if self._is_forked:
            return self._make(directory, None)
        for earlier in [dump for dump in self._open if dump.directory == directory]:
            earlier.close()
        try:
            if not held:
                self._prepare(directory)
            head = replace(head, extra_info=extra_info)
            journal = Journal(directory / layout.JOURNAL, head, in_memory=held)
        except OSError as exc:
            dump = self._make(directory, None)
            dump.fail(exc, directory)
            return dump
        dump = self._make(directory, journal, self._prepare if held else None)
        self._open = [other for other in self._open if not other.is_closed]
        self._open.append(dump)
        self._ticker.switch_on()
        return dump

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task on the writer's thread, after everything queued before.

        It may call `RankDump.close`. An exception that it raises is logged.
        """
        if not self._is_forked:
            self._queue.put(task)

    def close(self) -> None:
        """Flush the queue, close the open dumps, end the threads. Further calls do nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        for dump in self._open:
            dump.close()
        self._open = []
        self._ticker.close()
        self._queue.close()

    def abandon(self) -> None:
        """Stop all work without taking a lock: for a forked child, which has no threads."""
        self._is_forked = self._is_closed = True
        for dump in self._open:
            dump.abandon()

    @property
    def peak_queue_bytes(self) -> int:
        """Largest size of the queue so far."""
        return self._queue.peak_bytes

    def _make(
        self,
        directory: Path,
        journal: Journal | None,
        prepare: Callable[[Path], None] | None = None,
    ) -> RankDump:
        dump = RankDump(
            directory,
            journal,
            queue=self._queue,
            report=self._report,
            max_links=self._max_links,
            prepare=prepare,
        )
        if self._is_forked:
            dump.abandon()
        return dump

    def _prepare(self, directory: Path) -> None:
        step = directory.parent
        run = (step.parent, directory.name)
        if layout.STEP_FOLDER.fullmatch(step.name) and run not in self._cleared:
            self._cleared.add(run)
            clearing.clear_run(*run)
        for attempt in range(_FOLDER_ATTEMPTS):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError:
                if attempt == _FOLDER_ATTEMPTS - 1:
                    raise
            else:
                break
        clearing.clear_directory(directory)

    def _flush(self) -> None:
        for dump in self._open:
            dump.flush()
        if not self._has_open():
            self._ticker.switch_off()
            if self._has_open():  # opened between the two lines
                self._ticker.switch_on()

    def _has_open(self) -> bool:
        return any(not dump.is_closed for dump in self._open)

    def _report(self, problem: DumpWriteError, code: int) -> None:
        """Log the first problem of a kind in a run as an error: each step would repeat it."""
        level = logging.DEBUG if code in self._reported else logging.ERROR
        self._reported.add(code)
        logger.log(level, "%s", problem)


# Needed after fork.
_WRITERS: Final[weakref.WeakSet[DumpWriter]] = weakref.WeakSet()


def _abandon_all() -> None:
    for writer in list(_WRITERS):
        writer.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
