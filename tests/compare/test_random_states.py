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


class Net(nn.Module):
    """Dropout between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.drop, self.out = nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.drop(self.into(x).tanh())
        result: torch.Tensor = self.out(hidden)
        return result


def trained(folder: Path, level: str, extra: str = "", generator: str = "") -> Path:
    """Record three steps; in one of them one side may draw further numbers."""
    torch.manual_seed(0)
    net = Net()
    own = torch.Generator().manual_seed(3) if generator else None
    x = torch.linspace(-1.0, 1.0, 30).reshape(5, 6).sin()
    with recording(folder, level) as observed:
        for step in range(3):
            with observed.step_of(net):
                noise = torch.rand(5, 6, generator=own) if own else torch.zeros(5, 6)
                loss = net(x + noise).square().mean()
                if extra == "draw" and step == 1:
                    torch.rand(2, generator=own)
                if extra == "own draw" and step == 1:
                    torch.rand(2, generator=torch.Generator())
                if extra == "no chance" and step == 1:
                    functional.dropout(torch.ones(3), 0.0)
                    functional.dropout(torch.ones(3), 0.5, training=False)
                if extra == "model" and step == 1:
                    with torch.no_grad():
                        net(x[:1])
                loss.backward()
            net.zero_grad()
    return folder


def sentence(tmp_path: Path, level: str, extra: str, generator: str = "") -> str:
    sides = (
        trained(tmp_path / "target", level, extra, generator),
        trained(tmp_path / "reference", level, "", generator),
    )
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]
    return f"{verdict['class']}: {verdict['sentence']}"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_model_that_one_side_alone_calls_again_is_named(tmp_path: Path, level: str) -> None:
    found = sentence(tmp_path, level, "model")

    of_dropout = "the target calls Functional.dropout twice, the reference once"
    named = of_dropout if level == "L0" else "only the target calls Module.Net.forward.1"
    assert found.startswith("call: "), found
    assert named in found
    assert "differs when step 2 starts" in found


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_one_side_alone_draws_from_a_generator_of_its_own_is_named(
    tmp_path: Path, level: str
) -> None:
    found = sentence(tmp_path, level, "draw", "own")

    assert found.startswith("random: random numbers: only the target calls Torch.rand.1.f"), found
    assert "output.0 of Torch.rand.0.forward" in found


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_generator_of_its_own_leaves_the_state_of_others(tmp_path: Path, level: str) -> None:
    found = sentence(tmp_path, level, "own draw")

    assert found.startswith("equal"), found


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_dropout_without_chance_draws_nothing(tmp_path: Path, level: str) -> None:
    assert sentence(tmp_path, level, "no chance").startswith("equal")


def cut(folder: Path, level: str, *, flips: bool = False) -> Path:
    """Record a training on pieces of a text that begin at drawn places."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(40, 9))
    text = torch.randint(0, 9, (200,), generator=torch.Generator().manual_seed(1))
    with recording(folder, level) as observed, observed.step_of(net):
        starts = torch.tensor([3, 50, 91, 120])[torch.arange(4)]
        if flips:
            starts = starts.flip(0)
        for part in starts.reshape(2, 2):
            x = torch.stack([text[each : each + 5] for each in part])
            y = torch.cat([text[each + 5 : each + 6] for each in part])
            functional.cross_entropy(net(x), y).backward()
    return folder


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_bounds_that_are_tensors_follow_from_the_call_that_moves_them(
    tmp_path: Path, level: str
) -> None:
    sides = cut(tmp_path / "target", level, flips=True), cut(tmp_path / "reference", level)
    verdict = run_comparison(*sides, CompareOptions()).summary["verdict"]

    assert verdict["class"] in ("call", "data"), verdict["sentence"]
    assert "only the target calls Tensor.flip.0.forward" in verdict["sentence"]
