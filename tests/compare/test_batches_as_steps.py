# SPDX-License-Identifier: Apache-2.0
"""Batches that are recorded as steps: some end in an update, others add to its gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from builders.two_runs import recorded_steps, verdict_on  # noqa: E402
from msprobe.pytorch import PrecisionDebugger  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = ["L0", "L1", "mix"]


class Padded(nn.Module):
    """Computes what is padded in one of two ways, which the loss leaves out.

    Args:
        way: fills it with zeros, with ``ones``, or spoils what is not padded, ``wrong``.
    """

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)
        self.way = way

    def forward(self, data: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(data)
        if self.way == "ones":
            hidden = torch.where(is_kept[:, None], hidden, torch.ones(8))
        elif self.way == "wrong":
            hidden = hidden.masked_fill(is_kept[:, None] & (hidden > 0.5), 0.0)
        else:
            hidden = hidden.masked_fill(~is_kept[:, None], 0.0)
        result: torch.Tensor = self.outer(hidden)
        return result


def accumulate(debugger: PrecisionDebugger, way: str) -> None:
    """Train on six batches, of which every second one ends in an update."""
    model, data = Padded(way), torch.randn(6, 8, 6)
    is_kept = torch.arange(8) < 6
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for number in recorded_steps(debugger, model, 6):
        result = model(data[number], is_kept)[is_kept]
        (result.square().mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


# At level L0 nothing tells what is made of the result of a model.
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_what_a_batch_adds_to_the_same_gradients_is_no_cause(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, accumulate, "ones", "zeros", level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_batch_adds_to_other_gradients_is_one(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, accumulate, "wrong", "zeros", level)

    assert verdict["class"] not in ("equal", "rounding", "precision"), verdict["sentence"]
    assert verdict["where"]["step"] == 0


class Recurrent(nn.Module):
    """Calls a recurrent layer, or its cell for each place, with the same weights."""

    def __init__(self, *, by_cell: bool, factor: float = 1.0) -> None:
        super().__init__()
        layer = nn.GRU(6, 8, batch_first=True)
        self.gru: nn.Module = layer
        if by_cell:
            self.gru = nn.GRUCell(6, 8)
            with torch.no_grad():
                for name, own in self.gru.named_parameters():
                    own.copy_(getattr(layer, f"{name}_l0") * factor)
        self.head = nn.Linear(8, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if isinstance(self.gru, nn.GRUCell):
            hidden = torch.zeros(data.shape[0], 8)
            for place in range(data.shape[1]):
                hidden = self.gru(data[:, place], hidden)
        else:
            hidden = self.gru(data)[0][:, -1]
        result: torch.Tensor = self.head(hidden)
        return result


def recur(debugger: PrecisionDebugger, how: tuple[bool, float]) -> None:
    torch.manual_seed(3)
    model = Recurrent(by_cell=how[0], factor=how[1])
    torch.manual_seed(4)
    nn.init.normal_(model.head.weight)
    nn.init.normal_(model.head.bias)
    data = torch.randn(4, 8, 5, 6)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for number in recorded_steps(debugger, model, 4):
        model(data[number]).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("level", LEVELS)
def test_a_cell_with_the_weights_of_a_recurrent_layer_is_that_layer(
    tmp_path: Path, level: str
) -> None:
    verdict = verdict_on(tmp_path, recur, (True, 1.0), (False, 1.0), level)

    assert verdict["class"] in ("equal", "rounding"), verdict["sentence"]
    assert verdict["confidence"] == "proved"


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_cell_with_other_weights_is_another_module(tmp_path: Path, level: str) -> None:
    verdict = verdict_on(tmp_path, recur, (True, 1.1), (False, 1.0), level)

    assert verdict["class"] in ("call", "parameters"), verdict["sentence"]
    assert "gru" in verdict["sentence"]
