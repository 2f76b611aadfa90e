# SPDX-License-Identifier: Apache-2.0
"""A block that one side leaves out is told by the parameters that the other calls are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builders.recordings import recording
from msprobe.compare.run import compare_dumps

torch = pytest.importorskip("torch")


class Blocks(torch.nn.Module):
    """Residual blocks of one shape."""

    def __init__(self, skipped: int | None) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 32), torch.nn.GELU())
            for _ in range(4)
        )
        self.skipped = skipped

    def forward(self, x: Any) -> Any:
        for place, block in enumerate(self.blocks):
            if place != self.skipped:
                x = x + block(x)
        return x.square().mean()


def test_the_calls_of_the_missing_block_are_the_culprit_without_modules(tmp_path: Path) -> None:
    for name, skipped in (("target", 1), ("reference", None)):
        model = Blocks(skipped)
        with recording(tmp_path / name, "L1") as run, run.step_of(model):
            model(torch.linspace(-1, 1, 128).sin().view(4, 32)).backward()

    verdict = compare_dumps(tmp_path / "target", tmp_path / "reference").summary["verdict"]

    assert verdict["class"] == "call"
    assert "only the reference calls Functional.linear.1.forward" in verdict["sentence"]
