# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with and without the task `signature`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from msprobe.capture.session import reset_session
from msprobe.pytorch import PrecisionDebugger

STEPS = 12
PLANTED = 7


class Training:
    """A model, its optimizer and the batch of the current step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.batches = torch.Generator().manual_seed(1)
        self.batch = torch.zeros(5, 8)


Change = Callable[[Training], None]


def nothing(_: Training) -> None:
    """Change nothing."""


def train(
    folder: Path | None,
    *,
    before: Change = nothing,
    between: Change = nothing,
    steps: range = range(STEPS),
    micro: int = 1,
    stops_behind: bool = False,
    **settings: Any,
) -> dict[str, Tensor]:
    """Train for some steps, and return the final state of the model.

    Args:
        folder: the dump path; None to train without msprobe.
        before: changes the training before the planted step.
        between: changes it between the backward pass and the optimizer's step of that step.
        steps: numbers of the steps.
        micro: micro batches in a step.
        stops_behind: whether `stop` follows the optimizer's step.
        settings: of the debugger; by default the task is `signature`.
    """
    run = Training()
    debugger = None
    if folder is not None:
        debugger = PrecisionDebugger(dump_path=folder, **{"task": "signature", **settings})
        if steps.start:
            debugger.set_init_step(steps.start)
    for step in steps:
        run.batch = torch.randn(5, 8, generator=run.batches)
        if step == PLANTED:
            before(run)
        run.optimizer.zero_grad()
        for _ in range(micro):
            if debugger is not None:
                debugger.start(run.model)
            run.model(run.batch).square().mean().backward()
            if debugger is not None and not stops_behind:
                debugger.stop()
        if step == PLANTED:
            between(run)
        run.optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    reset_session()
    return run.model.state_dict()
