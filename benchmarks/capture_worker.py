# SPDX-License-Identifier: Apache-2.0
"""One measured process: trains a workload, with or without a tool, as commands on stdin say.

Runs under any python that has torch and a package `msprobe`; which one that is, is the caller's
choice. Commands and answers are JSON lines. Answers go to a copy of stdout, so that whatever a
tool prints cannot get between them.

    {"do": "plain" | "captured", "steps": n} -> {"wall_s": [...], "cpu_s", "account_s"}
    {"do": "measure"}                        -> disk and memory used so far
    {"do": "profile", "steps": n}            -> {"profile": text}
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import shutil
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from bench_models import Workload, build, keep_freed_memory


def config_of(level: str, task: str, dump_path: Path, *, facts: bool) -> dict[str, object]:
    """The same configuration for every tool; `risk_level` makes all of them record everything."""
    sections: dict[str, dict[str, object]] = {
        "overflow_check": {"overflow_nums": -1},
        "nan_check": {"stop_on": "never"},
    }
    section = sections.get(task) or {
        "scope": [],
        "list": [],
        "data_mode": ["all"],
        "summary_mode": "md5" if task == "md5" else "statistics",
    }
    if task == "keep_last":
        section["keep_last"] = 20
    real_task = "statistics" if task in ("md5", "keep_last") else task
    return {
        "task": real_task,
        "dump_path": str(dump_path),
        "rank": [],
        "step": [],
        "level": level,
        "risk_level": "ALL",
        real_task: section,
    } | ({} if facts else {"facts": False})


def peak_memory_bytes() -> int:
    """Largest resident size of this process since `forget_peak_memory`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak_memory() -> None:
    """Let the kernel count the peak from the present size on."""
    Path("/proc/self/clear_refs").write_text("5")


def bytes_on_disk(folder: Path) -> int:
    """Size of all files below `folder`; hard links of one file count once."""
    sizes = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if path.is_file():
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


class Worker:
    """The workload and, unless `tool` is "none", a constructed debugger."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(options.folder)
        self.dump_path = self.folder / "dump"
        self.work: Workload = build(options.case)
        self.debugger: Any = None
        self.version = ""
        self.disk_bytes = 0
        self.captured_steps = 0
        self.plain_peak_bytes = 0
        self.captured_peak_bytes = 0
        if options.tool != "none":
            self._construct()
        for _ in range(2):
            self.plain_step()

    def _construct(self) -> None:
        from msprobe.pytorch import PrecisionDebugger

        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.json"
        level, task, facts = self.options.level, self.options.task, not self.options.no_facts
        config.write_text(json.dumps(config_of(level, task, self.dump_path, facts=facts)))
        self.debugger = PrecisionDebugger(config_path=str(config))
        for name in ("msprobe", "mindstudio-probe"):
            try:
                self.version = f"{name} {metadata.version(name)}"
            except metadata.PackageNotFoundError:
                continue

    def plain_step(self) -> None:
        loss = self.work.forward()
        loss.backward()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad()

    def captured_step(self) -> None:
        self.debugger.start(self.work.model)
        loss = self.work.forward()
        loss.backward()
        self.debugger.stop()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad()
        self.debugger.step()

    def run(self, kind: str, steps: int) -> dict[str, object]:
        forget_peak_memory()
        wall, cpu, account = [], [], []
        step = self.captured_step if kind == "captured" else self.plain_step
        for _ in range(steps):
            begin, begin_cpu = time.perf_counter(), time.process_time()
            step()
            wall.append(time.perf_counter() - begin)
            cpu.append(time.process_time() - begin_cpu)
            if kind == "captured":
                account += self._clear_dump()
        if kind == "captured":
            self.captured_peak_bytes = max(self.captured_peak_bytes, peak_memory_bytes())
        elif not self.captured_steps:  # later plain steps run in memory that capture left behind
            self.plain_peak_bytes = max(self.plain_peak_bytes, peak_memory_bytes())
        return {"wall_s": wall, "cpu_s": cpu, "account_s": account}

    def _clear_dump(self) -> list[float]:
        """Count what the step wrote and remove it: a tensor dump is hundreds of megabytes.

        Returns: the seconds that the tool says it has spent, if it says so.
        """
        self.captured_steps += 1
        spent_s = []
        for folder in sorted(self.dump_path.glob("step*")):
            for account in folder.glob("*/account.json"):
                spent_s.append(json.loads(account.read_text())["capture_ms"] / 1e3)
            self.disk_bytes += bytes_on_disk(folder)
            shutil.rmtree(folder, ignore_errors=True)
        return spent_s

    def measure(self) -> dict[str, object]:
        return {
            "disk_bytes_per_step": self.disk_bytes / max(1, self.captured_steps),
            "peak_above_plain_bytes": max(0, self.captured_peak_bytes - self.plain_peak_bytes),
            "version": self.version,
            "torch": torch.__version__,
        }

    def profile(self, steps: int) -> dict[str, object]:
        profiler = cProfile.Profile()
        for _ in range(steps):
            profiler.enable()
            self.captured_step()
            profiler.disable()
            self._clear_dump()
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(45)
        return {"profile": text.getvalue()}

    def answer(self, command: dict[str, Any]) -> dict[str, object]:
        actions: dict[str, Callable[[], dict[str, object]]] = {
            "plain": lambda: self.run("plain", command["steps"]),
            "captured": lambda: self.run("captured", command["steps"]),
            "measure": self.measure,
            "profile": lambda: self.profile(command["steps"]),
        }
        return actions[command["do"]]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tool", choices=["none", "msprobe"], required=True)
    parser.add_argument("--case", required=True)
    parser.add_argument("--level", default="mix")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--no-facts", action="store_true")
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    keep_freed_memory()
    worker = Worker(options)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(worker.answer(json.loads(line))) + "\n")


if __name__ == "__main__":
    main()
