# SPDX-License-Identifier: Apache-2.0
"""Many pairs are measured in any number of threads, on a cluster, and in several attempts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msprobe.compare.tensors.finished_pairs import FILE_NAME, FinishedPairs
from msprobe.compare.tensors.schedule import cut, files_size, measure_all
from msprobe.compare.tensors.tensor_pairs import TensorJob, measure_pair
from msprobe.errors import UnsupportedError, UsageError
from msprobe.numerics.elementwise import Tolerance

TOLERANCE = Tolerance(1e-3, 0.0)


def make_jobs(folder: Path, counts: list[int]) -> list[TensorJob]:
    """Write pairs of arrays with so many elements; every third pair is equal."""
    jobs = []
    for index, count in enumerate(counts):
        values = np.random.default_rng(index).standard_normal(min(count, 1000)).astype("f4")
        paths = folder / f"t{index}.npy", folder / f"r{index}.npy"
        for path, factor in zip(paths, (1, 1 + index % 3 * 1e-3), strict=True):
            if count < 1000:
                np.save(path, values * np.float32(factor))
                continue
            # Mostly zeros, without blocks on the disk.
            array = np.lib.format.open_memmap(path, "w+", "<f4", (count,))
            array[-1000:] = values * np.float32(factor)
            del array
        jobs.append(TensorJob(index, *paths, TOLERANCE))
    return jobs


SIZES = [10, 9_000_000, 3, 500_000, 0, 70_000, 2_000_000, 10, 400_000, 9_000_000, *[50] * 20]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> list[TensorJob]:
    return make_jobs(tmp_path_factory.mktemp("pairs"), SIZES)


@pytest.fixture(scope="module")
def wanted(jobs):
    return [measure_pair(job) for job in jobs]


@pytest.mark.parametrize("workers", [None, 1, 2, 3])
def test_the_number_of_threads_leaves_no_trace(jobs, wanted, workers):
    seen: list[int] = []
    found = measure_all(jobs, workers=workers, progress=seen.append)
    assert repr(found) == repr(wanted)
    assert sum(seen) == files_size(jobs)
    assert len(seen) > 1


def test_outcomes_stand_in_the_order_of_the_jobs_whatever_their_numbers(jobs, wanted):
    shuffled = [jobs[index] for index in (5, 3, 8, 1)]
    assert [one.index for one in measure_all(shuffled, workers=2)] == [5, 3, 8, 1]
    assert measure_all([]) == []


def test_bad_files_leave_the_others_alone(jobs, wanted, tmp_path):
    bad = TensorJob(100, tmp_path / "missing.npy", jobs[0].reference, TOLERANCE)
    found = measure_all([bad, *jobs], workers=2)
    assert "missing.npy" in found[0].problem
    assert repr(found[1:]) == repr(wanted)


@given(st.lists(st.integers(0, 100 << 20), max_size=1200))
def test_batches_hold_every_job_once_largest_first_and_no_more_than_they_should(sizes):
    path = Path("x")
    jobs = [TensorJob(index, path, path, TOLERANCE) for index in range(len(sizes))]
    batches = cut(zip(sizes, jobs, strict=True))
    order = [job.index for batch in batches for job in batch.jobs]
    assert sorted(order) == list(range(len(sizes)))
    ordered = [sizes[index] for index in order]
    assert ordered == sorted(sizes, reverse=True)
    for batch in batches:
        assert batch.size == sum(sizes[job.index] for job in batch.jobs)
        assert len(batch.jobs) == 1 or batch.size <= 64 << 20


# --- a comparison that was interrupted -------------------------------------------------------


class StopHereError(Exception):
    pass


def interrupt(jobs: list[TensorJob], folder: Path, after: int) -> None:
    """Measure, and stop after so many reports of progress."""
    reports = iter(range(after))

    def progress(_size: int) -> None:
        if next(reports, None) is None:
            raise StopHereError

    with (
        contextlib.suppress(StopHereError),
        FinishedPairs(folder, patience_s=0) as finished,
    ):
        measure_all(jobs, workers=1, progress=progress, resume=finished)


def spoil(path: Path) -> None:
    """Change a file's elements without a sign: who reads it again gives another answer."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(1e9).tobytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def fresh(tmp_path):
    """Return pairs that a test may spoil, and what becomes of them unspoiled."""
    (tmp_path / "data").mkdir()
    jobs = make_jobs(tmp_path / "data", [9_000_000, 8_500_000, 8_400_000, 100, 200])
    return jobs, measure_all(jobs)


def test_what_was_measured_is_taken_over(fresh, tmp_path):
    jobs, wanted = fresh
    interrupt(jobs, tmp_path, after=2)
    for job in jobs:
        spoil(job.target)
    with FinishedPairs(tmp_path) as finished:
        assert finished.count == 3  # the third was done when its report was refused
        found = measure_all(jobs, resume=finished)
    assert repr(found[:3]) == repr(wanted[:3])
    assert found[3].metrics.max_abs_err > 1e8
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize("change", ["time", "size", "inode", "tolerance", "path"])
def test_a_pair_that_changed_is_measured_again(fresh, tmp_path, change):
    jobs, _ = fresh
    interrupt(jobs, tmp_path, after=1)
    job = jobs[0]
    with FinishedPairs(tmp_path) as finished:
        assert finished.find(job) is not None
        if change == "time":
            os.utime(job.target, ns=(1, 1))
        elif change == "size":
            with job.target.open("ab") as file:
                file.write(b"x")
            os.utime(job.target, ns=(job.reference.stat().st_mtime_ns,) * 2)
        elif change == "inode":
            status = job.target.stat()
            copy = job.target.with_suffix(".copy")
            copy.write_bytes(job.target.read_bytes())
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            copy.replace(job.target)
        elif change == "tolerance":
            job = TensorJob(0, job.target, job.reference, Tolerance(1e-4, 0.0))
        else:
            job = TensorJob(0, job.reference, job.target, TOLERANCE)
        assert finished.find(job) is None


@pytest.mark.parametrize("damage", ["cut", "flip", "append", "other version", "garbage"])
def test_a_torn_file_costs_only_what_was_torn(fresh, tmp_path, damage):
    jobs, wanted = fresh
    interrupt(jobs, tmp_path, after=2)
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    kept = {"cut": 2, "flip": 2, "append": 3}.get(damage, 0)
    match damage:
        case "cut":
            del content[-3:]
        case "flip":
            content[-3] ^= 1
        case "append":
            content += b"\x10\0\0\0abc"
        case "other version":
            content = content.replace(b"msprobe ", b"msprobe 9.", 1)
        case "garbage":
            content = bytearray(os.urandom(300))
    path.write_bytes(content)
    for _ in range(2):  # the second attempt reads what the first one mended
        with contextlib.suppress(StopHereError), FinishedPairs(tmp_path, patience_s=0) as finished:
            assert finished.count == kept
            raise StopHereError
    with FinishedPairs(tmp_path, patience_s=0) as finished:
        assert repr(measure_all(jobs, resume=finished)) == repr(wanted)


def test_values_of_every_kind_survive_the_disk(tmp_path):
    pairs = {
        "complex": (np.array([1 + 2j, np.nan]), np.array([1 - 2j, np.nan])),
        "huge": (np.array([2**63 - 1]), np.array([-(2**63)])),
        "unsigned": (np.array([2**64 - 1], "u8"), np.array([1], "u8")),
        "zero": (np.array([1.0, np.inf]), np.array([0.0, -np.inf])),
        "bool": (np.array([True]), np.array([False])),
    }
    jobs = []
    for index, (name, arrays) in enumerate(pairs.items()):
        paths = tmp_path / f"t_{name}.npy", tmp_path / f"r_{name}.npy"
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        jobs.append(TensorJob(index, *paths, TOLERANCE))
    wanted = measure_all(jobs)
    interrupt(jobs, tmp_path, after=0)
    with FinishedPairs(tmp_path) as finished:
        assert finished.count == len(jobs)
        assert repr([finished.find(job) for job in jobs]) == repr(wanted)


def test_problems_are_tried_anew(fresh, tmp_path):
    jobs, _ = fresh
    content = jobs[0].target.read_bytes()
    jobs[0].target.write_bytes(content[:1000])
    interrupt(jobs, tmp_path, after=5)
    jobs[0].target.write_bytes(content)
    with FinishedPairs(tmp_path) as finished:
        assert finished.find(jobs[0]) is None
        assert measure_all(jobs, resume=finished)[0].problem == ""


def test_a_short_comparison_leaves_no_file(fresh, tmp_path):
    jobs, _ = fresh
    with FinishedPairs(tmp_path, patience_s=60) as finished:
        measure_all(jobs, resume=finished)
        assert not (tmp_path / FILE_NAME).exists()


def test_two_comparisons_into_one_folder_do_not_mix(fresh, tmp_path):
    jobs, wanted = fresh
    with FinishedPairs(tmp_path, patience_s=0) as first:
        measure_all(jobs[:2], resume=first)
        with FinishedPairs(tmp_path, patience_s=0) as second:
            assert second.count == 0
            assert repr(measure_all(jobs, resume=second)) == repr(wanted)
        assert (tmp_path / FILE_NAME).exists()


def test_a_folder_that_cannot_be_written_costs_a_warning_only(fresh, tmp_path, caplog):
    jobs, wanted = fresh
    with FinishedPairs(tmp_path / "nowhere", patience_s=0) as finished:
        assert repr(measure_all(jobs, resume=finished)) == repr(wanted)
    assert "will not resume" in caplog.text


KILLED_PROGRAM = """
import sys
from pathlib import Path
from msprobe.numerics.elementwise import Tolerance
from msprobe.compare.tensors.finished_pairs import FinishedPairs
from msprobe.compare.tensors.schedule import measure_all
from msprobe.compare.tensors.tensor_pairs import TensorJob
folder = Path(sys.argv[1])
jobs = [
    TensorJob(i, folder / f"t{i}.npy", folder / f"r{i}.npy", Tolerance(1e-3, 0.0))
    for i in range(int(sys.argv[2]))
]
with FinishedPairs(folder, patience_s=0) as finished:
    print(finished.count, flush=True)
    measure_all(jobs, progress=lambda size: print(size, flush=True), resume=finished)
print("done", flush=True)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_is_continued(tmp_path, signal_number):
    count = 40
    for name, one in (("t", 0.0), ("r", 1.0)):
        array = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", "<f4", (12 << 20,))
        array[0] = one
        del array
        for index in range(count):
            (tmp_path / f"{name}{index}.npy").symlink_to(tmp_path / f"{name}.npy")
    command = [sys.executable, "-c", KILLED_PROGRAM, str(tmp_path), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        for _ in range(4):
            assert process.stdout.readline()
        process.send_signal(signal_number)
        rest = process.stdout.read()
    assert process.returncode != 0
    assert b"done" not in rest
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    taken_over = int(done.stdout.split()[0])
    assert 3 <= taken_over < count
    assert done.stdout.endswith("done\n")
    assert not (tmp_path / FILE_NAME).exists()


# --- a cluster --------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def test_a_cluster_gives_the_same_result_though_a_worker_is_killed(cluster, tmp_path):
    jobs = make_jobs(tmp_path, [8_500_000] * 8 + [40] * 30)
    killed = []

    def kill_one(_size: int) -> None:
        if not killed:
            worker = next(iter(cluster.workers.values()))
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    found = measure_all(jobs, scheduler=cluster.scheduler_address, progress=kill_one)
    assert killed
    assert repr(found) == repr(measure_all(jobs))


@pytest.mark.timeout(60)
def test_nobody_answers(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("msprobe.cluster.CONNECT_S", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(UsageError, match=rf"no dask scheduler answers at tcp://127.0.0.1:{port}"):
        measure_all([], scheduler=f"tcp://127.0.0.1:{port}")


def test_an_address_that_is_none():
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="no dask scheduler answers at nonsense://here"):
        measure_all([], scheduler="nonsense://here")


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UnsupportedError, match=r"pip install \"msprobe\[cluster\]\""):
        measure_all([], scheduler="tcp://127.0.0.1:8786")
