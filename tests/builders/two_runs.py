# SPDX-License-Identifier: Apache-2.0
"""Two recordings of one small training, and what their comparison says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msprobe.capture.session import reset_session
from msprobe.compare.options import CompareOptions
from msprobe.compare.run import run_comparison
from msprobe.pytorch import PrecisionDebugger

Run = Callable[[PrecisionDebugger, Any], None]


def compared(
    folder: Path, run: Run, change: Any, base: Any = None, level: str = "mix"
) -> dict[str, Any]:
    """Record a training with either option, by its statistics, and return the summary."""
    for name, option in (("target", change), ("reference", base)):
        torch.manual_seed(1)
        reset_session()
        run(PrecisionDebugger(dump_path=str(folder / name), task="statistics", level=level), option)
    reset_session()
    return run_comparison(folder / "target", folder / "reference", CompareOptions()).summary


def verdict_on(
    folder: Path, run: Run, change: Any, base: Any = None, level: str = "mix"
) -> dict[str, Any]:
    """Same as `compared` for the verdict alone."""
    verdict: dict[str, Any] = compared(folder, run, change, base, level)["verdict"]
    return verdict


def recorded_steps(
    debugger: PrecisionDebugger, model: nn.Module | list[nn.Module], count: int = 3
) -> Iterator[int]:
    """Yield the numbers of steps; what a loop does with one is recorded as that step."""
    for number in range(count):
        debugger.start(model)
        yield number
        debugger.stop()
        debugger.step()


def fit(
    debugger: PrecisionDebugger,
    model: nn.Module | list[nn.Module],
    optimizer: torch.optim.Optimizer,
    loss: Callable[[int], torch.Tensor],
    *,
    zero_first: bool = True,
) -> None:
    """Record three steps, each an update by the loss of its number.

    Gradients are cleared before the forward pass, else after the update.
    """
    for number in recorded_steps(debugger, model):
        if zero_first:
            optimizer.zero_grad()
        loss(number).backward()
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
