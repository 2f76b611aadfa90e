# SPDX-License-Identifier: Apache-2.0
"""Measure `msprobe verify`: tiny calls, a transformer's step, processes, judging, sharpness.

python benchmarks/verify.py [--only tiny|gpt|judging|smallest]
"""

from __future__ import annotations

import argparse
import json
import resource
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
from msprobe.checks.verify_dump import verify_dump
from msprobe.dump.tensor_files import StoredTensor
from msprobe.operators.lookup import operator_of
from msprobe.pytorch import PrecisionDebugger

STEPS: Final = 30


def record(folder: Path, model: torch.nn.Module, ids: torch.Tensor, steps: int) -> float:
    """Record training steps at L1 with tensors; return the seconds of one plain step."""
    config = {"task": "tensor", "level": "L1", "dump_path": str(folder), "step": [], "rank": []}
    path = folder / "config.json"
    path.write_text(json.dumps(config | {"tensor": {}}))

    def step() -> None:
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    step()
    begun = time.perf_counter()
    for _ in range(3):
        step()
    plain_s = (time.perf_counter() - begun) / 3
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start(model)
    for _ in range(steps):
        step()
    debugger.stop()
    debugger.step()
    return plain_s


def tiny(folder: Path) -> None:
    """Print calls per second of a small transformer's calls, with one process and with two."""
    record(folder, GPT(1, 16, 2, 8, 32), torch.randint(32, (2, 8)), STEPS)
    dump = open_dump(folder)
    elapsed = {}
    for count in (1, 2):
        begun = time.perf_counter()
        first: list[float] = []

        def progress(done: int, _: int, first: list[float] = first, begun: float = begun) -> None:
            if done == 1:
                first.append(time.perf_counter() - begun)

        found = verify_dump(dump, workers=count, progress=progress)
        elapsed[count] = time.perf_counter() - begun - first[0]
        rate = len(found.calls) / elapsed[count]
        print(f"tiny, {count} process(es): {len(found.calls)} calls, start {first[0]:.2f} s, "
              f"{rate:.0f} calls/s, {found.judged} judged")  # fmt: skip
    print(f"tiny, 2 processes against 1: {elapsed[1] / elapsed[2]:.2f} x")


def gpt(folder: Path) -> None:
    """Print time and memory of one step of a transformer of width 256."""
    model, ids = GPT(8, 256, 8, 128, 1000), torch.randint(1000, (4, 128))
    plain_s = record(folder, model, ids, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    found = verify_dump(open_dump(folder), workers=0)
    elapsed = time.perf_counter() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    print(f"gpt 8x256: plain step {plain_s:.2f} s, verify {elapsed:.1f} s = "
          f"{elapsed / plain_s:.1f} x, peak memory + {grown:.2f} GB, {len(found.calls)} calls, "
          f"{sum(call.is_fault for call in found.calls)} faults")  # fmt: skip


def judging(_: Path) -> None:
    """Print how fast one tensor is held against its reference."""
    exact = np.random.default_rng(0).normal(size=8_000_000)
    recorded = StoredTensor(array=exact.astype(np.float32), dtype="float32")
    reference = StoredTensor(array=exact, dtype="float64")
    budget = budget_of(
        operator_of("Torch", "mul"), "float32", unit=2.0**-24, shape=exact.shape, operands=[]
    )
    begun = time.process_time()
    judge(recorded, reference, budget, lambda _: ())
    elapsed = time.process_time() - begun
    print(f"judging: {(recorded.array.nbytes + exact.nbytes) / elapsed / 1e9:.2f} GB/s")


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
    path = folder / "config.json"
    config = {"task": "tensor", "level": "L1", "dump_path": str(folder / "dump")}
    path.write_text(json.dumps(config | {"tensor": {}, "step": [], "rank": []}))
    debugger = PrecisionDebugger(config_path=str(path))
    types = (torch.float32, torch.float16, torch.bfloat16)
    cases = [(dtype, name) for dtype in types for name in calls]
    for step, (dtype, name) in enumerate(cases):
        debugger.start()
        calls[name](x.to(dtype), w.to(dtype))
        debugger.stop()
        debugger.step()
        data = folder / "dump" / f"step{step}" / "rank" / "dump_tensor_data"
        last = max(data.glob("*.output.0.pt"), key=lambda one: one.stat().st_mtime_ns)
        values = torch.load(last)
        # The allowed error is known in full only of an element that needs explaining.
        values.reshape(-1)[int(values.abs().argmax())] *= 2
        last.unlink()
        torch.save(values, last)
    found = verify_dump(open_dump(folder / "dump"), workers=0)
    for step, (dtype, name) in enumerate(cases):
        (fault,) = [one.worst.judgement for one in found.calls if one.step == step and one.is_fault]
        unit = torch.finfo(dtype).eps / 2
        size = fault.allowed / abs(fault.expected)
        print(f"smallest, {dtype}, {name}: {size:.1e} = {size / unit:.0f} u")


def main() -> None:
    """Run the chosen benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = {"tiny": tiny, "gpt": gpt, "judging": judging, "smallest": smallest}
    parser.add_argument("--only", choices=chosen)
    only = parser.parse_args().only
    torch.set_num_threads(1)
    for name, run in chosen.items():
        if only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
