# SPDX-License-Identifier: Apache-2.0
"""A state that a model returns and is given again in the next step is no data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch


class Reader(nn.Module):
    """Reads a piece of a text, and returns the state that the next one begins with."""

    def __init__(self, change: str | None) -> None:
        super().__init__()
        self.is_coarse = change == "coarse"
        self.front, self.inner, self.head = nn.Linear(4, 8), nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_coarse):
            made = self.front(x)
        made, state = self.inner(made.float(), state)
        return self.head(made), state


def reading(debugger: PrecisionDebugger, change: str | None) -> None:
    """Some texts end with a piece: their states begin with zeros again."""
    model = Reader(change)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pieces, labels = torch.randn(3, 5, 16, 4), torch.randint(0, 3, (3, 80))
    state, first = torch.zeros(1, 16, 8), torch.zeros(1, 16, 8)
    for number in recorded_steps(debugger, model):
        state = first if change == "forgotten" else state.detach()
        state = state.bfloat16().float() if change == "rounded" else state
        state = state.masked_fill(torch.arange(16).eq(number)[None, :, None], 0.0)
        x = pieces[0] if change == "again" else pieces[number]
        made, state = model(x, state)
        optimizer.zero_grad()
        nn.functional.cross_entropy(made.flatten(0, 1), labels[number]).backward()
        optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (
            "forgotten",
            "argument",
            "a result of the step before in the reference, not in the target",
        ),
        ("coarse", "precision", "bfloat16"),
        ("rounded", "precision", "only the target calls Tensor.bfloat16"),
        ("again", "data", "the batch of step 1"),
    ],
)
def test_what_a_step_leaves_for_the_next_one_is_no_data(
    level: str, change: str, verdict: str, words: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, reading, change, level=level)
    assert (found["class"], words in found["sentence"]) == (verdict, True), found["sentence"]
    assert "None" not in found["sentence"]


class Pairer(nn.Module):
    """Tells the pairs of two views from other ones, and from keys of the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(self.head(torch.tanh(self.inner(x))), dim=1)


def pairing(debugger: PrecisionDebugger, change: str | None, rate: float = 0.1) -> None:
    """The loss is the same whichever view comes first; of what keys are made may not be."""
    model = Pairer()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    pieces, queue = torch.randn(5, 8, 6), nn.functional.normalize(torch.randn(16, 4), dim=1)
    for number in recorded_steps(debugger, model, 5):
        first, second = pieces[number] * 1.1 + 0.3, pieces[number].flip(1) * 0.8 - 0.1
        if change in ("exchanged", "both_exchanged"):
            first, second = second, first
        both = torch.cat([model(first), model(second)])
        own = (both @ both.t()).masked_fill(torch.eye(16).bool(), -9.0)
        alike = torch.cat([own, both @ queue.t()], 1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(alike * 5, torch.arange(16).roll(8)).backward()
        optimizer.step()
        with torch.no_grad():
            queue[8:] = model(second)
            if change in ("both", "both_exchanged"):
                queue[:8] = model(first)


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_that_a_step_came_to_the_same_excuses_nothing_that_the_next_one_makes_of_it(
    level: str, tmp_path: Path
) -> None:
    found = verdict_on(tmp_path, pairing, "exchanged", level=level)
    assert found["class"] == "order", found["sentence"]
    assert "Tensor.__sub__.0.forward instead of the result of Tensor.__add__.0" in found["sentence"]
    assert found["where"]["step"] == 0


@pytest.mark.parametrize("rate", [0.1, 10.0, 30.0, 300.0])
def test_what_is_handed_on_in_another_order_is_rounding(rate: float, tmp_path: Path) -> None:
    found = verdict_on(tmp_path, partial(pairing, rate=rate), "both_exchanged", "both")
    assert found["class"] in ("equal", "rounding"), found["sentence"]
    assert found["confidence"] == "proved"
