# SPDX-License-Identifier: Apache-2.0
"""States of random generators, where the calls that draw from them recorded these."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from builders.recordings import recording  # noqa: E402
from msprobe.compare.options import CompareOptions  # noqa: E402
from msprobe.compare.run import run_comparison  # noqa: E402

pytestmark = [pytest.mark.torch]


def recorded(folder: Path, seed: int) -> Path:
    x = torch.linspace(1.0, 2.0, 64)
    torch.manual_seed(seed)
    with recording(folder, "L1", "tensor", record_rng=True) as observed, observed.step_of():
        functional.dropout(x.square(), 0.5).sum()
    for path in folder.rglob("facts.json"):  # they would tell it of the generator itself
        path.unlink()
    return folder


def test_another_state_of_the_generator_is_told(tmp_path: Path) -> None:
    sides = recorded(tmp_path / "target", 1), recorded(tmp_path / "reference", 2)
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "random"
    words = "the state of the generator that Functional.dropout.0.forward draws from"
    assert words in verdict["sentence"]


def masked(folder: Path, level: str, *, draws_before: int = 0, limit: int = 20) -> Path:
    """Record a training whose inputs are masked where a generator of the program's own says."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 1))
    own = torch.Generator().manual_seed(5)
    torch.rand(draws_before, generator=own)
    x = torch.linspace(-1.0, 2.0, 96).reshape(4, 24).sin()
    with recording(folder, level) as observed, observed.step_of(net):
        begin = int(torch.randint(0, 4, (1,), generator=own))
        width = int(torch.randint(1, limit - begin, (1,), generator=own))
        masked = x.clone()
        masked[:, begin : begin + width] = 0.0
        top, left = (int(each) for each in torch.randint(0, 9, (2,), generator=own))
        net(masked.roll(top, 0) + x[:, left : left + 1]).square().mean().backward()
    return folder


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_place_that_is_drawn_follows_from_the_draw(tmp_path: Path, level: str) -> None:
    sides = (
        masked(tmp_path / "target", level, draws_before=1),
        masked(tmp_path / "reference", level),
    )
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "random", verdict["sentence"]
    assert "output.0 of Torch.randint.0.forward" in verdict["sentence"]


def test_the_limit_of_a_draw_comes_before_the_place_that_is_drawn(tmp_path: Path) -> None:
    sides = masked(tmp_path / "target", "mix", limit=12), masked(tmp_path / "reference", "mix")
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] == "argument", verdict["sentence"]
    assert "input.1 of Torch.randint.1.forward" in verdict["sentence"]
