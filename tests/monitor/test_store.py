# SPDX-License-Identifier: Apache-2.0
"""The store of the monitor: exact, appended to, readable while it grows, safe against kills."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

import msprobe
from msprobe.errors import MonitorFormatError, MonitorWriteError
from msprobe.monitor.rows import MISSING, Layout, Rows
from msprobe.monitor.run_file import ENTRY, Kind, check_of
from msprobe.monitor.store import RunWriter

OPS = ("norm", "mean")


def layout(names: tuple[str, ...] = ("a", "b"), stream: str = "grad_reduced") -> Layout:
    count = len(names)
    return Layout(
        stream=stream,
        ops=OPS,
        names=names,
        chunks=(0,) * count,
        calls=(0,) * count,
        shapes=("[2]",) * count,
        dtypes=("torch.float32",) * count,
    )


def rows(step: int, values: object, of: Layout, micro_step: int = 0) -> Rows:
    return Rows(of, 0, step, micro_step, 1000.0 + step, np.asarray(values, np.float64))


def test_values_come_back_exactly(tmp_path: Path) -> None:
    values = np.array([[1e-300, np.nan], [np.inf, MISSING]])
    with RunWriter(tmp_path, 0, {"config": {"ops": OPS}}) as writer:
        writer.append(rows(3, values, layout()))

    with msprobe.open_monitor(tmp_path) as run:
        table = run.table("grad_reduced")
        assert run.heads(0)[0]["config"] == {"ops": list(OPS)}

    assert table["norm"].to_list()[0] == 1e-300
    assert np.isnan(table["norm"].to_list()[1])
    assert table["mean"].to_list() == [np.inf, None]
    fixed = table.drop("norm", "mean")
    assert fixed.columns == [
        "rank",
        "step",
        "micro_step",
        "chunk",
        "name",
        "call",
        "shape",
        "dtype",
        "time",
    ]
    assert fixed.row(0) == (0, 3, 0, 0, "a", 0, "[2]", "torch.float32", 1003.0)


def test_series_matrix_and_long_rows_agree(tmp_path: Path) -> None:
    one, other = layout(), layout(("b", "c"))
    with RunWriter(tmp_path, 0, {}) as writer:
        for step in range(4):
            writer.append(rows(step, [[step, 10 + step], [0, 0]], one if step % 2 else other))
            writer.flush()

    with msprobe.open_monitor(tmp_path) as run:
        assert run.steps() == [0, 1, 2, 3]
        assert run.names("grad_reduced") == ["b", "c", "a"]
        series = run.series("grad_reduced", "b", "norm")
        matrix = run.matrix("grad_reduced", "norm", rank=0)
        long = run.rows("grad_reduced").filter(pl.col("name") == "b", pl.col("op") == "norm")

    assert series["step"].to_list() == [0, 1, 2, 3]
    assert series["value"].to_list() == [0.0, 11.0, 2.0, 13.0] == long["value"].to_list()
    np.testing.assert_array_equal(matrix.values[:, matrix.names.index("b")], series["value"])
    assert np.isnan(matrix.values[0, matrix.names.index("a")])


def test_a_run_is_read_while_it_grows(tmp_path: Path) -> None:
    with RunWriter(tmp_path, 0, {}) as writer, msprobe.open_monitor(tmp_path) as run:
        assert run.steps() == []
        of = layout()
        for step in range(3):
            writer.append(rows(step, np.zeros((2, 2)), of))
            assert not run.refresh()
            writer.flush()
            assert run.refresh()
            assert run.steps() == list(range(step + 1))
            assert run.table("grad_reduced").height == 2 * (step + 1)


def test_a_step_collected_again_counts_once(tmp_path: Path) -> None:
    for first in (0, 2):
        with RunWriter(tmp_path, 0, {"start": first}) as writer:
            for step in range(first, first + 4):
                writer.append(rows(step, np.full((2, 2), first), layout()))

    with msprobe.open_monitor(tmp_path) as run:
        values = run.series("grad_reduced", "a", "norm")["value"].to_list()
        assert [head["start"] for head in run.heads(0)] == [0, 2]

    assert values == [0, 0, 2, 2, 2, 2]


def test_two_writers_do_not_share_a_file(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path, 0, {}),
        pytest.raises(MonitorWriteError, match="another process writes"),
    ):
        RunWriter(tmp_path, 0, {})


_FORKING = """
import os, sys, time
from pathlib import Path
from msprobe.errors import MonitorWriteError
from msprobe.monitor.store import RunWriter
folder = Path(sys.argv[1])
writer = RunWriter(folder, 0, {})
if not os.fork():
    time.sleep(20)
    os._exit(0)
time.sleep(0.1)
os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_that_outlives_a_killed_process_does_not_keep_its_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FORKING, str(tmp_path)], check=False)
    with RunWriter(tmp_path, 0, {"second": True}):
        pass
    with msprobe.open_monitor(tmp_path) as run:
        assert run.heads(0) == [{}, {"second": True}]


@pytest.mark.parametrize("content", [b"", b"step,name\n0,a\n"])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rank0.rows").write_bytes(content)
    with pytest.raises(MonitorFormatError):
        msprobe.open_monitor(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        zlib.compress(b"{" + b" " * (1 << 28) + b"}", 1),
        zlib.compress(b"{}")[:-3],
        b"\x78\x9cnonsense",
        b"{}",
        msgspec.json.encode(replace(layout(), chunks=(0,))),
    ],
    ids=["a bomb", "cut off", "nonsense", "no layout", "columns of other lengths"],
)
def test_hostile_layouts_are_refused(tmp_path: Path, content: bytes) -> None:
    """Checksums are no protection: whoever writes a file can compute them."""
    with RunWriter(tmp_path, 0, {}):
        pass
    place = (tmp_path / "rank0.rows").stat().st_size
    entry = np.array([(place, len(content), 0, 0.0, 0, 0, 0, 0, Kind.LAYOUT, 0, 0, 0)], ENTRY)
    entry["crc"] = zlib.crc32(content)
    entry["check"] = check_of(entry)
    with (
        (tmp_path / "rank0.rows").open("ab") as data,
        (tmp_path / "rank0.index").open("ab") as index,
    ):
        data.write(content)
        index.write(entry.tobytes())
    with pytest.raises(MonitorFormatError, match="layout at entry 1"):
        msprobe.open_monitor(tmp_path)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MonitorFormatError, match="holds no run"):
        msprobe.open_monitor(tmp_path)


def test_damage_is_found(tmp_path: Path) -> None:
    with RunWriter(tmp_path, 0, {}) as writer:
        writer.append(rows(0, np.ones((2, 2)), layout()))
    data, index = tmp_path / "rank0.rows", tmp_path / "rank0.index"
    whole = data.read_bytes()

    data.write_bytes(whole[:-1] + b"!")
    with msprobe.open_monitor(tmp_path) as run, pytest.raises(MonitorFormatError, match="damaged"):
        run.table("grad_reduced")

    data.write_bytes(whole[:-9])  # an entry without its block
    with pytest.raises(MonitorFormatError, match="damaged"):
        msprobe.open_monitor(tmp_path)

    data.write_bytes(whole)
    broken = bytearray(index.read_bytes())
    broken[40] ^= 1
    index.write_bytes(broken)
    with pytest.raises(MonitorFormatError, match="damaged"):
        msprobe.open_monitor(tmp_path)


_ENDLESS = """
import sys
import numpy as np
from pathlib import Path
from msprobe.monitor.rows import Layout, Rows
from msprobe.monitor.store import RunWriter
names = tuple(map(str, range(50)))
zeros = (0,) * 50
of = Layout("actv", ("norm",), names, zeros, zeros, names, names)
with RunWriter(Path(sys.argv[1]), 0, {}) as writer:
    for step in range(10**9):
        for micro in range(3):
            values = np.full((1, 50), step * 3.0 + micro)
            writer.append(Rows(of, 0, step, micro, 0.0, values))
        writer.flush()
        print(step, flush=True)
"""


def test_a_killed_writer_loses_only_the_step_in_flight(tmp_path: Path) -> None:
    for round_ in range(3):
        folder = tmp_path / str(round_)
        process = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 + 0.01 * round_)
        os.kill(process.pid, signal.SIGKILL)
        lines = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        done = int(lines[-1]) if lines else 0

        with msprobe.open_monitor(folder) as run:
            table = run.table("actv")
        assert table["step"].max() in (done, done + 1)
        expected = table["step"] * 3.0 + table["micro_step"]
        assert (table["norm"] == expected).all()
        with RunWriter(folder, 0, {}) as writer:  # goes on behind the last whole block
            writer.append(rows(10**6, np.zeros((2, 2)), layout()))
        with msprobe.open_monitor(folder) as run:
            assert run.steps()[-1] == 10**6


def test_a_full_disk_is_told_and_leaves_what_was_written(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from msprobe.errors import MonitorWriteError\n"
        "try:\n    exec(sys.argv[2])\n"
        "except MonitorWriteError as error:\n    print('told', error)\n"
    )
    run = subprocess.run(
        # -B: the limit would cut compiled modules short, for every other test too.
        [sys.executable, "-B", "-c", code, str(tmp_path), _ENDLESS],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "told" in run.stdout.splitlines()[-1]
    last = int(run.stdout.splitlines()[-2])
    with msprobe.open_monitor(tmp_path) as stored:
        assert stored.steps() == list(range(last + 1))


def test_nothing_is_written_behind_a_part_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full for a while: closing the writer must not go on in the middle."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut modules short
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writer = RunWriter(tmp_path, 0, {})
    writer.append(rows(0, np.zeros((2, 2)), layout()))
    writer.flush()
    try:
        size = (tmp_path / "rank0.rows").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
        writer.append(rows(1, np.zeros((2, 2)), layout()))
        with pytest.raises(MonitorWriteError):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    writer.close()
    with msprobe.open_monitor(tmp_path) as run:
        assert run.steps() == [0]
