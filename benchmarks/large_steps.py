# SPDX-License-Identifier: Apache-2.0
"""One step with tens of thousands of live values: does the time for a call stay the same?

    python benchmarks/large_steps.py

Trains one step of a chain of residual blocks, whose graph keeps every value alive until the
backward pass, for growing numbers of blocks. A search or a table that looks through all of them at
each call shows as a growing time for a call. Each size runs in a process of its own, so none
profits from another.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import msprobe
from msprobe.pytorch import PrecisionDebugger

BLOCKS = (200, 1_600, 5_000)
MOST_GROWTH = 1.4
_ROUNDS = 3


class Chain(nn.Module):
    """Residual blocks of one width: `x + relu(linear(x))`."""

    def __init__(self, blocks: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.relu(layer(x)) * 0.01
        return x


class Figures(msgspec.Struct, kw_only=True):
    """CPU seconds of a step of one size, the least of several.

    Attributes:
        blocks: how many residual blocks.
        records: of the step.
        plain_s: the step alone.
        captured_s: the step while it is recorded, with `start`, `stop` and `step`.
    """

    blocks: int
    records: int
    plain_s: float
    captured_s: float

    @property
    def added_us(self) -> float:
        """Microseconds added for a record."""
        return (self.captured_s - self.plain_s) / self.records * 1e6


def least(action: Callable[[], None]) -> float:
    """Return the CPU seconds of the quickest of some runs."""
    times = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        action()
        times.append(time.process_time() - begin)
    return min(times)


def measure(blocks: int, level: str, folder: Path) -> Figures:
    """Train steps with and without a recording in this process."""
    torch.set_num_threads(1)
    model, x = Chain(blocks), torch.randn(4, 8)
    debugger = PrecisionDebugger(dump_path=str(folder), task="statistics", level=level)

    def plain() -> None:
        model(x).sum().backward()
        model.zero_grad()

    def captured() -> None:
        debugger.start(model)
        plain()
        debugger.stop()
        debugger.step()

    plain_s, captured_s = least(plain), least(captured)
    (rank,) = msprobe.open_dump(folder).steps[0].ranks.values()
    records = len(list(rank.records))
    return Figures(blocks=blocks, records=records, plain_s=plain_s, captured_s=captured_s)


def measure_in_own_process(blocks: int, level: str) -> Figures:
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as folder:
        command = [sys.executable, __file__, "--level", level, "--size", str(blocks)]
        done = subprocess.run(
            [*command, "--folder", folder], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Figures)


def table(rows: Sequence[Figures]) -> Table:
    """One line a size."""
    found = Table(title="Steps of many live values", title_justify="left")
    for column in ("blocks", "records", "plain s", "captured s", "added us a record"):
        found.add_column(column, justify="right")
    for row in rows:
        cells = (f"{row.plain_s:.3f}", f"{row.captured_s:.3f}", f"{row.added_us:.1f}")
        found.add_row(f"{row.blocks:,}", f"{row.records:,}", *cells)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--level", choices=("L0", "L1", "mix"), default="L1")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(BLOCKS))
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size:
        figures = measure(options.size, options.level, options.folder)
        print(msgspec.json.encode(figures).decode())
        return
    rows = [measure_in_own_process(size, options.level) for size in options.sizes]
    console = Console()
    console.print(table(rows))
    growth = rows[-1].added_us / rows[0].added_us
    console.print(f"a record takes {growth:.2f} times as long in the largest step")
    if growth > MOST_GROWTH:
        sys.exit(f"more than {MOST_GROWTH} times: something looks through all values of the step")


if __name__ == "__main__":
    main()
