# SPDX-License-Identifier: Apache-2.0
"""NaN that begins in a recomputation of which no values were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe.overflow.analysis import analyze_overflow

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4, 8)
        self.down = torch.nn.Linear(8, 4)
        self.runs = 0

    def forward(self, x):
        x = torch.tanh(self.up(x))
        self.runs += 1
        return self.down(torch.log(x - 5) if self.runs == 2 else x)


class Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.inner = Inner()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, self.first(x), use_reentrant=True)


def test_the_answer_says_that_it_may_have_begun_there(tmp_path: Path) -> None:
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    net = Outer()
    debugger = PrecisionDebugger(dump_path=str(tmp_path), task="statistics", level="L0")
    debugger.start(net)
    net(torch.ones(2, 4)).sum().backward()
    debugger.stop()
    debugger.step()
    (step,) = analyze_overflow(tmp_path)
    first, *_ = step.first
    assert "record_recompute" in first.detail
