# SPDX-License-Identifier: Apache-2.0
"""A cast to the only floating type of a program is no other precision, at level L0."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

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


class Norm(nn.LayerNorm):
    """Computes in float64 where the class says so."""

    is_fine: ClassVar[bool]

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_fine:
            return super().forward(x)
        given = (self.weight.double(), self.bias.double(), self.eps)
        return functional.layer_norm(x.double(), (16,), *given).to(x.dtype)


class Attention(nn.Module):
    """The bias of its keys gets no gradient but rounding, by which RMSprop moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.key = Norm(16), nn.Linear(16, 16), nn.Linear(16, 16)
        nn.init.zeros_(self.key.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return torch.softmax(self.query(x) @ self.key(x).mT, -1) @ x


def test_a_finer_type_within_a_module_is_proved_beside_noise(tmp_path: Path) -> None:
    def run(debugger: PrecisionDebugger, is_fine: bool) -> None:
        Norm.is_fine = is_fine
        model, batches = Attention(), torch.randn(3, 4, 6, 16)
        optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.5, eps=1e-6)
        fit(debugger, model, optimizer, lambda number: model(batches[number]).square().mean())

    found = verdict_on(tmp_path, run, True, False, level="L0")
    assert (found["class"], found["confidence"]) == ("precision", "proved"), found["sentence"]
