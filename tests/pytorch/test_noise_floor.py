# SPDX-License-Identifier: Apache-2.0
"""Task `noise_floor`: what is moved, by how much, and what stays as it is."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import msprobe
from msprobe.capture.session import reset_session
from msprobe.errors import UnsupportedError
from msprobe.pytorch import PrecisionDebugger
from msprobe.pytorch.values.stochastic_rounding import Mover

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def moved(tensor: torch.Tensor, seed: int = 0) -> torch.Tensor:
    mover, copy = Mover(), tensor.clone()
    mover.seed(seed)
    mover.move(copy)
    return copy


def neighbours(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
    return (bits - 1).view(tensor.dtype), (bits + 1).view(tensor.dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_one_element_of_four_goes_to_a_neighbour_and_the_mean_stays(dtype):
    before = torch.randn(200_000, generator=torch.Generator().manual_seed(1)).to(dtype)
    after = moved(before)
    below, above = neighbours(before)
    up, down = (after == above).float().mean(), (after == below).float().mean()
    share = (1 - 2 * torch.finfo(dtype).eps) / 8  # fractions of all zeros and all ones stay
    tolerance = 5 * math.sqrt(1 / 8 / before.numel())
    assert abs(up - share) < tolerance
    assert abs(down - share) < tolerance
    assert bool(((after == before) | (after == above) | (after == below)).all())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_constants_and_what_is_not_finite_stay(dtype):
    ends = torch.finfo(dtype)
    constants = [0.0, -0.0, 1.0, -2.0, 0.25, ends.max, ends.min, math.inf, -math.inf, math.nan]
    before = torch.tensor(constants, dtype=dtype).repeat(500)
    after = moved(before)
    assert torch.allclose(after, before, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(after.signbit(), before.signbit())


def test_complex_parts_move_and_integers_do_not():
    numbers = torch.randn(5000, dtype=torch.complex64)
    after = moved(numbers)
    assert 0.4 < (after != numbers).float().mean() < 0.47  # either part: 1 - (3/4)²
    assert torch.equal(moved(torch.arange(5000)), torch.arange(5000))


def test_a_counter_stays_and_a_slice_moves_alone():
    assert all(moved(torch.tensor(3.0), seed) == 3.0 for seed in range(50))
    assert any(moved(torch.tensor(0.3), seed) != torch.tensor(0.3) for seed in range(50))
    whole = torch.full((1000, 2), 0.3)
    mover = Mover()
    mover.move(whole[:, 0])
    assert bool((whole[:, 0] != 0.3).any())
    assert bool((whole[:, 1] == whole[0, 1]).all())


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(F.dropout(F.gelu(self.norm(self.embed(ids))), 0.1))


def train(
    folder: Path | None, task: str = "noise_floor", steps: int = 1, **section: object
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Train a little; return the parameters, and a random number drawn afterwards."""
    reset_session()
    torch.manual_seed(0)
    model, ids = Net(), torch.arange(12).view(3, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    debugger = None
    if folder is not None:
        config = folder.with_suffix(".json")
        settings = {"task": task, "level": "mix", "dump_path": str(folder), task: section}
        config.write_text(json.dumps(settings))
        debugger = PrecisionDebugger(config)
    for _ in range(steps):
        if debugger is not None:
            debugger.start(model)
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
    reset_session()
    return [parameter.detach().clone() for parameter in model.parameters()], torch.rand(3)


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def norms(folder: Path, step: int = 0) -> dict[str, float]:
    data = json.loads((folder / f"step{step}/rank/dump.json").read_text())["data"]
    return {
        f"{name}.{part}.{place}": value["Norm"]
        for name, record in data.items()
        for part in ("input_args", "output", "input")
        for place, value in enumerate(record.get(part, ()))
        if isinstance(value, dict) and "Norm" in value
    }


def test_a_recording_moves_forward_backward_and_optimizer(tmp_path):
    plain, drawn = train(None)
    noisy, drawn_after = train(tmp_path / "n1")
    assert torch.equal(drawn, drawn_after), "the user's random state is touched"
    assert not equal(plain, noisy)
    assert all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(plain, noisy, strict=True)
    )
    train(tmp_path / "ordinary", task="statistics")
    before, after = norms(tmp_path / "ordinary"), norms(tmp_path / "n1")
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert "Functional.embedding.0.forward.output.0" not in changed  # it only hands on numbers
    assert "Functional.layer_norm.0.forward.output.0" in changed
    assert "Functional.linear.0.backward.output.0" in changed


def test_seeds_come_from_the_folder_and_name_the_noise(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    first, again, other = (
        train(tmp_path / "a" / name, steps=2, **section)[0]
        for name, section in (("n", {"seed": 7}), ("m", {"seed": 7}), ("o", {}))
        if not (tmp_path / "a").mkdir(exist_ok=True)
    )
    assert equal(first, again)
    assert not equal(first, other)
    head = json.loads((tmp_path / "a/n/step1/rank/dump.json").read_text())
    assert (head["task"], head["noise_seed"]) == ("noise_floor", 7)
    said = [
        record.getMessage() for record in caplog.records if "changes the training" in record.msg
    ]
    assert len(said) == 2  # once for each seed
    account = json.loads((tmp_path / "a/n/step1/rank/account.json").read_text())
    assert any("changes the training" in note for note in account["notes"])
    assert not account["errors"]


def test_nothing_is_moved_after_stop_and_data_never(tmp_path):
    reset_session()
    model, batch = nn.Linear(8, 8), torch.randn(4, 8)
    copy, expected = batch.clone(), F.linear(batch, model.weight, model.bias)
    debugger = PrecisionDebugger(task="noise_floor", dump_path=tmp_path / "n", level="L1")
    debugger.start(model)
    view = batch[1:].t()
    during = model(batch)
    debugger.stop()
    assert not torch.equal(during, expected)
    assert torch.equal(batch, copy)
    assert torch.equal(view, copy[1:].t())
    assert torch.equal(model(batch), expected)


def test_a_noise_recording_is_not_compared_as_an_ordinary_one(tmp_path):
    train(tmp_path / "n1")
    train(tmp_path / "plain", task="statistics")
    for pair in (("n1", "plain"), ("plain", "n1")):
        with pytest.raises(UnsupportedError, match="--noise"):
            msprobe.compare_dumps(*(tmp_path / name for name in pair))


@pytest.mark.parametrize("level", ["L0", "L1", "L2"])
def test_unusual_programs_are_moved_without_an_error(tmp_path, level):
    reset_session()
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.LayerNorm(8))
    batch = torch.randn(4, 8, requires_grad=True)
    debugger = PrecisionDebugger(task="noise_floor", dump_path=tmp_path / "n", level=level)
    debugger.start(model)
    result = checkpoint(model, batch, use_reentrant=False)
    with torch.autocast("cpu", torch.bfloat16):
        result = result.float() + model(batch)
    result = torch.fft.fft(result).abs().sum()
    sparse = F.embedding(torch.tensor([1, 2]), torch.randn(5, 8, requires_grad=True), sparse=True)
    (result + sparse.sum()).backward()
    _ = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(3)[None]], layout=torch.jagged)
    torch.func.vmap(torch.sin)(torch.randn(3))
    debugger.stop()
    debugger.step()
    reset_session()
    account = json.loads((tmp_path / "n/step0/rank/account.json").read_text())
    assert not account["errors"]
    assert batch.grad is not None
    assert bool(batch.grad.isfinite().all())
