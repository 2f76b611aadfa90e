# SPDX-License-Identifier: Apache-2.0
"""The step that made the flight recorder write is run again, with the tensors of the bad calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builders.recordings import recording
from builders.warm_python import run_warm
from msprobe import open_dump
from msprobe.errors import ConfigError, UsageError

pytestmark = pytest.mark.torch

SECTION = {"keep_last": 3, "replay_step": True}


class Net(nn.Module):
    """A model with random numbers, a buffer that changes, and a logarithm that may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.4)
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor, shift: float) -> Tensor:
        hidden = self.drop(torch.relu(self.norm(self.lin(x))))
        return torch.log(self.out(hidden).square() + shift)


class Training:
    """A training whose fifth step has a NaN."""

    def __init__(self, *, inside: bool = True) -> None:
        torch.manual_seed(3)
        self.model = Net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.scaler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.inside = inside
        self.losses: list[float] = []

    def step(self, x: Tensor, shift: float) -> None:
        self.optimizer.zero_grad()
        loss = self.model(x, shift).mean()
        loss.backward()
        self.losses.append(float(loss.detach()))
        if self.inside:
            self.update()

    def update(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.nan_to_num(parameter.grad)
        self.optimizer.step()
        self.scaler.step()

    def state(self) -> list[Any]:
        state = self.optimizer.state_dict()["state"]
        return [
            *self.model.state_dict().values(),
            *(value for one in state.values() for value in one.values()),
            *(each.grad for each in self.model.parameters()),
            torch.get_rng_state(),
            torch.tensor(self.scaler.get_last_lr()),
        ]


def run(training: Training, step: Callable[..., Any], around: Callable[[], Any]) -> None:
    for number in range(7):
        with around():
            step(torch.randn(4, 6), -50.0 if number == 4 else 1.0)
        if not training.inside:
            training.update()


@contextmanager
def nothing() -> Iterator[None]:
    yield


def replayed(folder: Path, step: int = 4) -> Any:
    return json.loads((folder / "replay" / f"step{step}" / "rank" / "replay.json").read_text())


@pytest.mark.parametrize("inside", [True, False])
def test_the_bad_step_is_repeated_to_the_bit_and_the_training_goes_on(
    tmp_path: Path, *, inside: bool
) -> None:
    plain, watched = Training(inside=inside), None
    run(plain, plain.step, nothing)
    with recording(tmp_path, "L1", section=SECTION) as rec:
        watched = Training(inside=inside)
        parts = [watched.optimizer, watched.scaler] if inside else []
        step = rec.debugger.replay_with(watched.step, *parts)
        run(watched, step, lambda: rec.step_of(watched.model))
    assert all(map(torch.equal, plain.state(), watched.state()))
    # The replay called the step function once more.
    assert len(watched.losses) == 8
    found = replayed(tmp_path)
    assert found["because"] == "NaN or Inf"
    assert found["differ"] == []
    assert found["records"] >= 2
    assert found["calls"][0] == "Torch.log.0."
    view = open_dump(tmp_path / "replay").step(4).rank()
    assert "Torch.log.0.backward" in view.records
    (given,) = [
        value for value in view.records.values_of("Torch.log.0.forward") if value.slot == "input.0"
    ]
    assert float(view.tensor(given).values().min()) == pytest.approx(given.min)
    assert rec.steps() == ["step2", "step3", "step4"]


def test_an_optimizer_that_was_not_given_does_not_step_again(tmp_path: Path) -> None:
    plain = Training()
    run(plain, plain.step, nothing)
    with recording(tmp_path, "L1", section=SECTION) as rec:
        watched = Training()
        step = rec.debugger.replay_with(watched.step)
        run(watched, step, lambda: rec.step_of(watched.model))
    assert all(map(torch.equal, plain.state(), watched.state()))
    assert replayed(tmp_path)["differ"] == []


def test_micro_batches_are_repeated_in_turn(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def micro(x: Tensor) -> None:
        model(x).square().sum().backward()

    with recording(tmp_path, section=SECTION) as rec:
        step = rec.debugger.replay_with(micro)
        for number in range(4):
            model.zero_grad()
            inputs = [torch.ones(2, 3) for _ in range(3)]
            if number == 3:
                inputs[1].fill_(torch.inf)
            with rec.step_of(model):
                for each in inputs:
                    step(each)
    found = replayed(tmp_path, 3)
    assert found["differ"] == []
    assert found["calls"][0] == "Functional.linear.1."
    view = open_dump(tmp_path / "replay").step(3).rank()
    assert "Functional.linear.1.backward" in view.records


def test_a_model_that_returns_a_loss_needs_no_step_function(tmp_path: Path) -> None:
    class Result:
        def __init__(self, loss: Tensor) -> None:
            self.loss = loss

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 2)

        def forward(self, *, x: Tensor) -> Result:
            return Result(torch.sqrt(self.lin(x)).sum() if x[0, 0] > 1 else self.lin(x).sum())

    model = Model()
    with recording(tmp_path, "L1", section=SECTION) as rec:
        assert rec.debugger.replay_with(model) is model
        for value in (1.0, 1.0, -5e3):
            model.zero_grad()
            x = torch.ones(3, 4)
            if value < 0:
                x[0], x[1:] = 5e3, -5e3
            with rec.step_of(model):
                model(x=x).loss.backward()
        assert not model._forward_pre_hooks or rec.steps()
    found = replayed(tmp_path, 2)
    assert found["differ"] == []
    assert found["calls"][0] == "Torch.sqrt.0."
    assert not model._forward_pre_hooks


def test_the_call_that_raised_is_repeated(tmp_path: Path) -> None:
    script = """
import json, sys, torch
from pathlib import Path
from msprobe.pytorch import PrecisionDebugger

folder = Path(sys.argv[1])
section = {"task": "statistics", "level": "L1", "statistics": {"keep_last": 2, "replay_step": True}}
(folder / "config.json").write_text(json.dumps(section | {"dump_path": str(folder / "dump")}))
debugger = PrecisionDebugger(folder / "config.json")
model = torch.nn.Linear(3, 3)

def step(x):
    torch.mm(model(x), torch.ones(len(x), 2)).sum().backward()

step = debugger.replay_with(step)
for size in (3, 3, 4):
    debugger.start(model)
    step(torch.ones(size, 3))
    debugger.stop()
    debugger.step()
"""
    done = run_warm("-c", script, tmp_path)
    assert "mat1 and mat2" in done.stderr
    found = replayed(tmp_path / "dump", 2)
    assert found["exception"].startswith("RuntimeError: mat1 and mat2")
    assert found["calls"] == ["Torch.mm.0."]
    view = open_dump(tmp_path / "dump" / "replay").step(2).rank()
    assert next(iter(view.records.values_of("Torch.mm.0.forward"))).shape == (4, 3)


def test_a_jump_names_the_calls_in_which_it_begins(tmp_path: Path) -> None:
    weight = torch.ones(4, 4, requires_grad=True)

    def step(factor: float) -> None:
        (torch.tanh(torch.ones(2, 4) @ weight) * factor).square().sum().backward()

    with recording(tmp_path, "L1", section=SECTION) as rec:
        again = rec.debugger.replay_with(step)
        for number in range(24):
            weight.grad = None
            with rec.step_of():
                again(30.0 if number == 23 else 1.0)
    found = replayed(tmp_path, 23)
    assert found["because"].startswith("loss ")
    assert found["calls"][0] == "Tensor.__mul__.0."
    assert found["differ"] == []


def test_replay_with_needs_its_settings_and_states(tmp_path: Path) -> None:
    with (
        recording(tmp_path / "a", "L1", section={"keep_last": 2}) as rec,
        pytest.raises(UsageError, match="replay_step"),
    ):
        rec.debugger.replay_with(len)
    with (
        recording(tmp_path / "b", "L1", section=SECTION) as rec,
        pytest.raises(ConfigError, match="state_dict"),
    ):
        rec.debugger.replay_with(len, 3)
