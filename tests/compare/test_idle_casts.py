# SPDX-License-Identifier: Apache-2.0
"""A cast to the only floating type of a program is no other precision, at level L0."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from builders.two_runs import fit, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Scores(nn.Module):
    """Weights its rows by a softmax, written in two ways."""

    # Class attributes are no options of a module.
    form: ClassVar[str | None]

    def __init__(self) -> None:
        super().__init__()
        self.put_in, self.out = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.put_in(x)
        weights = torch.softmax(x, -1)
        if self.form == "by parts":
            shifted = (x - x.amax(-1, keepdim=True)).exp()
            weights = (shifted / shifted.sum(-1, keepdim=True)).to(x.dtype)
        if self.form == "rounded":
            weights = weights.to(torch.half).to(x.dtype)
        made: Tensor = self.out(weights * x)
        return made


@pytest.mark.parametrize(("form", "kind"), [("by parts", "equal"), ("rounded", "precision")])
def test_a_cast_counts_only_beside_another_type(tmp_path: Path, form: str, kind: str) -> None:
    def run(debugger: PrecisionDebugger, change: str | None) -> None:
        Scores.form = change
        model = Scores()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        batches = torch.randn(3, 8, 16)

        fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())

    found = verdict_on(tmp_path, run, form, level="L0")
    assert found["class"] == kind, found["sentence"]
