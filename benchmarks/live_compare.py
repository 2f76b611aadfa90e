# SPDX-License-Identifier: Apache-2.0
"""Time `live_compare` beside the plain step of a transformer, on one thread.

python benchmarks/live_compare.py [--steps N]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from bench_models import GPT

from msprobe.pytorch import live_compare


def main() -> None:
    """Print the CPU time of a step, plain, with all operators judged, and with one in twenty."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, ids = GPT(8, 256, 8, 128, 1000), torch.randint(1000, (4, 128))

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    step()
    with tempfile.TemporaryDirectory() as folder:
        checks = {
            "plain": nullcontext(),
            "every call": live_compare(dump_path=Path(folder) / "all"),
            "one in 20": live_compare(dump_path=Path(folder) / "some", every_n=20),
        }
        spent: dict[str, list[float]] = {name: [] for name in checks}
        for _ in range(steps):
            for name, check in checks.items():
                begun = time.process_time()
                with check:
                    step()
                spent[name].append(time.process_time() - begun)
        plain = min(spent["plain"])
        for name, times in spent.items():
            typical = sorted(times)[len(times) // 2]
            print(f"{name:12} {typical:.3f} s, {typical / plain:.2f} x the plain step")
        print(checks["every call"].summary())  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
