# SPDX-License-Identifier: Apache-2.0
"""100,000 records in one step: is the time per record constant, and does the dump open at once?

    python benchmarks/many_records.py

Records `n` tiny operations in one step for growing `n`, and prints the time per record while
capturing, of `stop()` and `step()`, the time to open the dump and to read one record from it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.table import Table

import msprobe
from msprobe.pytorch import PrecisionDebugger

SIZES = (12_500, 25_000, 50_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one size needed: CPU time of all threads while capturing, elapsed time while reading.

    Attributes:
        plain_s: the operations alone.
        captured_s: the operations while they are recorded.
        stop_s: `stop()`, which builds the JSON files.
        step_s: `step()`.
        open_s: `msprobe.open_dump` and the names of all records.
        lookup_s: the middle record, decoded.
        size_bytes: size of dump.json.
    """

    records: int
    plain_s: float
    captured_s: float
    stop_s: float
    step_s: float
    open_s: float
    lookup_s: float
    size_bytes: int


def run_operations(x: torch.Tensor, count: int) -> float:
    """Run `count` tiny operations and return the seconds."""
    begin = time.process_time()
    for _ in range(count):
        x.add(1.0)
    return time.process_time() - begin


def measure(count: int, folder: Path) -> Figures:
    """Capture and read back one step of `count` records in this process."""
    torch.set_num_threads(1)
    debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level="L1")
    x = torch.zeros(4)
    plain_s = run_operations(x, count)
    debugger.start()
    captured_s = run_operations(x, count)
    begin = time.process_time()
    debugger.stop()
    stopped = time.process_time()
    debugger.step()
    stepped = time.process_time()
    (path,) = folder.glob("step0/*/dump.json")
    opening = time.perf_counter()
    (rank,) = msprobe.open_dump(folder).steps[0].ranks.values()
    names = list(rank.records)
    opened = time.perf_counter()
    record = rank.records[names[len(names) // 2]]
    looked_up = time.perf_counter()
    assert len(names) == count, f"{count} operations, {len(names)} records"
    assert record is not None
    return Figures(
        records=len(names),
        plain_s=plain_s,
        captured_s=captured_s,
        stop_s=stopped - begin,
        step_s=stepped - stopped,
        open_s=opened - opening,
        lookup_s=looked_up - opened,
        size_bytes=path.stat().st_size,
    )


def measure_in_own_process(count: int) -> Figures:
    """Like `measure`; a fresh process, so that no size profits from an earlier one."""
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as folder:
        command = [sys.executable, __file__, "--size", str(count), "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Figures)


def table(rows: Sequence[Figures]) -> Table:
    """One line a size."""
    found = Table(title="Many records in one step", title_justify="left")
    for column in (
        "records", "us a record", "of it torch", "stop s", "step s", "open s", "one record ms",
        "dump.json MB",
    ):  # fmt: skip
        found.add_column(column, justify="right")
    for row in rows:
        found.add_row(
            f"{row.records:,}",
            f"{row.captured_s / row.records * 1e6:.1f}",
            f"{row.plain_s / row.records * 1e6:.1f}",
            f"{row.stop_s:.3f}",
            f"{row.step_s:.3f}",
            f"{row.open_s:.3f}",
            f"{row.lookup_s * 1e3:.2f}",
            f"{row.size_bytes / 2**20:.1f}",
        )
    return found


def verdict(rows: Sequence[Figures]) -> str:
    """Linear: the largest size needs at most 1.3 times as long per record as the smallest."""

    def each(row: Figures) -> float:
        return (row.captured_s + row.stop_s + row.step_s) / row.records

    growth, open_s = each(rows[-1]) / each(rows[0]), rows[-1].open_s
    linear = "linear" if growth <= 1.3 else "NOT linear"
    quick = "under 1 s" if open_s < 1 else "NOT under 1 s"
    return f"time a record grows {growth:.2f}x ({linear}); opens in {open_s:.2f} s ({quick})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        print(msgspec.json.encode(measure(options.size, options.folder)).decode())
        return
    rows = [measure_in_own_process(size) for size in options.sizes]
    console = Console()
    console.print(table(rows))
    console.print(verdict(rows))


if __name__ == "__main__":
    main()
