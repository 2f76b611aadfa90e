# SPDX-License-Identifier: Apache-2.0
"""Code that stays compiled while it is recorded (``"compile": "modules_only"``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders.recordings import Recording, recording

# Of the compiler's own, when it looks at the inputs of a block.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.wide = nn.Linear(4, 16)
        self.narrow = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def _train(run: Recording | None, *, whole_blocks: bool) -> tuple[list[Tensor], int]:
    """Train two steps; return every value that matters, and how many graphs were compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model: Any = nn.Sequential(Block(), Block(), nn.Linear(4, 2))
    if whole_blocks:
        model[0].compile(backend="aot_eager")
        model[1].compile(backend="aot_eager")
    else:
        model[2].compile(backend="aot_eager")
    loss_of = torch.compile(lambda y: (torch.sin(y) * 2 + y.exp()).sum(), backend="aot_eager")
    values = []
    for _ in range(2):
        model.zero_grad()
        with run.step_of(model) if run is not None else nullcontext():
            loss = loss_of(model(torch.linspace(-1, 1, 12).reshape(3, 4)))
            loss.backward()
        values += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
    return values, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("whole_blocks", [True, False])
def test_as_many_graphs_are_compiled_and_the_bits_are_the_same(
    level: str, whole_blocks: bool, tmp_path: Path
) -> None:
    plain, graphs = _train(None, whole_blocks=whole_blocks)
    with recording(tmp_path, level, compile="modules_only") as run:
        observed, graphs_observed = _train(run, whole_blocks=whole_blocks)
        account = run.account()
    assert all(torch.equal(one, other) for one, other in zip(plain, observed, strict=True))
    assert graphs_observed == graphs > 0
    assert account["errors"] == {}
    assert account["complete"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_compiled_block_is_recorded_as_a_module(level: str, tmp_path: Path) -> None:
    with recording(tmp_path, level, compile="modules_only") as run:
        _train(run, whole_blocks=True)
        records = run.records()
        notes = run.account()["notes"]
    names = [name for name in records if name.startswith("Module.")]
    for block in (0, 1):
        assert f"Module.{block}.Block.forward.0" in names
        assert f"Module.{block}.Block.backward.0" in names
        assert not [name for name in names if f".{block}.wide." in name and "grad" not in name]
    assert "Module.2.Linear.forward.0" in names
    assert any("stayed compiled" in note for note in notes)
