# SPDX-License-Identifier: Apache-2.0
"""What `msprobe compare` costs: time, processor time and memory of the whole command.

    python benchmarks/compare_scale.py --data /path/to/scratch
    python benchmarks/compare_scale.py --data … --peer /path/to/peer/bin/python
    python benchmarks/compare_scale.py --data … --only statistics alignment --rounds 5

Dumps are made in the folder when a case needs them (up to 4.3 GB) and removed after it. Every
command runs once before it is timed, so that its files are in the page cache. `--peer` takes the
python of an environment with `mindstudio-probe`; without it msprobe is measured alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compare_data import make_statistics, make_tensors

MIB = 1 << 20


class Cost(NamedTuple):
    """What one run took; memory is the largest resident size of a single process, in MiB."""

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Case:
    """A pair of dumps and what is asked of its comparison.

    Attributes:
        make: writes the dumps; returns the bytes of elements, or None.
        target: what must be reached, in words.
        reached: whether a cost, with the bytes of elements, reaches it.
        options: further options of the command.
        is_for_peer: whether the peer is to run it.
        peer_options: further options of the peer.
    """

    make: Callable[[Path], int | None]
    target: str
    reached: Callable[[Cost, int], bool]
    options: tuple[str, ...] = ("--format", "csv")
    is_for_peer: bool = True
    peer_options: tuple[str, ...] = ()


CASES = {
    "start-up + 100 rows": Case(
        lambda folder: make_statistics(folder, rows=100),
        "0.8 CPU s",
        lambda cost, _: cost.cpu_s <= 0.8,
    ),
    "statistics 20,000 rows, csv": Case(
        lambda folder: make_statistics(folder, rows=20_000),
        "1.2 CPU s",
        lambda cost, _: cost.cpu_s <= 1.2,
    ),
    "statistics 20,000 rows, xlsx": Case(
        lambda folder: make_statistics(folder, rows=20_000),
        "4.5 CPU s",
        lambda cost, _: cost.cpu_s <= 4.5,
        options=(),
        peer_options=("--xlsx",),
    ),
    "statistics 1,000,000 rows, csv": Case(
        lambda folder: make_statistics(folder, rows=1_000_000),
        "2 GiB",
        lambda cost, _: cost.peak_mib <= 2048,
        is_for_peer=False,
    ),
    "300 ranks of 242 rows, parquet": Case(
        lambda folder: make_statistics(folder, rows=242, with_modules=True, ranks=300),
        "15 s",
        lambda cost, _: cost.wall_s <= 15,
        options=("--format", "parquet"),
        is_for_peer=False,
    ),
    "alignment 8,000 rows, 200 inserted": Case(
        lambda folder: make_statistics(folder, rows=8_000, inserted=200),
        "1 s for the pairing",
        lambda cost, _: True,
        peer_options=("--fuzzy_match",),
    ),
    "20,000 tensors of 16 KiB a side": Case(
        lambda folder: make_tensors(folder, operations=10_000, shape=(64, 64)),
        "5 CPU s",
        lambda cost, _: cost.cpu_s <= 5,
    ),
    "4.3 GB in 32 tensors a side": Case(
        lambda folder: make_tensors(folder, operations=16, shape=(4096, 4096)),
        "1.7 GB/s, 512 MB",
        lambda cost, size: size / cost.wall_s >= 1.7e9 and cost.peak_mib <= 488,
    ),
    "identical 4.3 GB": Case(
        lambda folder: make_tensors(folder, operations=16, shape=(4096, 4096), is_equal=True),
        "3.5 GB/s",
        lambda cost, size: size / cost.wall_s >= 3.5e9,
    ),
}


class FailedError(Exception):
    """A command ended with an error."""


def run(command: list[str]) -> Cost:
    """Run a command to its end.

    Raises:
        FailedError: it did not succeed; the message is the last of what it said.
    """
    # Compiling the sources anew in every run is not what users see.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise FailedError(errors.strip().splitlines()[-1] if errors.strip() else "no message")
    wall_s = time.perf_counter() - begin
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def own_command(folder: Path, options: tuple[str, ...]) -> list[str]:
    dumps = [str(folder / side) for side in ("target", "reference")]
    where = ["-o", str(folder / "out"), "--quiet"]
    return [sys.executable, "-m", "msprobe", "compare", *dumps, *where, *options]


def peer_command(peer: Path, folder: Path, options: tuple[str, ...]) -> list[str]:
    paths = [
        str(folder / side / "step0" / "rank0" / "dump.json") for side in ("target", "reference")
    ]
    program = str(peer.parent / "msprobe")
    where = ["-o", str(folder / "out_peer")]
    return [program, "compare", "-tp", paths[0], "-gp", paths[1], *where, *options]


def median(costs: list[Cost]) -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*costs, strict=True)))


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, Cost]:
    """Run the commands in turns; return the median cost of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            cost = run(command)
            if number:
                costs[name].append(cost)
    return {name: median(found) for name, found in costs.items()}


PAIRING = """
import sys, time
from pathlib import Path
from msprobe import open_dump
from msprobe.compare.matching import pair_operations
from msprobe.compare.options import CompareOptions
from msprobe.compare.sides import Side
sides = [
    Side(open_dump(Path(sys.argv[1]) / name).step().rank(), source=name)
    for name in ("target", "reference")
]
begin = time.process_time()
pairs = pair_operations(*sides, CompareOptions())
seconds = time.process_time() - begin
added = sum(pair.reference is None for pair in pairs)
missing = sum(pair.target is None for pair in pairs)
print(f"pairing: {seconds:.2f} CPU s, {added} added, {missing} missing")
"""


def made_apart(case: Case, folder: Path) -> int:
    """Make the data of a case in a process of its own; return the bytes of its tensors.

    Linux counts the memory that a process had before it became the command, which would be ours.
    """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_make, (list(CASES.values()).index(case), folder))


def _make(number: int, folder: Path) -> int:
    return list(CASES.values())[number].make(folder) or 0


def show(name: str, case: Case, found: dict[str, Cost], size: int) -> None:
    ours = found["msprobe"]
    for who, cost in found.items():
        rate = f"{size / cost.wall_s / 1e9:5.2f} GB/s" if size else ""
        verdict = ""
        if who == "msprobe":
            verdict = f"{case.target}: {'yes' if case.reached(cost, size) else 'NO'}"
        else:
            verdict = f"{cost.cpu_s / ours.cpu_s:.1f} times our CPU s"
        print(
            f"{name:36}{who:9}{cost.wall_s:8.2f} s {cost.cpu_s:8.2f} CPU s "
            f"{cost.peak_mib:7.0f} MiB {rate:11} {verdict}",
            flush=True,
        )
        name = ""


def unmatched(folder: Path) -> str:
    """Return what the newest summary says of calls without a partner."""
    newest = max((folder / "out").rglob("summary*.json"), key=lambda path: path.stat().st_mtime)
    return json.dumps(json.loads(newest.read_text())["unmatched"])[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="scratch folder, 5 GB free")
    parser.add_argument("--peer", type=Path, help="python of the other tool's environment")
    parser.add_argument("--only", nargs="+", help="cases whose names hold one of these words")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, default=1)
    options = parser.parse_args()
    has_peer = options.peer is not None and (options.peer.parent / "msprobe").exists()
    if options.peer is not None and not has_peer:
        print(f"{options.peer.parent} holds no msprobe: measuring alone")
    for name, case in CASES.items():
        if options.only and not any(word in name for word in options.only):
            continue
        folder = options.data / "compare_scale"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            size = made_apart(case, folder)
            found = measure({"msprobe": own_command(folder, case.options)}, options.rounds)
            if has_peer and case.is_for_peer:
                command = peer_command(options.peer, folder, case.peer_options)
                try:
                    found |= measure({"peer": command}, options.peer_rounds)
                except FailedError as exc:
                    print(f"{name}: the peer fails: {exc}")
            show(name, case, found, size)
            if name.startswith("alignment"):
                subprocess.run([sys.executable, "-c", PAIRING, folder], check=True)
                print(f"{'':36}{unmatched(folder)}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
