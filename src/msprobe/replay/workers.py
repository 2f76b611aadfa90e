# SPDX-License-Identifier: Apache-2.0
"""`run_tasks`: tasks in processes that may crash, hang, or run out of memory.

Each process does one task at a time and answers it. A process that ends instead costs the task that
it was at: the row says how it ended, another process goes on with the rest.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any, Final

from msprobe.cluster import cluster
from msprobe.errors import MsprobeError, UnsupportedError
from msprobe.replay.runner import Reason

Task = Any
Work = Callable[[Task], Any]
Start = Callable[[], Work]

# A process has this many tasks before it, so that it never waits for the next.
_AHEAD: Final = 4
# Tasks for which a process on a cluster is worth its start, and parts for each of its workers.
_SMALLEST_PART: Final = 50
_PARTS_A_WORKER: Final = 4
# Of `faulthandler`, when the time is over.
_HUNG: Final = 1
_PROGRAM: Final = "from msprobe.replay.workers import serve; serve()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a task.

    Attributes:
        seconds: wall-clock time.
        memory_bytes: memory beyond that of the process when it starts; None for no limit.
    """

    seconds: float = 60.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Crash:
    """Answer of a task that ended its process.

    Attributes:
        reason: crash, time or memory.
        detail: the signal or the exit code.
    """

    reason: Reason
    detail: str


def run_tasks(
    tasks: Sequence[Task],
    start: Start,
    *,
    count: int = 1,
    limits: Limits | None = None,
    scheduler: str | None = None,
) -> Iterator[tuple[Task, Any]]:
    """Yield each task with its answer, in any order; a `Crash` where it ended its process.

    Args:
        tasks: what can be pickled.
        start: called once in each process; returns the function that does a task. A function of a
            module, or a `functools.partial` of one.
        count: number of processes; 0 to work in this one, where a crash ends it all.
        limits: of each task.
        scheduler: address of a dask cluster whose workers start the processes, one each, instead
            of this machine; they see the files of the tasks under the same paths.

    Raises:
        UnsupportedError: a process cannot even start, or no package talks to a cluster.
        UsageError: the cluster cannot be reached, or gives up.
    """
    if scheduler is not None:
        yield from _on_cluster(tasks, start, limits, scheduler)
        return
    if count == 0:
        work = start()
        yield from ((task, work(task)) for task in tasks)
        return
    waiting = deque(tasks)
    found = limits or Limits()
    workers: dict[Connection, _Worker] = {}
    try:
        for _ in range(min(count, len(tasks))):
            _add(workers, _Worker(start, found), waiting)
        while workers:
            for ready in wait(list(workers)):
                worker = workers[ready]  # type: ignore[index]  # only connections are in it
                answer = worker.answer()
                yield from answer.tasks
                if answer.is_alive:
                    worker.feed(waiting)
                    if worker.is_idle:
                        workers.pop(worker.connection).close()
                    continue
                workers.pop(worker.connection).close()
                waiting.extendleft(reversed(worker.left))
                if waiting:
                    _add(workers, _Worker(start, found), waiting)
    finally:
        for worker in workers.values():
            worker.close()


def _on_cluster(
    tasks: Sequence[Task], start: Start, limits: Limits | None, scheduler: str
) -> Iterator[tuple[Task, Any]]:
    with cluster(scheduler) as connected:
        # Each part starts a process; more parts than workers let the fast ones do more.
        size = max(_SMALLEST_PART, -(-len(tasks) // (_PARTS_A_WORKER * connected.workers)))
        parts = [tasks[at : at + size] for at in range(0, len(tasks), size)]
        for _, answers in connected.finished(partial(_part, start, limits), parts):
            yield from answers


def _part(start: Start, limits: Limits | None, tasks: Sequence[Task]) -> list[tuple[Task, Any]]:
    return list(run_tasks(tasks, start, limits=limits))


def _add(workers: dict[Connection, _Worker], worker: _Worker, waiting: deque[Task]) -> None:
    workers[worker.connection] = worker
    worker.feed(waiting)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Results of a process: finished tasks, and whether it goes on."""

    tasks: list[tuple[Task, Any]] = field(default_factory=list)
    is_alive: bool = True


class _Worker:
    """One process and the tasks that it has."""

    def __init__(self, start: Start, limits: Limits) -> None:
        here, there = socket.socketpair()
        with there:
            self._process = Popen(
                [sys.executable, "-c", _PROGRAM],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=there.fileno(),
                stdout=DEVNULL,
                start_new_session=True,  # Ctrl-C ends it through the other end of the socket
            )
        self.connection = Connection(here.detach())
        self._has_started = False
        self.left: deque[Task] = deque()
        self._send((start, limits))

    @property
    def is_idle(self) -> bool:
        return not self.left

    def feed(self, waiting: deque[Task]) -> None:
        """Give it tasks from those that wait."""
        while waiting and len(self.left) < _AHEAD:
            task = waiting.popleft()
            self.left.append(task)
            self._send(task)

    def _send(self, message: Any) -> None:
        try:
            self.connection.send_bytes(pickle.dumps(message))
        except OSError:
            return  # it has ended, which `answer` finds out

    def answer(self) -> _Answer:
        """Return what it says; reading fails once the process has ended."""
        try:
            result = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            return self._ended()
        if not self._has_started:
            self._has_started = True
            if result is not None:
                self.close()
                raise UnsupportedError(str(result))
            return _Answer()
        return _Answer([(self.left.popleft(), result)])

    def _ended(self) -> _Answer:
        code = self._process.wait()
        if not self._has_started:
            raise UnsupportedError(f"a process that replays calls ended at once: {_how(code)[1]}")
        if not self.left:
            return _Answer(is_alive=False)
        return _Answer([(self.left.popleft(), Crash(*_how(code)))], is_alive=False)

    def close(self) -> None:
        """End the process."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def _how(code: int) -> tuple[Reason, str]:
    """Return how a process ended, by its exit code."""
    if code == _HUNG:
        return Reason.TIMEOUT, ""
    if code == -signal.SIGKILL:
        return Reason.OUT_OF_MEMORY, "killed by the system"
    if code < 0:
        return Reason.CRASHED, signal.Signals(-code).name
    return Reason.CRASHED, f"exit code {code}"


def serve() -> None:
    """Do tasks until the other end of the standard input, a socket, closes."""
    connection = Connection(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    start, limits = pickle.loads(connection.recv_bytes())
    try:
        work = start()
    except Exception as exc:  # noqa: BLE001 - told to the process that started this one
        kind = "" if isinstance(exc, MsprobeError) else f"{type(exc).__name__}: "
        connection.send_bytes(pickle.dumps(f"{kind}{exc}"))
        return
    if limits.memory_bytes is not None:
        _limit_memory(limits.memory_bytes)
    connection.send_bytes(pickle.dumps(None))
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        answer = _answer(work, task, limits.seconds)
        connection.send_bytes(pickle.dumps(answer))


def _answer(work: Work, task: Task, seconds: float) -> Any:
    """Return the answer of a task; the process ends when it takes too long, even in a kernel."""
    with Path(os.devnull).open("w") as silent:
        faulthandler.dump_traceback_later(seconds, exit=True, file=silent)
        try:
            return work(task)
        except MemoryError:
            return Crash(Reason.OUT_OF_MEMORY, "")
        except Exception as exc:  # noqa: BLE001 - one task must not cost the others
            return Crash(Reason.CRASHED, f"{type(exc).__name__}: {exc}")
        finally:
            faulthandler.cancel_dump_traceback_later()


def _limit_memory(size_bytes: int) -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + size_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
