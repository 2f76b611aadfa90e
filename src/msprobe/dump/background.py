# SPDX-License-Identifier: Apache-2.0
"""Two background threads: tasks in order behind a queue bounded in bytes, and a steady tick."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

Task = Callable[[], None]

# Bytes counted for a task without a payload, so that their number is bounded too.
_LEAST_BYTES: Final = 1024


class _Queued(NamedTuple):
    task: Task
    size_bytes: int


class BackgroundQueue:
    """Runs tasks one after the other on a daemon thread, which starts with the first task.

    Called from that thread itself, `put` and `run` execute the task at once: waiting for oneself
    would never end, and everything queued before is done. While `run` executes a task on its
    caller's thread, because nothing else is to be done, that thread counts as the queue's own.

    Args:
        limit_bytes: size of the waiting tasks at which `put` blocks. A single larger task is
            let in when nothing else waits.
        name: name of the thread.
    """

    def __init__(self, limit_bytes: int, name: str) -> None:
        self._limit_bytes = limit_bytes
        self._name = name
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._tasks: deque[_Queued] = deque()
        self._waiting_bytes = 0
        self._later: dict[Hashable, tuple[float, Task]] = {}
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._is_busy = False  # the thread executes a task
        self._helping_thread: int | None = None  # thread that executes a task in its place
        self.peak_bytes = 0

    def put(self, task: Task, size_bytes: int = 0) -> None:
        """Queue a task; blocks while the queue is full. Errors of tasks are logged."""
        if self._is_own_thread():
            _run_safely(task)
            return
        size_bytes = max(size_bytes, _LEAST_BYTES)
        with self._lock:
            has_thread = self._start()
            if has_thread:
                while self._waiting_bytes and self._waiting_bytes + size_bytes > self._limit_bytes:
                    self._has_room.wait()
                self._tasks.append(_Queued(task, size_bytes))
                self._waiting_bytes += size_bytes
                self.peak_bytes = max(self.peak_bytes, self._waiting_bytes)
                self._has_work.notify()
        if not has_thread:
            _run_safely(task)

    def run(self, task: Task) -> None:
        """Run a task behind everything queued so far, and wait until it is done."""
        if not self._is_own_thread() and self._run_here_if_idle():
            # On one core, handing over to the thread and back takes milliseconds.
            try:
                _run_safely(task)
            finally:
                with self._lock:
                    self._helping_thread = None
                    self._has_work.notify()
            return
        done = threading.Event()

        def run_and_notify() -> None:
            try:
                task()
            finally:
                done.set()

        self.put(run_and_notify)
        done.wait()

    def put_later(self, key: Hashable, task: Task, due: float) -> None:
        """Run a task at the time `due` (`time.monotonic`); the newest one of a key counts."""
        with self._lock:
            if self._start():
                self._later[key] = (due, task)
                self._has_work.notify()

    def cancel_later(self, key: Hashable) -> None:
        """Forget a task that was to run later."""
        with self._lock:
            self._later.pop(key, None)

    def close(self) -> None:
        """Run the queued tasks, drop those of `put_later`, and end the thread."""
        with self._lock:
            self._is_closing = True
            self._later.clear()
            self._has_work.notify()
            thread = self._thread
        if thread is not None and not self._is_own_thread():
            thread.join()

    def _is_own_thread(self) -> bool:
        current = threading.get_ident()
        return self._helping_thread == current or (
            self._thread is not None and self._thread.ident == current
        )

    def _run_here_if_idle(self) -> bool:
        """Run a task on the calling thread; return False while other tasks are before it."""
        with self._lock:
            if self._tasks or self._is_busy or self._helping_thread is not None:
                return False
            self._helping_thread = threading.get_ident()
            return True

    def _start(self) -> bool:
        """Start the thread; False when there can be none: closed, or the interpreter is ending."""
        if self._is_closing:
            return False
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                logger.debug("no background thread can be started any more")
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        while True:
            queued = self._next()
            if queued is None:
                return
            _run_safely(queued.task)
            task_bytes = queued.size_bytes
            del queued  # the task holds its payload; let go before memory is counted as free
            with self._lock:
                self._is_busy = False
                self._waiting_bytes -= task_bytes
                self._has_room.notify_all()

    def _next(self) -> _Queued | None:
        with self._lock:
            while True:
                if self._helping_thread is not None:
                    self._has_work.wait()
                    continue
                due_task = self._pop_due()
                if due_task is not None:
                    self._is_busy = True
                    return _Queued(due_task, 0)
                if self._tasks:
                    self._is_busy = True
                    return self._tasks.popleft()
                if self._is_closing:
                    return None
                self._has_work.wait(self._seconds_to_next())

    def _pop_due(self) -> Task | None:
        now = time.monotonic()
        for key, (due, task) in self._later.items():
            if due <= now:
                del self._later[key]
                return task
        return None

    def _seconds_to_next(self) -> float | None:
        if not self._later:
            return None
        return max(min(due for due, _ in self._later.values()) - time.monotonic(), 0.0)


class Ticker:
    """Calls one function every so often on a daemon thread, while it is switched on.

    It has a thread of its own because a task of the queue, such as one large tensor, may take
    longer than the interval.
    """

    def __init__(self, interval_s: float, action: Task, name: str) -> None:
        self._interval_s = interval_s
        self._action = action
        self._name = name
        # One condition for both flags: the action itself may switch off while `close` waits.
        self._changed = threading.Condition()
        self._is_on = False
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def switch_on(self) -> None:
        """Start calling."""
        with self._changed:
            if self._is_on or self._is_closing:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    logger.debug("no thread %s can be started any more", self._name)
                    return
                self._thread = thread
            self._is_on = True
            self._changed.notify()

    def switch_off(self) -> None:
        """Stop calling; the thread sleeps."""
        with self._changed:
            self._is_on = False

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join()

    def _work(self) -> None:
        while self._sleep():
            _run_safely(self._action)

    def _sleep(self) -> bool:
        """Wait until the next call is due; return False when the ticker was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_on or self._is_closing)
            self._changed.wait_for(lambda: self._is_closing, self._interval_s)
            return not self._is_closing


def _run_safely(task: Task) -> None:
    try:
        task()
    except Exception:
        # The training must survive us, and so must the thread that serves all later tasks.
        logger.exception("a background task of msprobe failed")
