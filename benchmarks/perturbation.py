# SPDX-License-Identifier: Apache-2.0
"""Cost of the task `free_benchmark`: CPU time with and without it, taken in turns in one process.

    python benchmarks/perturbation.py           # GPT 8x256, batch 4x128, one thread

`forward` is the forward pass alone, of which every call is perturbed; `step` a whole step, of which
one operator is.
"""

from __future__ import annotations

import argparse
import logging
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from checks import PLAIN, Group, Training, run_of, time_in_turns

MODES: Final = (
    *("ulp_noise", "relative_noise", "permute", "rerun", "high_precision", "cpu_reference"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(1)
    training = Training(layers=8, width=256, batch=4, length=128)
    with TemporaryDirectory() as name:
        folder = Path(name)
        task, level, one = "free_benchmark", "L1", {"mode": "ulp_noise", "list": ["layer_norm"]}
        forward = {mode: run_of(folder / mode, task, level, mode=mode) for mode in options.modes}
        step = {
            "layer_norm alone": run_of(folder / "listed", task, level, **one),
            "its backward": run_of(folder / "backward", task, level, fuzz_stage="backward", **one),
        }
        for group in (
            Group("forward", training.forward, training, {PLAIN: nullcontext(), **forward}),
            Group("step", training.step, training, {PLAIN: nullcontext(), **step}),
        ):
            time_in_turns(group, options.rounds)


if __name__ == "__main__":
    main()
