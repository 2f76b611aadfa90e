# SPDX-License-Identifier: Apache-2.0
"""What does recording cost on an accelerator? One command; prints a Markdown table.

    python benchmarks/accelerator.py                        # all cases
    python benchmarks/accelerator.py --case small-ops       # one of them
    python benchmarks/accelerator.py --syncs                # and who waits for the device, by stack

Plain and recorded steps take turns in one process; each is timed until the device has finished.
"Syncs" are the operations of one recorded step for which a host thread waited for the device, as
torch's own check of synchronisations finds them: those of the training's thread, and of others.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import statistics
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from bench_models import GPT, Workload

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

CASES: Final[dict[str, tuple[int, int, int, int, int, str]]] = {
    # layers, width, batch, length, vocabulary, type
    "transformer-1b": (18, 2048, 4, 1024, 32_000, "bfloat16"),
    "gpt": (8, 256, 4, 128, 256, "float32"),
    "small-ops": (12, 64, 1, 16, 256, "float32"),
}
LEVELS: Final = ("L0", "L1", "mix")


def build(case: str, device: str) -> Workload:
    """Build one case on a device, with a fixed seed."""
    layers, width, batch, length, vocabulary, dtype = CASES[case]
    torch.manual_seed(1234)
    with torch.device(device):
        model = GPT(layers, width, max(1, width // 64), length, vocabulary)
        ids = torch.randint(0, vocabulary, (batch, length))
    model.to(getattr(torch, dtype))
    targets = ids.roll(-1, 1).flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return Workload(
        model, optimizer, lambda: F.cross_entropy(model(ids).flatten(0, 1).float(), targets)
    )


class Training:
    """A workload with a debugger."""

    def __init__(self, work: Workload, level: str, task: str, folder: Path, facts: bool) -> None:
        self.work, self.folder = work, folder
        config = folder / "config.json"
        config.write_text(
            json.dumps({"task": task, "level": level, "dump_path": str(folder), "facts": facts})
        )
        self.debugger: Any = PrecisionDebugger(config_path=str(config))

    def plain(self) -> None:
        self.work.forward().backward()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad()

    def recorded(self) -> None:
        self.debugger.start(self.work.model)
        self.work.forward().backward()
        self.debugger.stop()
        self.work.optimizer.step()
        self.work.optimizer.zero_grad()
        self.debugger.step()

    def clear(self) -> None:
        for path in self.folder.glob("step*"):
            shutil.rmtree(path, ignore_errors=True)


def seconds(step: Callable[[], None]) -> tuple[float, float]:
    """Return the time of a step, and the part of it that the host takes to launch it all."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, launched - begin


@contextmanager
def counted_waits(found: Counter[tuple[bool, str]]) -> Iterator[None]:
    """Count where host threads wait for the device: (is it the training's thread, stack)."""
    training = threading.get_ident()
    synchronize = torch.cuda.Event.synchronize

    def count() -> None:
        stack = "".join(traceback.format_stack()[-9:-2])
        found[threading.get_ident() == training, stack] += 1

    def show(message: object, *_: object, **__: object) -> None:
        if "synchroniz" in str(message):
            count()

    def wait(event: torch.cuda.Event) -> None:
        if not event.query():
            count()
        synchronize(event)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        torch.cuda.Event.synchronize = wait
        try:
            yield
        finally:
            torch.cuda.Event.synchronize = synchronize
            torch.cuda.set_sync_debug_mode("default")


def show_profile(training: Training) -> None:
    """Print where the training's thread spends a recorded step."""
    profiler = cProfile.Profile()
    profiler.runcall(training.recorded)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def measure(case: str, level: str, task: str, options: argparse.Namespace) -> str:
    """Return one line of the table."""
    with tempfile.TemporaryDirectory(prefix="msprobe-bench-") as scratch:
        folder = Path(scratch)
        training = Training(build(case, options.device), level, task, folder, not options.no_facts)
        for step in (training.plain, training.plain, training.recorded, training.recorded):
            step()
        training.clear()
        torch.cuda.reset_peak_memory_stats()
        seconds(training.plain)
        plain_peak = torch.cuda.max_memory_allocated()
        plain, recorded, launched = [], [], []
        for _ in range(options.rounds):
            plain.append(seconds(training.plain)[0])
            whole, host = seconds(training.recorded)
            recorded.append(whole)
            launched.append(host)
            training.clear()
        added_peak = torch.cuda.max_memory_allocated() - plain_peak
        waits: Counter[tuple[bool, str]] = Counter()
        with counted_waits(waits):
            training.recorded()
        own = sum(count for (is_own, _), count in waits.items() if is_own)
        if options.syncs:
            for (is_own, stack), count in waits.most_common(12):
                print(f"--- {count} x {'training' if is_own else 'other'} thread\n{stack}")
        if options.profile:
            show_profile(training)
        ratio = statistics.median(r / p for r, p in zip(recorded, plain, strict=True))
        before, after = statistics.median(plain) * 1e3, statistics.median(recorded) * 1e3
        training.debugger.stop()
        return (
            f"| {case} | {level} | {task} | {before:.1f} | {after:.1f} | {ratio:.2f}x "
            f"| {statistics.median(launched) * 1e3:.1f} | {own} | {sum(waits.values()) - own} "
            f"| {added_peak / 2**20:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--level", nargs="*", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--syncs", action="store_true", help="print who waits for the device")
    parser.add_argument("--profile", action="store_true", help="print where the host's time goes")
    parser.add_argument("--no-facts", action="store_true")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    titles = (
        *("case", "level", "task", "plain ms", "recorded ms", "slow-down", "host ms"),
        *("syncs", "of others", "peak +MB"),
    )
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for case in options.case:
        for level in options.level:
            print(measure(case, level, options.task, options), flush=True)
            reset_session()


if __name__ == "__main__":
    main()
