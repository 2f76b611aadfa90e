# SPDX-License-Identifier: Apache-2.0
"""Processes that replay calls: one that ends costs one task, not the others."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

import pytest

from msprobe.errors import UnsupportedError
from msprobe.replay.runner import Reason
from msprobe.replay.workers import Crash, Limits, run_tasks

# Each task is an expression that the process evaluates.
EVALUATE: Final = partial(eval, "eval")
CRASH: Final = "__import__('os').kill(__import__('os').getpid(), 11)"
HANG: Final = "__import__('time').sleep(60)"


@pytest.fixture(autouse=True, scope="module")
def warm_workers() -> None:
    """Start the processes as users do."""


def answers(tasks: list[str], **options: Any) -> dict[str, Any]:
    return dict(run_tasks(tasks, EVALUATE, **options))


def test_a_crash_is_one_row() -> None:
    found = answers(["1 + 1", CRASH, "2 + 2", "3 + 3"])

    assert found.pop(CRASH) == Crash(Reason.CRASHED, "SIGSEGV")
    assert found == {"1 + 1": 2, "2 + 2": 4, "3 + 3": 6}


def test_a_hang_is_one_row() -> None:
    found = answers([HANG, "1"], limits=Limits(seconds=0.5))

    assert found == {HANG: Crash(Reason.TIMEOUT, ""), "1": 1}


def test_too_much_memory_is_one_row() -> None:
    found = answers(["len(bytearray(10**9))", "1"], limits=Limits(memory_bytes=500_000_000))

    assert found == {"len(bytearray(10**9))": Crash(Reason.OUT_OF_MEMORY, ""), "1": 1}


def test_several_processes_share_the_tasks() -> None:
    tasks = [f"({number}, __import__('os').getpid())" for number in range(40)]

    found = answers(tasks, count=2)

    assert sorted(number for number, _ in found.values()) == list(range(40))


def test_an_error_of_a_task_is_one_row() -> None:
    assert answers(["1 / 0"])["1 / 0"].detail == "ZeroDivisionError: division by zero"


def test_a_process_that_cannot_start_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="no_such"):
        list(run_tasks(["1"], partial(eval, "no_such")))


@pytest.mark.timeout(120)
def test_a_cluster_shares_the_tasks_and_keeps_crashes_apart() -> None:
    distributed = pytest.importorskip("distributed")
    tasks = [CRASH, *map(str, range(120))]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        found = answers(tasks, scheduler=cluster.scheduler_address)
    assert found.pop(CRASH) == Crash(Reason.CRASHED, "SIGSEGV")
    assert found == {str(number): number for number in range(120)}


def test_ctrl_c_of_a_terminal_does_not_reach_the_processes() -> None:
    group = "__import__('os').getpgrp()"

    assert answers([group])[group] != os.getpgrp()
