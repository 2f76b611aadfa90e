# SPDX-License-Identifier: Apache-2.0
"""`BackgroundQueue.run`: at once where nothing waits, in order where something does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from msprobe.dump.background import BackgroundQueue


@pytest.fixture
def queue() -> Iterator[BackgroundQueue]:
    made = BackgroundQueue(1 << 20, "test-queue")
    yield made
    made.close()


def test_an_idle_queue_runs_a_task_on_the_calling_thread(queue: BackgroundQueue) -> None:
    seen: list[int] = []
    queue.run(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_a_task_waits_for_what_was_put_before(queue: BackgroundQueue) -> None:
    seen: list[str] = []

    def slow() -> None:
        time.sleep(0.1)
        seen.append("put")

    queue.put(slow)
    queue.run(lambda: seen.append("run"))
    assert seen == ["put", "run"]


def test_a_task_waits_for_one_that_became_due(queue: BackgroundQueue) -> None:
    seen: list[str] = []
    begun = threading.Event()

    def due() -> None:
        begun.set()
        time.sleep(0.1)
        seen.append("due")

    queue.put_later("key", due, time.monotonic())
    assert begun.wait(5)
    queue.run(lambda: seen.append("run"))
    assert seen == ["due", "run"]


def test_what_others_put_meanwhile_comes_after(queue: BackgroundQueue) -> None:
    seen: list[str] = []
    done = threading.Event()

    def task() -> None:
        other = threading.Thread(target=queue.put, args=(lambda: seen.append("other"),))
        other.start()
        other.join()
        time.sleep(0.05)  # the queue's thread would have run it by now
        seen.append("task")

    queue.run(task)
    queue.put(done.set)
    assert done.wait(5)
    assert seen == ["task", "other"]


def test_a_task_may_put_and_run_others(queue: BackgroundQueue) -> None:
    seen: list[str] = []

    def task() -> None:
        queue.put(lambda: seen.append("put"))
        queue.run(lambda: seen.append("run"))
        seen.append("task")

    queue.run(task)
    assert seen == ["put", "run", "task"]


def test_no_two_tasks_run_at_a_time(queue: BackgroundQueue) -> None:
    running = 0
    most = 0
    count = 0

    def task() -> None:
        nonlocal running, most, count
        running += 1
        most = max(most, running)
        time.sleep(0.0002)
        count += 1
        running -= 1

    def work() -> None:
        for number in range(60):
            (queue.put if number % 3 else queue.run)(task)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.run(lambda: None)
    assert (most, count) == (1, 240)
