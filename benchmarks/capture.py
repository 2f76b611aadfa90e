# SPDX-License-Identifier: Apache-2.0
"""What does capture cost? One command; prints a table, also against another tool's python.

    python benchmarks/capture.py                                  # msprobe alone
    python benchmarks/capture.py --peer /path/to/peer/bin/python  # and what it costs there
    python benchmarks/capture.py --profile gpt:L1:statistics      # where our time goes

Each tool runs in a process of its own, on one core. In every round each tool trains some plain
steps and then some captured ones; the tools take turns, so that a slow moment of the machine hits
all of them. "Added" is a captured step minus a plain step of the same process and round; the table
shows medians over the rounds. How to read it: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

WORKER: Final = Path(__file__).with_name("capture_worker.py")
STEPS_PER_VISIT: Final = {"gpt": 2, "gpt-bf16": 2, "conv": 8, "small-ops": 8, "llama": 3}


@dataclass(frozen=True)
class Setup:
    """One row: a workload and a configuration, and what it must reach.

    Attributes:
        max_ratio: most that our added time may be, as a share of the peer's.
        max_slowdown: most that a captured step may take, in plain steps.
        max_disk_ratio: most that our dump may take, as a share of the peer's.
        facts: whether facts of the step are recorded beside the calls.
    """

    case: str
    level: str
    task: str = "statistics"
    max_ratio: float | None = None
    max_slowdown: float | None = None
    max_disk_ratio: float | None = None
    facts: bool = True

    @property
    def label(self) -> str:
        return f"{self.case}:{self.level}:{self.task}"

    def options(self) -> list[str]:
        """The row as options of the worker."""
        own = ["--case", self.case, "--level", self.level, "--task", self.task]
        return own if self.facts else [*own, "--no-facts"]


SETUPS: Final = (
    Setup("gpt", "L0", max_ratio=0.35, max_slowdown=1.10),
    Setup("gpt", "L1", max_ratio=0.40, max_slowdown=1.20),
    Setup("gpt", "mix", max_ratio=0.40, max_slowdown=1.24),
    Setup("gpt", "mix", "md5", max_ratio=0.50),
    Setup("gpt", "mix", "tensor", max_ratio=0.50, max_disk_ratio=0.75),
    Setup("gpt", "L1", "nan_check", max_slowdown=1.10),
    Setup("gpt", "L1", "keep_last", max_slowdown=1.20),
    Setup("gpt", "mix", "overflow_check"),
    Setup("gpt-bf16", "L0"),
    Setup("gpt-bf16", "L1", max_slowdown=1.45),
    Setup("gpt-bf16", "mix"),
    Setup("conv", "L0"),
    Setup("conv", "L1"),
    Setup("conv", "mix", max_ratio=0.40, max_slowdown=1.7),
    Setup("llama", "L0", max_ratio=0.22),
    Setup("llama", "L1", max_ratio=0.16),
    Setup("llama", "mix", max_ratio=0.16),
    Setup("small-ops", "L0", max_ratio=0.25),
    Setup("small-ops", "L1", max_ratio=0.18, max_slowdown=4.0),
    Setup("small-ops", "mix", max_ratio=0.14),
    Setup("small-ops", "L1", "nan_check", max_slowdown=3.5),
    Setup("small-ops", "mix", "overflow_check"),
)
PEER_TASKS: Final = ("statistics", "md5", "tensor")  # of the others it refuses each on a CPU
IDLE_CASES: Final = ("gpt", "small-ops")
MAX_STATISTICS_MEMORY_BYTES: Final = 256 << 20


class Process:
    """A worker process; `ask` sends one command and waits for its answer."""

    def __init__(self, python: str, tool: str, setup: Setup, folder: Path) -> None:
        settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MSPROBE_LOG_LEVEL": "3"}
        inherited = dict(os.environ)
        if python != sys.executable:  # our sources on the path would hide the other tool
            inherited.pop("PYTHONPATH", None)
        self._errors = (folder.parent / f"{folder.name}.log").open("w+")
        self._process = subprocess.Popen(
            [python, str(WORKER), "--tool", tool, *setup.options(), "--folder", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=inherited | settings,
        )
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the worker died:\n{self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, steps: int = 0) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, "steps": steps}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate(timeout=60)
        self._errors.close()


@dataclass
class Timing:
    """What one tool needed in one setup; one entry a round, in seconds."""

    plain_s: list[float] = field(default_factory=list)
    captured_s: list[float] = field(default_factory=list)
    account_s: list[float] = field(default_factory=list)
    plain_cpu_s: list[float] = field(default_factory=list)
    captured_cpu_s: list[float] = field(default_factory=list)
    disk_bytes_per_step: float = 0.0
    peak_above_plain_bytes: float = 0.0
    version: str = ""
    torch: str = ""

    @property
    def added_s(self) -> float:
        pairs = zip(self.captured_s, self.plain_s, strict=True)
        return statistics.median(captured - plain for captured, plain in pairs)

    @property
    def accounted(self) -> float:
        """Share of the added time that the tool's own account says; NaN where none is written."""
        return statistics.median(self.account_s) / self.added_s if self.account_s else math.nan

    @property
    def slowdown(self) -> float:
        pairs = zip(self.captured_s, self.plain_s, strict=True)
        return statistics.median(captured / plain for captured, plain in pairs)


@dataclass(frozen=True)
class Row:
    setup: Setup
    tools: dict[str, Timing]

    @property
    def ratio(self) -> float | None:
        peer = self.tools.get("peer")
        return self.tools["msprobe"].added_s / peer.added_s if peer else None

    @property
    def disk_ratio(self) -> float | None:
        peer = self.tools.get("peer")
        own = self.tools["msprobe"].disk_bytes_per_step
        return own / peer.disk_bytes_per_step if peer and peer.disk_bytes_per_step else None

    def misses(self) -> list[str]:
        """The targets that this row does not reach, in words."""
        own, setup, found = self.tools["msprobe"], self.setup, []
        if setup.max_slowdown and own.slowdown > setup.max_slowdown:
            found.append(f"slow-down {own.slowdown:.2f} > {setup.max_slowdown}")
        if setup.max_ratio and self.ratio is not None and self.ratio > setup.max_ratio:
            found.append(f"added/peer {self.ratio:.2f} > {setup.max_ratio}")
        if setup.max_disk_ratio and (self.disk_ratio or 0.0) > setup.max_disk_ratio:
            found.append(f"disk/peer {self.disk_ratio:.2f} > {setup.max_disk_ratio}")
        memory = own.peak_above_plain_bytes
        if setup.task == "statistics" and memory > MAX_STATISTICS_MEMORY_BYTES:
            found.append(f"memory {memory / 2**20:.0f} MB > 256")
        return found


@contextmanager
def workers(pythons: dict[str, tuple[str, str]], setup: Setup) -> Iterator[dict[str, Process]]:
    """Worker processes by name; `pythons` maps the name to (python, tool)."""
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as scratch, ExitStack() as stack:
        found = {}
        for name, (python, tool) in pythons.items():
            found[name] = Process(python, tool, setup, Path(scratch) / name)
            stack.callback(found[name].close)
        yield found


def measure(setup: Setup, pythons: dict[str, tuple[str, str]], rounds: int) -> Row:
    """Time one setup with every tool that has the task, taking turns."""
    steps = STEPS_PER_VISIT[setup.case]
    if "peer" in pythons and setup.task not in PEER_TASKS:
        pythons = {name: found for name, found in pythons.items() if name != "peer"}
    timings = {name: Timing() for name in pythons}
    with workers(pythons, setup) as processes:
        for process in processes.values():
            process.ask("plain", steps)
            process.ask("captured", steps)
        for round_number in range(rounds):
            order = list(processes) if round_number % 2 else list(reversed(processes))
            for name in order:
                plain = processes[name].ask("plain", steps)
                captured = processes[name].ask("captured", steps)
                timings[name].plain_s.append(statistics.median(plain["wall_s"]))
                timings[name].captured_s.append(statistics.median(captured["wall_s"]))
                if captured["account_s"]:
                    timings[name].account_s.append(statistics.median(captured["account_s"]))
                timings[name].plain_cpu_s.append(statistics.median(plain["cpu_s"]))
                timings[name].captured_cpu_s.append(statistics.median(captured["cpu_s"]))
        for name, process in processes.items():
            for key, value in process.ask("measure").items():
                setattr(timings[name], key, value)
    return Row(setup, timings)


def measure_idle(case: str, pythons: dict[str, tuple[str, str]], rounds: int) -> dict[str, float]:
    """CPU time of a step with the tool constructed but not capturing, in steps without any tool."""
    setup, steps = Setup(case, "mix"), STEPS_PER_VISIT[case]
    without = {"none": (sys.executable, "none")}
    ratios: dict[str, list[float]] = {name: [] for name in pythons}
    with workers(without | pythons, setup) as processes:
        for _ in range(3 * rounds):
            cpu = {
                name: statistics.median(process.ask("plain", steps)["cpu_s"])
                for name, process in processes.items()
            }
            for name in pythons:
                ratios[name].append(cpu[name] / cpu["none"])
    return {name: statistics.median(values) for name, values in ratios.items()}


COLUMNS: Final = (
    "case", "level", "task", "plain ms", "captured ms", "slow-down", "added ms", "account / added",
    "peer slow-down", "peer added ms", "added / peer", "MB a step", "peer MB", "peak +MB",
    "peer peak +MB", "targets",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """The row as text, in the order of `COLUMNS`."""
    own, peer = row.tools["msprobe"], row.tools.get("peer")
    megabytes = 1 / 2**20
    has_target = row.setup.max_slowdown or (row.setup.max_ratio and peer)
    verdict = "; ".join(row.misses()) or ("reached" if has_target else "")
    return [
        row.setup.case,
        row.setup.level,
        row.setup.task,
        f"{statistics.median(own.plain_s) * 1e3:.1f}",
        f"{statistics.median(own.captured_s) * 1e3:.1f}",
        f"{own.slowdown:.2f}x",
        f"{own.added_s * 1e3:.1f}",
        f"{own.accounted:.2f}",
        f"{peer.slowdown:.2f}x" if peer else "-",
        f"{peer.added_s * 1e3:.1f}" if peer else "-",
        f"{row.ratio:.2f}" if row.ratio is not None else "-",
        f"{own.disk_bytes_per_step * megabytes:.2f}",
        f"{peer.disk_bytes_per_step * megabytes:.2f}" if peer else "-",
        f"{own.peak_above_plain_bytes * megabytes:.0f}",
        f"{peer.peak_above_plain_bytes * megabytes:.0f}" if peer else "-",
        verdict,
    ]


def rich_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Cost of capture", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:3] else "right")
    for row in rows:
        table.add_row(*cells(row), style="red" if row.misses() else None)
    return table


def markdown_table(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> str:
    """Processor and number of cores, for the caption."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} cores, one thread, Python {platform.python_version()}"


def caption(rows: Sequence[Row], rounds: int) -> str:
    versions = sorted({f"{t.version} (torch {t.torch})" for r in rows for t in r.tools.values()})
    return f"{machine()}; {', '.join(versions)}; median of {rounds} rounds."


def profile(label: str, *, facts: bool) -> None:
    """Print where a captured step of ours spends its time."""
    case, level, task = label.split(":")
    setup = Setup(case, level, task, facts=facts)
    with workers({"msprobe": (sys.executable, "msprobe")}, setup) as processes:
        processes["msprobe"].ask("captured", 2)
        print(processes["msprobe"].ask("profile", 5 * STEPS_PER_VISIT[case])["profile"])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--peer", help="python that has the tool to compare with (skipped if absent)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=[], help="rows whose label holds one of these")
    parser.add_argument(
        "--no-facts", action="store_true", help="without facts, as the targets were set"
    )
    parser.add_argument("--no-idle", action="store_true", help="leave out the not-capturing rows")
    parser.add_argument(
        "--peer-only", action="store_true", help="measure the peer as if it were us"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown for the docs")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds to this file")
    parser.add_argument("--profile", metavar="CASE:LEVEL:TASK")
    return parser.parse_args(arguments)


def tools(options: argparse.Namespace, console: Console) -> dict[str, tuple[str, str]]:
    """Name -> (python, tool) of everything that is to be measured."""
    if options.peer_only:
        return {"msprobe": (options.peer, "msprobe")}
    found = {"msprobe": (sys.executable, "msprobe")}
    if options.peer and Path(options.peer).exists():
        found["peer"] = (options.peer, "msprobe")
    elif options.peer:
        console.print(f"{options.peer} does not exist: measuring msprobe alone.", style="yellow")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.profile:
        profile(options.profile, facts=not options.no_facts)
        return
    console = Console(width=220 if not sys.stdout.isatty() else None)
    progress = Console(stderr=True)
    pythons = tools(options, console)
    wanted = [s for s in SETUPS if not options.only or any(o in s.label for o in options.only)]
    rows = []
    for setup in wanted:
        if setup.case == "llama" and find_spec("transformers") is None:
            progress.print(f"{setup.label}: skipped, transformers is not installed")
            continue
        rows.append(measure(replace(setup, facts=not options.no_facts), pythons, options.rounds))
        progress.print(" | ".join(cells(rows[-1])))
    idle = (
        {}
        if options.no_idle
        else {case: measure_idle(case, pythons, options.rounds) for case in IDLE_CASES}
    )
    console.print(markdown_table(rows) if options.markdown else rich_table(rows))
    for case, ratios in idle.items():
        text = ", ".join(f"{name} {ratio:.3f}x" for name, ratio in ratios.items())
        console.print(f"constructed, not capturing, {case} (CPU time against no tool): {text}")
    console.print(caption(rows, options.rounds))
    if options.json:
        figures = [
            {"setup": asdict(r.setup), "tools": {n: asdict(t) for n, t in r.tools.items()}}
            for r in rows
        ]
        options.json.write_text(json.dumps({"rows": figures, "idle": idle}, indent=1))


if __name__ == "__main__":
    main()
