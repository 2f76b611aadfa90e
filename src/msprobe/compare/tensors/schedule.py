# SPDX-License-Identifier: Apache-2.0
"""Many pairs of tensors, measured on all cores or on a cluster.

The work is cut by bytes: large tensors are jobs of their own and begin first, small ones go in
batches. Who does a batch, and when, leaves no trace in the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from msprobe.cluster import cluster
from msprobe.compare.tensors.finished_pairs import FinishedPairs
from msprobe.compare.tensors.tensor_pairs import (
    TensorJob,
    TensorOutcome,
    Workspace,
    measure_pair,
)

_BATCH_BYTES: Final = 64 << 20
_BATCH_JOBS: Final = 500
# What opening two files costs, in bytes of comparison.
_BYTES_A_JOB: Final = 256 << 10
# Below it nearly all of the work is Python's, which threads would only take from each other.
_SMALL_BYTES: Final = 512 << 10


class Batch(NamedTuple):
    """Jobs that are done one after another.

    Attributes:
        jobs: the jobs.
        size: bytes of their files.
    """

    jobs: tuple[TensorJob, ...]
    size: int

    @property
    def is_small(self) -> bool:
        """Whether its tensors are small on the average."""
        return self.size < _SMALL_BYTES * len(self.jobs)


def measure_all(
    jobs: Sequence[TensorJob],
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: Callable[[int], object] | None = None,
    resume: FinishedPairs | None = None,
) -> list[TensorOutcome]:
    """Compare pairs of tensors.

    Args:
        jobs: the pairs. On a cluster, its workers must see the files under the same paths and have
            the same version of msprobe installed.
        workers: threads; None for one per core. Without meaning on a cluster.
        scheduler: address of a dask scheduler (``tcp://host:8786``); None to work here.
        progress: called on this thread with the bytes of files that have been dealt with since the
            last call; in the end their sum is `files_size`.
        resume: outcomes of an earlier attempt, which are taken over, and where new ones are kept.

    Returns:
        The outcomes, in the order of the jobs.

    Raises:
        UnsupportedError: the package that talks to the cluster is not installed.
        UsageError: the cluster cannot be reached, or gives up.
    """
    report = progress or _ignore
    outcomes: dict[int, TensorOutcome] = {}
    sizes = [_size(job) for job in jobs]
    left: list[tuple[int, TensorJob]] = []
    for job, size in zip(jobs, sizes, strict=True):
        known = None if resume is None else resume.find(job)
        if known is None:
            left.append((size, job))
        else:
            outcomes[job.index] = known
            report(size)
    batches = cut(left)
    with _finished_batches(batches, workers, scheduler) as finished:
        for batch, found in finished:
            outcomes.update((outcome.index, outcome) for outcome in found)
            if resume is not None:
                resume.add(batch.jobs, found)
            report(batch.size)
    return [outcomes[job.index] for job in jobs]


def files_size(jobs: Iterable[TensorJob]) -> int:
    """Return the bytes of all files of the jobs; files that are not there have none."""
    return sum(map(_size, jobs))


def _size(job: TensorJob) -> int:
    return _size_of(job.target) + _size_of(job.reference) if job.size is None else job.size


def _size_of(path: str | Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - several times faster, and there are many
    except (OSError, ValueError):
        return 0


def cut(sized_jobs: Iterable[tuple[int, TensorJob]]) -> list[Batch]:
    """Cut jobs into batches, the largest jobs first.

    Args:
        sized_jobs: the bytes of each job's files, and the job.
    """
    batches: list[Batch] = []
    jobs: list[TensorJob] = []
    size = cost = 0
    for job_size, job in sorted(sized_jobs, key=lambda item: (-item[0], item[1].index)):
        job_cost = job_size + _BYTES_A_JOB
        if jobs and (cost + job_cost > _BATCH_BYTES or len(jobs) == _BATCH_JOBS):
            batches.append(Batch(tuple(jobs), size))
            jobs, size, cost = [], 0, 0
        jobs.append(job)
        size += job_size
        cost += job_cost
    if jobs:
        batches.append(Batch(tuple(jobs), size))
    return batches


def measure_batch(batch: Batch) -> list[TensorOutcome]:
    """Do jobs one after another, in a thread or a worker of a cluster."""
    workspace = Workspace()
    return [measure_pair(job, workspace) for job in batch.jobs]


_Finished = Iterator[tuple[Batch, list[TensorOutcome]]]
_Outcomes = Future[list[TensorOutcome]]
_Done = SimpleQueue[tuple[Batch, _Outcomes]]


@contextmanager
def _finished_batches(
    batches: list[Batch], workers: int | None, scheduler: str | None
) -> Iterator[_Finished]:
    """Context with an iterator over finished batches; leaving early drops the others."""
    if scheduler is not None:
        with cluster(scheduler) as connected:
            yield connected.finished(measure_batch, batches)
        return
    large = [batch for batch in batches if not batch.is_small]
    small = [batch for batch in batches if batch.is_small]
    count = min(workers or _cores(), len(large))
    if count <= 1:
        yield ((batch, measure_batch(batch)) for batch in batches)
        return
    executor = ThreadPoolExecutor(count, thread_name_prefix="msprobe-compare")
    try:
        yield _from_threads(executor, large, small)
    finally:
        executor.shutdown(cancel_futures=True)


def _from_threads(
    executor: ThreadPoolExecutor, large: list[Batch], small: list[Batch]
) -> _Finished:
    """Do large batches on threads and small ones here meanwhile.

    Results come through a queue: an interrupt inside `concurrent.futures.wait` may leave locks of
    futures taken, for which their threads would then wait for ever.
    """
    done: _Done = SimpleQueue()
    for batch in large:
        executor.submit(measure_batch, batch).add_done_callback(partial(_hand_in, done, batch))
    left = len(large)
    for batch in small:
        yield batch, measure_batch(batch)
        while not done.empty():
            left -= 1
            yield _take(done)
    for _ in range(left):
        yield _take(done)


def _hand_in(done: _Done, batch: Batch, future: _Outcomes) -> None:
    done.put((batch, future))


def _take(done: _Done) -> tuple[Batch, list[TensorOutcome]]:
    batch, future = done.get()
    return batch, future.result()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _ignore(_size: int) -> None:
    """Report nothing."""
