# SPDX-License-Identifier: Apache-2.0
"""Hold the documented metrics of `msprobe acc-check` against those of mindstudio-probe.

python benchmarks/peer_accuracy.py --peer /path/to/peer/bin/python

One forward and backward pass of a small transformer and of functions of each standard is recorded
in three types. Both tools check the same dump on the CPU, the other one with its device word
replaced. Printed are, for each type and metric, the cells of both and how many agree to 1e-6.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from bench_models import GPT
from verify import recorder

from msprobe.checks.accuracy_csv import METRIC_COLUMNS, DetailRow, read_details
from msprobe.cli import main as msprobe
from msprobe.pytorch import PrecisionDebugger

TYPES: Final = ("float32", "bfloat16", "float16")
TOLERANCE: Final = 1e-6
_PEER: Final = """
import argparse, sys
import torch
torch.cuda.set_device = torch.cuda.empty_cache = lambda *args: None
from msprobe.pytorch.api_accuracy_checker.acc_check import acc_check, acc_check_utils
acc_check.current_device = acc_check_utils.current_device = "cpu"
# It wraps all functions again and collects garbage for each call: most of its time, no number.
register = acc_check_utils.get_api_register()
register.initialize_hook(None)
register.initialize_hook = lambda _: None
acc_check.gc.collect = lambda: None
parser = argparse.ArgumentParser()
acc_check._acc_check_parser(parser)
acc_check.acc_check_command(parser.parse_args(sys.argv[1:]))
"""


def recorded(debugger: PrecisionDebugger, dtype: torch.dtype) -> None:
    """Record one step with the calls that are checked; one backward pass, which both tools read."""
    model, ids = GPT(1, 32, 2, 8, 64).to(dtype), torch.randint(64, (2, 8))
    x, w = torch.randn(4, 8, dtype=dtype), torch.randn(8, 8, dtype=dtype)
    x, w = x.requires_grad_(), w.requires_grad_()
    debugger.start()
    results = (
        *(x * w[:4], x + 1, F.relu(x), x.abs(), torch.tanh(x), x.exp(), x.sort()[0], x @ w),
        *(F.leaky_relu(x), x.reshape(8, 4), torch.rsqrt(x.abs() + 1), x.mean(-1), x.std()),
        *(F.conv1d(x[None], w.reshape(8, 4, 2)), torch.maximum(x, w[:4])),
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()),
    )
    sum(result.sum() for result in results).backward()
    debugger.stop()
    debugger.step()


def table(folder: Path) -> dict[str, DetailRow]:
    """Return the rows of a file of details by output."""
    (path,) = folder.glob("accuracy_checking_details_*.csv")
    return {row.name: row for row in read_details(path)}


def agree(ours: float, theirs: float) -> bool:
    """Return whether two metrics are equal to `TOLERANCE`."""
    return (
        math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or ours != ours != theirs
    )


def compare(dtype: str, ours: dict[str, DetailRow], theirs: dict[str, DetailRow]) -> None:
    """Print how many cells of each metric both tools have, and how many of these agree."""
    rows = [(name, row, theirs[name]) for name, row in ours.items() if name in theirs]
    print(f"{dtype}: {len(ours)} outputs, {len(theirs)} of the other tool, {len(rows)} of both")
    for column in METRIC_COLUMNS:
        cells = [
            (name, getattr(row.metrics, column.name), getattr(other.metrics, column.name))
            for name, row, other in rows
        ]
        cells = [cell for cell in cells if None not in cell[1:]]
        apart = [cell for cell in cells if not agree(*cell[1:])]
        if cells:
            print(f"  {column.name:18} {len(cells) - len(apart):3} of {len(cells):3} agree")
        for name, own, other in apart:
            print(f"      {name}: {own:.9g}, other tool {other:.9g}")


def main() -> None:
    """Record, check with both tools, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="python that has mindstudio-probe")
    peer = parser.parse_args().peer
    torch.set_num_threads(1)  # sums of several threads are others
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        debugger = recorder(folder)
        for dtype in TYPES:
            recorded(debugger, getattr(torch, dtype))
        for step, dtype in enumerate(TYPES):
            dump = folder / f"step{step}" / "rank" / "dump.json"
            # The other tool's reference of half types is in float32.
            reference = "float64" if dtype == "float32" else "float32"
            words = ["-api_info", str(dump), "-o", str(folder / dtype), "-n", "0", "-d", "cpu"]
            msprobe(["acc_check", *words, "--reference", reference])
            other = folder / f"{dtype}-other"
            words = ["-api_info", str(dump), "-o", str(other)]
            subprocess.run([peer, "-c", _PEER, *words], check=True, stdout=subprocess.DEVNULL)
            compare(dtype, table(folder / dtype), table(other))


if __name__ == "__main__":
    main()
