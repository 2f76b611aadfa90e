# SPDX-License-Identifier: Apache-2.0
"""Measure `msprobe verify`: tiny calls, a transformer's step, processes, judging, sharpness.

python benchmarks/verify.py [--only tiny|processes|gpt|judging|smallest]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from bench_models import GPT

from msprobe import open_dump
from msprobe.checks.budgets import budget_of
from msprobe.checks.judging import judge
from msprobe.checks.verify_dump import Selection, verify_dump
from msprobe.dump.dump_steps import Dump
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.lookup import operator_of
from msprobe.pytorch import PrecisionDebugger

STEPS: Final = 30
LOOP: Final = """
import time
begun = time.perf_counter()
values = {}
for i in range(8_000_000):
    values[i & 1023] = i * i
print(time.perf_counter() - begun)
"""


def cpu_s() -> float:
    """Return the CPU time of this process and of those that it started and that have ended."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in own)


def plain_step_s(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """Return the CPU time of one training step; the median of five."""
    spent = []
    for _ in range(6):
        begun = time.process_time()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        spent.append(time.process_time() - begun)
    return sorted(spent[1:])[2]


def recorder(folder: Path) -> PrecisionDebugger:
    """Return a debugger that records at L1 with tensors."""
    config = {"task": "tensor", "level": "L1", "dump_path": str(folder), "step": [], "rank": []}
    path = folder / "config.json"
    path.write_text(json.dumps(config | {"tensor": {}}))
    return PrecisionDebugger(config_path=str(path))


def record(folder: Path, model: torch.nn.Module, ids: torch.Tensor, steps: int) -> None:
    """Record training steps at L1 with tensors."""
    debugger = recorder(folder)
    debugger.start(model)
    for _ in range(steps):
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    debugger.stop()
    debugger.step()


def tiny(folder: Path) -> None:
    """Print calls per CPU second of a small transformer's calls, and what a process's start takes.

    CPU times, so that other work on the machine counts little.
    """
    record(folder, GPT(1, 16, 2, 8, 32), torch.randint(32, (2, 8)), STEPS)
    dump = open_dump(folder)
    begun = cpu_s()
    verify_dump(dump, workers=1, selection=Selection(names=["cross_entropy.0."]))
    start = cpu_s() - begun
    begun = cpu_s()
    found = verify_dump(dump, workers=1)
    rate = len(found.calls) / (cpu_s() - begun - start)
    print(f"tiny: {len(found.calls)} calls, start {start:.2f} CPU s, {rate:.0f} calls per CPU s, "
          f"{found.judged} judged")  # fmt: skip


def processes(folder: Path) -> None:
    """Print how many times faster two processes are than one, beside what the machine itself gives.

    The control is a plain loop, alone and twice at once: on shared cores it is not twice, either.
    Each round measures all, so that a busier moment counts for both.
    """
    record(folder, GPT(1, 16, 2, 8, 32), torch.randint(32, (2, 8)), 3 * STEPS)
    dump = open_dump(folder)
    rounds = []
    for _ in range(3):
        alone, together = max(loops_s(1)), max(loops_s(2))
        (whole, started), (whole2, started2) = (verified_s(dump, count) for count in (1, 2))
        rounds.append(
            (2 * alone / together, whole / whole2, (whole - started) / (whole2 - started2))
        )
        print(f"  one process {whole:.2f} s, {started:.2f} until an answer; two "
              f"{whole2:.2f}, {started2:.2f}; loops {alone:.2f}, {together:.2f}")  # fmt: skip
    control, total, after = (sorted(column)[1] for column in zip(*rounds, strict=True))
    print(f"2 processes against 1: {after:.2f} x after start, {total:.2f} x with it; a plain loop "
          f"{control:.2f} x; in parts of that {after / control:.2f}")  # fmt: skip


def verified_s(dump: Dump, count: int) -> tuple[float, float]:
    """Return the wall-clock time of `verify_dump`, and that until its first answer."""
    begun = time.perf_counter()
    answers: list[float] = []
    verify_dump(
        dump,
        workers=count,
        progress=lambda done, total: answers.append(time.perf_counter() - begun),
    )
    return time.perf_counter() - begun, answers[0]


def loops_s(count: int) -> list[float]:
    """Return the wall-clock times of as many plain loops at once, without the starts."""
    started = [
        subprocess.Popen([sys.executable, "-c", LOOP], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    return [float(one.communicate()[0]) for one in started]


def gpt(folder: Path) -> None:
    """Print time and memory of one step of a transformer of width 256."""
    model, ids = GPT(8, 256, 8, 128, 1000), torch.randint(1000, (4, 128))
    record(folder, model, ids, 1)
    plain_s = plain_step_s(model, ids)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    found = verify_dump(open_dump(folder), workers=0)
    elapsed = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    print(f"gpt 8x256: plain step {plain_s:.2f} CPU s, verify {elapsed:.1f} CPU s = "
          f"{elapsed / plain_s:.1f} x, peak memory + {grown:.2f} GB, {len(found.calls)} calls, "
          f"{sum(call.is_fault for call in found.calls)} faults")  # fmt: skip


def judging(_: Path) -> None:
    """Print how fast one tensor is held against its reference, whose errors it explains."""
    draws = np.random.default_rng(0)
    exact = draws.normal(size=8_000_000)
    reference = StoredTensor(array=exact, dtype="float64")
    budget = budget_of(
        operator_of("Torch", "mul"), "float32", unit=2.0**-24, shape=exact.shape, operands=[]
    )
    for ulps in (0, 3, 8):
        found = exact * (1 + ulps * 2.0**-24 * draws.uniform(-1, 1, exact.shape))
        recorded = StoredTensor(array=found.astype(np.float32), dtype="float32")
        begun = time.process_time()
        judgement = judge(recorded, reference, budget, lambda _: ())
        elapsed = time.process_time() - begun
        rate = (recorded.array.nbytes + exact.nbytes) / elapsed / 1e9
        print(f"judging, errors up to {judgement.ulps:.1f} ulp: {rate:.2f} GB/s")


def smallest(folder: Path) -> None:
    """Print the smallest error of one element that is found, in unit roundoffs of the element."""
    torch.manual_seed(0)
    x, w = torch.randn(16, 512), torch.randn(16, 512)
    calls = {
        "mul": lambda x, w: x * w,
        "exp": lambda x, w: torch.exp(x),
        "gelu": lambda x, w: F.gelu(x),
        "sum, 512 terms": lambda x, w: x.sum(-1),
        "softmax": lambda x, w: x.softmax(-1),
        "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:]),
        "linear, 512 terms": F.linear,
        "attention": lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None]),
    }
    debugger = recorder(folder)
    types = (torch.float32, torch.float16, torch.bfloat16)
    cases = [(dtype, name) for dtype in types for name in calls]
    for step, (dtype, name) in enumerate(cases):
        debugger.start()
        calls[name](x.to(dtype), w.to(dtype))
        debugger.stop()
        debugger.step()
        data = folder / f"step{step}" / "rank" / "dump_tensor_data"
        last = max(data.glob("*.output.0.pt"), key=lambda one: one.stat().st_mtime_ns)
        values = torch.load(last)
        # The allowed error is known in full only of an element that needs explaining.
        values.reshape(-1)[int(values.abs().argmax())] *= 2
        last.unlink()
        torch.save(values, last)
    found = verify_dump(open_dump(folder), workers=0)
    for step, (dtype, name) in enumerate(cases):
        (fault,) = [one.worst.judgement for one in found.calls if one.step == step and one.is_fault]
        unit = torch.finfo(dtype).eps / 2
        size = fault.allowed / abs(fault.expected)
        print(f"smallest, {dtype}, {name}: {size:.1e} = {size / unit:.0f} u")


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = {
        "tiny": tiny,
        "processes": processes,
        "gpt": gpt,
        "judging": judging,
        "smallest": smallest,
    }
    parser.add_argument("--only", choices=chosen)
    only = parser.parse_args().only
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # the bars are for a core
    if only is None:  # a process has one debugger
        for name in chosen:
            subprocess.run([sys.executable, __file__, "--only", name], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen[only](Path(folder))


if __name__ == "__main__":
    main()
